# SPDX-License-Identifier: Apache-2.0
"""The daemon as a service: start, stop, reload, what it tells the service manager, sockets handed over or in its way,
and its configuration. deadline: 180 s"""

import contextlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER, ActorTest, churn, fork_child, status_as  # noqa: E402
from books import FaultLine  # noqa: E402
from daemon import GPUIPCD, GPUIPCD_FAULT, ROOT, Daemon, open_fds, wait_for  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402

MIB = 1 << 20
ALICE, BOB = 2001, 2002
SO_TIMESTAMPNS = 35
STATUS = b'{"method":"io.gpuipc.Broker.GetStatus"}'


class ServiceTest(ActorTest):
    """Each case starts and ends the daemon it needs."""

    def make_daemon(self):
        return None

    def start(self, *options, **others):
        self.daemon = Daemon(*options, **others)
        return self.daemon

    def stopped(self, within_s=5.0):
        """It was told to stop: it ends with status 0, in time, and takes its sockets away. Its log."""
        daemon, self.daemon = self.daemon, None
        began = time.monotonic()
        try:
            daemon.process.wait(timeout=within_s * SLOWER)
        except subprocess.TimeoutExpired:
            daemon.kill()
            self.fail(f"it did not end within {within_s} s")
        self.assertLess(time.monotonic() - began, within_s * SLOWER)
        left = [path for path in (daemon.socket, daemon.admin_socket) if os.path.exists(path)]
        status, log = daemon.wait_end()
        self.assertEqual(status, 0, log)
        self.assertEqual(left, [])
        return log


class Stop(ServiceTest):
    def tell(self, number=signal.SIGTERM):
        self.daemon.process.send_signal(number)
        self.daemon.wait_notified("STOPPING=1")

    def start_held(self, point):
        """One that stands still at a point of its work, while its loop goes on."""
        fault = FaultLine()
        self.addCleanup(fault.close)
        self.start(program=GPUIPCD_FAULT, pass_fds=[fault.there.fileno()], environment=fault.environment([point]))
        fault.started()
        return fault

    def test_idle(self):
        self.start()
        self.tell()
        self.assertIn("stopping", self.stopped(2))

    def test_sigint(self):
        self.start()
        self.tell(signal.SIGINT)
        self.stopped(2)

    def test_with_leases_held(self):
        """Holders keep their memory; the daemon does not wait for them."""
        self.start()
        alice = self.actor(ALICE)
        alice.call("Allocate", {"size": 4096, "name": "n"})
        self.tell()
        self.assertIsNone(alice.read())
        self.assertIn("1 buffers with 1 leases end with the daemon", self.stopped(2))

    def test_with_a_buffer_kept(self):
        self.start()
        with self.client() as client:
            lease = client.call("Allocate", {"size": 64 * MIB, "keep_ms": 3600000, "name": "kept"})["lease"]
            client.call("Release", {"lease": lease})
        wait_for(lambda: self.daemon.status()["buffers"] == 1, "the buffer to be kept")
        self.tell()
        self.stopped(2)

    def test_while_bytes_drain(self):
        self.start()
        alice = self.actor(ALICE)
        alice.call("Allocate", {"size": 4096})
        alice.close()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 4096, "the bytes to drain")
        self.tell()
        self.stopped(2)

    def test_an_allocation_under_way_is_finished(self):
        fault = self.start_held("Allocate.worked")
        with self.client() as client, self.client() as other:
            other.call("GetStatus")
            client.send_call("Allocate", {"size": 64 * MIB})
            fault.expect("Allocate.worked")
            self.tell()
            # Who asks now is refused in words.
            other.send_call("GetStatus")
            told = self.refused("TooManyRequests", other.result)
            self.assertIn("stopping", told["reason"])
            fault.open()
            granted = client.result()
            self.assertEqual(granted["buffer"]["size"], 64 * MIB)
            self.assertEqual(os.fstat(client.fds[0]).st_size, 64 * MIB)
            self.assertIsNone(client.read())
            self.stopped(5)

    def test_those_who_wait_are_told(self):
        self.start("--host-bytes=1M", "--bytes-per-user=768K")
        alice, bob, carol = self.actor(ALICE), self.actor(BOB), self.actor(2003)
        alice.call("Allocate", {"size": 768 << 10})
        calls = ((alice, "Allocate", {"size": 4096, "wait_ms": 60000}), (bob, "Open", {"name": "n", "wait_ms": 60000}),
                 (carol, "Allocate", {"size": 512 << 10, "wait_ms": 60000}))
        for actor, method, parameters in calls:
            actor.send_call(method, parameters)
            self.assertFalse(actor.readable(0.05))
        watcher = self.client()
        watcher.send_call("Watch", {}, more=True)
        wait_for(lambda: self.daemon.status()["sessions"] == 5, "the watcher")
        self.tell()
        for client in (alice, bob, carol, watcher):
            told = self.refused("TooManyRequests", client.result)
            self.assertIn("the daemon is stopping", told["reason"])
            self.assertIsNone(client.read())
        watcher.close()
        self.stopped(2)

    def test_a_client_that_does_not_read(self):
        """It is given DrainSec, no more."""
        self.start("--drain-sec=300ms", "--unread-bytes-max=128K")  # less than any client is waited for
        with self.client() as slow, self.client() as other:
            slow.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while select.select([], [slow], [], 0.2)[1]:
                    slow.socket.send((STATUS + b"\0") * 10)
            other.call("GetStatus")
            began = time.monotonic()
            self.tell()
            log = self.stopped(3)
            self.assertGreaterEqual(time.monotonic() - began, 0.3)
            self.assertIn("still under way", log)

    def test_a_frozen_client(self):
        self.start("--drain-sec=10s")
        alice = self.actor(ALICE)
        alice.call("Allocate", {"size": 4096})
        alice.freeze()
        self.tell()
        self.stopped(2)

    def test_twice(self):
        self.start()
        self.daemon.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            self.daemon.process.send_signal(signal.SIGTERM)
        self.stopped(2)

    def test_newcomers_find_no_socket(self):
        fault = self.start_held("Allocate.worked")
        with self.client() as client:
            client.send_call("Allocate", {"size": 4096})
            fault.expect("Allocate.worked")
            self.tell()
            with self.assertRaises((FileNotFoundError, ConnectionRefusedError)):
                self.client()
            fault.open()
            client.result()
            self.stopped(5)


