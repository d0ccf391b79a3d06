# SPDX-License-Identifier: Apache-2.0
"""The Python package gpuipc against a real daemon: what its tests share.

    class Something(PackageTest):
        def test_one(self):
            client = self.connect()
"""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest

import backend
from books import BooksTest
from daemon import BUILD, ROOT, Daemon

KIND = "host" if backend.HOST else "cuda"
PACKAGE = f"{ROOT}/client/python"
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)
os.environ.setdefault("GPUIPC_LIBRARY", f"{BUILD}/libgpuipc.so.0")

import gpuipc  # noqa: E402
from rawclient import WAIT_S  # noqa: E402


try:
    import torch
except ImportError:
    torch = None
with_torch = unittest.skipUnless(torch, "there is no PyTorch here")


def begin_cuda():
    """The driver keeps what it opens for a process's first context until its end: so it opens that before descriptors are counted."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    results = driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if any(results):
        raise AssertionError(f"cuInit and cuDevicePrimaryCtxRetain gave {results}")


class PackageTest(BooksTest):
    """Afterwards nothing may be held any more, once what the case referred to was collected."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if backend.REAL:
            begin_cuda()

    def make_daemon(self):
        """With host memory beside a GPU's, since channels need some."""
        return Daemon(*self.daemon_args, memory="host" if backend.HOST else "auto")

    @staticmethod
    def device_of(client):
        """The UUID of the device under test."""
        return next(device.uuid for device in client.status().devices if device.kind == KIND)

    def closed_later(self, thing):
        """Closed with the test: a channel's end() is another thing."""
        self.things.callback(thing.close)
        return thing

    def connect(self, **options):
        return self.closed_later(gpuipc.Client(self.daemon.socket, **options))

    @staticmethod
    def in_a_thread(call):
        """(a thread that runs, a list of what its call returned or of what its ValueError said, when it has ended)."""
        ended = []

        def run():
            try:
                ended.append(call())
            except ValueError as error:
                ended.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread, ended

    def tearDown(self):
        gc.collect()
        super().tearDown()

    def environment_of_programs(self):
        # Python 3.12 and later warn of each fork() beside threads, of which the library has one.
        return {**os.environ, "GPUIPC_SOCKET": self.daemon.socket, "PYTHONPATH": PACKAGE,
                "PYTHONWARNINGS": "ignore:This process:DeprecationWarning"}

    def start(self, code, *arguments, python=sys.executable):
        """A program of Python's own process: its text."""
        return subprocess.Popen([python, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment_of_programs())

    def run_program(self, code, *arguments, status=0):
        """What it printed; it must end so, and have nothing to say against it."""
        with self.start(code, *arguments) as process:
            try:
                told, complained = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        self.assertEqual((process.returncode, complained if status == 0 else ""), (status, ""), complained)
        return told
