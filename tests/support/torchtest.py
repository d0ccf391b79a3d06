# SPDX-License-Identifier: Apache-2.0
"""For tests of gpuipc.torch: on host memory, or with $GPUIPC_TEST_BACKEND=cuda-fd on this machine's GPU; the same assertions."""

import faulthandler
import gc
import os
import sys
import unittest

import backend
from daemon import BUILD, ROOT, Daemon, open_fds, wait_for
from zygote import Zygote

os.environ.setdefault("GPUIPC_LIBRARY", f"{BUILD}/libgpuipc.so.0")
PACKAGE = f"{BUILD}/python" if os.path.isdir(f"{BUILD}/python/gpuipc") else f"{ROOT}/client/python"
sys.path.insert(0, PACKAGE)
os.environ["PYTHONPATH"] = ":".join([PACKAGE, os.environ.get("PYTHONPATH", "")])

CUDA = backend.REAL
if os.environ.get("GPUIPC_TEST_LIMIT_S"):
    faulthandler.dump_traceback_later(float(os.environ["GPUIPC_TEST_LIMIT_S"]), exit=True)
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64",
          "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")

cuda_only = unittest.skipUnless(CUDA, "of a GPU alone")


class _Scene:
    """One daemon, zygote and client for all tests of a suite."""

    def __init__(self):
        import gpuipc
        import gpuipc.torch  # noqa: F401

        self.daemon = Daemon(memory="auto" if CUDA else "host")
        unittest.addModuleCleanup(self.daemon.kill)
        os.environ["GPUIPC_SOCKET"] = self.daemon.socket
        self.zygote = Zygote(self.daemon.socket, DEVICE)
        unittest.addModuleCleanup(self.zygote.close)
        self.client = gpuipc.Client(self.daemon.socket)
        unittest.addModuleCleanup(self.client.close)


_scene = None


def _forget():
    global _scene
    _scene = None


def scene():
    global _scene
    if _scene is None:
        unittest.addModuleCleanup(_forget)
        _scene = _Scene()
    return _scene


class TorchTest(unittest.TestCase):
    """After each test nothing is left of it: no buffer, no memory that is kept."""

    @classmethod
    def setUpClass(cls):
        cls.daemon, cls.zygote, cls.client = scene().daemon, scene().zygote, scene().client

    def tearDown(self):
        for child in self.zygote.children:
            if child.pidfd >= 0:
                child.kill()
        self.zygote.children.clear()
        self.zygote.clear_partner()
        self.nothing_left()

    def partner(self):
        """Another process, that need not be killed."""
        return self.zygote.partner()

    def torch_client(self):
        from gpuipc.torch._clients import client_for

        return client_for()

    def buffers(self):
        return self.client.buffers()

    def nothing_left(self):
        from gpuipc.torch import _share

        while _share._named:
            next(iter(_share._named)).close()
        gc.collect()
        if CUDA:
            import torch

            from gpuipc.torch import _pool

            torch.cuda.synchronize()
            gc.collect()
            for pool in {pool for pool, _ in _pool._of_segment.values()}:  # without a hold on PyTorch's
                pool.empty_cache()
            torch.cuda.empty_cache()
        wait_for(lambda: not self.buffers(), f"no buffer: {self.buffers()}")
        wait_for(lambda: _share.pinned() == 0, "nothing pinned")

    def leases(self, id):
        return sum(lease.buffer == id for lease in self.client.leases())


def own_fds():
    return len(open_fds())


def settle():
    """What was given to the GPU is done."""
    if CUDA:
        import torch

        torch.cuda.synchronize()
