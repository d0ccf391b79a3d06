# SPDX-License-Identifier: Apache-2.0
"""What is built where there is no cuda.h: it builds, host memory works, and what is missing is told by name and code. deadline: 300 s"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from channel_member import AttachOptions, CreateOptions, Item  # noqa: E402
from daemon import BUILD, ROOT, Daemon, DaemonTest  # noqa: E402
from library import Library, LibraryError  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

PLAIN = f"{BUILD}/plain"
FAKE = f"{BUILD}/fake"
PAGE = 4096
ERROR_MAP = 36
A_STREAM = ctypes.c_void_p(1)


def setUpModule():
    if os.environ.get("GPUIPC_SANITIZER"):
        raise unittest.SkipTest("what is built here has no sanitizer")
    done = subprocess.run(["make", "-j2", f"B={PLAIN}", "CUDA_INCLUDE=/nowhere", "CFLAGS=-O0", "all"], cwd=ROOT, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout[-3000:])


class PlainTest(DaemonTest):
    """The library is the one without CUDA."""

    def setUp(self):
        super().setUp()
        self.library = Library(PLAIN)
        self.ours = self.library.connect(self.daemon.socket)
        self.things.callback(self.ours.free)

    def refused(self, act, *arguments):
        """It is said to be the build that lacks CUDA, and what was wanted of it."""
        with self.assertRaises(LibraryError) as caught:
            act(*arguments)
        self.assertEqual((caught.exception.status, caught.exception.code), (ERROR_MAP, "G016"), caught.exception)
        return str(caught.exception)


class HostTest(PlainTest):
    """So are the daemon and the command."""

    def make_daemon(self):
        return Daemon(program=f"{PLAIN}/gpuipcd", memory="auto")

    def run_plain(self, program, *words):
        return subprocess.run([f"{PLAIN}/{program}", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=WAIT_S * 3, check=False, text=True)

    def test_host_memory(self):
        self.assertEqual([device["uuid"] for device in self.daemon.status()["devices"]], ["host"])
        made = self.ours.allocate(PAGE, "a")
        made.bytes()[:5] = b"hello"
        opened = self.ours.open("a")
        self.assertEqual(bytes(opened.bytes()[:5]), b"hello")
        for buffer in (made, opened):
            buffer.release()

    def test_pools(self):
        pool, error = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        self.library.call("gpuipc_pool_new", self.ours.pointer, None, ctypes.byref(pool))
        for name in ("alloc", "free"):
            getattr(self.library.c, f"gpuipc_pool_{name}_function").restype = ctypes.c_void_p
        alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(
            self.library.c.gpuipc_pool_alloc_function(pool))
        free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(
            self.library.c.gpuipc_pool_free_function(pool))
        block = alloc(PAGE, -1, None)
        self.assertTrue(block)
        free(block, PAGE, -1, None)
        self.assertIsNone(alloc(PAGE, 0, None))
        self.assertEqual(self.library.c.gpuipc_pool_failures(pool, error), 1)
        self.assertIn(b"no memory on GPU 0. [G016]", error.raw)
        self.library.c.gpuipc_pool_free(pool)

    def test_fences_of_streams(self):
        buffer, fence = self.ours.allocate(PAGE), ctypes.c_void_p()
        self.library.call("gpuipc_fence_new", buffer.pointer, ctypes.c_int64(0), ctypes.byref(fence))
        signal = ("gpuipc_fence_signal_stream", fence)
        self.assertIn("signalled by a stream", self.refused(self.library.call, *signal, A_STREAM, ctypes.c_uint64(1)))
        self.library.call(*signal, None, ctypes.c_uint64(1))
        self.library.call("gpuipc_fence_wait", fence, ctypes.c_uint64(1), 0)
        self.library.c.gpuipc_fence_free(fence)
        buffer.release()

    def test_channels_of_streams(self):
        options = CreateOptions(ctypes.sizeof(CreateOptions), b"c", 0, 0, 4, PAGE, 16, None, b"0600", 0, 0, None, 0)
        channel, item = ctypes.c_void_p(), Item()
        self.library.call("gpuipc_channel_create", self.ours.pointer, ctypes.byref(options), ctypes.byref(channel))
        self.library.call("gpuipc_channel_begin", channel, None, 0, ctypes.byref(item))
        publish = ("gpuipc_channel_publish", channel, ctypes.byref(item), ctypes.c_int64(8), None, ctypes.c_size_t(0))
        self.assertIn("stream", self.refused(self.library.call, *publish, A_STREAM))
        self.library.call(*publish, None)  # it stayed in hand
        options, consumer = AttachOptions(ctypes.sizeof(AttachOptions), 1, -2, 0, None), ctypes.c_void_p()
        self.library.call("gpuipc_channel_attach", self.ours.pointer, b"c", ctypes.byref(options), ctypes.byref(consumer))
        self.library.call("gpuipc_channel_take", consumer, None, 0, ctypes.byref(item))
        release = ("gpuipc_channel_release", consumer, ctypes.byref(item))
        self.assertIn("stream", self.refused(self.library.call, *release, A_STREAM))
        self.library.call(*release, None)
        for each in (channel, consumer):
            self.library.call("gpuipc_channel_free", each)

    def test_daemon_for_gpus(self):
        done = self.run_plain("gpuipcd", "--backend", "cuda", "--socket", f"{self.daemon.directory}/other", "--admin-socket", "",
                              "--log-target", "stderr")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("built without CUDA; use Backend=auto or Backend=host", done.stderr)

    def test_doctor(self):
        """It loads the driver by itself, whatever it was built with."""
        done = self.run_plain("gpuipcctl", "doctor", "--socket", self.daemon.socket)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("G600", done.stdout)


@unittest.skipUnless(os.path.exists(f"{FAKE}/libcuda.so.1"), "built without CUDA: there are no fakes")
class MemoryOfAGpuTest(PlainTest):
    """The daemon is one with CUDA; who opens its memory has a library without."""

    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="gpu.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(shutil.rmtree, self.scratch)
        super().setUp()

    def make_daemon(self):
        with open(f"{self.scratch}/params", "w", encoding="ascii") as file:
            file.write('RegistryDwords: ""\n')
        environment = {"LD_LIBRARY_PATH": FAKE, "GPUIPC_FAKE_CUDA": f"state {file.name}.state; devices 1", "GPUIPC_NVIDIA_PARAMS": file.name}
        return Daemon("--backend", "auto", environment=environment)

    def test_memory_of_a_gpu(self):
        for kind in ("cuda-fd", "cuda-ipc"):
            buffer = self.ours.allocate(2 << 20, handle=kind)
            self.assertEqual(buffer.handle, kind)
            self.assertIn(f"of the kind '{kind}'", self.refused(buffer.bytes))
            buffer.release()


if __name__ == "__main__":
    unittest.main()