class Reload(ServiceTest):
    def write(self, text):
        with open(f"{self.daemon.directory}/conf", "w", encoding="utf-8") as file:
            file.write(text)

    def reload(self, text, answer="configuration reloaded"):
        self.write(text)
        self.daemon.process.send_signal(signal.SIGHUP)
        told = self.daemon.wait_notified("RELOADING=1")
        self.assertRegex(told, r"\ARELOADING=1\nMONOTONIC_USEC=\d+\Z")
        told = self.daemon.wait_notified("READY=1")
        self.assertIn(f"STATUS={answer}", told)

    def limits(self):
        return self.daemon.status()["limits"]

    def test_new_limit(self):
        self.start(config="[Limits]\nNamesPerUser=1\n")
        with self.client() as client:
            leases = [client.call("Allocate", {"size": 1, "name": "a"})["lease"]]
            self.refused("QuotaExceeded", client.call, "Allocate", {"size": 1, "name": "b"})
            self.reload("[Limits]\nNamesPerUser=2\n")
            self.assertEqual(self.limits()["names_per_uid"], 2)
            leases.append(client.call("Allocate", {"size": 1, "name": "b"})["lease"])
            self.refused("QuotaExceeded", client.call, "Allocate", {"size": 1, "name": "c"})
            self.reload("[Limits]\nNamesPerUser=1\n")
            told = self.refused("QuotaExceeded", client.call, "Allocate", {"size": 1, "name": "c"})
            self.assertEqual(told, {"scope": "names_per_uid", "limit": 1, "used": 2, "asked": 1})
            for lease in leases:
                client.call("Release", {"lease": lease})

    def test_a_bad_file_keeps_the_old(self):
        self.start(config="[Limits]\nNamesPerUser=7\n")
        before = self.limits()
        self.reload("[Limits]\nNamesPerUser=8\nNoSuchKey=1\n", "configuration not reloaded")
        self.assertEqual(self.limits(), before)
        self.daemon.wait_log("the old one stays")
        self.daemon.wait_log("conf:3: [Limits] NoSuchKey=1: unknown key")
        self.reload("[Limits]\nNamesPerUser=8\n")
        self.assertEqual(self.limits()["names_per_uid"], 8)

    def test_a_file_that_is_gone(self):
        self.start(config="[Limits]\nNamesPerUser=7\n")
        os.unlink(f"{self.daemon.directory}/conf")
        self.daemon.process.send_signal(signal.SIGHUP)
        self.assertIn("STATUS=configuration not reloaded", self.daemon.wait_notified("READY=1"))
        self.assertEqual(self.limits()["names_per_uid"], 7)

    def test_all_limits_are_told_as_before(self):
        """What the daemon worked out at start is not forgotten by a reload."""
        self.start()
        before = self.limits()
        self.reload("")
        self.assertEqual(self.limits(), before)

    def test_what_the_command_line_has_needs_no_restart(self):
        self.start(config="[Limits]\nNamesPerUser=7\n")
        self.reload("[Daemon]\nLogTarget=journal\nBackend=auto\n[Limits]\nNamesPerUser=3\n")
        self.assertEqual(self.limits()["names_per_uid"], 3)
        self.daemon.wait_log("configuration reloaded")
        self.assertNotIn("needs a restart", self.daemon.log())

    def test_what_is_told_is_in_force(self):
        self.start(config="[Limits]\nHostBytes=1M\n")
        with self.client() as client, self.client() as waiter:
            for mib in (1, 2, 1):
                self.reload(f"[Limits]\nHostBytes={mib}M\nDescriptorsMax=500\n")
                limits = self.limits()
                self.assertEqual((limits["host_bytes"], limits["descriptors"]), (mib * MIB, 500))
                self.assertEqual(client.call("GetStatus")["devices"][0]["free_bytes"], mib * MIB)
                told = self.refused("OutOfMemory", client.call, "Allocate", {"size": mib * MIB + 1, "wait_ms": 60000})
                self.assertEqual(told["free"], mib * MIB)
            lease = client.call("Allocate", {"size": MIB})["lease"]
            waiter.send_call("Allocate", {"size": MIB, "wait_ms": 60000})
            self.assertFalse(waiter.readable(0.05))
            self.reload("[Limits]\nHostBytes=2M\n")
            waiter.call("Release", {"lease": waiter.result()["lease"]})
            client.call("Release", {"lease": lease})

    def test_the_command_line_still_wins(self):
        self.start("--names-per-user=5", config="[Limits]\nNamesPerUser=7\n")
        self.reload("[Limits]\nNamesPerUser=8\nBuffersMax=9\n")
        self.assertEqual((self.limits()["names_per_uid"], self.limits()["buffers"]), (5, 9))

    def test_who_may_in(self):
        self.start()
        alice = self.actor(ALICE)
        alice.call("GetStatus")
        self.reload("[Access]\nAllowUsers=root\n")
        self.refused("AccessDenied", self.actor(BOB).call, "GetStatus")
        self.assertIn("version", alice.call("GetStatus"))
        self.reload("[Access]\nAllowUsers=\n")
        self.assertIn("version", status_as(self.daemon.socket, uid=BOB))

    def test_reserved_names(self):
        self.start()
        with self.client() as client:
            self.reload(f"[Access]\nReservedNames=a/:{ALICE}\n")
            self.refused("AccessDenied", client.call, "Allocate", {"size": 1, "name": "a/b"})
            self.reload("")
            client.call("Release", {"lease": client.call("Allocate", {"size": 1, "name": "a/b"})["lease"]})

    def test_quota_that_is_raised_lets_waiters_on(self):
        self.start(config="[Limits]\nBytesPerUser=4K\n")
        with self.client() as client, self.client() as waiter:
            lease = client.call("Allocate", {"size": 4096})["lease"]
            waiter.send_call("Allocate", {"size": 4096, "wait_ms": 60000})
            self.assertFalse(waiter.readable(0.05))
            self.reload("[Limits]\nBytesPerUser=8K\n")
            self.assertTrue(waiter.readable(0.5 * SLOWER), "not told at once")
            waiter.call("Release", {"lease": waiter.result()["lease"]})
            client.call("Release", {"lease": lease})

    def test_fewer_events_remembered(self):
        self.start()
        with self.client() as client:
            churn(client, 3)
            wait_for(lambda: client.call("GetStatus")["buffers"] == 0, "the last event")
            self.reload("[Limits]\nEventsMax=2\n")
            told = self.refused("EventsLost", lambda: next(client.call_more("Watch", {"since": 3})))
            self.assertEqual(told, {"oldest": 11})

    def test_the_log_says_what_was_asked_for(self):
        self.start("--log-level=info")
        with self.client() as client, self.client() as other:
            lease = client.call("Allocate", {"size": 1, "name": "the/name"})["lease"]
            client.call("Release", {"lease": lease})
            for method, parameters, about in (("Open", {"name": "no/such"}, "no/such"), ("Open", {"buffer": "b99"}, "b99"),
                                              ("Free", {"name": "gone"}, "gone"), ("Seal", {"buffer": "b98"}, "b98"),
                                              ("Kick", {"session": "s99"}, "s99")):
                with self.assertRaises(ReplyError):
                    client.call(method, parameters)
                self.daemon.wait_log(f"Broker.{method} refused: ", f" subject={about}")
            session = other.call("GetStatus")["session"]
            client.call("Kick", {"session": session})
            for words in ("Allocate", "subject=the/name"), ("Release", f"subject={lease}"), ("Kick", f"subject={session}"):
                self.daemon.wait_log(*words)

    def test_log_level(self):
        self.start("--log-target=stderr", config="[Daemon]\nLogLevel=err\n")
        with self.client() as client:
            churn(client)
            self.assertEqual(self.daemon.log(), "")
            self.reload("[Daemon]\nLogLevel=debug\n")
            churn(client)
            self.daemon.wait_log("io.gpuipc.Broker.Allocate")

    def test_many_at_once(self):
        self.start(config="[Limits]\nNamesPerUser=1\n")
        self.write("[Limits]\nNamesPerUser=3\n")
        n, answered = 200, []

        def listen():  # as a manager does: READY=1 waits for it. A STATUS= alone, which comes every few seconds, is no answer
            until = time.monotonic() + 10 * SLOWER
            while len(answered) < n and select.select([self.daemon.notify], [], [], max(0, until - time.monotonic()))[0]:
                if b"READY=1" in self.daemon.notify.recv(4096).split(b"\n"):
                    answered.append(True)
                    until = time.monotonic() + 0.5 * SLOWER

        manager = threading.Thread(target=listen)
        manager.start()
        for _ in range(n):
            self.daemon.process.send_signal(signal.SIGHUP)
        manager.join()
        self.assertGreater(len(answered), 0)
        self.assertEqual(self.limits()["names_per_uid"], 3)


