# SPDX-License-Identifier: Apache-2.0
"""What a program may do wrong with the package, and what may come between: numbers of any size, things closed under others, an item in many
hands, signals and cancellation while something is being taken, producers that stopped half way, arrays of all makes.
Runs on memory that has descriptors."""

import asyncio
import gc
import glob
import os
import pathlib
import re
import signal
import sys
import threading
import time
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import ROOT, wait_for  # noqa: E402
from package import PackageTest, gpuipc  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

from gpuipc import _dlpack, aio  # noqa: E402
from gpuipc._words import in_python  # noqa: E402

PAGE = 4096
SLOT = 64
ONE = {"v": 1, "dtype": "uint8", "shape": [4]}


class MisuseTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect()
        self.device = self.device_of(self.ours)

    def pair(self, **options):
        create = {"slots": 1, "slot_bytes": SLOT, "device": self.device, **options}
        return self.closed_later(self.ours.channel_create("ch", **create)), self.closed_later(self.ours.channel_attach("ch"))

    def refused(self, call, what, kind=gpuipc.InvalidParameterError):
        with self.assertRaisesRegex(kind, f"^{what}: ") as caught:
            call()
        if kind is not TypeError:
            self.assertEqual(caught.exception.subject, what)


class NumbersTest(MisuseTest):
    """None is cut to the size that the library has for it."""

    def test_numbers_that_are_too_large(self):
        ours, much = self.ours, 1 << 64
        buffer, (producer, _) = ours.allocate(PAGE), self.pair()
        buffer.write(b"as it was")
        fence = buffer.fence(64)
        with producer.item(5) as item:
            calls = {
                "size": [lambda: ours.allocate(much + 1), lambda: item.publish(much + 1)],
                "offset": [lambda: buffer.write(b"x", much), lambda: buffer.read(1, much), lambda: buffer.readinto(bytearray(1), much),
                           lambda: buffer.fence(much), lambda: buffer.write(b"x", -much), lambda: item.write(b"x", much)],
                "n": [lambda: buffer.read(1 << 62), lambda: buffer.read(much + 1), lambda: buffer.read(-2),
                      lambda: buffer.read(8, PAGE - 7)],
                "data": [lambda: buffer.write(bytes(PAGE + 1)), lambda: buffer.write(b"ab", PAGE - 1)],
                "into": [lambda: buffer.readinto(bytearray(2), PAGE - 1)],
                "value": [lambda: fence.signal(much), lambda: fence.signal(-1), lambda: fence.wait(much, 0)],
                "stream": [lambda: fence.signal(1, stream=much)],
                "slots": [lambda: ours.channel_create(slots=much + 1, slot_bytes=1)],
                "slot_bytes": [lambda: ours.channel_create(slots=1, slot_bytes=much + 1)],
                "meta_bytes": [lambda: ours.channel_create(slots=1, slot_bytes=1, meta_bytes=much)],
                "since": [lambda: ours.watch(much)],
                "owner": [lambda: ours.open("x", owner=much + os.getuid()), lambda: ours.open("x", owner=-1)],
                "uid": [lambda: ours.leases(uid=much + os.getuid()), lambda: ours.buffers(uid=-5)],
            }
            for what, ones in calls.items():
                for i, call in enumerate(ones):
                    with self.subTest(what, i=i):
                        self.refused(call, what)
        self.assertEqual((buffer.read(9), fence.value), (b"as it was", 0))
        buffer.write(b"z", PAGE - 1)
        self.assertEqual((buffer.read(offset=PAGE - 1), buffer.read(offset=PAGE), buffer.read(0)), (b"z", b"", b""))

    def test_what_is_no_number(self):
        for call, what in ((lambda: self.ours.allocate(1e6), "size"), (lambda: self.ours.allocate("1"), "size"),
                           (lambda: self.ours.open("x", owner=1.5), "owner"), (lambda: self.ours.watch("1"), "since"),
                           (lambda: self.ours.allocate(1, keep="5"), "keep"), (lambda: self.ours.open("x", wait=True), "wait"),
                           (lambda: self.ours.channel_create(slots=2.0, slot_bytes=1), "slots")):
            with self.subTest(what):
                self.refused(call, what, TypeError)
        self.assertEqual(self.ours.allocate(numpy.int32(7)).size, 7)

    def test_long_times(self):
        """Seconds that are more milliseconds than an int has are no time out at once."""
        for seconds in (float("inf"), 2147484.0, 4294968.0, 1e18):
            with self.subTest(seconds), gpuipc.Client(self.daemon.socket, timeout=seconds, restart=seconds) as client:
                self.assertEqual(client.allocate(1).size, 1)
        self.assertEqual(gpuipc._waits.short_milliseconds(float("inf"), "x"), (1 << 31) - 1)

    def test_the_socket_is_a_path(self):
        with gpuipc.Client(pathlib.Path(self.daemon.socket)) as client:
            self.assertEqual(client.socket, self.daemon.socket)
        self.refused(lambda: gpuipc.Client("a\0b"), "socket")


