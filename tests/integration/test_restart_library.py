# SPDX-License-Identifier: Apache-2.0
"""The library and the command over restarts of a real daemon: pointers stay right, calls only take longer. deadline: 240 s
Runs on any memory."""

import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import SLOWER  # noqa: E402
from daemon import GPUIPCCTL, GPUIPCD_FAULT, open_fds, wait_for  # noqa: E402
from library import DISCONNECTED, LEASE_LOST, SANITIZED, Library, LibraryError  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

PAGE = backend.PAGE
BEATS = ("begin", "begun", "work", "worked", "keep", "finish", "finished", "replied")


def filling(buffer, seed):
    """Contents that tell one buffer from another."""
    return random.Random(seed).randbytes(buffer.size)


class Base(unittest.TestCase):
    def setUp(self):
        self.fds_before = open_fds()
        self.manager = None

    def tearDown(self):
        if self.manager:
            self.manager.kill()
        self.assertEqual(len(open_fds()), len(self.fds_before))

    def start(self, **options):
        self.manager = Manager(**options)
        return self.manager

    def leases(self):
        with self.manager.client(admin=True) as client:
            return {lease["id"]: lease["state"] for page in client.call_more("List") for lease in page["leases"]}

    def stop_empty(self):
        """All was given back: nothing is left in the books, nor in the store but the state."""
        status = self.manager.status()
        wait_for(lambda: self.manager.status()["leases"] == self.manager.status()["buffers"] == 0, f"an empty ledger; {status}")
        wait_for(lambda: len(self.manager.store.names()) == 1, f"the state alone; {self.manager.store.names()}")
        self.manager.stop()
        self.manager = None


class Held:
    """Buffers with contents that are looked at through the program's own pointers and through others' leases."""

    def __init__(self, client, n):
        self.buffers = [client.allocate((1 + i % 3) * PAGE, name=f"held{i}") for i in range(n)]
        self.views = []
        if backend.HOST:
            self.views = [buffer.bytes() for buffer in self.buffers]
            for i, view in enumerate(self.views):
                view[:] = filling(self.buffers[i], i)

    def check(self, client=None):
        for i, view in enumerate(self.views):
            assert view == filling(self.buffers[i], i), f"held{i}: other bytes"
        for i, buffer in enumerate(self.buffers):
            buffer.check()
            if client:
                other = client.open(name=f"held{i}")
                assert not backend.HOST or other.bytes() == filling(buffer, i), f"held{i}: other bytes for another"
                other.release()

    def release(self):
        for view in self.views:
            view.release()
        for buffer in self.buffers:
            buffer.release()