class Manager(ServiceTest):
    """What is told to $NOTIFY_SOCKET."""

    def test_ready_says_how_it_is(self):
        daemon = self.start(wait=False)
        told = daemon.wait_notified("READY=1")
        self.assertRegex(told, r"(?m)^STATUS=0 buffers, 0 leases, 0 sessions")
        daemon.idle_fds = daemon.settled_fds()

    def test_answers_when_it_is_ready_and_as_soon_as_the_socket_is_there(self):
        for _ in range(5):
            daemon = Daemon(wait=False)
            try:
                deadline = time.monotonic() + 10 * SLOWER
                while not os.path.exists(daemon.socket):
                    self.assertLess(time.monotonic(), deadline)
                with daemon.client() as client:
                    self.assertIn("version", client.call("GetStatus"))
                daemon.wait_notified("READY=1")
                with daemon.client(admin=True) as admin:
                    self.assertIn("version", admin.call("GetStatus"))
            except BaseException:
                daemon.kill()
                raise
            daemon.stop()

    def test_watchdog(self):
        daemon = self.start(environment={"WATCHDOG_USEC": "200000"})
        daemon.notify.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        daemon.notify.settimeout(10 * SLOWER)
        times = []
        while len(times) < 4:  # by when it wrote, whenever this test comes to read it
            text, ancillary, _, _ = daemon.notify.recvmsg(4096, socket.CMSG_SPACE(16))
            if b"WATCHDOG=1" in text and ancillary:
                times.append(struct.unpack("qq", ancillary[0][2]))
        times = [seconds + nanoseconds / 1e9 for seconds, nanoseconds in times]
        gaps = [b - a for a, b in zip(times, times[1:])]
        self.assertLess(max(gaps), 0.2 * SLOWER)
        self.assertGreater(times[-1] - times[0], 0.15)

    def is_pinged(self, daemon, seconds=0.2):
        """Among other things that it may be told."""
        until = time.monotonic() + seconds
        while select.select([daemon.notify], [], [], max(0, until - time.monotonic()))[0]:
            if b"WATCHDOG=1" in daemon.notify.recv(4096):
                return True
        return False

    def test_watchdog_of_another_process(self):
        self.assertFalse(self.is_pinged(self.start(environment={"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"})))

    def test_no_watchdog(self):
        self.assertFalse(self.is_pinged(self.start()))

    def test_a_manager_that_does_not_read(self):
        """Its queue is soon full of pings: nobody waits for it."""
        self.start(environment={"WATCHDOG_USEC": "2000"})
        with self.client() as client:
            until = time.monotonic() + 1
            worst = 0
            while time.monotonic() < until:
                began = time.monotonic()
                client.call("GetStatus")
                worst = max(worst, time.monotonic() - began)
        self.assertLess(worst, 0.5 * SLOWER)

    def test_no_manager(self):
        self.start(environment={"NOTIFY_SOCKET": "/nonexistent/socket"}, wait=False)
        wait_for(lambda: os.path.exists(self.daemon.socket), "the socket")
        self.assertIn("version", self.daemon.status())
        self.daemon.stop()
        self.daemon = None


