# SPDX-License-Identifier: Apache-2.0
"""Channels and fences in Python: the flow of items with shapes, loops, threads, asyncio, streams, and what becomes of items when exceptions
and deaths come between. Runs on memory that has descriptors."""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import wait_for  # noqa: E402
from package import PackageTest, gpuipc, torch  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

SLOT = 4096


class ChannelTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect()
        self.device = self.device_of(self.ours)

    def create(self, name="ch", **options):
        return self.closed_later(self.ours.channel_create(name, **{"slots": 4, "slot_bytes": SLOT, "device": self.device, **options}))

    def attach(self, name="ch", **options):
        return self.closed_later(self.ours.channel_attach(name, **options))

    def pair(self, **options):
        return self.create(**options), self.attach()

    # ---- facts ----

    def test_facts(self):
        producer, consumer = self.pair(kind="broadcast", policy="drop_oldest", meta_bytes=100)
        self.assertEqual((producer.name, producer.device, producer.role, producer.kind, producer.policy, producer.slots,
                          producer.slot_bytes,
                          producer.meta_bytes, producer.number, producer.is_synchronous, producer.is_peer),
                         ("ch", self.device, "producer", "broadcast", "drop_oldest", 4, SLOT, 100, 0, False, False))
        self.assertEqual((consumer.role, consumer.number, consumer.id, consumer.cuda_device),
                         ("consumer", 1, producer.id, -1 if backend.HOST else 0))
        producer.put(b"x")
        stats = consumer.stats()
        self.assertEqual((stats.begun, stats.depth, stats.closed, [member.role for member in stats.members]),
                         (1, 1, False, ["producer", "consumer"]))
        self.assertEqual((stats.members[0].items, stats.members[1].lag), (1, 1))
        looked = self.ours.channel_look(producer.id)
        self.assertEqual((looked.begun, looked.members[0].pid), (1, os.getpid()))
        (info,) = self.ours.buffers("ch")
        self.assertEqual((info.channel.kind, info.channel.policy, info.channel.slots), ("broadcast", "drop_oldest", 4))
        consumer.check()

    def test_what_cannot_be(self):
        for options, word in (({"kind": "stack"}, "kind"), ({"policy": "drop"}, "policy"), ({"role": "both"}, "role"),
                              ({"slots": 0}, "slots"),
                              ({"slot_bytes": 0}, "slot_bytes"), ({"meta_bytes": 2000}, "meta_bytes")):
            with self.subTest(options), self.assertRaisesRegex(gpuipc.InvalidParameterError, word):
                self.create(**options)
        with self.assertRaises(FileNotFoundError):
            self.attach("nothing")
        producer, consumer = self.pair()
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "as a consumer"):
            producer.take(0)
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "as a producer"):
            consumer.item(0)

    # ---- the flow ----

    def test_arrays_with_their_shapes(self):
        producer, consumer = self.pair()
        for array in (numpy.arange(12, dtype="f4").reshape(3, 4), numpy.arange(12, dtype="i2").reshape(3, 4).T, numpy.zeros((0, 5)),
                      numpy.float64(3.5).reshape(()), numpy.array([True, False])):
            ticket = producer.put(array, meta={"mine": 1})
            with consumer.take(5) as item:
                found = item.array()
                self.assertEqual((item.ticket, found.shape, found.dtype, found.tobytes(), item.size, item.meta["mine"], item.broken),
                                 (ticket, array.shape, array.dtype.name, array.tobytes(), array.nbytes, 1, False))
                self.assertTrue(found.readonly)
                self.assertIsNone(found.buffer_id)
                if backend.HOST:
                    self.assertEqual(numpy.asarray(found).tolist(), array.tolist())
            self.assertFalse(item.in_hand)

    def test_bytes(self):
        producer, consumer = self.pair()
        with producer.item(5) as item:
            self.assertEqual((item.size, item.write(b"abc"), item.write(b"de", 3)), (SLOT, 3, 2))
        with producer.item(5) as item:
            item.meta = {"n": 2}
        with producer.item(5) as item:
            item.publish(7)
            with self.assertRaisesRegex(ValueError, "no longer in hand"):
                item.publish()
        with consumer.take(5) as item:
            self.assertEqual((item.read(), item.meta, item.meta_bytes, item.size), (b"abcde", {}, b"", 5))
            self.assertEqual((item.array().dtype, item.array((2,), "uint8", offset=3).tobytes()), ("uint8", b"de"))
            with self.assertRaises(gpuipc.LayoutError):
                item.array((6,), "uint8")
            with self.assertRaises(ValueError):
                item.write(b"x")
            with self.assertRaises(AttributeError):
                item.meta = {}
            with self.assertRaises(ValueError):
                item.publish()
            if backend.HOST:
                self.assertEqual((bytes(item.memoryview()), item.memoryview().readonly), (b"abcde", True))
        item.release()
        with consumer.take(5) as item:
            self.assertEqual((item.size, item.meta, item.array().shape), (SLOT, {"n": 2}, (SLOT,)))
        with consumer.take(5) as item:
            self.assertEqual(item.size, 7)

    @backend.host_only
    def test_written_in_place(self):
        producer, consumer = self.pair()
        with producer.item(5) as item:
            array = item.array((4, 8), "float32")
            numpy.asarray(array)[:] = 5
            array.numpy()[1] = 6
        with consumer.take(5) as item:
            found = item.array().numpy()
            self.assertEqual((found.shape, found[0, 0], found[1, 7]), ((4, 8), 5.0, 6.0))
            if torch:
                self.assertEqual(item.array().torch().tolist(), found.tolist())

    def test_what_does_not_fit(self):
        producer, consumer = self.pair(meta_bytes=64)
        with producer.item(5) as item:
            for attempt in (lambda: item.write(bytes(SLOT + 1)), lambda: item.write(b"x", SLOT), lambda: item.put(bytes(SLOT + 1))):
                with self.assertRaisesRegex(gpuipc.InvalidParameterError, "larger slot_bytes"):
                    attempt()
            with self.assertRaises(gpuipc.LayoutError):
                item.array((SLOT,), "int16")
            with self.assertRaises((TypeError, ValueError)):
                item.meta = {"a": object()}
            item.meta = {"much": "x" * 64}
            with self.assertRaisesRegex(gpuipc.InvalidParameterError, "at most 64.*meta_bytes"):
                item.publish()
            with self.assertRaises(gpuipc.InvalidParameterError):
                item.publish(SLOT + 1)
            self.assertTrue(item.in_hand)
            item.meta = {}
        self.assertEqual(consumer.take(5).meta, {})

    def test_metadata_that_lies(self):
        """Of a producer of another make."""
        producer, consumer = self.pair()
        for tensor in ({"dtype": "int8", "shape": [1 << 40]}, {"dtype": "int8", "shape": [2], "strides": [1 << 40]}, {"dtype": "x"}, [],
                       {"dtype": "int8", "shape": [9]}):
            with producer.item(5) as item:
                item.write(b"12345678")
                item.meta = {"tensor": tensor}
            with consumer.take(5) as item, self.assertRaises(gpuipc.LayoutError):
                item.array()
        raw = b"\xff\xfe{" + b"[" * 200
        library = gpuipc._native.library()
        item = producer.item(5)
        self.assertEqual(library.gpuipc_channel_publish(producer._member.pointer, ctypes.byref(item._item),
                         3, raw, len(raw), None, None), 0)
        with consumer.take(5) as item:
            self.assertEqual((item.meta, item.meta_bytes), ({}, raw))

    def test_loops(self):
        """Each item is released when the next is taken; the loop ends with the channel."""
        producer, consumer = self.pair(slots=2)
        seen, items = [], []

        def consume():
            for item in consumer:
                items.append(item)
                seen.append((item.ticket, item.array().tobytes(), [each.in_hand for each in items]))

        thread = threading.Thread(target=consume)
        thread.start()
        for i in range(20):
            producer.put(bytes([i]))
        producer.end()
        thread.join(WAIT_S)
        self.assertEqual([(ticket, data) for ticket, data, _ in seen], [(i, bytes([i])) for i in range(20)])
        self.assertTrue(all(hands == [False] * i + [True] for i, (_, _, hands) in enumerate(seen)))
        self.assertFalse(items[-1].in_hand)
        with self.assertRaises(gpuipc.ClosedError):
            producer.item(0)
        self.assertEqual(list(consumer), [])

    def test_leaving_a_loop(self):
        producer, consumer = self.pair()
        for i in range(3):
            producer.put(bytes([i]))
        for item in consumer:
            break
        gc.collect()
        self.assertFalse(item.in_hand)
        with self.assertRaises(KeyError):
            for item in consumer:  # noqa: B007
                raise KeyError
        gc.collect()
        self.assertFalse(item.in_hand)
        with self.assertRaises(KeyError), consumer.take(5) as item:
            raise KeyError
        self.assertFalse(item.in_hand)
        self.assertEqual(consumer.stats().members[1].items, 3)

    def test_exceptions_of_producers(self):
        producer, consumer = self.pair()
        with self.assertRaises(KeyError), producer.item(5) as item:
            item.write(b"half")
            raise KeyError
        self.assertFalse(item.in_hand)
        producer.put(b"whole")
        with consumer.take(5) as item:
            self.assertEqual(item.read(), b"whole")

    def test_timeouts(self):
        producer, consumer = self.pair(slots=1)
        for wait in (0, 0.15):
            started = time.monotonic()
            with self.assertRaises(gpuipc.TimedOutError) as caught:
                consumer.take(wait)
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertGreaterEqual(time.monotonic() - started, wait)
        producer.put(b"x")
        with self.assertRaisesRegex(TimeoutError, "No slot"):
            producer.item(0.01)
        for bad in (-1, float("nan")):
            with self.assertRaises(gpuipc.InvalidParameterError):
                consumer.take(bad)

    def test_views_outlive_items_and_channels(self):
        """What they show may be another's by then; but it is there."""
        producer, consumer = self.pair(slots=1)
        producer.put(b"first")
        item = consumer.take(5)
        view = item.array()
        item.release()
        producer.put(b"other")
        self.assertEqual(view.tobytes(), b"other")
        del item
        consumer.close()
        producer.close()
        self.assertEqual(view.tobytes(), b"other")
        self.assertTrue(consumer.closed)
        with self.assertRaisesRegex(ValueError, "closed"):
            consumer.take(0)
        self.assertEqual(len(self.ours.leases("ch")), 1)
        del view
        gc.collect()
        self.assertEqual([lease for lease in self.ours.leases("ch") if lease.state == "active"], [])

    def test_closed_with_an_item_in_hand(self):
        producer, consumer = self.pair()
        producer.put(b"first")
        item = consumer.take(5)
        consumer.close()
        item.release()
        with self.assertRaises(ValueError):
            item.array()
        for i in range(4):
            producer.put(bytes([i]), timeout=5)

    def test_closed_while_threads_wait(self):
        producer, consumer = self.pair(slots=1)
        producer.put(b"x")
        consumer.take(5)
        waits = [self.in_a_thread(call) for call in (consumer.take, producer.item, consumer.take)]
        producer.close()  # first, since it would get the slot that the other gives back
        consumer.close()
        for thread, ended in waits:
            thread.join(WAIT_S)
            self.assertEqual(ended, ["the channel is closed"])

    def left(self, producer):
        """Waits until the channel has no consumer."""
        wait_for(lambda: not any(member.alive and member.role == "consumer" for member in producer.stats().members), "it to leave")

    def test_closed_while_a_thread_waits_and_another_has_an_item(self):
        """The item's slot comes back when the thread has ended, whoever still refers to the item."""
        producer, consumer = self.pair(slots=1)
        producer.put(b"x")
        item = consumer.take(5)
        thread, ended = self.in_a_thread(consumer.take)
        wait_for(lambda: consumer._member.calls, "the thread's call")
        consumer.close()
        thread.join(WAIT_S)
        self.assertEqual(ended, ["the channel is closed"])
        self.left(producer)
        producer.put(b"y", timeout=5)
        item.release()
        self.assertFalse(item.in_hand)

    def test_closed_while_an_item_is_looked_at(self):
        """It leaves with the last view, whoever still refers to the item."""
        producer, consumer = self.pair(slots=1)
        producer.put(b"x")
        item = consumer.take(5)
        view = item.array()
        consumer.close()
        self.assertEqual(view.tobytes(), b"x")
        del view
        gc.collect()
        self.left(producer)
        producer.put(b"y", timeout=5)
        with self.assertRaisesRegex(ValueError, "closed"):
            item.array()

    def test_an_item_that_comes_when_closed(self):
        """It is its thread's until that releases it."""
        producer, consumer = self.pair()
        producer.put(b"x")
        library = gpuipc._native.library()
        real = library.gpuipc_channel_take
        library.gpuipc_channel_take = lambda *arguments: (real(*arguments), consumer.close())[0]
        try:
            item = consumer.take(5)
        finally:
            library.gpuipc_channel_take = real
        self.assertTrue(consumer.closed)
        self.assertEqual(item.read(), b"x")
        item.release()
        self.left(producer)

    def test_a_slot_that_comes_when_closed(self):
        """Closing ends what waits for a slot, also if the slot comes before the waiting thread has looked again."""
        producer, consumer = self.pair(slots=1)
        producer.put(b"x")
        taken, slept = consumer.take(5), producer.stats().sleeps
        thread, ended = self.in_a_thread(producer.item)
        wait_for(lambda: producer.stats().sleeps > slept, "the thread sleeps")
        producer.close()
        taken.release()
        thread.join(WAIT_S)
        self.assertEqual(ended, ["the channel is closed"])
        other = self.attach(role="producer")
        other.put(b"y", timeout=5)
        self.assertEqual(consumer.take(5).read(), b"y")

    def test_many_threads(self):
        producer, consumer = self.pair()
        got = []

        def produce(i):
            for j in range(50):
                producer.put(bytes([i, j]))

        def consume():
            for item in consumer:
                got.append(item.read())

        consumers = [threading.Thread(target=consume) for _ in range(3)]
        producers = [threading.Thread(target=produce, args=(i,)) for i in range(3)]
        for thread in consumers + producers:
            thread.start()
        for thread in producers:
            thread.join()
        producer.end()
        for thread in consumers:
            thread.join()
        self.assertEqual(sorted(got), [bytes([i, j]) for i in range(3) for j in range(50)])

    # ---- asyncio ----

    def test_async_flow(self):
        """Two loops of consumers and a producer share one event loop, one channel object, one descriptor."""
        producer, consumer = self.pair(slots=2)
        got = []

        async def produce():
            for i in range(100):
                await producer.put_async(bytes([i]), meta={"i": i})
            producer.end()

        async def consume():
            async for item in consumer:
                got.append((item.read(), item.meta["i"]))
                await asyncio.sleep(0)

        async def main():
            await asyncio.wait_for(asyncio.gather(produce(), consume(), consume()), WAIT_S)

        asyncio.run(main(), debug=True)
        self.assertEqual(sorted(got), [(bytes([i]), i) for i in range(100)])

    def test_cancelled_takes_take_nothing(self):
        producer, consumer = self.pair()

        async def main():
            tasks = [asyncio.ensure_future(consumer.take_async()) for _ in range(5)]
            await asyncio.sleep(0)
            for task in tasks[:4]:
                task.cancel()
            producer.put(b"one")
            with await asyncio.wait_for(tasks[4], WAIT_S) as item:
                self.assertEqual(item.read(), b"one")
            for task in tasks[:4]:
                with self.assertRaises(asyncio.CancelledError):
                    await task
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.take_async(), 0.01)
            producer.put(b"two")
            with await asyncio.wait_for(consumer.take_async(), WAIT_S) as item:
                self.assertEqual(item.read(), b"two")

        asyncio.run(main(), debug=True)
        self.assertEqual(consumer.stats().members[1].items, 2)

    # ---- deaths ----

    def test_broken_items(self):
        """A producer that dies amid an item: it is told of, in its place, and there is nothing in it."""
        producer, consumer = self.pair()
        with self.start("import gpuipc, os, signal\nch = gpuipc.Client().channel_attach('ch', role='producer')\nitem = ch.item()\n"
                        "ch.put(b'after')\nitem.write(b'half')\nprint(item.ticket, flush=True)\n"
                        "os.kill(os.getpid(), signal.SIGKILL)") as other:
            self.assertEqual(other.stdout.readline(), "0\n")
            other.wait()
        self.assertEqual(other.returncode, -signal.SIGKILL)
        producer.put(b"alive")
        producer.end()
        seen = []
        for item in consumer:
            if item.broken:
                self.assertFalse(item.in_hand)
                for attempt in (item.array, item.read, lambda item=item: item.pointer):
                    with self.assertRaisesRegex(gpuipc.BrokenItemError, "died"):
                        attempt()
                seen.append("broken")
            else:
                self.assertFalse(item.is_broken())
                seen.append(item.read())
        self.assertEqual(seen, ["broken", b"after", b"alive"])

    def test_a_consumer_that_dies(self):
        producer, consumer = self.pair(slots=2)
        producer.put(b"one")
        with self.start("import gpuipc, os, signal\nch = gpuipc.Client().channel_attach('ch')\nitem = ch.take()\n"
                        "print(item.read(), flush=True)\n"
                        "os.kill(os.getpid(), signal.SIGKILL)") as other:
            self.assertEqual(other.stdout.readline(), "b'one'\n")
            other.wait()
        for i in range(8):
            producer.put(bytes([i]), timeout=WAIT_S)
            with consumer.take(WAIT_S) as item:
                self.assertEqual(item.read(), bytes([i]))

    def test_two_processes(self):
        code = ("import gpuipc, json, sys\nout = []\nwith gpuipc.Client() as c, c.channel_attach('ch', wait=20) as ch:\n"
                "    print('ready', flush=True)\n    for item in ch:\n"
                "        out.append([item.ticket, item.array().dtype, item.array().tobytes().hex()])\n"
                "print(json.dumps(out))")
        producer = self.create()
        with self.start(code) as other:
            self.assertEqual(other.stdout.readline(), "ready\n")
            for i in range(10):
                producer.put(numpy.full(3, i, "i4"))
            producer.end()
            told, complained = other.communicate(timeout=WAIT_S)
        self.assertEqual(complained, "")
        self.assertEqual(json.loads(told), [[i, "int32", numpy.full(3, i, "i4").tobytes().hex()] for i in range(10)])

    # ---- fences ----

    def test_fences(self):
        with self.ours.allocate(64, device=self.device) as buffer, self.ours.open(id=buffer.id) as other:
            ours, theirs = buffer.fence(8), other.fence(8)
            self.assertEqual((ours.value, ours.offset, ours.is_synchronous), (0, 8, backend.HOST))
            waiter = threading.Thread(target=lambda: theirs.wait(7, timeout=WAIT_S))
            waiter.start()
            ours.signal(3)
            self.assertTrue(waiter.is_alive())
            ours.signal(7)
            waiter.join(WAIT_S)
            self.assertFalse(waiter.is_alive())
            self.assertEqual(theirs.value, 7)
            with self.assertRaisesRegex(TimeoutError, "it is at 7"):
                theirs.wait(8, timeout=0.01)
            self.assertEqual(buffer.views, 1)
            ours.close()
            self.assertEqual(buffer.views, 0)
            with self.assertRaisesRegex(ValueError, "closed"):
                ours.signal(9)
            theirs.close()
            for offset in (3, 64, -8):
                with self.assertRaisesRegex(gpuipc.InvalidParameterError, "offset"):
                    buffer.fence(offset)

    # ---- streams ----

    @unittest.skipIf(backend.HOST, "host memory has no streams")
    def test_streams_are_ordered(self):
        """Through a real driver's interface: an item is written by a stream that is held up, and read by another."""
        cuda = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.assertEqual((cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
                          cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxPushCurrent_v2(context)), (0, 0, 0, 0))
        streams = [ctypes.c_void_p() for _ in range(3)]
        for stream in streams:
            self.assertEqual(cuda.cuStreamCreate(ctypes.byref(stream), 1), 0)
        one, two, three = (stream.value for stream in streams)
        with self.ours.allocate(64, device=self.device) as gate_buffer:
            gate = gate_buffer.fence(0)
            producer, consumer = self.pair()
            with producer.item(5, stream=one) as item:
                array = item.array((64,), "uint8")
                gate.wait(1, stream=one)
                self.assertEqual(cuda.cuMemsetD8Async(ctypes.c_uint64(array.pointer), ctypes.c_ubyte(5), ctypes.c_size_t(64),
                                 streams[0]), 0)
            item = consumer.take(5, stream=type("Stream", (), {"cuda_stream": two})())
            found = item.array()
            self.assertEqual(found.__cuda_array_interface__["stream"], two)
            capsule = found.__dlpack__(stream=three, max_version=(1, 0))
            self.assertEqual([cuda.cuStreamQuery(stream) for stream in streams], [600, 600, 600])
            gate.signal(1)
            self.assertEqual(cuda.cuStreamSynchronize(streams[2]), 0)
            self.assertEqual(found.tobytes(), bytes([5]) * 64)
            item.release()
            self.assertEqual(cuda.cuStreamSynchronize(streams[1]), 0)
            gate.close()
            del capsule, found, array, item
            producer.close()
            consumer.close()
        for stream in streams:
            cuda.cuStreamDestroy_v2(stream)
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        cuda.cuDevicePrimaryCtxRelease_v2(device)

    def test_what_is_a_stream(self):
        from gpuipc.fence import stream_handle

        self.assertEqual(stream_handle(None), 0)
        self.assertEqual(stream_handle(7), 7)
        for attribute, value in (("cuda_stream", 5), ("ptr", 5), ("handle", ctypes.c_void_p(5)), ("__cuda_stream__", (0, 5)),
                                 ("__cuda_stream__", lambda self: (0, 5))):
            self.assertEqual(stream_handle(type("Stream", (), {attribute: value})()), 5)
        for nothing in ("1", 1.5, True, object()):
            with self.assertRaisesRegex(TypeError, "stream"):
                stream_handle(nothing)



if __name__ == "__main__":
    unittest.main()