class WordsTest(MisuseTest):
    # Of what this package does not call, or gives right.
    NOT_CALLED = re.compile(r"GPUIPC_CHANNEL_|GPUIPC_POOL_BLOCK_INIT|no_thread|gpuipc_python|gpuipc_tensor")

    def test_messages_speak_of_python(self):
        """All texts of the library's: C's functions and milliseconds are not what is called and given here."""
        seen = 0
        for path in [*glob.glob(f"{ROOT}/client/*.c"), *glob.glob(f"{ROOT}/daemon/*.c"), f"{ROOT}/proto/schema.c"]:
            with open(path, encoding="utf-8") as file:
                source = file.read()
            for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', source):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group()))
                if " " in text and not self.NOT_CALLED.search(text):
                    seen += in_python(text) != text
                    self.assertNotRegex(in_python(text), r"gpuipc_\w|_ms\b|GPUIPC_[A-Z]+_|GetStatus", f"{path}: needs a line in _words.py")
        self.assertGreater(seen, 15)

    def test_durations_are_seconds(self):
        for what in ("keep", "wait"):
            with self.subTest(what), self.assertRaisesRegex(gpuipc.QuotaExceededError, f"^{what}: 1000000000 seconds") as caught:
                self.ours.allocate(1 << 50 if what == "wait" else 1, **{what: 1e9})
            self.assertEqual((caught.exception.subject, caught.exception.asked), (what, 10**9))
            self.assertIn(caught.exception.limit, (3600, 86400))
        with self.assertRaisesRegex(TimeoutError, r"wait=, in seconds"):
            self.ours.open("never", wait=0.01)

    def test_text_and_metadata(self):
        for call, what in ((lambda: self.ours.allocate(1, name="\ud800"), "name"), (lambda: self.ours.allocate(1, label="\udcff"), "label"),
                           (lambda: self.ours.allocate(1, meta={"a": float("nan")}), "meta"),
                           (lambda: self.ours.put(None, b"x", meta={"a": "\ud800"}), "meta")):
            self.refused(call, what)
        for meta in (5, [1], {"a": {1}}):
            self.refused(lambda meta=meta: self.ours.put(None, b"x", meta=meta), "meta", TypeError)

    def test_errors_show_no_more_than_is_useful(self):
        for tensor in ({**ONE, "dtype": "x" * 3000}, {**ONE, "shape": ["x"] * 900}, {**ONE, "v": ["x"] * 900},
                       {**ONE, "strides": [[1]] * 900}):
            with self.subTest(list(tensor)), self.assertRaises(gpuipc.LayoutError) as caught:
                gpuipc.Layout.from_meta({"tensor": tensor}, 4)
            self.assertLess(len(str(caught.exception)), 600)


class LayoutsTest(MisuseTest):
    def test_a_layout_is_checked_however_it_is_made(self):
        for bad in (("float32", (4,), (-1,)), ("nothing", (1,), (1,)),
                    ("int8", (2, 2), (1,)), ("int16", (2,), (1,), 1), ("int8", (-1,), (1,)),
                    ("int8", (1 << 54,), (1,)), ("int8", (2.0,), (1,))):
            with self.subTest(bad), self.assertRaises(gpuipc.LayoutError):
                gpuipc.Layout(*bad)

    def test_a_card_for_more_than_there_is(self):
        """A stride of 0 would have who copies it need memory for all elements."""
        data = self.ours.allocate(8, mode=0o644)
        meta = {"share": {"v": 1, "buffer": data.id, "tensor": {"dtype": "int8", "shape": [1 << 40], "strides": [0]}}}
        card = self.ours.allocate(1, name="card", meta=meta)
        with self.assertRaisesRegex(gpuipc.LayoutError, "overlap"):
            self.ours.get("card")
        card.close()

    def test_metadata_of_an_array_is_an_object(self):
        with self.ours.put("m", b"1234", meta={"mine": [1]}, device=self.device):
            self.assertEqual(self.ours.get("m").meta["mine"], [1])
        with self.ours.allocate(4) as buffer:
            self.assertEqual(buffer.array().meta, {})


