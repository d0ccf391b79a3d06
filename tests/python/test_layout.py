# SPDX-License-Identifier: Apache-2.0
"""Shapes, dtypes and strides as the Python package reckons with them, and metadata that describes them: written, read, forged."""

import json
import os
import sys
import unittest

import numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from package import torch  # noqa: E402

from gpuipc import Layout, LayoutError  # noqa: E402
from gpuipc._copy import pieces  # noqa: E402
from gpuipc.layout import DTYPES, dtype_name, dump_meta, parse_meta, row_major  # noqa: E402

SHAPES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
settings.register_profile("here", deadline=None, database=None, derandomize=True)
settings.load_profile("here")


def strided(shape, steps):
    """A NumPy array of that shape whose strides are those, and the whole memory that it lies in."""
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, steps)) if 0 not in shape else 0
    memory = numpy.arange(span, dtype="i4")
    return numpy.lib.stride_tricks.as_strided(memory, shape, [4 * step for step in steps]), memory


class LayoutTest(unittest.TestCase):
    @given(SHAPES)
    def test_row_major_is_numpys(self, shape):
        layout = Layout.of("int32", shape)
        array = numpy.zeros(shape, "i4")
        self.assertEqual((layout.size, layout.nbytes), (array.size, array.nbytes))
        self.assertTrue(layout.is_row_major)
        self.assertTrue(layout.is_dense)
        self.assertEqual(layout.span, array.nbytes)
        if array.size:
            self.assertEqual(tuple(4 * step for step in layout.strides), array.strides)

    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4))
    def test_strides_are_numpys(self, axes):
        shape, steps = tuple(extent for extent, _ in axes), tuple(step for _, step in axes)
        layout = Layout.of("int32", shape, steps, 8)
        array, memory = strided(shape, steps)
        self.assertEqual(layout.span, memory.nbytes)
        self.assertEqual(layout.end, 8 + memory.nbytes)
        self.assertEqual(layout.is_row_major, array.flags.c_contiguous)
        gathered = bytearray(array.nbytes)
        for place, start, n in pieces(shape, steps, 4):
            gathered[place:place + n] = memory.tobytes()[start:start + n]
        self.assertEqual(bytes(gathered), array.tobytes())

    @given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
    def test_permuted_is_dense(self, order, shape):
        plain = row_major([shape[i] for i in order])
        steps = [0] * 4
        for place, axis in enumerate(order):
            steps[axis] = plain[place]
        layout = Layout.of("int32", shape, steps)
        self.assertTrue(layout.is_dense)
        self.assertEqual(layout.span, layout.nbytes)
        self.assertFalse(Layout.of("int32", (2, *shape), (layout.size + 1, *steps)).is_dense)

    def test_dtypes_of_others(self):
        for name in DTYPES:
            self.assertEqual(dtype_name(name), name)
            if torch and hasattr(torch, name):
                self.assertEqual(dtype_name(getattr(torch, name)), name)
                self.assertEqual(Layout.of(name, ()).itemsize, torch.zeros((), dtype=getattr(torch, name)).element_size())
            if name != "bool" and hasattr(numpy, name):
                self.assertEqual(dtype_name(getattr(numpy, name)), name)
                self.assertEqual(dtype_name(numpy.dtype(name)), name)
                self.assertEqual(numpy.dtype(DTYPES[name][2]).name, name)
        self.assertEqual(dtype_name(numpy.dtype("bool")), "bool")
        self.assertEqual(dtype_name(numpy.bool_), "bool")
        for nothing in ("float3", "", numpy.dtype("M8[s]"), torch and torch.qint8, numpy.dtype("U4"), object):
            with self.assertRaisesRegex(LayoutError, "dtype"):
                dtype_name(nothing)

    def test_what_cannot_be(self):
        for arguments, word in (
                (("int32", (-1,)), "shape: -1"), (("int32", (2.0,)), "shape"), (("int32", "12"), "shape"), (("int32", (True,)), "shape"),
                (("int32", (1,) * 65), "65 dimensions"), (("int32", (2, 3), (1,)), "strides: 1 of them for 2"),
                (("int32", (2,), (-1,)), "strides: -1"), (("int32", (2,), None, 3), "offset: 3"), (("int32", (2,), None, -4), "offset"),
                (("int32", (1 << 40, 1 << 40)), "beyond"), (("int32", (0, 1 << 40, 1 << 40, 1 << 40)), "beyond"),
                (("int32", None), "shape")):
            with self.subTest(arguments), self.assertRaisesRegex(LayoutError, word):
                Layout.of(*arguments)
        with self.assertRaisesRegex(LayoutError, "ends at byte 48, and there are 47"):
            Layout.of("int32", (2, 3), None, 24).check(47)
        Layout.of("int32", (2, 3), None, 24).check(48)

    def test_one_number_is_one_dimension(self):
        self.assertEqual(Layout.of("int8", 7).shape, (7,))


