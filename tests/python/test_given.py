# SPDX-License-Identifier: Apache-2.0
"""What functions of the package are given: things of another kind than they want, which they refuse by the parameter's name and before they
wait for anything; and objects in a process, or a copy, that they were not made for. Runs on memory that has descriptors."""

import asyncio
import copy
import fractions
import os
import pickle
import sys
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from package import PackageTest, gpuipc, torch, with_torch  # noqa: E402

PAGE = 4096
SLOT = 64
HOURS = 9999


class GivenTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect()
        self.device = self.device_of(self.ours)

    def pair(self):
        ours = self.ours.channel_create("ch", slots=1, slot_bytes=SLOT, device=self.device)
        return self.closed_later(ours), self.closed_later(self.ours.channel_attach("ch"))

    def refused(self, kind, what, call):
        with self.subTest(what), self.assertRaisesRegex(kind, f"^{what}: ") as caught:
            call()
        if isinstance(caught.exception, gpuipc.Error):
            self.assertEqual(caught.exception.subject, what)


class KindsTest(GivenTest):
    def test_they_are_named(self):
        producer, consumer = self.pair()
        for kind, what, call in (
                (TypeError, "socket", lambda: gpuipc.Client(3)),
                (TypeError, "array", lambda: self.ours.put(None, [1])),
                (gpuipc.InvalidParameterError, "kind", lambda: self.ours.channel_create(slots=1, slot_bytes=1, kind=["queue"])),
                (TypeError, "mode", lambda: self.ours.allocate(1, mode=6.5)),
                *((gpuipc.InvalidParameterError, "mode", lambda mode=mode: self.ours.allocate(1, mode=mode))
                  for mode in (True, -1, 644, 0o7777, "rw", "0o644", "00644", "6440", ""))):
            self.refused(kind, what, call)
        for mode in ("644", "0644", 0o644, 0):
            self.ours.allocate(1, mode=mode).release()
        with self.ours.allocate(PAGE) as buffer, buffer.fence(0) as fence, producer.item(5) as item:
            for data in ("abc", [1], None, 5):
                self.refused(TypeError, "data", lambda data=data: buffer.write(data))
                self.refused(TypeError, "data", lambda data=data: item.write(data))
                self.refused(TypeError, "into", lambda data=data: buffer.readinto(data))
            self.refused(gpuipc.InvalidParameterError, "offset", lambda: item.write(b"x", -1))
            self.refused(TypeError, "stream", lambda: fence.wait(1, timeout=0, stream="1"))
            item.cancel()
        consumer.close()

    @with_torch
    def test_a_tensor_for_bytes(self):
        with self.ours.allocate(PAGE) as buffer:
            self.assertRaisesRegex(TypeError, r"^data: .* not Tensor: .*numpy\(\)", buffer.write, torch.ones(3))
            self.assertEqual(buffer.write(torch.ones(3).numpy()), 12)

    def test_an_access_is_checked_before_anything_is_waited_for(self):
        calls = [lambda: self.ours.get("never", access="r", wait=HOURS), lambda: self.ours.open("never", access="r", wait=HOURS),
                 lambda: asyncio.run(self.ours.get_async("never", access="r", wait=HOURS))]
        if torch:
            import gpuipc.torch
            calls.append(lambda: gpuipc.torch.get("never", client=self.ours, access="r", wait=HOURS))
        for call in calls:
            self.refused(gpuipc.InvalidParameterError, "access", call)

    def test_seconds_of_any_kind_of_number(self):
        for wait in (fractions.Fraction(1, 100), numpy.float32(0.01)):
            with self.assertRaisesRegex(TimeoutError, r"^'never' did not come within 0\.01 s\."):
                self.ours.open("never", wait=wait)

    def test_what_nobody_gave(self):
        """Who waits in vain is told whether there is anybody to wait for."""
        producer, consumer = self.pair()
        for seconds, text in ((0.01, "No item came within 0.01 s. It has 1 producer,"), (0, "No item is there.$")):
            with self.assertRaisesRegex(TimeoutError, text):
                consumer.take(seconds)
        producer.put(b"x", timeout=5)
        with self.assertRaisesRegex(TimeoutError, r"No slot .* 1 consumer, who must take and release items: .*release\(\)"):
            producer.item(0.01)
        consumer.close()
        with self.assertRaisesRegex(TimeoutError, "No slot .* no consumer"):
            producer.item(0.01)
        consumer = self.closed_later(self.ours.channel_attach("ch"))
        producer.close()
        consumer.take(5).release()
        with self.assertRaisesRegex(TimeoutError, "No item .* no producer"):
            consumer.take(0.01)

    def test_a_channel_is_opened_as_one(self):
        self.pair()
        for call in (self.ours.open, self.ours.get):
            with self.assertRaisesRegex(gpuipc.AccessDeniedError, r"use Client\.channel_attach\(\)"):
                call("ch")