class SourcesTest(MisuseTest):
    """Arrays of others, as they are looked at."""

    def put(self, array):
        with self.ours.put(None, array, device=self.device) as buffer:
            return buffer.read(), buffer.layout().shape

    def test_an_interface_with_a_buffer(self):
        """As Pillow's images have it."""
        for data, extra in ((b"\1\2\3\4", {}), (bytearray(b"??\1\2\3\4"), {"offset": 2})):
            image = type("Image", (), {"__array_interface__": {"shape": (2, 2), "typestr": "|u1", "version": 3, "data": data, **extra}})()
            self.assertEqual(self.put(image), (b"\1\2\3\4", (2, 2)))
        image.__array_interface__["shape"] = (2, 3)
        with self.assertRaises(gpuipc.LayoutError):
            self.put(image)

    def test_an_interface_that_keeps_its_memory(self):
        class Fresh:
            @property
            def __array_interface__(self):
                array = numpy.full(1 << 20, 7, dtype="u1")
                return {**array.__array_interface__, "kept": array}

        self.assertEqual(self.put(Fresh())[0], b"\7" * (1 << 20))

    def test_memory_of_other_makers_devices(self):
        """Their addresses are not this machine's."""
        class Metal:
            def __dlpack_device__(self):
                return (8, 0)

            def __dlpack__(self, **how):
                return _dlpack.capsule(self, 4096, gpuipc.Layout.of("uint8", (16,)), (8, 0), False)

        with self.assertRaisesRegex(BufferError, "type 8.*copy it"):
            self.put(Metal())

    def test_read_only_ones(self):
        self.ours.put("a", numpy.arange(4, dtype="u1"), keep=60, device=self.device).close()
        reader = self.ours.open("a", access="ro")
        self.assertEqual(self.put(reader), (b"\0\1\2\3", (4,)))
        with self.ours.allocate(8, meta=gpuipc.Layout.of("bfloat16", (4,)).to_meta()) as buffer:
            self.assertEqual(self.put(self.ours.get(id=buffer.id)), (bytes(8), (4,)))
        reader.close()
        self.ours.free("a")

    def test_bytes_of_any_shape(self):
        producer, consumer = self.pair(slot_bytes=PAGE)
        array = numpy.arange(6, dtype="i2").reshape(2, 3)
        with self.ours.allocate(PAGE) as buffer:
            for data in (b"", b"abc", bytearray(b"abc"), memoryview(b"abcdef")[::2], memoryview(b"abcd")[1:], array, array.T,
                         numpy.zeros((0, 3)), memoryview(b"abcd").cast("H")):
                wanted = memoryview(data).tobytes()
                self.assertEqual((buffer.write(data), buffer.read(len(wanted))), (len(wanted), wanted))
                with producer.item(5) as item:
                    self.assertEqual(item.write(data), len(wanted))
                    item.publish(len(wanted))
                with consumer.take(5) as item:
                    self.assertEqual(item.read(), wanted)
                with self.ours.put(None, data, device=self.device) as copy:
                    self.assertEqual(copy.array().tobytes(), wanted)
            self.assertEqual(buffer.readinto(numpy.zeros((0, 3))), 0)
            into = numpy.zeros((2, 2), dtype="u1")
            buffer.write(b"1234")
            self.assertEqual((buffer.readinto(into), into.tobytes()), (4, b"1234"))
            for bad, word in ((b"abc", "read-only"), (array.T, "not contiguous")):
                with self.assertRaisesRegex(TypeError, f"into: it is {word}"):
                    buffer.readinto(bad)


