# SPDX-License-Identifier: Apache-2.0
"""When leases end in Python: with the last view, in whatever order things are collected, in threads, after fork, at the interpreter's
exit, amid exceptions. Runs on memory that has descriptors."""

import gc
import itertools
import os
import signal
import sys
import threading
import unittest

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import memory_of, wait_for  # noqa: E402
from package import KIND, PackageTest, gpuipc, torch, with_torch  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

PAGE = backend.PAGE
PRELUDE = """
import atexit, gc, os, signal, sys, threading
import gpuipc
client = gpuipc.Client()
device = next(device.uuid for device in client.status().devices if device.kind == "%s")
""" % KIND


class LifetimeTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = gpuipc.Client(self.daemon.socket)
        self.addCleanup(self.ours.close)
        self.device = self.device_of(self.ours)

    def tearDown(self):
        self.ours.close()
        super().tearDown()

    def allocate(self, **options):
        return self.ours.allocate(PAGE, device=self.device, **options)

    def held(self, n=1):
        """So many buffers and leases, whatever connections there are."""
        wanted = {"leases": n, "buffers": n, "brokered": n * PAGE, "draining": 0, "draining_leases": 0}
        wait_for(lambda: (self.books() or {}).items() >= wanted.items(), f"{wanted}; there are {self.leases()}, {self.buffers()}")

    def gone(self):
        self.held(0)

    # ---- views and objects ----

    def test_a_view_outlives_its_buffer_and_client(self):
        client = gpuipc.Client(self.daemon.socket)
        buffer = client.allocate(PAGE, device=self.device)
        buffer.write(b"lasting")
        view = buffer.array()
        buffer.close()
        client.close()
        self.assertTrue(buffer.closed)
        del buffer, client
        gc.collect()
        self.held()
        self.assertEqual(view.tobytes()[:7], b"lasting")
        del view
        self.gone()

    @with_torch
    @backend.host_only
    def test_each_kind_of_view_holds_the_lease(self):
        for make in (numpy.asarray, lambda a: a.memoryview(), torch.from_dlpack, numpy.from_dlpack, lambda a: a.torch()[5:9],
                     lambda a: numpy.asarray(a)[3:7].reshape(2, 2), lambda a: memoryview(a.memoryview()[4:]), lambda a: a.__dlpack__()):
            with self.allocate() as buffer:
                view = make(buffer.array())
            self.held()
            del view
            self.gone()
        with self.allocate() as buffer:
            view = buffer.memoryview()[2:4]
        self.held()
        view[0] = 5
        del view
        self.gone()

    def test_release_says_what_looks_at_it(self):
        buffer = self.allocate()
        one, two = buffer.array(), buffer.array()
        with self.assertRaisesRegex(BufferError, "has 2 live views"):
            buffer.release()
        del two
        with self.assertRaisesRegex(BufferError, "has 1 live view:"):
            buffer.release()
        self.assertEqual(buffer.read(1), b"\0")
        del one
        buffer.release()
        self.gone()
        for attempt in (buffer.release, buffer.array, buffer.read, lambda: buffer.pointer, buffer.seal, buffer.fileno, buffer.__enter__,
                        lambda: buffer.fence(0)):
            with self.assertRaisesRegex(ValueError, "closed"):
                attempt()
        buffer.close()
        self.assertEqual((buffer.size, buffer.device, buffer.views), (PAGE, self.device, 0))

    def test_collected_without_a_word(self):
        for make in (lambda: self.allocate(), lambda: [self.allocate(), self.allocate().array()], lambda: self.allocate().fence(8),
                     lambda: self.ours.channel_create(slots=2, slot_bytes=64, device=self.device), lambda: self.ours.watch()):
            make()
            gc.collect()
            self.gone()

    def test_every_order(self):
        """Client, buffer, view, fence, channel and item, each the last in its turn, in cycles and out of them."""
        for cycle in (False, True):
            for order in itertools.permutations(range(6), 6) if not cycle else [range(6), range(5, -1, -1)]:
                if not cycle and order[0] > order[-1]:
                    continue
                things = self.things_of_all_kinds()
                if cycle:
                    box = {}
                    for i in order:
                        box[i] = [things[i], box]
                    del things, box
                    gc.collect()
                    continue
                for i in order:
                    things[i] = None
        self.gone()

    def things_of_all_kinds(self):
        client = gpuipc.Client(self.daemon.socket)
        buffer = client.allocate(PAGE, device=self.device)
        channel = client.channel_create(slots=2, slot_bytes=64, device=self.device)
        return [client, buffer, buffer.array(), buffer.fence(0), channel, channel.item(0)]

    def test_a_client_that_is_closed(self):
        self.ours.close()
        self.ours.close()
        for attempt in (self.ours.status, lambda: self.allocate(), lambda: self.ours.open("x"), self.ours.watch, lambda: self.ours.socket,
                        lambda: self.ours.channel_create(slots=1, slot_bytes=1)):
            with self.assertRaisesRegex(ValueError, "the client is closed"):
                attempt()

    def test_a_fence_that_is_closed(self):
        """It is no view any more, whoever still refers to it, or waited for it until now."""
        buffer = self.allocate()
        fence = buffer.fence(0)
        thread, ended = self.in_a_thread(lambda: fence.wait(1))
        wait_for(lambda: fence._handle.calls, "the thread's call")
        buffer.close()
        self.held()
        fence.close()
        thread.join(WAIT_S)
        self.assertEqual(ended, ["the fence is closed"])
        self.gone()
        fence.close()

    def test_the_same_buffer_twice(self):
        """Two leases, one mapping: the first to go leaves the other's memory where it is."""
        buffer = self.allocate()
        other = self.ours.open(id=buffer.id)
        self.assertEqual(buffer.pointer, other.pointer)
        view = other.array()
        buffer.close()
        other.close()
        self.held()
        self.assertEqual(view.tobytes(), bytes(PAGE))
        del view
        self.gone()

    def test_a_lease_that_was_lost(self):
        """What is mapped stays so, and counts as draining until the process has ended."""
        self.assertEqual(self.run_program(PRELUDE + """
import time
buffer = client.allocate(4096, device=device)
buffer.write(b"still")
with gpuipc.Client() as other:
    other.kick(client.status().session)
while True:
    try:
        buffer.check()
        time.sleep(0.001)
    except ConnectionError as error:
        print(type(error).__name__, len(error.message) > 20)
        break
print(buffer.array().tobytes()[:5])
try:
    buffer.release()
except gpuipc.LeaseLostError:
    print("lost")
"""), "LeaseLostError True\nb'still'\nlost\n")
        self.gone()

    def test_nothing_grows(self):
        def once():
            with self.ours.put("grow", numpy.arange(10)):
                self.assertEqual(self.ours.get("grow").tobytes(), numpy.arange(10).tobytes())
            with self.allocate() as buffer, buffer.fence(0) as fence:
                fence.signal(1)
            with self.assertRaises(gpuipc.NoSuchBufferError):
                self.ours.open("grow")

        once()
        before = len(os.listdir("/proc/self/fd")), len(gpuipc._lifetime._keepers), len(gpuipc._lifetime._connections)
        for _ in range(300):
            once()
        self.assertEqual((len(os.listdir("/proc/self/fd")), len(gpuipc._lifetime._keepers), len(gpuipc._lifetime._connections)), before)

    # ---- exceptions ----

    def test_exceptions_in_consumers(self):
        with self.assertRaises(KeyError), self.allocate(name="x") as buffer:
            buffer.array()
            raise KeyError
        with self.assertRaises(ZeroDivisionError), self.ours.channel_create(slots=2, slot_bytes=64, device=self.device) as channel:
            with channel.item() as item:
                item.write(b"abc")
                1 / 0  # noqa: B018
        with self.ours.put("x", b"abc", device=self.device), self.assertRaises(KeyError):
            self.use(self.ours.get("x"))
        del buffer, channel, item
        self.gone()

    def use(self, array):
        array.tobytes()
        raise KeyError

    def test_an_exception_while_it_is_put(self):
        class Producer:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, stream=None):
                raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.ours.put("x", Producer())
        self.gone()

    def test_finalizers_within_a_callback(self):
        """The library must not be called from there; what goes meanwhile is released after it."""
        boxes = []
        for i in range(8):
            boxes.append({"buffer": self.allocate()})
            boxes[i]["self"] = boxes[i]
        real = gpuipc.DeviceInfo.of
        held = []

        def read(info):
            boxes.clear()
            gc.collect()
            held.append(len(gpuipc._lifetime._put_off))
            return real(info)

        gpuipc.DeviceInfo.of = read
        try:
            self.assertEqual(self.ours.status().leases, 8)
        finally:
            gpuipc.DeviceInfo.of = real
        self.assertEqual(held[0], 8)
        self.gone()

    def test_an_exception_within_a_callback(self):
        with self.allocate():
            real = gpuipc.LeaseInfo.of
            gpuipc.LeaseInfo.of = lambda info: [][1]
            try:
                with self.assertRaises(IndexError):
                    self.ours.leases()
            finally:
                gpuipc.LeaseInfo.of = real
            self.assertEqual(len(self.ours.leases()), 1)

    # ---- threads ----

    def in_threads(self, n, function):
        failures = []

        def run(i):
            try:
                function(i)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertFalse(any(thread.is_alive() for thread in threads))
        return failures

    def test_one_client_many_threads(self):
        shared = self.allocate(name="shared")

        def work(i):
            for round_ in range(20):
                with self.allocate(name=f"t/{i}") as mine, self.ours.open("shared") as other:
                    mine.write(bytes([i]) * 8)
                    view = other.array((PAGE,), "uint8")
                    self.assertEqual(mine.array((8,)).tobytes(), bytes([i]) * 8)
                    del view
                    if round_ % 5 == 0:
                        self.ours.leases()

        self.assertEqual(self.in_threads(8, work), [])
        shared.close()
        self.gone()

    def test_one_buffer_many_threads(self):
        """Views made and dropped everywhere while others close it: it ends once, after the last."""
        for _ in range(20):
            buffer = self.allocate()
            barrier = threading.Barrier(6)

            def work(i, buffer=buffer, barrier=barrier):
                barrier.wait()
                try:
                    for _ in range(10):
                        view = buffer.array((16,))
                        self.assertEqual(view.tobytes(), bytes(16))
                    if i % 2:
                        buffer.close()
                    else:
                        buffer.release()
                except (ValueError, BufferError):
                    pass

            self.assertEqual(self.in_threads(6, work), [])
            buffer.close()
        self.gone()

    def test_released_in_two_threads(self):
        """Neither returns before the lease has ended."""
        library, buffer, early = gpuipc._native.library(), self.allocate(), []
        real, other = library.gpuipc_release, threading.Thread(target=buffer.release)

        def sleeps():
            with open(f"/proc/self/task/{other.native_id}/wchan", encoding="ascii") as file:
                return file.read() not in ("0", "")

        def release(pointer, error):
            other.start()
            wait_for(lambda: not other.is_alive() or sleeps(), "the other")
            early.append(not other.is_alive())
            return real(pointer, error)

        library.gpuipc_release = release
        try:
            buffer.release()
        finally:
            library.gpuipc_release = real
        other.join(WAIT_S)
        self.assertEqual(early, [False])
        self.gone()

    def test_closed_while_others_call(self):
        for _ in range(10):
            client = gpuipc.Client(self.daemon.socket)

            def work(i, client=client):
                try:
                    while True:
                        with client.allocate(PAGE, device=self.device) as buffer:
                            if i == 0:
                                client.close()
                            buffer.read(1)
                except ValueError as error:
                    self.assertIn("closed", str(error))

            self.assertEqual(self.in_threads(4, work), [])
        self.gone()

    # ---- fork ----

    def in_child(self, function):
        """Its exit status."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                function()
                status = 0
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
            finally:
                os._exit(status)
        return os.waitpid(pid, 0)[1]

    def test_fork(self):
        buffer = self.allocate()
        view, fence = buffer.array(), buffer.fence(0)
        channel = self.ours.channel_create(slots=2, slot_bytes=64, device=self.device)
        watch = self.ours.watch()

        def child():
            attempts = [self.ours.status, lambda: self.allocate(), buffer.read, buffer.check, buffer.seal, buffer.release, channel.stats,
                        lambda: channel.item(0), lambda: watch.next(0), lambda: fence.signal(1)]
            for attempt in attempts:
                try:
                    attempt()
                except gpuipc.ForkedError as error:
                    if "fork()" not in str(error) or not isinstance(error, RuntimeError):
                        raise
                else:
                    raise AssertionError(attempt)
            for thing in (buffer, channel, watch, fence, self.ours):
                thing.close()
            gc.collect()
            if backend.HOST:  # CUDA itself bears no fork
                self.assertEqual(view.tobytes()[:6], b"parent")
            with gpuipc.Client(self.daemon.socket) as own, own.open(id=buffer.id) as other:
                other.write(b"child ") if backend.HOST else self.assertRaises(gpuipc.ForkedError, other.read)

        buffer.write(b"parent")
        self.assertEqual(self.in_child(child), 0)
        self.assertEqual(view.tobytes()[:6], b"child " if backend.HOST else b"parent")
        buffer.check()
        with channel.item(0) as item:
            item.write(b"alive")
        fence.signal(1)

    def test_fork_while_threads_call(self):
        """Whatever locks they hold: the child's objects answer at once."""
        stop = threading.Event()
        buffer = self.allocate()

        def busy(_):
            while not stop.is_set():
                buffer.read(8)
                self.ours.leases()

        threads = [threading.Thread(target=busy, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                self.assertEqual(self.in_child(lambda: self.assertRaises(gpuipc.ForkedError, buffer.read)), 0)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    # ---- the interpreter's end ----

    def test_exit_with_everything_held(self):
        """Of a real process: nothing on stderr, status 0, nothing left."""
        self.assertEqual(self.run_program(PRELUDE + """
buffer = client.allocate(4096, device=device, name="held")
view = buffer.array((4, 4), "float32")
capsule = buffer.array().__dlpack__()
other = buffer.array().__dlpack__(max_version=(1, 0))
fence = buffer.fence(0)
channel = client.channel_create("ch", slots=4, slot_bytes=64, device=device)
item = channel.item()
item_view = item.array()
watch = client.watch()
cycle = [client, buffer]
cycle.append(cycle)
class Late:
    def __del__(self, buffer=buffer, view=view):
        buffer.close(); del view
late = Late()
sys.modules["late"] = Late()
print("done")
"""), "done\n")
        self.gone()

    @with_torch
    @backend.host_only
    def test_exit_with_views_of_frameworks(self):
        """Which are read by whatever still runs then, and end after the interpreter."""
        self.assertEqual(self.run_program("""
import atexit
views = []
atexit.register(lambda: print("late", int(views[0][0]), int(views[1][1]), views[2][2], flush=True))
""" + PRELUDE + """
import numpy, torch
buffer = client.put(None, numpy.arange(8), seal=False)
views += [numpy.asarray(buffer), torch.from_dlpack(buffer.array()), buffer.array().memoryview()]
views += [numpy.from_dlpack(buffer.array()), views[1][2:], torch.nn.Parameter(views[1].to(torch.float32))]
torch.gpuipc_view = torch.from_dlpack(buffer.array())
buffer.close(); client.close()
"""), "late 0 1 2\n")
        self.gone()

    def test_exit_while_threads_wait(self):
        self.assertEqual(self.run_program(PRELUDE + """
buffer = client.allocate(4096, device=device)
fence = buffer.fence(0)
channel = client.channel_create("ch", slots=4, slot_bytes=64, device=device, role="consumer")
watch = client.watch()
started = threading.Barrier(6)
def wait(function):
    started.wait()
    function()
def churn():
    while True:
        buffer.array().tobytes()
for function in (channel.take, watch.next, lambda: fence.wait(5), lambda: client.open("never", wait=60), churn):
    threading.Thread(target=wait, args=(function,), daemon=True).start()
started.wait()
print("done")
"""), "done\n")
        self.gone()

    def test_exit_of_a_forked_child(self):
        """By sys.exit(): its finalizers take nothing from its parent."""
        self.assertEqual(self.run_program(PRELUDE + """
buffer = client.allocate(4096, device=device, name="held")
view = buffer.array()
pid = os.fork()
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
buffer.check()
assert len(client.leases("held")) == 1
print(view.tobytes()[:1])
"""), "b'\\x00'\n")
        self.gone()

    def test_exit_by_an_exception(self):
        self.run_program(PRELUDE + "view = client.allocate(4096, device=device).array()\nraise KeyError", status=1)
        self.gone()

    # ---- Ctrl-C ----

    @property
    def daemon_args(self):
        return memory_of(16 * PAGE) if backend.HOST and self._testMethodName == "test_waits_are_interrupted" else ()

    def test_waits_are_interrupted(self):
        """SIGINT ends each wait at once, and what was waited for is not taken."""
        most = self.ours.allocate(12 * PAGE, device=self.device)
        for wait in (f"client.allocate({5 * PAGE}, device=device, wait=60)" if backend.HOST else "client.watch().next(60)",
                     'client.open("never", wait=60)', 'client.get("never", wait=60)', 'client.channel_attach("never", wait=60)',
                     'client.channel_create(slots=1, slot_bytes=1, device=device, role="consumer").take()', "client.watch().next()",
                     "client.allocate(4096, device=device).fence(0).wait(1)"):
            with self.subTest(wait), self.start(PRELUDE + f"try: print('ready', flush=True), {wait}\nexcept KeyboardInterrupt: "
                                                          "print('interrupted')") as process:
                self.assertEqual(process.stdout.readline(), "ready\n")
                self.wait_asleep(process.pid)
                process.send_signal(signal.SIGINT)
                told, complained = process.communicate(timeout=WAIT_S)
                self.assertEqual((told, complained), ("interrupted\n", ""))
        most.close()
        self.gone()

    def wait_asleep(self, pid):
        """Until it sleeps in a call that waits."""
        def asleep():
            with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
                return file.read() not in ("0", "")

        wait_for(asleep, "the wait")


if __name__ == "__main__":
    unittest.main()