class Handed(ServiceTest):
    """Sockets made by the service manager."""

    def listening(self, path):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        sock.listen(10)
        os.chmod(path, 0o666)
        return sock

    @contextlib.contextmanager
    def handed(self, names, before=lambda shared, admin: None):
        """A daemon that is given two sockets, "s" and "a", under those names; its log at the end."""
        directory = tempfile.mkdtemp(prefix="h.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(directory, 0o755)
        with self.listening(f"{directory}/s") as shared, self.listening(f"{directory}/a") as admin, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, open(f"{directory}/log", "wb") as log, \
                open(f"{directory}/conf", "wb"):
            notify.bind(f"{directory}/n")
            notify.settimeout(10 * SLOWER)
            before(f"{directory}/s", f"{directory}/a")

            def main():
                spare = [os.dup2(each.fileno(), 100 + i, inheritable=False) for i, each in enumerate((shared, admin))]
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                for i, each in enumerate(spare):
                    os.dup2(each, 3 + i, inheritable=True)
                environment = {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2",
                               "NOTIFY_SOCKET": f"{directory}/n"}
                if names is not None:
                    environment["LISTEN_FDNAMES"] = names
                os.execve(GPUIPCD, [GPUIPCD, "--backend=host", "--log-target=stderr", f"--config={directory}/conf",
                                    f"--socket={directory}/other"], environment)

            pid = fork_child(main, [shared.fileno(), admin.fileno(), log.fileno()])
            status = None
            try:
                while b"READY=1" not in notify.recv(4096):
                    pass
                yield pid, f"{directory}/s", f"{directory}/a"
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), "it to end")
            finally:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
        with open(f"{directory}/log", encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(status, 0, text)
        # They are the manager's: neither taken away nor joined by sockets of its own.
        self.assertEqual(sorted(os.listdir(directory)), ["a", "conf", "log", "n", "s"])
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)

    def assert_served(self, shared, admin):
        with RawClient(admin) as boss, RawClient(shared) as client:
            lease = client.call("Allocate", {"size": 4096, "name": "n"})["lease"]
            with RawClient(shared) as other:
                session = other.call("GetStatus")["session"]
            del session
            self.assertEqual([each["name"] for each in boss.call("ListBuffers")["buffers"]], ["n"])
            client.call("Release", {"lease": lease})
        self.assertIn("version", status_as(shared, uid=ALICE))

    def assert_admin(self, path, is_admin):
        """Who is an administrator sees what belongs to another."""
        alice = self.actor_at(path[0])
        alice.call("Allocate", {"size": 4096})
        for each, expected in zip(path, is_admin):
            with RawClient(each) as client:
                wait_for(lambda n=int(expected), who=client: len(who.call("ListBuffers")["buffers"]) == n, f"{int(expected)} in sight")
        alice.kill()

    def actor_at(self, path):
        from actors import Actor
        return self.owned(Actor(path, ALICE))

    def test_by_name(self):
        with self.handed("shared:admin") as (_, shared, admin):
            self.assert_served(shared, admin)
            self.assert_admin((shared, admin), (False, True))

    def test_in_the_other_order(self):
        with self.handed("admin:shared") as (_, admin, shared):
            self.assert_served(shared, admin)
            self.assert_admin((shared, admin), (False, True))

    def test_a_client_that_was_there_first(self):
        """Its connection and its call lay in the queue before the daemon lived; it is known all the same."""
        early = []

        def before(shared, _):
            early.append(RawClient(shared))
            early[0].send_call("Allocate", {"size": 4096})

        with self.handed("shared:admin", before):
            granted = early[0].result()
            self.assertEqual(granted["buffer"]["owner_uid"], 0)
            lease = early[0].call("List")["leases"][0]
            self.assertEqual((lease["uid"], lease["pid"]), (0, os.getpid()))
            early[0].call("Release", {"lease": granted["lease"]})
            early[0].close()

    def test_descriptors_that_were_there_first(self):
        early = []

        def before(shared, _):
            early.append(RawClient(shared))
            early[0].send(STATUS + b"\0", [0])

        with self.handed("shared:admin", before) as (pid, shared, _):
            told = self.refused("AccessDenied", early[0].result)
            self.assertIn("takes no descriptors", told["reason"])
            self.assertIsNone(early[0].read())
            early[0].close()
            with RawClient(shared) as client:
                wait_for(lambda: client.call("GetStatus")["sessions"] == 1, "the other to be gone")
                wait_for(lambda: "/dev/null" not in [each for number, each in open_fds(pid).items() if number > 2], "what it sent likewise")