class HandsTest(MisuseTest):
    """Items, and who has them."""

    def test_writing_to_an_item_of_a_closed_channel(self):
        """Its memory is gone."""
        producer, _ = self.pair()
        item = producer.item(5)
        producer.close()
        for attempt in (lambda: item.write(b"x"), lambda: item.put(b"x"), lambda: item.pointer, item.array, item.publish):
            with self.assertRaisesRegex(ValueError, "the channel is closed"):
                attempt()

    def test_closed_while_an_item_is_written(self):
        for _ in range(10):
            channel = self.ours.channel_create(slots=1, slot_bytes=8 << 20)
            item, data, started = channel.item(), bytearray(8 << 20), threading.Event()

            def write(item=item, data=data, started=started):
                started.set()
                try:
                    item.write(data)
                except ValueError:
                    pass

            thread = threading.Thread(target=write)
            thread.start()
            started.wait()
            channel.close()
            thread.join()

    def test_one_item_in_many_threads(self):
        """It is released once, and the channel lives on."""
        producer, consumer = self.pair()
        for _ in range(200):
            producer.put(b"x", timeout=5)
            item, barrier, failures = consumer.take(5), threading.Barrier(4), []

            def release(item=item, barrier=barrier, failures=failures):
                barrier.wait()
                try:
                    item.release()
                except gpuipc.Error as error:
                    failures.append(error)

            threads = [threading.Thread(target=release) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
        consumer.check()

    def test_what_cannot_be_published_is_given_up(self):
        """Else the channel would stand still: nobody has the item any more."""
        producer, consumer = self.pair()
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "meta_bytes"):
            producer.put(b"x", meta={"a": "x" * 900})
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "meta: "):
            producer.put(b"x", meta={"a": float("nan")})
        with self.assertRaisesRegex(TypeError, "meta: "), producer.item(5) as item:
            item.meta = [1]
        with self.assertRaisesRegex(gpuipc.InvalidParameterError, "meta_bytes"):
            asyncio.run(producer.put_async(b"x", meta={"a": "x" * 900}))
        producer.put(b"fine", timeout=5)
        with consumer.take(5) as item:
            self.assertEqual(item.read(), b"fine")

    def test_a_broken_item_may_be_in_hand(self):
        """As where a GPU's streams cannot wait by themselves: it has a slot, which is to be given back."""
        producer, consumer = self.pair()
        producer.put(b"x")
        taken = consumer.take(5)
        taken._item.broken = 1
        with gpuipc.Item(taken._member, taken._item, 0) as item:
            self.assertTrue(item.broken and item.in_hand)
            with self.assertRaises(gpuipc.BrokenItemError):
                item.read()
        producer.put(b"y", timeout=5)

    def test_a_channel_whose_lease_was_lost_closes(self):
        self.assertEqual(self.run_program("""
import gpuipc, time
with gpuipc.Client() as other, gpuipc.Client(restart=0) as client, client.channel_create(slots=1, slot_bytes=64) as channel:
    other.kick(client.status().session)
    while True:
        try:
            channel.check()
            time.sleep(0.001)
        except gpuipc.LeaseLostError:
            print("lost")
            break
print(channel.closed)
"""), "lost\nTrue\n")

    def test_a_channel_that_could_not_be_left(self):
        """Stays this process's, with its connection."""
        library, client = gpuipc._native.library(), gpuipc.Client(self.daemon.socket)
        channel = client.channel_create(slots=1, slot_bytes=SLOT)
        real = library.gpuipc_channel_free

        def too_late(pointer, error):
            error._obj.status = gpuipc._native.TIMED_OUT
            return gpuipc._native.TIMED_OUT

        library.gpuipc_channel_free = too_late
        try:
            with self.assertRaises(gpuipc.TimedOutError):
                channel.close()
        finally:
            library.gpuipc_channel_free = real
        client.close()
        self.assertIn(id(channel._member), gpuipc._lifetime._keepers)
        self.assertTrue(channel._member.connection._open)
        with channel.item(5) as item:
            item.write(b"x")
        channel.close()
        self.assertFalse(client._connection._open)


    def test_released_while_it_cannot_be_left(self):
        """By another thread, amid a close() that fails: the slot comes back nevertheless."""
        library, (producer, consumer) = gpuipc._native.library(), self.pair()
        producer.put(b"x", timeout=5)
        item, real, failures = consumer.take(5), library.gpuipc_channel_free, []
        releases = threading.Thread(target=item.release)

        def too_late(pointer, error):
            releases.start()
            wait_for(lambda: not releases.is_alive() or self.sleeps(releases.native_id), "the other thread")
            error._obj.status = gpuipc._native.TIMED_OUT
            return gpuipc._native.TIMED_OUT

        def close():
            try:
                consumer.close()
            except gpuipc.TimedOutError as error:
                failures.append(error)

        library.gpuipc_channel_free = too_late
        try:
            closes = threading.Thread(target=close)
            closes.start()
            closes.join(2 * WAIT_S)
        finally:
            library.gpuipc_channel_free = real
        releases.join(WAIT_S)
        self.assertEqual((len(failures), item.in_hand, consumer.closed), (1, False, False))
        producer.put(b"y", timeout=5)
        with consumer.take(5) as item:
            self.assertEqual(item.read(), b"y")

    @staticmethod
    def sleeps(thread):
        with open(f"/proc/self/task/{thread}/wchan", encoding="ascii") as file:
            return file.read() not in ("0", "")


