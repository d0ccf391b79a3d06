# SPDX-License-Identifier: Apache-2.0
"""JAX, from PyPI, and the Python package: arrays of either by way of the other, on host memory."""

import gc
import os
import sys
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import wait_for  # noqa: E402
from library import SANITIZED  # noqa: E402
from package import PackageTest  # noqa: E402

os.environ["JAX_PLATFORMS"] = "cpu"
try:
    import jax
except ImportError:
    jax = None

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64")


@unittest.skipIf(SANITIZED, "a sanitized library is not for a plain interpreter")
@unittest.skipUnless(jax, "there is no JAX here: make deps")
class JaxTest(PackageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        jax.numpy.zeros(1).block_until_ready()  # its threads and descriptors are there from here on

    def setUp(self):
        super().setUp()
        self.ours = self.connect()

    def no_views(self, buffer):
        """JAX's own threads may let go of an array after whoever has waited for what was made of it."""
        gc.collect()
        wait_for(lambda: buffer.views == 0, "no views")

    def test_there_and_back(self):
        """JAX's array is put, and got read-only by another client: the same elements, nothing copied, and a lease as long as it lasts."""
        for dtype in DTYPES:
            with self.subTest(dtype):
                put = (jax.numpy.arange(6) % 5).reshape(2, 3).astype(dtype)
                buffer = self.ours.put("jax", put)
                got = self.connect().get("jax")
                self.assertEqual((got.dtype, got.shape, got.readonly), (dtype, (2, 3), True))
                back = got.jax()
                self.assertEqual((back.dtype, back.shape, back.unsafe_buffer_pointer()), (put.dtype, put.shape, got.pointer))
                buffer.close()
                del got
                gc.collect()
                self.assertEqual(len(self.ours.leases("jax")), 1)
                self.assertTrue((back == put).all())
                del back
                gc.collect()
                wait_for(lambda: self.ours.buffers("jax") == [], "its end")

    def test_as_told(self):
        """What may be written to goes by jax.dlpack.from_dlpack(); what is read-only does not, and the error says what does."""
        with self.ours.put(None, numpy.arange(6, dtype="float32"), seal=False) as buffer:
            array = buffer.array()
            for taken in (jax.dlpack.from_dlpack(array), array.jax(), buffer.jax()):
                self.assertEqual((taken.unsafe_buffer_pointer(), float((taken * 2).sum())), (array.pointer, 30.0))
                del taken
            reader = self.ours.get(id=buffer.id)
            with self.assertRaisesRegex(BufferError, r"Array\.jax\(\)"):
                jax.dlpack.from_dlpack(reader)
            self.assertEqual(reader.jax().tolist(), [0, 1, 2, 3, 4, 5])
            del reader, array
            self.no_views(buffer)

    def test_what_jax_copies(self):
        """In its own way: nothing of ours is held by that."""
        with self.ours.put(None, numpy.arange(3, dtype="int64")) as buffer:
            taken = buffer.jax()
            self.assertEqual((taken.dtype, taken.tolist()), ("int32", [0, 1, 2]))
            self.no_views(buffer)


if __name__ == "__main__":
    unittest.main()
