# SPDX-License-Identifier: Apache-2.0
"""Capsules of DLPack field by field: what is in them, who may have them, and that each is ended once, wherever that happens. Runs on
memory that has descriptors."""

import ctypes
import gc
import os
import sys
import threading
import unittest
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from package import PackageTest, gpuipc, torch, with_torch  # noqa: E402

from gpuipc.layout import DTYPES  # noqa: E402


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8),
                ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p)),
                ("flags", c_uint64), ("tensor", Tensor)]


api = ctypes.pythonapi
get_name = ctypes.PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", api))
get_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", api))
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_char_p)(("PyCapsule_SetName", api))
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def look(capsule):
    name = get_name(capsule)
    managed = (Managed if name == b"dltensor" else ManagedVersioned).from_address(get_pointer(capsule, name))
    managed.capsule = capsule  # or what is looked at is gone
    return managed


def consume(capsule):
    """As a consumer does: the tensor is the caller's now, to be ended by end()."""
    name = get_name(capsule)
    managed = (Managed if name == b"dltensor" else ManagedVersioned).from_address(get_pointer(capsule, name))
    set_name(capsule, USED[name])
    return managed


def end(managed):
    managed.deleter(ctypes.addressof(managed))


class DlpackTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect()
        self.buffer = self.closed_later(self.ours.allocate(4096, device=self.device_of(self.ours)))
        self.device = (1, 0) if backend.HOST else (2, 0)

    def array(self, *what):
        return self.buffer.array(*what)

    def reader(self, *what):
        with self.ours.open(id=self.buffer.id, access="ro") as reader:
            return reader.array(*what)

    def test_fields(self):
        for name, (code, bits, _) in DTYPES.items():
            for versioned in (False, True):
                with self.subTest(name, versioned=versioned):
                    array = self.array((3, 5), name, (1, 4), 64)
                    self.assertEqual(array.__dlpack_device__(), self.device)
                    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
                    managed = look(capsule)
                    self.assertEqual(get_name(capsule), b"dltensor_versioned" if versioned else b"dltensor")
                    if versioned:
                        self.assertEqual((managed.major, managed.minor, managed.flags), (1, 0, 0))
                    tensor = managed.tensor
                    self.assertEqual((tensor.data, tensor.byte_offset), (self.buffer.pointer + 64, 0))
                    self.assertEqual((tensor.device_type, tensor.device_id), self.device)
                    self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (code, bits, 1))
                    self.assertEqual((tensor.ndim, tensor.shape[:2], tensor.strides[:2]), (2, [3, 5], [1, 4]))

    def test_without_dimensions_and_empty(self):
        for shape in ((), (0,), (2, 0, 3)):
            tensor = look(self.array(shape, "float64").__dlpack__()).tensor
            self.assertEqual((tensor.ndim, tuple(tensor.shape[:len(shape)])), (len(shape), shape))

    def test_versions(self):
        array = self.array()
        for asked, name in ((None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"), ((1, 3), b"dltensor_versioned"),
                            ((2, 0), b"dltensor_versioned")):
            self.assertEqual(get_name(array.__dlpack__(max_version=asked)), name)

    def test_read_only(self):
        array = self.reader()
        with self.assertRaisesRegex(BufferError, "read-only"):
            array.__dlpack__()
        managed = look(array.__dlpack__(max_version=(1, 0)))
        self.assertEqual(managed.flags, 1)
        with self.assertRaisesRegex(BufferError, "read-only"):
            numpy.from_dlpack(array) if numpy.__version__ < "2" else array.__dlpack__()
        if backend.HOST:
            self.assertFalse(numpy.asarray(array).flags.writeable)

    def test_consumed_once(self):
        capsule = self.array((4,), "int32").__dlpack__()
        self.assertEqual(self.buffer.views, 1)
        managed = consume(capsule)
        self.assertNotEqual(get_name(capsule), b"dltensor")
        if backend.HOST and torch:
            with self.assertRaises((ValueError, RuntimeError)):
                torch.utils.dlpack.from_dlpack(capsule)
        with self.assertRaises(BufferError):
            gpuipc._dlpack.look(capsule)
        del capsule
        gc.collect()
        self.assertEqual(self.buffer.views, 1)
        end(managed)
        self.assertEqual(self.buffer.views, 0)

    def test_not_consumed(self):
        for version in (None, (1, 0)):
            capsule = self.array().__dlpack__(max_version=version)
            self.assertEqual(self.buffer.views, 1)
            del capsule
            self.assertEqual(self.buffer.views, 0)

    def test_thousands(self):
        """No reference is lost or left over: neither memory nor counts grow."""
        array = self.array((2,), "int8")
        before = sys.getrefcount(array)
        capsules = [array.__dlpack__(max_version=(1, 0) if i % 2 else None) for i in range(2000)]
        self.assertEqual(sys.getrefcount(array), before + 2000)
        self.assertTrue(all(sys.getrefcount(capsule) == 3 for capsule in capsules))
        taken = [consume(capsule) for capsule in capsules[:1000]]
        del capsules
        gc.collect()
        self.assertEqual(sys.getrefcount(array), before + 1000)
        for each in taken:
            end(each)
        self.assertEqual(sys.getrefcount(array), before)
        self.assertEqual(self.buffer.views, 1)

    def test_ended_by_another_thread(self):
        """By one of C's own, without the interpreter's lock, as a framework's threads do."""
        managed = [consume(self.array().__dlpack__()) for _ in range(20)]
        self.buffer.close()
        threads = [threading.Thread(target=end, args=(each,)) for each in managed[:10]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        libc = ctypes.CDLL(None)
        start = ctypes.CFUNCTYPE(c_void_p, c_void_p)
        ids = []
        for each in managed[10:]:
            number = ctypes.c_ulong()
            deleter = ctypes.cast(each.deleter, c_void_p).value
            self.assertEqual(libc.pthread_create(ctypes.byref(number), None, start(deleter), c_void_p(ctypes.addressof(each))), 0)
            ids.append(number)
        for number in ids:
            libc.pthread_join(number, None)
        self.wait_books(sessions=1)

    def test_ended_amid_an_exception(self):
        """The exception that is under way when a consumer's tensor goes is neither lost nor changed: a capsule of no Python code."""

        def consumer():
            capsule = self.array().__dlpack__()  # noqa: F841
            raise KeyError("mine")

        for _ in range(200):
            with self.assertRaises(KeyError) as caught:
                consumer()
            self.assertEqual((caught.exception.args, caught.exception.__context__), (("mine",), None))
        gc.collect()
        self.assertEqual(self.buffer.views, 0)

    @with_torch
    @backend.host_only
    def test_torch_tensors_amid_an_exception(self):
        def consumer():
            tensor = torch.from_dlpack(self.array((4,), "float32"))
            tensor[9]

        for _ in range(100):
            with self.assertRaisesRegex(IndexError, "index 9 is out of bounds"):
                consumer()
        gc.collect()
        self.assertEqual(self.buffer.views, 0)

    def test_copies(self):
        self.buffer.write(bytes(range(64)))
        array = self.array((2, 4), "int32", (8, 2))
        rows = [[int.from_bytes(bytes(range(64))[4 * (8 * i + 2 * j):][:4], "little") for j in range(4)] for i in range(2)]
        before = self.buffer.views
        capsule = array.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=True)
        managed = look(capsule)
        self.assertEqual((managed.flags, managed.tensor.device_type, managed.tensor.strides[:2]), (2, 1, [4, 1]))
        self.assertNotEqual(managed.tensor.data, array.pointer)
        self.assertEqual(list((c_int32 * 8).from_address(managed.tensor.data)), rows[0] + rows[1])
        self.assertEqual(self.buffer.views, before)
        self.assertEqual(look(self.reader((2,), "int8").__dlpack__(dl_device=(1, 0), copy=True)).tensor.ndim, 1)
        self.assertEqual(look(array.__dlpack__(dl_device=self.device, copy=False)).tensor.data, array.pointer)
        with self.assertRaisesRegex(BufferError, "cannot be given on"):
            array.__dlpack__(dl_device=(2, 5))
        if not backend.HOST:
            self.assertEqual(look(array.__dlpack__(dl_device=(1, 0))).tensor.device_type, 1)
            with self.assertRaisesRegex(BufferError, "copy within a GPU"):
                array.__dlpack__(copy=True)
            with self.assertRaisesRegex(BufferError, "without a copy"):
                array.__dlpack__(dl_device=(1, 0), copy=False)

    def test_streams(self):
        array = self.array()
        if backend.HOST:
            with self.assertRaisesRegex(ValueError, "stream"):
                array.__dlpack__(stream=1)
            return
        for stream in (None, -1, 1, 2, 4711):
            look(array.__dlpack__(stream=stream))
        for stream in (0, -2, True, "1"):
            with self.assertRaisesRegex(ValueError, "stream"):
                array.__dlpack__(stream=stream)

    def test_interfaces(self):
        array = self.array((3, 5), "int32", (1, 4), 64)
        name, other = ("__array_interface__", "__cuda_array_interface__")[::1 if backend.HOST else -1]
        wanted = {"shape": (3, 5), "typestr": "<i4", "data": (self.buffer.pointer + 64, False), "strides": (4, 16), "version": 3}
        if not backend.HOST:
            wanted["stream"] = None
        self.assertEqual(getattr(array, name), wanted)
        self.assertFalse(hasattr(array, other))
        self.assertEqual(getattr(self.reader((2, 2), "bool"), name)["data"][1], True)
        self.assertEqual(getattr(self.array((2, 2), "bool"), name)["typestr"], "|b1")
        self.assertIsNone(getattr(self.array((2, 2)), name)["strides"])
        self.assertFalse(hasattr(self.array((2,), "bfloat16"), name))
        if not backend.HOST:
            self.assertEqual(getattr(self.array((0,)), name)["data"][0], 0)
            for attempt in (array.numpy, array.memoryview, self.buffer.memoryview):
                with self.assertRaisesRegex(BufferError, "GPU"):
                    attempt()
        else:
            with self.assertRaisesRegex(BufferError, "host"):
                array.cupy()

    def test_somebody_elses(self):
        """A producer of DLPack that is none of those known: its capsule is looked into and ended."""

        class Producer:
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __dlpack__(self, stream=None):
                return self.array.__dlpack__(stream=stream, max_version=(1, 0))

        self.buffer.write(bytes(range(24)))
        for device in {"host", self.buffer.device}:
            with self.ours.put(None, Producer(self.array((2, 3), "int32", (1, 2))), device=device) as copy:
                self.assertEqual(copy.array().shape, (2, 3))
                self.assertEqual(copy.array().tobytes(), self.array((2, 3), "int32", (1, 2)).tobytes())
        with self.ours.put(None, Producer(self.array((2, 2), "int16", (4, 2)))) as copy:
            self.assertEqual(copy.device, self.buffer.device)
            self.assertEqual(copy.read(), bytes([0, 1, 4, 5, 8, 9, 12, 13]))
        self.assertEqual(self.buffer.views, 0)


if __name__ == "__main__":
    unittest.main()