class InterruptsTest(MisuseTest):
    """A signal's handler raises when the library's call has returned: with what was waited for, it may be."""

    def interrupted(self, wait, meanwhile):
        """`meanwhile` runs in the same slice of the wait, right after the signal."""
        def run():
            wait_for(self.main_thread_sleeps, "the wait")
            os.kill(os.getpid(), signal.SIGINT)
            meanwhile()

        thread = threading.Thread(target=run)
        with self.assertRaises(KeyboardInterrupt):
            thread.start()
            wait()
        thread.join()

    @staticmethod
    def main_thread_sleeps():
        with open(f"/proc/self/task/{os.getpid()}/wchan", encoding="ascii") as file:
            return file.read() not in ("0", "")

    def test_items_are_not_lost(self):
        producer, consumer = self.pair()
        for i in range(10):
            self.interrupted(lambda: consumer.take(WAIT_S), lambda i=i: producer.put(bytes([i])))
            with consumer.take(5) as item:
                self.assertEqual((item.ticket, item.read()), (i, bytes([i])))

    def test_events_are_not_lost(self):
        other = self.connect()
        with self.ours.watch() as watch:
            for i in range(10):
                self.interrupted(lambda: watch.next(WAIT_S), lambda i=i: other.allocate(1, name=f"n{i}", device=self.device).release())
                kinds = [watch.next(WAIT_S).kind for _ in range(5)]
                self.assertEqual(kinds, ["created", "opened", "released", "unnamed", "freed"])

    def test_slots_are_given_back(self):
        producer, consumer = self.pair()
        for _ in range(10):
            producer.put(b"x", timeout=5)
            item = consumer.take(5)
            self.interrupted(lambda: producer.item(WAIT_S), item.release)

    def test_leases_are_not_kept(self):
        other, kept = self.connect(), []
        for i in range(10):
            self.interrupted(lambda i=i: self.ours.open(f"n{i}", access="ro", wait=WAIT_S),
                             lambda i=i: kept.append(other.put(f"n{i}", b"x", device=self.device)))
            gc.collect()
            wait_for(lambda i=i: [lease.access for lease in other.leases(f"n{i}")] == ["rw"], "the lease's end")


class AsyncTest(MisuseTest):
    def test_closing_ends_what_waits(self):
        """Its descriptor is gone, which tells an event loop nothing."""
        producer, consumer = self.pair()
        producer.put(b"x")
        with consumer.take(5), self.ours.watch(since=0) as watch:
            async def main():
                news = asyncio.ensure_future(watch.__anext__())
                await asyncio.wait_for(news, WAIT_S)
                tasks = [asyncio.ensure_future(each) for each in (consumer.take_async(), producer.item_async(), consumer.take_async())]
                await asyncio.sleep(0)
                consumer.close()
                producer.close()
                return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)

            self.assertEqual([str(error) for error in asyncio.run(main())], ["the channel is closed"] * 3)

    def test_more_come_while_those_who_wait_are_roused(self):
        """As in a finalizer, which may run whenever something is made."""
        class Loop:
            def call_soon_threadsafe(self, function, future):
                roused.append(future)

        class Comes:
            def __init__(self, left):
                self.itself, self.left = self, left  # goes with the next collection

            def __del__(self):
                sleepers[object()] = loop
                if self.left:
                    Comes(self.left - 1)

        sleepers, roused, loop = {}, [], Loop()
        for number in range(1000):
            sleepers[number] = loop
        before = gc.get_threshold()
        Comes(500)
        gc.set_threshold(1, 1, 1)
        try:
            aio.rouse(sleepers)
        finally:
            gc.set_threshold(*before)
        self.assertLessEqual(set(range(1000)), set(roused))

    def test_closing_a_watch_ends_what_waits(self):
        watch = self.ours.watch()

        async def main():
            task = asyncio.ensure_future(watch.next_async())
            await asyncio.sleep(0)
            watch.close()
            gc.collect()
            with self.assertRaises(gpuipc.ClosedError):
                await asyncio.wait_for(task, WAIT_S)
            with self.assertRaises(gpuipc.ClosedError):
                await watch.next_async()

        asyncio.run(main())

    def test_closing_a_fence_ends_what_waits(self):
        buffer = self.closed_later(self.ours.allocate(64, device=self.device))

        async def main(fence):
            task = asyncio.ensure_future(fence.wait_async(1))
            await asyncio.sleep(0)
            fence.close()
            await asyncio.wait_for(task, WAIT_S)

        with self.assertRaisesRegex(ValueError, "the fence is closed"):
            asyncio.run(main(buffer.fence(0)))
        ended, fence, waits = [], buffer.fence(0), threading.Event()
        library = gpuipc._native.library()
        real = library.gpuipc_fence_wait
        library.gpuipc_fence_wait = lambda *arguments: (waits.set(), real(*arguments))[1]
        self.addCleanup(setattr, library, "gpuipc_fence_wait", real)

        def wait():
            try:
                fence.wait(1)
            except ValueError as error:
                ended.append(str(error))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.assertTrue(waits.wait(WAIT_S))
        fence.close()
        thread.join(WAIT_S)
        self.assertEqual(ended, ["the fence is closed"])

    def test_closed_by_another_thread(self):
        for i in range(20):
            _, consumer = self.pair()
            ended, ready = [], threading.Barrier(3)

            def wait(consumer=consumer, ended=ended, ready=ready):
                async def main():
                    ready.wait()
                    await asyncio.wait_for(consumer.take_async(), WAIT_S)

                try:
                    asyncio.run(main())
                except ValueError as error:
                    ended.append(str(error))

            threads = [threading.Thread(target=wait) for _ in range(2)]
            for thread in threads:
                thread.start()
            ready.wait()
            if i % 2:
                wait_for(lambda consumer=consumer: len(consumer._member.sleepers) == 2, "those who wait")
            consumer.close()
            for thread in threads:
                thread.join(2 * WAIT_S)
            self.assertEqual(ended, ["the channel is closed"] * 2)
            self.tidy()

    def tidy(self):
        """The channel by that name."""
        for thing in self.ours.buffers("ch"):
            self.ours.free(id=thing.id)


