# SPDX-License-Identifier: Apache-2.0
"""A gpuipc.Array read by PyTorch by each interface that both have: the same memory, whose lease ends with the last view. deadline: 300 s"""

import gc
import re
import struct
import unittest
import unittest.mock

from torchtest import CUDA, DEVICE, TorchTest, cuda_only, settle, wait_for

import gpuipc
import torch
from gpuipc import _dlpack

try:
    import numpy
except ImportError:
    numpy = None

N = 64
READ_ONLY = 1


def by_array_interface(array):
    """The older interfaces, both through NumPy: PyTorch knows the one of a GPU itself, but has NumPy read what dtype it is."""
    with unittest.mock.patch.object(gpuipc.Array, "__dlpack__", side_effect=AssertionError("DLPack was asked")):
        if CUDA:
            return torch.as_tensor(array, device="cuda")
        return torch.from_numpy(numpy.asarray(array))


WAYS = {
    "from_dlpack": torch.from_dlpack,
    "a capsule": lambda array: torch.utils.dlpack.from_dlpack(array.__dlpack__()),
    "Array.torch": lambda array: array.torch(),
    **({"the older interface": by_array_interface} if numpy else {}),
}


def floats(first):
    return struct.pack(f"{N}f", *range(first, first + N))


def consumed(capsule):
    """The capsule's tensor; None: PyTorch says that it has none."""
    try:
        return torch.utils.dlpack.from_dlpack(capsule)
    except (RuntimeError, ValueError):
        return None