class InTheWay(ServiceTest):
    """What lies at the socket's path already."""

    def run_another(self, *options):
        """A second daemon that cannot start: its exit status and what it said."""
        done = subprocess.run([GPUIPCD, "--backend=host", "--log-target=stderr", "--config=/dev/null", *options],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=10 * SLOWER, check=False)
        return done.returncode, done.stdout

    def test_a_stale_socket_is_replaced(self):
        daemon = self.start()
        daemon.process.kill()
        daemon.process.wait()
        self.assertTrue(os.path.exists(daemon.socket), "a killed daemon cannot tidy up")
        old = os.stat(daemon.socket).st_ino
        command = [GPUIPCD, "--config", f"{daemon.directory}/conf", "--backend=host", "--log-target=stderr",
                   "--socket", daemon.socket, "--admin-socket", daemon.admin_socket]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as again:
            wait_for(lambda: os.path.exists(daemon.socket) and os.stat(daemon.socket).st_ino != old, "a new socket")
            self.assertIn("version", daemon.status())
            wait_for(lambda: os.path.exists(daemon.admin_socket), "the other")
            again.send_signal(signal.SIGTERM)
            self.assertEqual(again.wait(timeout=10 * SLOWER), 0)
        self.assertEqual([each for each in os.listdir(daemon.directory) if each not in ("conf", "log", "n")], [])
        daemon.forget()
        self.daemon = None

    def test_a_file_in_the_way_is_left_alone(self):
        daemon = self.start()
        precious = f"{daemon.directory}/precious"
        for path, others in ((precious, ["--socket", precious]),
                             (f"{precious}.new", ["--socket", precious])):
            with open(path, "w", encoding="ascii") as file:
                file.write("bytes")
            status, said = self.run_another(*others)
            self.assertEqual(status, 1, said)
            self.assertIn(f"cannot listen at {precious}", said)
            with open(path, encoding="ascii") as file:
                self.assertEqual(file.read(), "bytes")
            os.unlink(path)

    def test_a_living_daemon_is_left_alone(self):
        daemon = self.start()
        before = os.stat(daemon.socket).st_ino
        status, said = self.run_another("--socket", daemon.socket)
        self.assertEqual(status, 1, said)
        self.assertIn(f"cannot listen at {daemon.socket}: another daemon answers there", said)
        self.assertEqual(os.stat(daemon.socket).st_ino, before)
        self.assertIn("version", daemon.status())
        self.assertEqual(sorted(os.listdir(daemon.directory)), ["a", "conf", "log", "n", "s"])

    def test_a_living_daemon_at_the_other_socket(self):
        daemon = self.start()
        status, said = self.run_another("--socket", f"{daemon.directory}/s2", "--admin-socket", daemon.admin_socket)
        self.assertEqual(status, 1, said)
        self.assertIn(f"cannot listen at {daemon.admin_socket}: another daemon answers there", said)
        self.assertEqual(sorted(os.listdir(daemon.directory)), ["a", "conf", "log", "n", "s"])

    def test_a_directory_that_is_not_there(self):
        status, said = self.run_another("--socket", "/nonexistent/there/s")
        self.assertEqual(status, 1, said)
        self.assertIn("cannot listen at /nonexistent/there/s: No such file or directory", said)

    def test_a_path_taken_over_is_not_removed(self):
        """A later daemon's socket stays when the earlier one stops."""
        daemon = self.start()
        os.unlink(daemon.socket)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(daemon.socket)
            daemon.process.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.process.wait(timeout=10 * SLOWER), 0)
            self.assertTrue(os.path.exists(daemon.socket))
        daemon.forget()
        self.daemon = None


