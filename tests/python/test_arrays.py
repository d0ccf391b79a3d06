# SPDX-License-Identifier: Apache-2.0
"""Arrays of every kind put into shared memory and got out of it in Python: each dtype, strides, none at all. Runs on memory that has
descriptors."""

import array as plain_array
import ctypes
import io
import os
import sys
import unittest

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from package import PackageTest, gpuipc, torch, with_torch  # noqa: E402

from gpuipc.layout import DTYPES  # noqa: E402

settings.register_profile("here", deadline=None, database=None, derandomize=True, max_examples=60)
settings.load_profile("here")
NUMPY = [name for name in DTYPES if DTYPES[name][2]]
TORCH = [name for name in DTYPES if hasattr(torch, name)] if torch else []


def sample(dtype, shape):
    """Elements no two of which are alike, as far as that goes."""
    n = int(numpy.prod(shape, dtype="i8"))
    raw = numpy.arange(1, n * numpy.dtype(dtype).itemsize + 1, dtype="u1") if dtype != "bool" else numpy.arange(n, dtype="u1") % 2
    return raw.view(dtype).reshape(shape)


def where():
    """Options of put() for the memory under test."""
    return {} if backend.HOST else {"device": None}


class ArraysTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect()
        self.device = self.device_of(self.ours)

    def put(self, name, array, **options):
        return self.ours.put(name, array, device=self.device, **options)

    def bytes_of(self, array):
        """The elements of a gpuipc.Array, row-major, by the way that every kind of memory has."""
        return array.tobytes()

    def as_numpy(self, array):
        """What numpy makes of it: the memory itself on the host, else a copy."""
        if backend.HOST:
            return numpy.asarray(array)
        return numpy.frombuffer(array.tobytes(), DTYPES[array.dtype][2]).reshape(array.shape)

    def assert_same(self, array, wanted):
        found = self.as_numpy(array)
        self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
        self.assertEqual(found.tobytes(), wanted.tobytes())

    def test_every_dtype_of_numpy(self):
        for name in NUMPY:
            with self.subTest(name):
                wanted = sample(name, (3, 4))
                self.put(f"d/{name}", wanted, keep=60)
                found = self.ours.get(f"d/{name}")
                self.assertEqual((found.dtype, found.shape, found.readonly), (name, (3, 4), True))
                self.assert_same(found, wanted)
                self.ours.free(f"d/{name}")
        self.assertEqual(self.ours.buffers("d/int8"), [])

    @with_torch
    def test_every_dtype_of_torch(self):
        for name in TORCH:
            with self.subTest(name):
                wanted = torch.arange(1, 13).reshape(3, 4).to(getattr(torch, name))
                with self.put(None, wanted) as buffer:
                    found = self.ours.get(id=buffer.id)
                    self.assertEqual((found.dtype, found.shape), (name, (3, 4)))
                    raw = ctypes.string_at(wanted.data_ptr(), wanted.numel() * wanted.element_size())
                    self.assertEqual(found.tobytes(), raw)
                    if backend.HOST:
                        self.assertTrue(torch.equal(found.torch(), wanted))
                        self.assertEqual(found.torch().dtype, wanted.dtype)

    def test_dtypes_that_neither_has(self):
        """Of which there are bytes and metadata; whoever knows them reads both."""
        for name in set(DTYPES) - set(NUMPY) - set(TORCH):
            n = 8 * gpuipc.Layout.of(name, ()).itemsize
            meta = gpuipc.Layout.of(name, (2, 4)).to_meta()
            with self.subTest(name), self.ours.allocate(n, device=self.device, meta=meta) as buffer:
                buffer.write(bytes(range(n)))
                found = buffer.array()
                self.assertEqual((found.dtype, found.nbytes, found.tobytes()), (name, n, bytes(range(n))))
                if backend.HOST:
                    with self.assertRaisesRegex(TypeError, "ml_dtypes"):
                        found.numpy()
                    with self.assertRaisesRegex(AttributeError, "DLPack"):
                        found.__array_interface__  # noqa: B018
                    with self.assertRaises(BufferError):
                        found.memoryview()

    def test_strided(self):
        base = sample("int32", (4, 6, 5))
        for name, wanted, dense in (
                ("transposed", base.T, True), ("permuted", base.transpose(1, 0, 2), True), ("sliced", base[1:3, ::2], False),
                ("stepped", base[:, :, ::-1], False), ("broadcast", numpy.broadcast_to(base[0, 0], (3, 5)), False),
                ("one", base[2:3, :, 1:2], False), ("plain", base[2], True)):
            with self.subTest(name), self.put(None, wanted) as buffer:
                found = self.ours.get(id=buffer.id)
                self.assertEqual(found.tobytes(), wanted.tobytes())
                self.assert_same(found, wanted) if backend.HOST else None
                self.assertEqual(buffer.size, wanted.nbytes)
                if dense:
                    self.assertEqual([4 * step for step in found.strides], list(wanted.strides))
                else:
                    self.assertTrue(found.layout.is_row_major)
                if not torch:
                    continue
                with self.put(None, torch.from_numpy(wanted.copy()).permute(*reversed(range(wanted.ndim)))) as other:
                    self.assertEqual(self.ours.get(id=other.id).tobytes(), wanted.T.tobytes())

    def test_empty_and_without_dimensions(self):
        for wanted in (numpy.zeros((0,), "f4"), numpy.zeros((3, 0, 2), "i8"), numpy.zeros((0, 0), "u1"), numpy.float64(2.5).reshape(())):
            with self.subTest(wanted.shape), self.put(None, wanted) as buffer:
                found = self.ours.get(id=buffer.id)
                self.assertEqual((found.shape, found.size), (wanted.shape, wanted.size))
                self.assert_same(found, wanted)
                if backend.HOST:
                    self.assertEqual(tuple(found.torch().shape) if torch else wanted.shape, wanted.shape)
                    self.assertEqual(numpy.from_dlpack(buffer.array()).shape, wanted.shape)

    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.booleans()), max_size=4), st.sampled_from(NUMPY), st.randoms())
    def test_any_shape(self, axes, dtype, random):
        """A slice of a larger array, its axes in any order."""
        base = sample(dtype, [max(1, extent * step) for extent, step, _ in axes])
        wanted = base[tuple(slice(None, None, -step if back else step) for _, step, back in axes)]
        wanted = wanted[tuple(slice(0, extent) for extent, _, _ in axes)]
        order = list(range(wanted.ndim))
        random.shuffle(order)
        wanted = wanted.transpose(order)
        with self.put(None, wanted) as buffer:
            found = self.ours.get(id=buffer.id)
            self.assertEqual((found.dtype, found.shape), (dtype, wanted.shape))
            self.assertEqual(found.tobytes(), wanted.tobytes())
            if backend.HOST:
                self.assert_same(found, wanted)
                self.assertEqual(self.torch_bytes(found, dtype), wanted.tobytes())

    def torch_bytes(self, array, dtype):
        if dtype not in TORCH:
            return array.tobytes()
        return array.torch().contiguous().numpy().tobytes()

    def test_what_python_itself_has(self):
        for thing, dtype, shape in ((b"hello", "uint8", (5,)), (bytearray(b""), "uint8", (0,)),
                                    (plain_array.array("d", [1, 2]), "float64", (2,)),
                                    (plain_array.array("l", [1]), "int64", (1,)), (memoryview(b"abcdef")[::2], "uint8", (3,)),
                                    (memoryview(bytes(24)).cast("I", (2, 3)), "uint32", (2, 3)),
                                    (memoryview(b"\1\0").cast("?"), "bool", (2,)),
                                    ((ctypes.c_int16 * 3)(1, 2, 3), "int16", (3,))):
            with self.subTest(repr(thing)), self.put(None, thing) as buffer:
                found = self.ours.get(id=buffer.id)
                self.assertEqual((found.dtype, found.shape, found.tobytes()), (dtype, shape, memoryview(thing).tobytes()))

    def test_what_cannot_be_put(self):
        for thing, kind, word in ((3, TypeError, "not int"), ([1, 2], TypeError, "not list"), ("text", TypeError, "not str"),
                                  (numpy.zeros(3, ">f4"), gpuipc.LayoutError, "byte order"),
                                  (numpy.array(["a"]), gpuipc.LayoutError, "dtype"),
                                  (numpy.array([None]), gpuipc.LayoutError, "dtype"),
                                  (numpy.zeros(2, "i4,f4"), gpuipc.LayoutError, "dtype"),
                                  (numpy.zeros(2, numpy.longdouble), gpuipc.LayoutError, "dtype")):
            with self.subTest(repr(thing)), self.assertRaisesRegex(kind, word):
                self.put("never", thing)
        self.assertEqual(self.ours.buffers("never"), [])

    @with_torch
    def test_a_tensor_that_needs_its_gradient(self):
        with self.assertRaisesRegex((RuntimeError, BufferError), "grad"):
            self.put("never", torch.zeros(2, requires_grad=True))

    def test_a_field_of_a_structured_array(self):
        """Its strides are no whole elements."""
        with self.assertRaisesRegex(gpuipc.LayoutError, "strides"):
            self.put(None, numpy.zeros(3, [("a", "u1"), ("b", "f8")])["b"])

    def test_several_in_one_buffer(self):
        with self.ours.allocate(4096, device=self.device) as buffer:
            buffer.write(sample("float32", (8, 8)).tobytes(), 256)
            whole = buffer.array((8, 8), "float32", offset=256)
            column = buffer.array((8,), "float32", (8,), offset=256 + 4 * 3)
            self.assertEqual(column.tobytes(), sample("float32", (8, 8))[:, 3].tobytes())
            self.assertEqual(column.pointer, whole.pointer + 12)
            self.assertEqual(buffer.array(dtype="int64", offset=4000).shape, (12,))
            self.assertEqual(buffer.array().shape, (4096,))
            for arguments, word in ((((1025,), "float32"), "there are 4096"), (((2,), "float32", (1024,)), "there are 4096"),
                                    (((8,), "float32", None, 4092), "there are 4096"), (((2,), "float3"), "dtype"),
                                    ((None, "int8", (1,)), "strides")):
                with self.subTest(arguments), self.assertRaisesRegex(gpuipc.LayoutError, word):
                    buffer.array(*arguments)
            self.assertEqual(buffer.views, 2)

    def test_reading_and_writing(self):
        with self.ours.allocate(10, device=self.device) as buffer:
            self.assertEqual(buffer.read(), bytes(10))
            self.assertEqual(buffer.write(b"abc", 2), 3)
            self.assertEqual(buffer.write(numpy.arange(8, dtype="u1")[::4], 8), 2)
            self.assertEqual(buffer.write(b""), 0)
            self.assertEqual(buffer.read(), b"\0\0abc\0\0\0\0\4")
            self.assertEqual(buffer.read(2, 3), b"bc")
            self.assertEqual(buffer.read(0), b"")
            into = bytearray(4)
            self.assertEqual((buffer.readinto(into, 2), into), (4, bytearray(b"abc\0")))
            for attempt in (lambda: buffer.read(11), lambda: buffer.read(1, 10), lambda: buffer.write(b"ab", 9),
                            lambda: buffer.read(1, -1), lambda: buffer.write(b"a", 1 << 62)):
                with self.assertRaises(gpuipc.InvalidParameterError) as caught:
                    attempt()
                self.assertIsInstance(caught.exception, ValueError)
            with self.assertRaises(TypeError):
                buffer.readinto(b"xx")
            with self.ours.open(id=buffer.id, access="ro") as reader, self.assertRaises(gpuipc.InvalidParameterError):
                reader.write(b"x")
            with self.assertRaises(TypeError):
                buffer.write("text")

    def test_written_here_is_seen_there(self):
        with self.ours.allocate(64, device=self.device, meta={"tensor": {"dtype": "int32", "shape": [4, 4]}}) as buffer:
            other = self.connect().open(id=buffer.id, access="ro")
            buffer.write(bytes(range(64)))
            self.assertEqual(other.array().tobytes(), bytes(range(64)))
            self.assertEqual(other.array().shape, (4, 4))
            if backend.HOST:
                numpy.asarray(buffer)[:] = 7
                self.assertEqual(other.tensor().tolist() if torch else [[7] * 4] * 4, [[7] * 4] * 4)
                buffer.numpy().fill(9)
                self.assertEqual(numpy.asarray(other).tolist(), [[9] * 4] * 4)
            other.close()

    def test_metadata_is_the_programs_too(self):
        with self.put("m", b"xyz", meta={"epoch": 3, "who": "größe"}) as buffer:
            self.assertEqual((buffer.meta["epoch"], buffer.meta["who"]), (3, "größe"))
            self.assertIn("epoch", self.ours.get("m").meta)
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "meta"):
            self.put(None, b"xyz", meta={"much": "x" * 4096})
        with self.ours.allocate(8, device=self.device) as buffer, self.assertRaisesRegex(gpuipc.LayoutError, "describes no tensor"):
            self.ours.get(id=buffer.id)

    def test_metadata_that_lies(self):
        """Another process's: a view never reaches beyond the buffer."""
        for tensor in ({"dtype": "int8", "shape": [1 << 40]}, {"dtype": "int8", "shape": [2], "strides": [1 << 40]},
                       {"dtype": "int8", "shape": [1], "offset": backend.PAGE}, {"dtype": "int8", "shape": [-5]}, {"dtype": 5}, 7):
            with self.subTest(tensor), self.ours.allocate(8, device=self.device, meta={"tensor": tensor}) as buffer:
                for attempt in (buffer.array, lambda buffer=buffer: self.ours.get(id=buffer.id)):
                    with self.assertRaises(gpuipc.LayoutError):
                        attempt()

    @backend.host_only
    def test_memoryview(self):
        with self.put(None, sample("int16", (2, 3)), seal=False) as buffer:
            view = buffer.array().memoryview()
            self.assertEqual((view.shape, view.format, view.readonly, view.tolist()[1][2]),
                             ((2, 3), "h", False, int(sample("int16", (2, 3))[1, 2])))
            view[0, 0] = -5
            self.assertEqual(buffer.buf[:2], b"\xfb\xff")
            self.assertEqual((buffer.buf.format, buffer.buf.nbytes), ("B", 12))
            reader = self.ours.get(id=buffer.id).memoryview()
            self.assertTrue(reader.readonly)
            with self.assertRaises(TypeError):
                reader[0, 0] = 1
            with self.assertRaisesRegex(BufferError, "row-major"):
                buffer.array((3, 2), "int16", (1, 3)).memoryview()
            with self.assertRaisesRegex(BufferError, "float16"):
                buffer.array((2,), "float16").memoryview()
            self.assertEqual(buffer.array((0,), "float64").memoryview().format, "d")
            self.assertEqual(buffer.array((), "int16").memoryview().tolist(), -5)

    @backend.host_only
    @unittest.skipIf(sys.version_info < (3, 12), "Python 3.12 has it")
    def test_memoryview_of_the_object(self):
        with self.put(None, sample("int16", (2, 3)), seal=False) as buffer:
            for of in (buffer.array(), buffer):
                view = memoryview(of)
                self.assertEqual((view.shape, view.format, view.readonly), ((2, 3), "h", False))
                view[0, 0] = -7
                self.assertEqual(buffer.read(2), b"\xf9\xff")
                del view, of
            array, reader = self.ours.get(id=buffer.id), self.ours.open(id=buffer.id, access="ro")
            for of in (array, reader):
                self.assertEqual((memoryview(of).readonly, memoryview(of)[0, 0], bytes(of)[:2]), (True, -7, b"\xf9\xff"))
                with self.assertRaises((BufferError, TypeError)):  # of it or of a reader that asks for both kinds
                    io.BytesIO(b"12").readinto(of)
            self.assertEqual(io.BytesIO(b"ab").readinto(buffer), 2)
            self.assertEqual(bytes(array)[:2], b"ab")
            del array, of
            reader.close()
            self.assertEqual(buffer.views, 0)

    def by_torch(self, buffer):
        if not torch:
            return []
        return [buffer.tensor().numpy(), torch.from_dlpack(buffer.array()).numpy(),
                torch.utils.dlpack.from_dlpack(buffer.array().__dlpack__()).numpy()]

    @backend.host_only
    def test_numpy_without_copies(self):
        with self.put(None, sample("float32", (2, 3)), seal=False) as buffer:
            # NumPy of some versions writes to nothing that came by DLPack, its own arrays included.
            by_dlpack = numpy.from_dlpack(numpy.zeros(1)).flags.writeable
            for found, writeable in [*((made, True) for made in (numpy.asarray(buffer.array()), buffer.numpy(), numpy.asarray(buffer),
                                                                 *self.by_torch(buffer))),
                                     *((numpy.from_dlpack(of), by_dlpack) for of in (buffer.array(), buffer))]:
                self.assertEqual((found.__array_interface__["data"][0], found.shape, found.dtype), (buffer.pointer, (2, 3), "f4"))
                self.assertEqual(found.flags.writeable, writeable)
                del found
            self.assertEqual(numpy.asarray(buffer, dtype="f8").dtype, "f8")
            self.assertEqual(buffer.views, 0)


if __name__ == "__main__":
    unittest.main()