class HalfTest(MisuseTest):
    """Producers that stopped amid it."""

    def test_what_will_never_be_complete(self):
        """It is said within the time, without a call after another."""
        self.ours.allocate(64, name="half", keep=60, meta={"tensor": {**ONE, "sealed": True}}).close()
        holder = self.ours.open("half", access="ro")
        calls = []
        real = self.ours._open_buffer
        self.ours._open_buffer = lambda *arguments: (calls.append(1), real(*arguments))[1]
        for wait in (0, 0.3):
            started = time.monotonic()
            with self.assertRaisesRegex(gpuipc.NoSuchBufferError, "half was never complete"):
                self.ours.get("half", wait=wait)
            self.assertLess(time.monotonic() - started, wait + WAIT_S / 2)
        with self.assertRaisesRegex(gpuipc.NoSuchBufferError, "never complete"):
            self.ours.get(id=holder.id, wait=60)
        self.assertEqual(len(calls), 3)
        self.ours.free("half")
        holder.close()

    def test_another_comes(self):
        self.ours.allocate(64, name="half", keep=60, meta={"tensor": {**ONE, "sealed": True}}).close()
        holder, got, looked = self.ours.open("half", access="ro"), [], threading.Event()
        real = self.ours.buffers
        self.ours.buffers = lambda name: (looked.set(), real(name))[1]
        thread = threading.Thread(target=lambda: got.append(self.ours.get("half", wait=WAIT_S).tobytes()))
        thread.start()
        self.assertTrue(looked.wait(WAIT_S))
        self.ours.free("half")
        holder.close()
        with self.ours.put("half", b"whole", device=self.device):
            thread.join(WAIT_S)
        self.assertEqual(got, [b"whole"])

    def test_what_was_not_put_whole_is_not_kept(self):
        real = gpuipc.Buffer.seal
        gpuipc.Buffer.seal = lambda buffer: [][1]
        try:
            with self.assertRaises(IndexError):
                self.ours.put("kept", b"x", keep=60, device=self.device)
        finally:
            gpuipc.Buffer.seal = real
        self.assertEqual(self.ours.buffers("kept"), [])

    def test_what_can_never_be_had_is_not_asked_for_again(self):
        """A channel's memory is waited for in one call, as a buffer's is."""
        calls = []
        real = self.ours._member
        self.ours._member = lambda *arguments: (calls.append(1), real(*arguments))[1]
        with self.assertRaises(gpuipc.OutOfMemoryError):
            self.ours.channel_create(slots=1, slot_bytes=1 << 45, wait=0.5)
        self.assertLessEqual(len(calls), 2)


if __name__ == "__main__":
    unittest.main()
