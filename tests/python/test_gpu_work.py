# SPDX-License-Identifier: Apache-2.0
"""What streams are given, and what they have yet to come to when the last view of a GPU's memory goes. Runs on memory that has
descriptors."""

import ctypes
import gc
import os
import unittest

import backend
from package import PackageTest, gpuipc

MIB = 1 << 20
if not backend.HOST and not backend.REAL:
    os.environ["GPUIPC_FAKE_CUDA"] = os.environ["GPUIPC_FAKE_CUDA"].replace("devices 1", "devices 2")


class DriverTest(PackageTest):
    """The driver beside the package, with GPU 0 current."""

    def setUp(self):
        super().setUp()
        self.package = self.connect()
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self.driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.assertEqual(self.driver.cuInit(0), 0)
        self.retained = []
        self.addCleanup(self.leave_contexts)
        self.make_current(0)

    def leave_contexts(self):
        self.assertEqual(self.driver.cuCtxSetCurrent(None), 0)
        while self.retained:
            self.assertEqual(self.driver.cuDevicePrimaryCtxRelease_v2(self.retained.pop()), 0)

    def tearDown(self):
        self.leave_contexts()
        super().tearDown()

    def make_current(self, ordinal):
        context = ctypes.c_void_p()
        self.assertEqual(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal), 0)
        self.retained.append(ordinal)
        self.assertEqual(self.driver.cuCtxSetCurrent(context), 0)

    def current(self):
        ordinal = ctypes.c_int(-1)
        self.assertEqual(self.driver.cuCtxGetDevice(ctypes.byref(ordinal)), 0)
        return ordinal.value


@unittest.skipIf(backend.HOST, "of a GPU's memory alone")
class OtherGpuTest(DriverTest):
    """Memory on, and mapped for, a GPU that is not the current one. Each GPU's default stream has the handle 0."""

    def setUp(self):
        super().setUp()
        devices = [device.uuid for device in self.package.status().devices if device.kind == "cuda"]
        if len(devices) < 2:
            self.skipTest("of two GPUs")
        self.other = devices[1]
        self.make_current(1)

    def test_items(self):
        producer = self.closed_later(self.package.channel_create("other", slots=2, slot_bytes=MIB, device=self.other))
        consumer = self.closed_later(self.package.channel_attach("other"))
        self.assertEqual((producer.cuda_device, consumer.cuda_device), (1, 1))
        self.make_current(0)
        for _ in range(3):
            with producer.item() as item:
                item.write(b"abc")
            with consumer.take() as item:
                self.assertEqual(item.read(), b"abc")
        producer.put(b"def")
        producer.end()
        self.assertEqual([item.read() for item in consumer], [b"def"])
        self.assertEqual(self.current(), 0)

    def test_fences(self):
        buffer = self.closed_later(self.package.allocate(MIB, device=self.other))
        fence = self.closed_later(buffer.fence(0))
        self.make_current(0)
        fence.signal(1, stream=0)
        fence.wait(1, stream=0)
        fence.wait(1, 10)
        self.assertEqual(self.current(), 0)

    def test_copies(self):
        """Each by the GPU that has it mapped; what another would have to copy is refused before it is tried."""
        first = self.closed_later(self.package.allocate(MIB, device=self.other))
        first.write(b"a" * MIB)
        array = first.array()
        producer = self.closed_later(self.package.channel_create(slots=1, slot_bytes=MIB, device=self.other))
        self.make_current(0)
        with self.package.put("copy", array) as copy:
            self.assertEqual((copy.device, copy.cuda_device, copy.read(3)), (self.other, 1, b"aaa"))
        home = next(device.uuid for device in self.package.status().devices if device.kind == "cuda")
        with self.package.put("copy", array, device=home) as copy:
            self.assertEqual((copy.device, copy.is_peer, copy.read(3)), (home, True, b"aaa"))
        elsewhere = self.closed_later(self.package.channel_create(slots=1, slot_bytes=MIB, device=home))
        with producer.item() as item:
            item.put(array)
        item = elsewhere.item()
        with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "^array: it is on GPU 1 .* GPU 0"):
            item.put(array)
        item.cancel()
        del array


@unittest.skipIf(backend.HOST, "of a GPU's memory alone")
class WorkTest(DriverTest):
    def give_work(self, pointer):
        """The stream sleeps, then writes there."""
        usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        self.assertEqual(self.driver.cuLaunchHostFunc(None, usleep, 200_000), 0)
        self.assertEqual(self.driver.cuMemsetD8Async(pointer, 7, MIB, None), 0)

    def test_a_view_that_goes(self):
        buffer = self.package.allocate(MIB, device=self.device_of(self.package))
        array = buffer.array()
        buffer.close()
        self.give_work(array.pointer)
        del array
        gc.collect()
        self.assertEqual(self.driver.cuCtxSynchronize(), 0)

    def test_released_and_closed(self):
        for how in ("release", "close"):
            buffer = self.package.allocate(MIB, device=self.device_of(self.package))
            self.give_work(buffer.pointer)
            getattr(buffer, how)()
            self.assertEqual(self.driver.cuCtxSynchronize(), 0)


if __name__ == "__main__":
    unittest.main()