@unittest.skipIf(SANITIZED, "a sanitized library is not for a plain interpreter; tests/unit/test_client_restart.c is")
@backend.with_descriptors
class Rides(Base):
    def setUp(self):
        super().setUp()
        self.library = Library()

    def ends(self, number):
        self.start()
        client, other = (self.library.connect(self.manager.socket) for _ in range(2))
        held = Held(client, 20)
        for _ in range(3):
            self.manager.restart(number)
            wait_for(lambda: set(self.leases().values()) == {"active"}, "every lease active again")
            held.check(other)
        # The daemon has its leases back before the reply to that is read here.
        wait_for(lambda: client.restarts() >= 3, "the client to have counted its restarts")
        held.release()
        client.free()
        other.free()
        self.stop_empty()

    def test_killed(self):
        self.ends(signal.SIGKILL)

    def test_terminated(self):
        self.ends(signal.SIGTERM)

    def test_each_call_at_each_beat(self):
        """The daemon is killed while it is at a known point of a call: the call succeeds, once, and nothing else is lost."""
        calls = {
            "Allocate": lambda client: client.allocate(PAGE, name="one"),
            "Open": lambda client: client.open(name="held0"),
            "Release": None,
            "Seal": lambda client: client.seal(self.held.buffers[1].id),
            "Free": lambda client: client.free_name("held2"),
            "GetStatus": lambda client: client.status(),
            "List": lambda client: self.assertGreaterEqual(len(client.list()), 3),
        }
        n = 0
        for method, call in calls.items():
            for beat in BEATS:
                n += self.at_point(method, beat, call)
        self.assertGreater(n, 30)

    def at_point(self, method, beat, call):
        """Whether the point was reached."""
        ours, theirs = socket.socketpair()
        manager = self.start(program=GPUIPCD_FAULT)
        client = self.library.connect(manager.socket)
        self.held = Held(client, 3)
        released = client.allocate(PAGE)
        # From here on the daemon stops there.
        manager.environment["GPUIPC_FAULT_POINT"] = f"{method}.{beat}"
        manager.pass_fds = (theirs.fileno(),)
        manager.end()
        manager.start(wait=False)
        # Settled before, so that it is the call which gets there.
        failed, result = [], []

        def run():
            try:
                result.append(call(client) if call else released.release())
            except LibraryError as error:
                failed.append(error)

        caller = threading.Thread(target=run)
        caller.start()
        reached = self.until_reached(ours, caller)
        theirs.close()
        manager.pass_fds = ()
        manager.environment["GPUIPC_FAULT_POINT"] = ""
        manager.restart()
        ours.close()
        caller.join(WAIT_S)
        self.assertFalse(caller.is_alive(), f"{method}.{beat}: the call does not return")
        self.assertFalse(failed, f"{method}.{beat}: {failed}")
        self.held.check()
        if method != "Release":
            released.release()
        if result and result[0]:
            result[0].check()
            self.assertEqual(len(self.leases()), 4, f"{method}.{beat}")
            result[0].release()
        wait_for(lambda: len(self.leases()) == 3, f"{method}.{beat}: three leases; {self.leases()}")
        self.held.release()
        client.free()
        self.stop_empty()
        return reached

    def until_reached(self, ours, caller):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.01)[0]:
                return bool(ours.recv(64))
            if not caller.is_alive():
                return False
        raise AssertionError("neither reached nor returned")

    def test_under_load(self):
        """Threads that make every call, while the daemon is killed again and again."""
        self.start()
        clients = [self.library.connect(self.manager.socket) for _ in range(3)]
        held = [Held(client, 1) for client in clients[:1]]
        stop, failed, rounds = threading.Event(), [], []

        def work(client, seed):
            try:
                done = 0
                while not stop.is_set():
                    buffer = client.allocate(PAGE, name=f"w{seed}")
                    view = None
                    if backend.HOST:
                        view = buffer.bytes()
                        view[:] = filling(buffer, seed + done)
                    again = client.open(name=f"w{seed}", read_only=True)
                    client.seal(buffer.id)
                    client.list()
                    if backend.HOST:
                        assert again.bytes() == filling(buffer, seed + done), "other bytes"
                        view.release()
                    client.free_name(f"w{seed}")
                    buffer.release()
                    again.release()
                    done += 1
                rounds.append(done)
            except BaseException as error:  # pylint: disable=broad-exception-caught
                failed.append(error)

        threads = [threading.Thread(target=work, args=(clients[i % 3], 1000 * (i + 1))) for i in range(6)]
        for thread in threads:
            thread.start()
        slowest, randomly = 0, random.Random(1)
        for _ in range(25):
            time.sleep(randomly.random() * 0.05)  # any moment
            slowest = max(slowest, self.manager.restart(randomly.choice((signal.SIGKILL, signal.SIGTERM))))
            if failed:
                break
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertEqual(failed, [])
        print(f"25 restarts under load: {sum(rounds)} rounds, kill to READY at most {slowest * 1000:.0f} ms", file=sys.stderr)
        held[0].check(clients[1])
        held[0].release()
        for client in clients:
            client.free()
        self.stop_empty()

    def test_thousands_of_leases(self):
        self.start()
        client = self.library.connect(self.manager.socket)
        first = client.allocate(PAGE)
        others = [client.open(id=first.id) for _ in range(8000)]
        begun = time.monotonic()
        self.manager.restart()
        wait_for(lambda: set(self.leases().values()) == {"active"}, "every lease active again")
        print(f"8,001 leases active again {1000 * (time.monotonic() - begun):.0f} ms after the kill", file=sys.stderr)
        self.assertEqual(len(self.leases()), 8001)
        for buffer in others:
            buffer.release()
        first.release()
        client.free()
        self.stop_empty()

    def test_wait_goes_on(self):
        self.start()
        client, other = (self.library.connect(self.manager.socket) for _ in range(2))
        found = []
        waiting = threading.Thread(target=lambda: found.append(client.open(name="late", wait_ms=60000)))
        waiting.start()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            wait_for(lambda: self.manager.status()["sessions"] >= 2, "the waiter there")
            self.manager.restart(number)
        buffer = other.allocate(PAGE, name="late")
        waiting.join(WAIT_S)
        self.assertEqual(found[0].id, buffer.id)
        self.manager.restart()
        found[0].release()
        buffer.release()
        client.free()
        other.free()
        self.stop_empty()

    def test_watch_goes_on(self):
        self.start()
        client = self.library.connect(self.manager.socket)
        watch = client.watch()
        seen = []
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            client.allocate(PAGE).release()
            while not seen or seen[-1][1] != "freed":
                seen.append(watch.next(WAIT_S * 1000))
            seen.append((seen[-1][0], "restart"))
            self.manager.restart(number)
        numbers = [number for number, kind in seen if kind != "restart"]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(numbers, list(range(numbers[0], numbers[-1] + 1)))
        watch.free()
        client.free()
        self.stop_empty()

    def test_no_store(self):
        """Started without a manager's store: said so, and everything else goes on."""
        self.start(environment={"FDSTORE": "", "NOTIFY_SOCKET": ""}, wait=False)
        wait_for(lambda: self.manager.status(), "it serves")
        client = self.library.connect(self.manager.socket)
        buffer = client.allocate(PAGE)
        view = buffer.bytes() if backend.HOST else None
        if view:
            view[:] = filling(buffer, 1)
        self.manager.end()
        self.manager.start(wait=False)
        with self.assertRaises(LibraryError) as caught:
            for _ in range(2):
                buffer.check()
                client.status()
        self.assertIn(caught.exception.status, (LEASE_LOST, DISCONNECTED))
        client.status()
        with self.assertRaises(LibraryError) as caught:
            buffer.check()
        self.assertIn("no store", str(caught.exception))
        if view:
            self.assertEqual(view, filling(buffer, 1))
            view.release()
        with self.assertRaises(LibraryError):
            buffer.release()
        client.free()