class Configuration(ServiceTest):
    def run_daemon(self, *options):
        done = subprocess.run([GPUIPCD, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=10 * SLOWER, check=False)
        return done.returncode, done.stdout, done.stderr

    def files(self, main, **drop_ins):
        directory = tempfile.mkdtemp(prefix="c.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(subprocess.run, ["rm", "-r", directory], check=True)
        os.mkdir(f"{directory}/conf.d")
        for path, text in {"conf": main, **{f"conf.d/{name.replace('__', '.')}": text for name, text in drop_ins.items()}}.items():
            with open(f"{directory}/{path}", "w", encoding="utf-8") as file:
                file.write(text)
        return f"{directory}/conf"

    def assert_bad(self, text, *says, options=()):
        path = self.files(text)
        status, out, err = self.run_daemon("--test-config", f"--config={path}", *options)
        self.assertEqual((status, out), (2, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        for each in says:
            self.assertIn(each.replace("FILE", path), err)

    def limits_of(self, path, *options):
        daemon = Daemon(f"--config={path}", *options)
        limits = daemon.status()["limits"]
        daemon.stop()
        return limits

    def test_precedence(self):
        path = self.files("[Limits]\nClientsMax=11\nBuffersMax=21\nNamesPerUser=31\nWaitsPerUser=41\nEventsMax=51\n",
                          b_late__conf="[Limits]\nBuffersMax=23\nNamesPerUser=33\nWaitsPerUser=43\n",
                          a_early__conf="[Limits]\nBuffersMax=22\nNamesPerUser=32\nEventsMax=52\n",
                          c_other__txt="[Limits]\nClientsMax=99\n", __hidden__conf="[Limits]\nClientsMax=98\n")
        limits = self.limits_of(path, "--waits-per-user=44")
        self.assertEqual([limits[each] for each in ("clients", "buffers", "names_per_uid", "waits_per_uid", "events")],
                         [11, 23, 33, 44, 52])

    def test_the_last_of_an_option_wins(self):
        limits = self.limits_of(self.files(""), "--buffers-max=5", "--buffers-max", "6")
        self.assertEqual(limits["buffers"], 6)

    def test_an_empty_value_is_the_default(self):
        default = self.limits_of(self.files(""))["buffers"]
        path = self.files("[Limits]\nBuffersMax=5\n", z__conf="[Limits]\nBuffersMax=\n")
        self.assertEqual(self.limits_of(path)["buffers"], default)

    def test_comments_blanks_and_continued_lines(self):
        path = self.files("# one\n; two\n\n  [Limits]  \n BuffersMax = 5 \n[Access]\nAllowUsers=root \\\n  # in between\n  daemon\n")
        daemon = Daemon(f"--config={path}")
        self.assertEqual(daemon.status()["limits"]["buffers"], 5)
        self.assertIn("version", status_as(daemon.socket, uid=1))
        daemon.stop()

    def test_units(self):
        path = self.files("[Limits]\nBytesPerUser=3G\nBytesPerSession=infinity\nHostBytes=1%\nWaitSecMax=1h 30min\nUnreadSec=1500ms\n")
        limits = self.limits_of(path)
        self.assertEqual((limits["bytes_per_uid"], limits["bytes_per_session"], limits["wait_ms"], limits["unread_ms"]),
                         (3 << 30, (1 << 53) - 1, 5400000, 1500))
        self.assertEqual(limits["host_bytes"] % 4096, 0)

    def test_unknown_key(self):
        self.assert_bad("[Limits]\n\nColour=blue\n", "FILE:3: [Limits] Colour=blue: unknown key", "gpuipcd.conf(5)")

    def test_key_in_another_case(self):
        self.assert_bad("[Limits]\nbuffersmax=1\n", "FILE:2: [Limits] buffersmax=1", "it is spelled BuffersMax=")

    def test_key_in_the_wrong_section(self):
        self.assert_bad("[Access]\nBuffersMax=1\n", "FILE:2: [Access] BuffersMax=1", "put it under [Limits]")

    def test_unknown_section(self):
        self.assert_bad("[Limit]\n", "FILE:1: [Limit]: unknown section", "[Daemon], [Access] and [Limits]")

    def test_no_section(self):
        self.assert_bad("BuffersMax=1\n", "FILE:1: BuffersMax=: before any section")

    def test_neither_key_nor_section(self):
        self.assert_bad("[Limits]\nBuffersMax 1\n", "FILE:2: BuffersMax 1: neither Key=value nor [Section]")

    def test_out_of_range(self):
        self.assert_bad("[Limits]\nBuffersMax=0\n", "FILE:2: [Limits] BuffersMax=0: out of range", "from 1 to 1000000")

    def test_not_a_number(self):
        self.assert_bad("[Limits]\nBuffersMax=many\n", "FILE:2: [Limits] BuffersMax=many: not a number")

    def test_unknown_user(self):
        self.assert_bad("[Access]\nAllowUsers=nosuchuser\n", "FILE:2: [Access] AllowUsers=nosuchuser", 'no user "nosuchuser"')

    def test_control_characters_in_a_value(self):
        self.assert_bad("[Limits]\nBuffersMax=\x1b[2J\n", "FILE:2: [Limits] BuffersMax=?[2J: not a number")

    def test_both_sockets_at_one_path(self):
        self.assert_bad("[Daemon]\nSocket=/tmp/x\nAdminSocket=/tmp/x\n", "Socket= and AdminSocket= are both /tmp/x")

    def test_a_bad_drop_in(self):
        path = self.files("", x__conf="[Limits]\nColour=blue\n")
        status, _, err = self.run_daemon("--test-config", f"--config={path}")
        self.assertEqual(status, 2)
        self.assertIn(f"{path}.d/x.conf:2: [Limits] Colour=blue: unknown key", err)

    def test_a_file_that_is_not_there(self):
        status, _, err = self.run_daemon("--config=/nonexistent/conf")
        self.assertEqual((status, err), (2, "gpuipcd: /nonexistent/conf: cannot open: No such file or directory\n"))

    def test_bad_options(self):
        for option, says in ((["--colour=blue"], "--colour: unknown option; see gpuipcd --help"),
                             (["blue"], "blue: gpuipcd takes options only"),
                             (["--buffers-max"], "--buffers-max: its value is missing"),
                             (["--buffers-max=0"], "--buffers-max=0: out of range"),
                             (["--version=1"], "--version: takes no value"),
                             (["--backend=tape"], "--backend=tape: no such choice; give one of auto|host|cuda")):
            with self.subTest(option):
                status, out, err = self.run_daemon("--config=/dev/null", *option)
                self.assertEqual((status, out), (2, ""))
                self.assertIn(f"gpuipcd: {says}", err)

    def test_a_backend_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as directory:
            status, _, err = self.run_daemon("--config=/dev/null", "--backend=cuda", "--log-target=stderr",
                                             f"--socket={directory}/s")
        self.assertEqual(status, 1)
        self.assertIn("Backend=cuda", err)
        self.assertIn("Backend=auto", err)

    def test_test_config(self):
        path = self.files("[Limits]\nBuffersMax=5\n")
        status, out, err = self.run_daemon("--test-config", f"--config={path}")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("good", out)

    def test_version(self):
        with open(f"{ROOT}/include/gpuipc.h", encoding="utf-8") as file:
            version = re.search(r'GPUIPC_VERSION "(.*)"', file.read()).group(1)
        self.assertEqual(self.run_daemon("--version"), (0, f"gpuipcd {version}\n", ""))

    def test_help_names_every_limit(self):
        status, out, err = self.run_daemon("--help")
        self.assertEqual((status, err), (0, ""))
        options = set(re.findall(r"(?m)^  --([a-z-]+)", out))
        daemon = self.start()
        self.assertEqual(len([each for each in options if re.search("-(max|per-user|per-session|bytes|sec|sec-max)$", each)]) - 1,
                         len(daemon.status()["limits"]), "each limit, and --drain-sec")

    def test_every_option_has_its_key(self):
        """What --help offers can be written into the file, in the section it is listed under."""
        _, out, _ = self.run_daemon("--help")
        section, text = None, ""
        for line in out.splitlines():
            if re.match(r"[A-Z][a-z]+:$", line):
                section = line[:-1]
                text += f"[{section}]\n"
            elif section and (option := re.match(r"  --([a-z-]+)", line)):
                name = "".join(part.capitalize() for part in option.group(1).split("-"))
                text += f"{name}=\n"
        self.assertGreater(text.count("="), 25)
        path = self.files(text.replace("AdminSocket=\n", "AdminSocket=none\n"))
        status, _, err = self.run_daemon("--test-config", f"--config={path}")
        self.assertEqual(status, 0, err)


if __name__ == "__main__":
    unittest.main()
