# SPDX-License-Identifier: Apache-2.0
"""The last view of memory on a GPU goes while the GPU has yet to come to it. Runs on memory that has descriptors."""

import ctypes
import gc
import unittest

import backend
from package import PackageTest

MIB = 1 << 20


@unittest.skipIf(backend.HOST, "of a GPU's memory alone")
class WorkTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.package = self.connect()
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self.driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        context = ctypes.c_void_p()
        self.assertEqual(self.driver.cuInit(0), 0)
        self.assertEqual(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), 0)
        self.assertEqual(self.driver.cuCtxSetCurrent(context), 0)

    def tearDown(self):
        self.assertEqual(self.driver.cuCtxSetCurrent(None), 0)
        self.assertEqual(self.driver.cuDevicePrimaryCtxRelease_v2(0), 0)
        super().tearDown()

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