def as_read_only(way, array):
    """What that way makes of a read-only array; None: this PyTorch asks for no version of capsules, or takes nothing that is read-only."""
    try:
        return way(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if not re.search("read.?only", str(error), re.I):
            raise
        return None


class ArrayTest(TorchTest):
    def setUp(self):
        torch.zeros(1, device=DEVICE)
        kind = "cuda" if CUDA else "host"
        self.where = next(device.uuid for device in self.client.status().devices if device.kind == kind)
        self.buffer = self.client.allocate(4 * N, device=self.where)
        self.addCleanup(self.buffer.close)
        self.buffer.write(floats(0))
        settle()

    def tearDown(self):
        self.buffer.close()
        super().tearDown()

    def written(self):
        """The buffer's bytes, once what PyTorch was given is done."""
        settle()
        return self.buffer.read()

    def views(self):
        gc.collect()
        return self.buffer.views


class SameMemoryTest(ArrayTest):
    def test_where_it_lies(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                for shape, strides, offset in (((N,), None, 0), ((3, 5), (1, 4), 64), ((2, 0, 3), None, 0), ((), None, 12)):
                    array = self.buffer.array(shape, "float32", strides, offset)
                    tensor = way(array)
                    self.assertEqual((tensor.shape, tensor.dtype, tensor.device.type), (shape, torch.float32, DEVICE))
                    if tensor.numel():
                        self.assertEqual((tensor.data_ptr(), tensor.stride()), (array.pointer, array.strides))
                        wanted = torch.frombuffer(bytearray(array.tobytes()), dtype=torch.float32).reshape(shape)
                        self.assertEqual(tensor.tolist(), wanted.tolist())

    def test_writes_are_seen_both_ways(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                tensor = way(self.buffer.array((N,), "float32"))
                tensor.copy_(torch.arange(7., 7 + N))
                self.assertEqual(self.written(), floats(7))
                self.buffer.write(floats(1000))
                self.assertEqual(tensor.tolist(), list(range(1000, 1000 + N)))

    def test_writes_of_another_process(self):
        child = self.partner()
        child.run("torch.zeros(1, device=DEVICE)\n"
                  f"buffer = gpuipc.Client().open(id={self.buffer.id!r})\n"
                  f"theirs = torch.from_dlpack(buffer.array(({N},), 'float32'))\n"
                  "def settle(): DEVICE == 'cuda' and torch.cuda.synchronize()")
        for number, (name, way) in enumerate(WAYS.items()):
            with self.subTest(name):
                tensor = way(self.buffer.array((N,), "float32"))
                child.run(f"theirs.fill_({number + 5}); settle()")
                self.assertEqual(tensor.tolist(), [number + 5] * N)
                tensor.fill_(-number)
                settle()
                self.assertEqual(child.ask("theirs.tolist()"), [-number] * N)
        child.run("del theirs; buffer.close()")

    def test_the_lease_ends_with_the_last_view(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                with self.client.open(id=self.buffer.id) as other:
                    tensor = way(other.array((N,), "float32"))
                first, last = tensor[:1], tensor[-1:].view(torch.int32)
                del tensor, other
                gc.collect()
                self.assertEqual((self.leases(self.buffer.id), first.item()), (2, 0))
                del first
                gc.collect()
                self.assertEqual((self.leases(self.buffer.id), last.tolist()), (2, list(struct.unpack("i", struct.pack("f", N - 1)))))
                del last
                gc.collect()
                wait_for(lambda: self.leases(self.buffer.id) == 1, "the end of the lease")

    def test_the_array_may_go_first(self):
        for name, way in WAYS.items():
            with self.subTest(name):
                tensor = way(self.buffer.array((N,), "float32"))
                self.assertEqual(self.views(), 1)
                self.assertEqual(tensor.sum().item(), N * (N - 1) / 2)
                del tensor
                self.assertEqual(self.views(), 0)


class CapsuleTest(ArrayTest):
    def test_consumed_once(self):
        for version in (None, (1, 0)):
            with self.subTest(version=version):
                capsule = self.buffer.array((N,), "float32").__dlpack__(max_version=version)
                tensor = consumed(capsule)
                if tensor is None:  # a PyTorch that knows no versioned ones
                    self.assertIsNotNone(version)
                    del capsule
                    self.assertEqual(self.views(), 0)
                    continue
                self.assertEqual(tensor.data_ptr(), self.buffer.pointer)
                self.assertIsNone(consumed(capsule))
                with self.assertRaisesRegex(BufferError, "consumed"):
                    _dlpack.look(capsule)
                del capsule
                self.assertEqual(self.views(), 1)
                self.assertEqual(tensor.tolist(), list(range(N)))
                del tensor
                self.assertEqual(self.views(), 0)

    def test_not_consumed(self):
        capsules = [self.buffer.array((N,), "float32").__dlpack__(max_version=version) for version in (None, (1, 0))]
        self.assertEqual(self.views(), 2)
        capsules.clear()
        self.assertEqual(self.views(), 0)

    def test_read_only(self):
        """A capsule without a version cannot say it, so there is none; one that has a version says it; PyTorch's tensors do not know it."""
        with self.client.open(id=self.buffer.id, access="ro") as reader:
            array = reader.array((N,), "float32")
        self.assertTrue(array.readonly)
        with self.assertRaisesRegex(BufferError, "read-only"):
            array.__dlpack__()
        for ours, flag in ((array, READ_ONLY), (self.buffer.array((N,), "float32"), 0)):
            capsule = ours.__dlpack__(max_version=(1, 0))
            versioned = _dlpack._Versioned.from_address(_dlpack._get_pointer(capsule, b"dltensor_versioned"))
            self.assertEqual((versioned.flags & READ_ONLY, versioned.tensor.data), (flag, ours.pointer))
            interface = ours.__cuda_array_interface__ if CUDA else ours.__array_interface__
            self.assertEqual(interface["data"], (ours.pointer, bool(flag)))
            del capsule, ours
        tensor = as_read_only(torch.from_dlpack, array)
        tensor = array.torch() if tensor is None else tensor
        self.assertEqual((tensor.data_ptr(), tensor.tolist()), (array.pointer, list(range(N))))
        self.buffer.write(floats(3))
        self.assertEqual(tensor.tolist(), list(range(3, 3 + N)))
        del array, tensor, reader
        gc.collect()
        wait_for(lambda: self.leases(self.buffer.id) == 1, "the end of the reader's lease")


class ItemTest(ArrayTest):
    """What lies in a channel's slot."""

    def setUp(self):
        super().setUp()
        self.producer = self.client.channel_create("items", slot_bytes=4 * N, slots=1, device=self.where)
        self.addCleanup(self.producer.close)
        self.consumer = self.client.channel_attach("items")
        self.addCleanup(self.consumer.close)

    def tearDown(self):
        gc.collect()
        self.consumer.close()
        self.producer.close()
        super().tearDown()

    def publish(self, number, stream=None):
        with self.producer.item(10, stream=stream) as item:
            item.array((N,), "float32").torch().fill_(number)

    def test_each_way(self):
        """A consumer's array is read-only: some PyTorch or other takes it by DLPack."""
        seen = []
        for number, (name, way) in enumerate(WAYS.items()):
            with self.subTest(name):
                self.publish(number)
                with self.consumer.take(10) as item:
                    settle()
                    array = item.array((N,), "float32")
                    tensor = as_read_only(way, array)
                    if tensor is not None:
                        self.assertEqual((tensor.data_ptr(), tensor.tolist()), (array.pointer, [number] * N))
                        seen.append(name)
                    settle()
                    del array, tensor
        self.assertIn("Array.torch", seen)

    @unittest.skipUnless(numpy, "there is no NumPy here, by which PyTorch reads the older interfaces")
    def test_the_older_interface(self):
        """A consumer's is read-only, which PyTorch may refuse of a GPU's; a producer's is not."""
        self.publish(5)
        with self.consumer.take(10) as item:
            settle()
            array = item.array((N,), "float32")
            tensor = as_read_only(by_array_interface, array)
            if tensor is not None or not CUDA:
                self.assertEqual((tensor.data_ptr(), tensor.tolist()), (array.pointer, [5] * N))
            del array, tensor
        with self.producer.item(10) as item:
            array = item.array((N,), "float32")
            tensor = by_array_interface(array)
            self.assertEqual(tensor.data_ptr(), array.pointer)
            tensor.fill_(6)
            self.assertEqual(torch.from_dlpack(array).tolist(), [6] * N)
            del array, tensor

    @cuda_only
    def test_the_reader_s_stream_waits(self):
        """Written late, on one stream, taken with another, and read on a third, none of them the default one."""
        if self.producer.is_synchronous:
            self.skipTest("streams cannot wait by themselves here")
        writes, takes, reads = (torch.cuda.Stream() for _ in range(3))
        orders = {
            "Array.torch": lambda array: array.torch(),
            "from_dlpack": lambda array: as_read_only(torch.from_dlpack, array),
            "the stream argument": lambda array: array.__dlpack__(max_version=(1, 0), stream=reads.cuda_stream),
            "no order": lambda array: array.__dlpack__(max_version=(1, 0), stream=-1),
        }
        self.publish(0)
        with self.consumer.take(10) as item:
            slot = item.array((N,), "float32").torch()  # which has one address for good
        seen, before = slot.clone(), 0
        for number, (name, order) in enumerate(orders.items(), 1):
            with self.subTest(name):
                seen.copy_(slot)
                settle()
                with torch.cuda.stream(writes):
                    torch.cuda._sleep(1_000_000_000)
                    self.publish(number, writes)
                with torch.cuda.stream(reads):
                    item = self.consumer.take(10, stream=takes)
                    ordered = order(item.array((N,), "float32"))
                    seen.copy_(slot)
                    reads.synchronize()
                if ordered is not None:
                    # Without an order the bytes of before: or the writer was not late, and nothing was tried here.
                    self.assertEqual(seen.tolist(), [before if name == "no order" else number] * N)
                settle()
                item.release(takes)
                settle()
                del item, ordered
                before = number
        del slot


if __name__ == "__main__":
    unittest.main()
