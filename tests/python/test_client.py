# SPDX-License-Identifier: Apache-2.0
"""The daemon through the Python package: names, modes, limits, lists, news, errors in words, and waits of asyncio. Runs on memory that
has descriptors."""

import asyncio
import os
import pickle
import sys
import threading
import time
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import memory_of, wait_for  # noqa: E402
from package import PackageTest, gpuipc  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

from gpuipc import share  # noqa: E402

PAGE = backend.PAGE


class ClientTest(PackageTest):
    @property
    def daemon_args(self):
        return memory_of(64 * PAGE) if self._testMethodName in ("test_waiting_for_memory", "test_figures_of_errors") else ()

    def setUp(self):
        super().setUp()
        self.ours = self.connect(label="test")
        self.device = self.device_of(self.ours)

    def allocate(self, size=PAGE, **options):
        return self.ours.allocate(size, device=self.device, **options)

    # ---- facts ----

    def test_facts(self):
        with self.allocate(100, name="a/b", meta={"k": [1]}, mode=0o640, label="mine") as buffer:
            self.assertEqual((buffer.name, buffer.size, buffer.allocated, buffer.device, buffer.handle, buffer.access, buffer.meta),
                             ("a/b", 100, PAGE, self.device, backend.HANDLE, "rw", {"k": [1]}))
            self.assertIn("100 bytes", repr(buffer))
            self.assertEqual(buffer.cuda_device, -1)
            buffer.pointer  # noqa: B018
            self.assertEqual(buffer.offset, 0)
            self.assertIsInstance(self.caught(lambda: buffer.ipc_handle), gpuipc.HandleUnsupportedError)
            self.assertEqual((buffer.cuda_device, buffer.is_peer), (-1 if backend.HOST else 0, False))
            (lease,) = self.ours.leases("a/b")
            self.assertEqual((lease.id, lease.buffer, lease.access, lease.pid, lease.label, lease.size, lease.state),
                             (buffer.lease, buffer.id, "rw", os.getpid(), "mine", 100, "active"))
            self.assertLess(abs(lease.since - time.time()), 60)
            (info,) = self.ours.buffers("a/b")
            self.assertEqual((info.id, info.mode, info.owner_uid, info.leases, info.sealed, info.meta, info.channel),
                             (buffer.id, "0640", os.getuid(), 1, False, {"k": [1]}, None))
            self.assertEqual(os.fstat(buffer.fileno()).st_size >= 100 if backend.HOST else True, True)
            with self.ours.open(id=buffer.id, access="ro") as reader:
                self.assertEqual((reader.access, reader.name, reader.id), ("ro", "a/b", buffer.id))
                self.assertEqual({each.label for each in self.ours.leases("a/b")}, {"mine", "test"})
        wait_for(lambda: self.ours.buffers(uid=os.getuid()) == [], "the end of the buffer")

    def test_status(self):
        status = self.ours.status()
        self.assertEqual((status.version, status.sessions), ("0.1.0", 1))
        self.assertIn("channels", status.features)
        self.assertIn("buffers", status.limits)
        self.assertEqual(status.devices[0].handles[0] if backend.HOST else "cuda-fd", backend.HANDLE)
        self.assertEqual(self.ours.socket, self.daemon.socket)
        self.assertEqual(self.ours.restarts, 0)

    def test_the_environment_names_the_socket(self):
        told = self.run_program("import gpuipc; print(gpuipc.Client().socket)")
        self.assertEqual(told, f"{self.daemon.socket}\n")

    # ---- errors ----

    def caught(self, function, *arguments, **options):
        with self.assertRaises(gpuipc.Error) as caught:
            function(*arguments, **options)
        return caught.exception

    def test_missing_is_named_with_the_arguments_of_this_package(self):
        waits, beyond = "Give wait=", 'owner="any"'
        for attempt in (self.ours.open, self.ours.get, self.ours.channel_attach):
            at_once, late = self.caught(attempt, "nothing").message, self.caught(attempt, "nothing", wait=0.05).message
            self.assertRegex(at_once, f"^No such buffer as 'nothing', .*{waits}.*{beyond}")
            self.assertRegex(late, f"^'nothing' did not come within 0.05 s. Give a longer wait=, in seconds.*{beyond}")
            self.assertNotIn("wait_ms", late)
        self.assertRegex(self.caught(self.ours.open, id="b999999").message, "^No such buffer as 'b999999', or none .* open it.$")

    def test_sealed_says_how_to_ask(self):
        with self.allocate(name="sealed") as buffer:
            buffer.seal()
            for about in ({"name": "sealed"}, {"id": buffer.id}):
                error = self.caught(self.ours.open, **about)
                self.assertIs(type(error), gpuipc.AlreadySealedError)
                self.assertIn('access="ro"', error.remedy)

    def test_a_buffer_is_no_channel(self):
        with self.allocate(name="plain"):
            for wait in (0, 0.05):
                self.assertRegex(self.caught(self.ours.channel_attach, "plain", wait=wait).message, "'plain' is no channel but a buffer")

    def test_durations_are_numbers(self):
        for what, attempt in (("wait", lambda: self.ours.open("x", wait="10s")), ("keep", lambda: self.allocate(keep="60s"))):
            with self.assertRaisesRegex(TypeError, f"^{what}: seconds are wanted, not '.0s'"):
                attempt()
        with self.ours.channel_create(slots=1, slot_bytes=8, device=self.device) as channel:
            with self.assertRaisesRegex(TypeError, "^timeout: seconds are wanted, not '1s'"):
                channel.take("1s")

    def test_errors_are_pythons_too(self):
        with self.allocate(name="taken", keep=1) as buffer:
            for kind, builtin, attempt in (
                    (gpuipc.NoSuchBufferError, FileNotFoundError, lambda: self.ours.open("nothing")),
                    (gpuipc.NoSuchBufferError, FileNotFoundError, lambda: self.ours.free("nothing")),
                    (gpuipc.NameTakenError, FileExistsError, lambda: self.allocate(name="taken")),
                    (gpuipc.NoSuchDeviceError, LookupError, lambda: self.ours.allocate(1, device="GPU-none")),
                    (gpuipc.NoSuchSessionError, LookupError, lambda: self.ours.kick("s9999")),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.allocate(0)),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.allocate(name="bad name")),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.ours.open("x", access="wo")),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.ours.open("x", wait=-1)),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.ours.open("x", wait=float("nan"))),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.ours.open("x", owner="root")),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.ours.open("x\0y")),
                    (gpuipc.InvalidParameterError, ValueError, lambda: self.allocate(mode="rw")),
                    (gpuipc.HandleUnsupportedError, gpuipc.Error, lambda: self.allocate(handle="cuda-fd" if backend.HOST else "memfd")),
                    (gpuipc.UnreachableError, ConnectionError, lambda: gpuipc.Client("/nowhere/socket"))):
                with self.subTest(kind.__name__):
                    error = self.caught(attempt)
                    self.assertIs(type(error), kind)
                    self.assertIsInstance(error, builtin)
                    self.assertEqual(error.status, kind.status)
                    self.assertTrue(str(error) == error.message and len(error.message) > 10, error)
                    again = pickle.loads(pickle.dumps(error))
                    self.assertEqual((type(again), again.message, again.code, again.subject),
                                     (kind, error.message, error.code, error.subject))
            buffer.seal()
            self.assertIs(type(self.caught(buffer.seal)), gpuipc.AlreadySealedError)
            self.assertIs(type(self.caught(self.ours.open, "taken")), gpuipc.AlreadySealedError)

    def test_figures_of_errors(self):
        error = self.caught(self.allocate, 65 * PAGE)
        self.assertIsInstance(error, (gpuipc.OutOfMemoryError, gpuipc.QuotaExceededError))
        self.assertEqual(error.asked, 65 * PAGE)
        self.assertIsNone(error.oldest)
        error = self.caught(gpuipc.Client, "/nowhere/socket")
        self.assertEqual((error.errno, error.system_errno), (2, 2))
        self.assertTrue(error.cause.endswith(".") and error.remedy, (error.cause, error.remedy))
        self.assertNotIn("[G", error.cause + error.remedy)
        self.assertRegex(error.code, r"^G\d\d\d$")

    def test_what_is_no_string(self):
        for attempt in (lambda: self.ours.open(5), lambda: self.allocate(name=b"x"), lambda: gpuipc.Client(7), lambda: self.ours.open(),
                        lambda: self.ours.open("a", id="b1"), self.ours.free, lambda: self.allocate("4096"), lambda: self.allocate(4096.5),
                        lambda: self.allocate(meta="{}")):
            with self.assertRaises((TypeError, __import__("ctypes").ArgumentError)):
                attempt()

    # ---- lives ----

    def test_keep_and_free(self):
        with self.allocate(name="kept", keep=60) as buffer:
            buffer.write(b"abc")
        (info,) = self.ours.buffers("kept")
        self.assertEqual((info.state, info.leases), ("kept", 0))
        self.assertEqual(self.ours.open("kept").read(3), b"abc")
        self.ours.free("kept")
        wait_for(lambda: self.ours.buffers("kept") == [], "the end of the buffer")
        with self.assertRaises(gpuipc.NoSuchBufferError):
            self.ours.open("kept")

    def test_kick(self):
        code = "import gpuipc, sys\nclient = gpuipc.Client()\nbuffer = client.allocate(1, name='kicked')\nprint(client.status().session, " \
               "flush=True)\nsys.stdin.read()"
        with self.start(code) as other:
            session = other.stdout.readline().strip()
            self.assertEqual([lease.session for lease in self.ours.leases("kicked")], [session])
            self.ours.kick(session)
            wait_for(lambda: [lease.state for lease in self.ours.leases("kicked")] != ["active"], "the end of the lease")
            other.communicate()

    def test_put_is_seen_whole(self):
        """Whoever waits for the name gets it filled, however long its producer takes."""
        for _ in range(10):
            found = []
            readers = [threading.Thread(target=lambda: found.append(self.ours.get("whole", wait=20).tobytes())) for _ in range(3)]
            for reader in readers:
                reader.start()
            with self.ours.put("whole", numpy.full(PAGE, 7, "u1"), device=self.device):
                for reader in readers:
                    reader.join()
            self.assertEqual(found, [bytes([7]) * PAGE] * 3)

    def half_put(self, name, **options):
        meta = gpuipc.Layout.of("uint8", (4,)).to_meta()
        meta["tensor"]["sealed"] = True
        return self.allocate(4, name=name, meta=meta, **options)

    def test_put_that_is_not_done(self):
        with self.half_put("half") as half:
            self.assertIsInstance(self.caught(self.ours.get, "half"), TimeoutError)
            self.assertIsInstance(self.caught(self.ours.get, "half", wait=0.05), TimeoutError)
            got = []
            reader = threading.Thread(target=lambda: got.append(self.ours.get("half", wait=20).tobytes()))
            reader.start()
            wait_for(lambda: len(self.ours.leases("half")) == 2, "the reader")
            half.write(b"done")
            half.seal()
            reader.join()
            self.assertEqual(got, [b"done"])

    def test_put_that_is_done_between_two_looks(self):
        """Its producer, which nobody sees any more then, had sealed it."""
        half, looks = self.half_put("half", keep=60), []

        def look(real):
            def looked(name):
                found = real(name)
                looks.append(name)
                if len(looks) == 3:  # amid the second look, at the beginning of a watch
                    half.write(b"done")
                    half.seal()
                    half.close()
                return found
            return looked

        reader = self.connect()
        reader.leases, reader.buffers = look(reader.leases), look(reader.buffers)
        self.assertEqual(reader.get("half", wait=20).tobytes(), b"done")
        self.ours.free("half")

    def test_put_of_which_the_news_is_lost(self):
        """Who waits for it looks anew."""
        real, half = gpuipc.Watch.next, self.half_put("half")

        def lost(watch, timeout=None):
            gpuipc.Watch.next = real
            half.write(b"done")
            half.seal()
            raise gpuipc.EventsLostError("lost", oldest=1)

        gpuipc.Watch.next = lost
        self.addCleanup(setattr, gpuipc.Watch, "next", real)
        with half:
            self.assertEqual(self.ours.get("half", wait=20).tobytes(), b"done")

    def test_put_whose_producer_ends(self):
        """The reader goes on waiting, and gets the next one's."""
        half, got = self.half_put("half"), []
        reader = threading.Thread(target=lambda: got.append(self.ours.get("half", wait=20).tobytes()))
        reader.start()
        wait_for(lambda: len(self.ours.leases("half")) == 2, "the reader")
        half.close()
        wait_for(lambda: not self.ours.leases("half"), "the reader to let go")
        with self.ours.put("half", b"anew", device=self.device):
            reader.join()
        self.assertEqual(got, [b"anew"])
        with self.half_put("half") as half:
            pass
        self.assertIsInstance(self.caught(self.ours.get, "half"), FileNotFoundError)

    def test_a_card_is_followed(self):
        """A share of a part of a buffer: the view's end ends both leases."""
        with self.allocate(256) as buffer:
            buffer.write(bytes(range(256)))
            layout = gpuipc.Layout.of("uint8", (4, 4), (1, 8), 64)
            with share.publish(self.ours, "part", buffer.id, layout, device=self.device):
                for access in ("ro", "rw"):
                    found = self.ours.get("part", access=access)
                    self.assertEqual((found.shape, found.buffer_id, found.readonly), ((4, 4), buffer.id, access == "ro"))
                    self.assertEqual(found.tobytes(), bytes(64 + i + 8 * j for i in range(4) for j in range(4)))
                    self.assertEqual((len(self.ours.leases("part")), len(self.ours.leases())), (2, 4))
                    del found
                    wait_for(lambda: len(self.ours.leases()) == 2, "the end of both leases")
        with self.allocate(8, name="broken", meta={"share": {"v": 1, "buffer": "b99999", "tensor": {"dtype": "int8", "shape": []}}}):
            self.assertIsInstance(self.caught(self.ours.get, "broken"), FileNotFoundError)

    def test_get_for_writing(self):
        with self.ours.put("w", bytes(8), seal=False, device=self.device) as buffer:
            found = self.ours.get("w", access="rw")
            self.assertFalse(found.readonly)
            self.assertEqual(len(self.ours.leases("w")), 2)
            del found
            buffer.seal()
            self.assertIsInstance(self.caught(self.ours.get, "w", access="rw"), gpuipc.AlreadySealedError)

    def test_waiting_for_memory(self):
        most = self.allocate(60 * PAGE)
        with self.assertRaises(gpuipc.Error) as caught:
            self.allocate(32 * PAGE, wait=0.05)
        self.assertIsInstance(caught.exception, (gpuipc.TimedOutError, gpuipc.OutOfMemoryError, gpuipc.QuotaExceededError))
        threading.Timer(0.05, most.close).start()
        with self.allocate(32 * PAGE, wait=20) as buffer:
            self.assertEqual(buffer.size, 32 * PAGE)

    def test_waiting_for_a_name(self):
        def later():
            wait_for(lambda: self.daemon.status()["sessions"] >= 2, "the waiter")
            made.append(self.allocate(name="later"))

        made = []
        thread = threading.Thread(target=later)
        thread.start()
        with self.ours.open("later", wait=20) as buffer:
            self.assertEqual(buffer.name, "later")
        thread.join()
        made[0].close()
        started = time.monotonic()
        self.assertIsInstance(self.caught(self.ours.open, "never", wait=0.7), (TimeoutError, FileNotFoundError))
        self.assertGreater(time.monotonic() - started, 0.69)

    # ---- news ----

    def test_watch(self):
        with self.ours.watch() as watch:
            with self.allocate(name="news") as buffer:
                buffer.seal()
            events = [watch.next(10) for _ in range(6)]
            self.assertEqual([event.kind for event in events], ["created", "opened", "sealed", "released", "unnamed", "freed"])
            self.assertEqual([event.sequence for event in events], list(range(events[0].sequence, events[0].sequence + 6)))
            self.assertEqual((events[1].lease.id, events[1].buffer.id), (buffer.lease, buffer.id))
            with self.assertRaises(TimeoutError):
                watch.next(0)
            with self.ours.watch(since=events[0].sequence) as again:
                self.assertEqual(next(iter(again)).kind, "opened")
        self.assertEqual(list(watch), [])
        self.assertIsInstance(self.caught(watch.next), gpuipc.ClosedError)

    def test_watch_closed_between_two_looks_at_it(self):
        watch = self.ours.watch()
        watch._handle.not_forked = watch.close
        self.assertGreaterEqual(watch.fileno(), 0)
        with self.assertRaisesRegex(ValueError, "the watch is closed"):
            watch.fileno()

    def test_watch_closed_by_another(self):
        for _ in range(10):
            watch, ended = self.ours.watch(), []
            reader = threading.Thread(target=lambda watch=watch, ended=ended: ended.append(list(watch)))
            reader.start()
            watch.close()
            reader.join(WAIT_S)
            self.assertEqual(ended, [[]])

    # ---- asyncio ----

    def test_async_waits_hold_nothing_up(self):
        async def main():
            opened = asyncio.ensure_future(self.ours.open_async("soon", wait=20))
            got = asyncio.ensure_future(self.ours.get_async("soon", wait=20))
            watch = self.ours.watch()
            first = asyncio.ensure_future(watch.next_async())
            await asyncio.sleep(0)
            with self.ours.put("soon", bytes(64), device=self.device, seal=False):
                buffer, array, event = await asyncio.gather(opened, got, first)
                self.assertEqual((buffer.read(), array.tobytes(), event.kind), (bytes(64), bytes(64), "created"))
                kinds = []
                async for event in watch:
                    kinds.append(event.kind)
                    if len(kinds) == 2:
                        break
                self.assertTrue(set(kinds) <= {"opened"})
                fence = buffer.fence(0)
                waiting = asyncio.ensure_future(fence.wait_async(1 << 40))
                await asyncio.sleep(0)
                fence.signal(1 << 40)
                await waiting
                with self.assertRaises(TimeoutError):
                    await fence.wait_async((1 << 40) + 1, timeout=0.01)
                fence.close()
                buffer.close()
            watch.close()
            with self.assertRaises(FileNotFoundError):
                await self.ours.open_async("nothing")

        asyncio.run(main(), debug=True)

    def test_cancelled_waits_take_nothing(self):
        async def main():
            tasks = [asyncio.ensure_future(self.ours.open_async("cancelled", wait=60)) for _ in range(4)]
            with self.ours.watch() as watch:
                tasks.append(asyncio.ensure_future(watch.next_async()))
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                for task in await asyncio.gather(*tasks, return_exceptions=True):
                    self.assertIsInstance(task, asyncio.CancelledError)
                with self.allocate(name="cancelled"):
                    self.assertEqual((await watch.next_async()).kind, "created")

        asyncio.run(main(), debug=True)
        wait_for(lambda: not self.ours.leases(), "what came too late to be given back")

    def test_a_loop_that_ends_amid_a_wait(self):
        async def main():
            task = asyncio.ensure_future(self.ours.open_async("late", wait=5))
            await asyncio.sleep(0)
            return task

        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(main())
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        with self.allocate(name="late"):
            pass
        wait_for(lambda: not self.ours.leases(), "nothing taken")


if __name__ == "__main__":
    unittest.main()