class MetadataTest(unittest.TestCase):
    @given(st.sampled_from(sorted(DTYPES)), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=6), st.booleans(),
           st.integers(0, 9))
    def test_read_as_written(self, dtype, axes, plain, start):
        shape = tuple(extent for extent, _ in axes)
        layout = Layout.of(dtype, shape, None if plain else tuple(step for _, step in axes), start * Layout.of(dtype, ()).itemsize)
        text = dump_meta({"epoch": 3}, layout)
        meta = parse_meta(text)
        self.assertEqual(Layout.from_meta(meta), layout)
        self.assertEqual(meta["epoch"], 3)
        self.assertLess(len(text), 400)

    def test_version_one_is_what_it_was(self):
        """What other processes wrote must stay readable."""
        text = '{"tensor":{"v":1,"dtype":"bfloat16","shape":[2,3],"strides":[1,2],"offset":64},"mine":[]}'
        self.assertEqual(Layout.from_meta(json.loads(text), 76), Layout("bfloat16", (2, 3), (1, 2), 64))
        self.assertEqual(dump_meta({"mine": []}, Layout("bfloat16", (2, 3), (1, 2), 64)),
                         '{"mine":[],"tensor":{"v":1,"dtype":"bfloat16","shape":[2,3],"strides":[1,2],"offset":64}}')
        self.assertEqual(dump_meta(None, Layout.of("uint8", ())), '{"tensor":{"v":1,"dtype":"uint8","shape":[]}}')
        self.assertEqual(Layout.from_meta({"tensor": {"dtype": "int8", "shape": [4], "news": {}}}, 4), Layout.of("int8", (4,)))

    def test_forged(self):
        for tensor, word in (
                (None, "no member"), ([], "no member"), ({}, "dtype"), ({"dtype": 3, "shape": []}, "dtype"),
                ({"dtype": "int8"}, "lists"), ({"dtype": "int8", "shape": 3}, "lists"), ({"dtype": "int8", "shape": "3"}, "lists"),
                ({"dtype": "int8", "shape": [3], "strides": None}, "lists"), ({"dtype": "int8", "shape": [1.5]}, "shape"),
                ({"dtype": "int8", "shape": [True]}, "shape"), ({"dtype": "int8", "shape": [[1]]}, "shape"),
                ({"dtype": "int8", "shape": [65]}, "there are 64"), ({"dtype": "int8", "shape": [2], "strides": [64]}, "there are 64"),
                ({"dtype": "int8", "shape": [2], "offset": 63}, "there are 64"), ({"dtype": "int8", "shape": [2], "offset": "0"}, "offset"),
                ({"dtype": "int8", "shape": [1 << 50], "strides": [0]}, "overlap"), ({"v": 2, "dtype": "int8", "shape": []}, "version 2"),
                ({"dtype": "int8", "shape": [2], "strides": [-1]}, "strides"), ({"dtype": "int8", "shape": [1 << 70]}, "shape")):
            with self.subTest(tensor), self.assertRaisesRegex(LayoutError, word):
                Layout.from_meta({"tensor": tensor}, 64)

    JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 1 << 70) | st.floats() | st.text(max_size=5),
                        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
                            ["tensor", "v", "dtype", "shape", "strides", "offset", "x"]), inner, max_size=5), max_leaves=12)

    @given(JSON)
    @example({"tensor": {"dtype": "int8", "shape": [4], "strides": [5], "offset": 1 << 60}})
    def test_anything_is_a_layout_inside_or_an_error(self, meta):
        try:
            layout = Layout.from_meta(meta, 64)
        except LayoutError:
            return
        self.assertLessEqual(layout.end, 64)

    @given(st.text(max_size=40) | st.just("[" * 5000) | st.just("9" * 5000) | st.just('{"a":' * 4000))
    def test_any_text_is_metadata(self, text):
        self.assertIsInstance(parse_meta(text), dict)

    def test_what_is_no_metadata(self):
        with self.assertRaises(TypeError):
            dump_meta([1])
        with self.assertRaises(ValueError):
            dump_meta({"a": float("nan")})
        self.assertIsNone(dump_meta(None))


if __name__ == "__main__":
    unittest.main()