class PlacesTest(GivenTest):
    """Where an array begins in memory, and how large its elements are."""

    def test_an_offset_alone(self):
        producer, consumer = self.pair()
        with producer.item(5) as item:
            item.write(bytes(range(SLOT)))
            self.assertEqual(item.array(offset=8).tobytes()[:2], b"\x08\x09")
        with consumer.take(5) as item, self.ours.allocate(SLOT) as buffer:
            buffer.write(bytes(range(SLOT)))
            for thing in (item, buffer):
                with self.subTest(type(thing).__name__):
                    self.assertEqual((thing.array(offset=8).tobytes()[:2], thing.array(offset=8).shape), (b"\x08\x09", (SLOT - 8,)))
                    self.assertEqual((thing.array(dtype="int16").shape, thing.array(dtype="int16", offset=2).shape), ((32,), (31,)))
                    self.assertEqual(thing.array(offset=SLOT).shape, (0,))
                    for kind, what, how in (("strides", "strides", {"strides": (1,)}), ("float", "offset", {"offset": 1.0}),
                                            ("text", "offset", {"offset": "1"}), ("beyond", "offset", {"offset": SLOT + 1}),
                                            ("negative", "offset", {"offset": -1})):
                        with self.subTest(kind):
                            self.refused(gpuipc.LayoutError, what, lambda thing=thing, how=how: thing.array(**how))

    def test_another_byte_order(self):
        other = numpy.dtype("f4").newbyteorder()
        with self.ours.allocate(SLOT) as buffer:
            self.refused(gpuipc.LayoutError, "dtype", lambda: buffer.array(dtype=other))
            self.refused(gpuipc.LayoutError, "dtype", lambda: buffer.array((2,), other))
            self.refused(gpuipc.LayoutError, "dtype", lambda: self.ours.put(None, numpy.zeros(2, other)))
            self.assertEqual(buffer.array((2,), numpy.dtype("f4")).dtype, "float32")

    @with_torch
    def test_tensors_whose_memory_does_not_say_all(self):
        """Bits beside it say that what is read is conjugated, or negated."""
        producer, consumer = self.pair()
        conjugated = torch.tensor([1 + 2j, 3 - 4j]).conj()
        for tensor in (conjugated, conjugated.imag, conjugated.real):
            array = self.ours.get(id=self.closed_later(self.ours.put(None, tensor, device=self.device)).id)
            self.assertEqual(array.tobytes(), tensor.resolve_conj().resolve_neg().contiguous().numpy().tobytes())
            producer.put(tensor)
            with consumer.take(5) as item:
                self.assertEqual(item.array().tobytes(), array.tobytes())
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
        for other in (torch.eye(2).to_sparse(), quantized, torch.ones(2, device="meta")):
            self.refused(TypeError, "array", lambda other=other: self.ours.put(None, other))


class CopiesTest(GivenTest):
    """Of objects that hold something: the second would give back what the first has, or have it when that is gone."""

    def test_neither_copied_nor_pickled(self):
        producer, _ = self.pair()
        buffer = self.closed_later(self.ours.allocate(PAGE))
        with producer.item(5) as item, self.ours.watch() as watch, buffer.fence(0) as fence:
            things = [self.ours, buffer, buffer.array(), producer, item, watch, fence]
            if torch:
                things += self.of_torch()
            for thing in things:
                for way in (pickle.dumps, copy.copy, copy.deepcopy):
                    name = type(thing).__name__
                    with self.subTest(name, way=way), self.assertRaisesRegex(TypeError, f"^{name}: it is this process's own.*Client"):
                        way(thing)
            item.cancel()

    def of_torch(self):
        import gpuipc.torch

        channel = self.closed_later(gpuipc.torch.channel.create(slot_bytes=SLOT, device="cpu", client=self.ours))
        return [gpuipc.torch.put(torch.ones(2), client=self.ours), channel, gpuipc.torch.ChannelLoader(channel)]


class ForkedTest(GivenTest):
    def test_nothing_is_written_to_the_parents_slot(self):
        self.assertEqual(self.run_program("""
import gpuipc, os
client = gpuipc.Client()
channel, watch = client.channel_create(slots=1, slot_bytes=64), client.watch()
item = channel.item(5)
item.write(b"parent")
if os.fork() == 0:
    for call in (lambda: item.write(b"child"), lambda: item.put(b"child"), channel.fileno, watch.fileno):
        try:
            call()
        except gpuipc.ForkedError:
            print("refused", flush=True)
    os._exit(0)
os.wait()
print(item.read()[:6])
item.cancel()
"""), "refused\n" * 4 + "b'parent'\n")

    def test_an_item_that_a_thread_is_about_to_give_back(self):
        """The child hears at once that it is not its own."""
        self.assertEqual(self.run_program("""
import gpuipc, os, threading
item = gpuipc.Client().channel_create(slots=1, slot_bytes=64).item(5)
has, goes = threading.Event(), threading.Event()
def hold():
    with item._lock:
        has.set()
        goes.wait()
thread = threading.Thread(target=hold)
thread.start()
has.wait()
if os.fork() == 0:
    for call in (item.cancel, item.release):
        try:
            call()
        except gpuipc.ForkedError:
            print("refused", flush=True)
    os._exit(0)
os.wait()
goes.set()
thread.join()
item.cancel()
"""), "refused\n" * 2)


if __name__ == "__main__":
    unittest.main()