@unittest.skipIf(SANITIZED, "a sanitized library is not for a plain interpreter")
class Classic(Base):
    @unittest.skipUnless(backend.CLASSIC, "of classic handles alone")
    def test_classic_ends_with_the_daemon(self):
        self.start()
        client = Library().connect(self.manager.socket)
        buffer = client.allocate(PAGE, handle="cuda-ipc")
        self.assertEqual(buffer.handle, "cuda-ipc")
        self.manager.restart()
        client.status()
        with self.assertRaises(LibraryError) as caught:
            buffer.check()
        self.assertEqual(caught.exception.status, LEASE_LOST)
        self.assertIn("cuda-ipc", str(caught.exception))
        with self.assertRaises(LibraryError):
            buffer.release()
        client.allocate(PAGE).release()
        client.free()


@backend.with_descriptors
class Command(Base):
    """gpuipcctl."""

    def popen(self, *arguments, **options):
        return subprocess.Popen([GPUIPCCTL, *arguments, "--socket", self.manager.socket], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **options)

    def end(self, process, status=0):
        process.terminate()
        out, err = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, status, err)
        return out, err

    def test_hold_stands(self):
        self.start()
        holder = self.popen("alloc", "--name", "a", str(PAGE))
        words = holder.stdout.readline().split()
        for _ in range(2):
            self.manager.restart()
            self.assertEqual(holder.stderr.readline(), f"gpuipcctl: the daemon was restarted; the lease on {words[0]} stands\n")
        self.assertEqual(list(self.leases().values()), ["active"])
        self.end(holder)
        self.stop_empty()

    def test_hold_for_a_command(self):
        self.start()
        holder = self.popen("alloc", "--name", "a", str(PAGE))
        holder.stdout.readline()
        runner = subprocess.Popen([GPUIPCCTL, "hold", "--rw", "--socket", self.manager.socket, "a", "--", "cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        wait_for(lambda: len(self.leases()) == 2, "both hold")
        self.manager.restart()
        wait_for(lambda: list(self.leases().values()) == ["active", "active"], "both are back")
        runner.communicate(b"", timeout=WAIT_S)
        self.assertEqual(runner.returncode, 0)
        self.end(holder)
        self.stop_empty()

    def watch_over(self, *arguments):
        self.start()
        watch = self.popen(*arguments)
        if arguments[0] == "list":
            watch.stdout.readline()  # the headings: it watches since before
        lines = []
        for i in range(3):
            with self.manager.client() as client:
                client.call("Release", {"lease": client.call("Allocate", {"size": PAGE, "name": f"n{i}"})["lease"]})
                for fd in client.fds:
                    os.close(fd)
                client.fds.clear()
            while not lines or "freed" not in lines[-1]:
                lines.append(watch.stdout.readline())
                self.assertTrue(lines[-1], "the watch ended")
            lines.append("")
            self.manager.restart(signal.SIGTERM if i == 0 else signal.SIGKILL)
        self.end(watch, -signal.SIGTERM)
        self.stop_empty()
        return lines

    def test_watch(self):
        self.assertEqual(sum("created" in line for line in self.watch_over("watch", "--since", "0")), 3)

    def test_watch_json(self):
        self.assertEqual(sum('"created"' in line for line in self.watch_over("watch", "--since", "0", "--json")), 3)

    def test_list_watch(self):
        self.assertEqual(sum("created" in line for line in self.watch_over("list", "--watch")), 3)

    def test_top(self):
        self.start()
        top = self.popen("top", "--json", "--delay", "0.1")
        top.stdout.readline()
        self.manager.restart()
        for _ in range(5 * SLOWER):
            self.assertTrue(top.stdout.readline(), "top ended")
        self.end(top, -signal.SIGTERM)

    def test_gone_for_good(self):
        """Without a daemon that comes back: in words, with status 3."""
        self.start()
        holder = self.popen("alloc", "--name", "a", str(PAGE))
        holder.stdout.readline()
        watches = [self.popen("watch"), self.popen("watch", "--json")]
        wait_for(lambda: self.manager.status()["sessions"] >= 4, "they watch")
        self.manager.store.empty()
        for _, made in self.manager.listening:
            made.close()
        self.manager.end()
        self.manager.listening = []
        _, err = holder.communicate(timeout=60)
        self.assertEqual(holder.returncode, 3, err)
        self.assertIn("restart_ms", err)
        for watch in watches:
            _, err = watch.communicate(timeout=60)
            self.assertEqual(watch.returncode, 3, err)
            self.assertIn("Cannot connect", err)


if __name__ == "__main__":
    unittest.main()
