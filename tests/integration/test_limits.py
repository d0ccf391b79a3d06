# SPDX-License-Identifier: Apache-2.0
"""Every limit: set low, reached, refused with its error and its numbers, shown by GetStatus, and free again after
release; and who may in at all. Runs on any memory. deadline: 180 s"""

import os
import resource
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import ActorTest, churn, in_child, status_as  # noqa: E402
from daemon import GPUIPCD, Daemon, device_bytes, memory_of, open_fds, script, wait_for  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402

PAGE = backend.PAGE
ALICE, BOB, CAROL = 2001, 2002, 2003
STATUS = b'{"method":"io.gpuipc.Broker.GetStatus"}'
NAMES = {"clients", "clients_per_uid", "leases_per_session", "leases_per_uid", "bytes_per_uid", "bytes_per_session", "keep_free_bytes",
         "spare_bytes", "host_bytes", "buffers", "names_per_uid", "waits_per_session", "waits_per_uid", "wait_ms", "keep_ms",
         "message_bytes", "events", "unread_bytes", "unread_ms", "stored_descriptors",
         "stored_per_uid", "resume_ms", "descriptors"}


class LimitTest(ActorTest):
    """Each case starts the daemon it needs."""

    def make_daemon(self):
        return None

    def start(self, *options, shows=None, **others):
        self.daemon = Daemon(*options, **others)
        limits = self.daemon.status()["limits"]
        self.assertEqual(set(limits), NAMES)
        for name, value in (shows or {}).items():
            self.assertEqual(limits[name], value, name)
        return self.daemon

    def start_with_ulimit(self, ulimit, **others):
        """A shell lowers the daemon's own limits; raising one's own again may not be allowed."""
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as directory:
            self.start(program=script(f"{directory}/program", f'ulimit {ulimit} && exec {GPUIPCD} "$@"'), **others)

    def quota(self, scope, limit, used, asked, call, *args):
        told = self.refused("QuotaExceeded", call, *args)
        self.assertEqual(told, {"scope": scope, "limit": limit, "used": used, "asked": asked})

    def turned_away(self, path=None):
        """The parameters of the error that a connection's first call is answered with, before it is closed."""
        with RawClient(path or self.daemon.socket) as client:
            told = None
            try:
                client.call("GetStatus")
            except ReplyError as error:
                told = error.name.rpartition(".")[2], error.parameters
            self.assertIsNone(client.read() if told else None)
            return told


class Counts(LimitTest):
    def test_clients(self):
        self.start("--clients-max=3", shows={"clients": 3})
        clients = [self.client() for _ in range(3)]
        for client in clients:
            client.call("GetStatus")
        self.assertEqual(self.turned_away(), ("QuotaExceeded", {"scope": "clients", "limit": 3, "used": 3, "asked": 1}))
        with self.client(admin=True) as admin:
            self.assertEqual(admin.call("GetStatus")["sessions"], 4)
        wait_for(lambda: clients[0].call("GetStatus")["sessions"] == 3, "the administrator to be gone")
        clients.pop().close()
        wait_for(lambda: clients[0].call("GetStatus")["sessions"] == 2, "one to be gone")
        with self.client() as again:
            self.assertEqual(again.call("GetStatus")["sessions"], 3)
        for client in clients:
            client.close()

    def test_clients_per_uid(self):
        self.start("--clients-per-user=2", shows={"clients_per_uid": 2})
        alice = self.actor(ALICE)
        connections = [alice.client(), alice.client()]
        for connection in connections:
            connection.call("GetStatus")
        third = alice.client()
        self.quota("clients_per_uid", 2, 2, 1, third.call, "GetStatus")
        self.assertIsNone(third.read())
        with self.client() as other:
            self.assertEqual(other.call("GetStatus")["sessions"], 3)
            connections[0].close()
            wait_for(lambda: other.call("GetStatus")["sessions"] == 2, "one to be gone")
        self.assertIn("version", alice.client().call("GetStatus"))

    def test_clients_turned_away_are_not_kept(self):
        """Who was turned away and says nothing holds no place, and is closed in time."""
        self.start("--clients-per-user=1", shows={"clients_per_uid": 1})
        with self.client() as client:
            client.call("GetStatus")
            silent = [self.client() for _ in range(100)]
            self.assertEqual(client.call("GetStatus")["sessions"], 1)
            wait_for(lambda: len(open_fds(self.daemon.pid)) < self.daemon.idle_fds + 80, "some to be closed at once")
            for each in silent:
                each.expect_closed()
                each.close()
            self.assertEqual(client.call("GetStatus")["sessions"], 1)

    def test_leases_per_session(self):
        self.start("--leases-per-session=3", shows={"leases_per_session": 3})
        with self.client() as client, self.client() as other:
            first = client.call("Allocate", {"size": PAGE, "name": "n"})["lease"]
            leases = [client.call("Open", {"name": "n"})["lease"] for _ in range(2)]
            self.quota("leases_per_session", 3, 3, 1, client.call, "Open", {"name": "n"})
            self.quota("leases_per_session", 3, 3, 1, client.call, "Allocate", {"size": PAGE})
            other.call("Release", {"lease": other.call("Open", {"name": "n"})["lease"]})
            client.call("Release", {"lease": leases.pop()})
            leases.append(client.call("Open", {"name": "n"})["lease"])
            self.quota("leases_per_session", 3, 3, 1, client.call, "Open", {"name": "n"})
            for lease in [first, *leases]:
                client.call("Release", {"lease": lease})

    def test_leases_per_user(self):
        """In all its sessions together."""
        self.start("--leases-per-user=3", shows={"leases_per_uid": 3})
        with self.client() as one, self.client() as two:
            held = [one.call("Allocate", {"size": PAGE, "name": "n", "mode": "0666"})["lease"], one.call("Open", {"name": "n"})["lease"]]
            last = two.call("Open", {"name": "n"})["lease"]
            for client in (one, two):
                self.quota("leases_per_uid", 3, 3, 1, client.call, "Open", {"name": "n"})
                self.quota("leases_per_uid", 3, 3, 1, client.call, "Allocate", {"size": PAGE})
            self.actor(ALICE).call("Open", {"name": "n"})
            one.call("Release", {"lease": held.pop()})
            two.call("Release", {"lease": last})
            held += [one.call("Open", {"name": "n"})["lease"] for _ in range(2)]
            self.quota("leases_per_uid", 3, 3, 1, two.call, "Open", {"name": "n"})
            for lease in held:
                one.call("Release", {"lease": lease})

    def test_leases_per_session_count_those_that_drain(self):
        """A process cannot make draining leases without end."""
        self.start("--leases-per-session=2", "--trust-release=no", shows={"leases_per_session": 2})
        alice = self.actor(ALICE)
        for _ in range(2):
            alice.call("Release", {"lease": alice.call("Allocate", {"size": PAGE})["lease"]})
        self.quota("leases_per_session", 2, 2, 1, alice.call, "Allocate", {"size": PAGE})
        alice.kill()
        wait_for(lambda: self.daemon.status()["leases"] == 0, "them to end with the process")

    def test_buffers(self):
        self.start("--buffers-max=2", shows={"buffers": 2})
        with self.client() as client:
            leases = [client.call("Allocate", {"size": PAGE})["lease"] for _ in range(2)]
            self.quota("buffers", 2, 2, 1, client.call, "Allocate", {"size": PAGE})
            self.quota("buffers", 2, 2, 1, client.call, "Allocate", {"size": PAGE, "wait_ms": 60000})
            client.call("Release", {"lease": leases.pop()})
            wait_for(lambda: client.call("GetStatus")["buffers"] == 1, "one buffer to be gone")
            leases.append(client.call("Allocate", {"size": PAGE})["lease"])
            for lease in leases:
                client.call("Release", {"lease": lease})

    def test_names_per_uid(self):
        self.start("--names-per-user=2", shows={"names_per_uid": 2})
        alice, bob = self.actor(ALICE), self.actor(BOB)
        alice.call("Allocate", {"size": PAGE, "name": "one"})
        alice.client().call("Allocate", {"size": PAGE, "name": "two"})
        self.quota("names_per_uid", 2, 2, 1, alice.call, "Allocate", {"size": PAGE, "name": "three"})
        alice.call("Allocate", {"size": PAGE})
        bob.call("Allocate", {"size": PAGE, "name": "three"})
        alice.call("Free", {"name": "one"})
        alice.call("Allocate", {"size": PAGE, "name": "four"})
        self.quota("names_per_uid", 2, 2, 1, alice.call, "Allocate", {"size": PAGE, "name": "five"})

    def test_waits_per_session(self):
        """A session has one call under way, so that only zero can be too few; a reload allows it."""
        self.start(config="[Limits]\nWaitsPerSession=0\n", shows={"waits_per_session": 0})
        with self.client() as client:
            self.quota("waits_per_session", 0, 0, 1, client.call, "Open", {"name": "n", "wait_ms": 1000})
            with open(f"{self.daemon.directory}/conf", "w", encoding="utf-8") as file:
                file.write("[Limits]\nWaitsPerSession=1\n")
            self.daemon.process.send_signal(signal.SIGHUP)
            self.daemon.wait_notified("configuration reloaded")
            self.refused("TimedOut", client.call, "Open", {"name": "n", "wait_ms": 10})

    def test_waits_per_uid(self):
        self.start("--waits-per-user=2", shows={"waits_per_uid": 2})
        alice, bob = self.actor(ALICE), self.actor(BOB)
        waiting = [alice.client() for _ in range(2)]
        for each in waiting:
            each.send_call("Open", {"name": "n", "wait_ms": 60000})
        wait_for(lambda: self.told_waits(alice), "two to wait")
        self.quota("waits_per_uid", 2, 2, 1, alice.call, "Open", {"name": "n", "wait_ms": 60000})
        self.refused("TimedOut", bob.call, "Open", {"name": "n", "wait_ms": 10})
        waiting.pop().close()
        wait_for(lambda: self.daemon.status()["sessions"] == 4, "one to be gone")
        self.refused("TimedOut", alice.call, "Open", {"name": "n", "wait_ms": 10})

    def told_waits(self, actor):
        """Whether the actor's user may wait no more, by a wait that ends at once."""
        try:
            actor.call("Open", {"name": "n", "wait_ms": 1})
        except ReplyError as error:
            return error.name.endswith("QuotaExceeded")
        return False


class Bytes(LimitTest):
    def test_bytes_per_uid(self):
        self.start(f"--bytes-per-user={16 * PAGE}", shows={"bytes_per_uid": 16 * PAGE})
        alice, bob = self.actor(ALICE), self.actor(BOB)
        lease = alice.call("Allocate", {"size": 10 * PAGE - 960})["lease"]
        self.quota("bytes_per_uid", 16 * PAGE, 10 * PAGE, 7 * PAGE, alice.client().call, "Allocate", {"size": 6 * PAGE + 1})
        alice.call("Allocate", {"size": 6 * PAGE})
        self.quota("bytes_per_uid", 16 * PAGE, 16 * PAGE, PAGE, alice.call, "Allocate", {"size": 1})
        bob.call("Allocate", {"size": 16 * PAGE})
        alice.call("Release", {"lease": lease})
        wait_for(lambda: self.fits(alice, 10 * PAGE), "the bytes to be free again")

    def fits(self, actor, size):
        try:
            actor.call("Release", {"lease": actor.call("Allocate", {"size": size})["lease"]})
        except ReplyError:
            return False
        return True

    def test_bytes_per_session(self):
        self.start(f"--bytes-per-session={16 * PAGE}", shows={"bytes_per_session": 16 * PAGE})
        with self.client() as client, self.client() as other:
            lease = client.call("Allocate", {"size": 10 * PAGE})["lease"]
            self.quota("bytes_per_session", 16 * PAGE, 10 * PAGE, 7 * PAGE, client.call, "Allocate", {"size": 7 * PAGE})
            self.quota("bytes_per_session", 16 * PAGE, 10 * PAGE, 7 * PAGE, client.call, "Allocate",
                       {"size": 7 * PAGE, "wait_ms": 60000})
            second = other.call("Allocate", {"size": 16 * PAGE})["lease"]
            client.call("Release", {"lease": lease})
            third = client.call("Allocate", {"size": 16 * PAGE})["lease"]
            client.call("Release", {"lease": third})
            other.call("Release", {"lease": second})

    def test_keep_free_bytes(self):
        kept = 16 * PAGE if backend.HOST else device_bytes() - 32 * PAGE
        self.start(f"--keep-free-bytes={kept}", f"--host-bytes={48 * PAGE}", shows={"keep_free_bytes": kept, "host_bytes": 48 * PAGE})
        with self.client() as client:
            self.assertEqual(client.call("GetStatus")["devices"][0]["free_bytes"], 32 * PAGE)
            told = self.refused("OutOfMemory", client.call, "Allocate", {"size": 32 * PAGE + 1})
            self.assertEqual(told, {"device": self.device(), "free": 32 * PAGE, "asked": 33 * PAGE})
            lease = client.call("Allocate", {"size": 32 * PAGE})["lease"]
            self.assertEqual(client.call("GetStatus")["devices"][0]["free_bytes"], 0)
            told = self.refused("OutOfMemory", client.call, "Allocate", {"size": 1})
            self.assertEqual(told, {"device": self.device(), "free": 0, "asked": PAGE})
            client.call("Release", {"lease": lease})
            wait_for(lambda: client.call("GetStatus")["devices"][0]["free_bytes"] == 32 * PAGE, "the bytes to be free again")

    def test_host_bytes(self):
        self.start(*memory_of(32 * PAGE), shows={"host_bytes": 32 * PAGE} if backend.HOST else None)
        alice, bob = self.actor(ALICE), self.actor(BOB)
        lease = alice.call("Allocate", {"size": 25 * PAGE - 2400})["lease"]
        told = self.refused("OutOfMemory", bob.call, "Allocate", {"size": 8 * PAGE})
        self.assertEqual(told, {"device": self.device(), "free": 7 * PAGE, "asked": 8 * PAGE})
        bob.call("Allocate", {"size": 7 * PAGE})
        alice.call("Release", {"lease": lease})
        wait_for(lambda: self.fits(bob, 25 * PAGE), "the bytes to be free again")

    @backend.host_only
    def test_host_bytes_by_default(self):
        """Half of the smaller of the machine's memory and the daemon's own limit."""
        self.start()
        with open("/proc/meminfo", encoding="ascii") as file:
            total = int(next(line for line in file if line.startswith("MemTotal:")).split()[1]) * 1024
        told = self.daemon.status()["limits"]["host_bytes"]
        self.assertLessEqual(told, total // 2)
        self.assertGreater(told, 0)
        with self.client() as client:
            error = self.refused("OutOfMemory", client.call, "Allocate", {"size": told + 1, "wait_ms": 60000})
            self.assertEqual((error["device"], error["asked"]), ("host", told + PAGE))

    @backend.host_only
    def test_what_the_machine_has_not(self):
        """The books allow it, but the file may not grow so far: an error, and nothing is left behind."""
        self.start("--host-bytes=64M")
        resource.prlimit(self.daemon.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with self.client() as client:
            with self.assertRaises(ReplyError):
                client.call("Allocate", {"size": 2 << 20})
            wait_for(lambda: client.call("GetStatus")["devices"][0]["free_bytes"] == 64 << 20, "nothing to be charged")
            client.call("Release", {"lease": client.call("Allocate", {"size": 1 << 20})["lease"]})


class Times(LimitTest):
    def test_wait_ms(self):
        self.start("--wait-sec-max=500ms", shows={"wait_ms": 500})
        with self.client() as client:
            self.quota("wait_ms", 500, 0, 501, client.call, "Open", {"name": "n", "wait_ms": 501})
            self.quota("wait_ms", 500, 0, 501, client.call, "Allocate", {"size": 1, "wait_ms": 501})
            began = time.monotonic()
            self.refused("TimedOut", client.call, "Open", {"name": "n", "wait_ms": 500})
            self.assertGreaterEqual(time.monotonic() - began, 0.499)
            client.call("Release", {"lease": client.call("Allocate", {"size": 1, "wait_ms": 500})["lease"]})

    def test_keep_ms(self):
        self.start("--keep-sec-max=200ms", shows={"keep_ms": 200})
        with self.client() as client:
            self.quota("keep_ms", 200, 0, 201, client.call, "Allocate", {"size": 1, "keep_ms": 201})
            granted = client.call("Allocate", {"size": 1, "keep_ms": 200, "name": "kept"})
            client.call("Release", {"lease": granted["lease"]})
            client.send_call("Watch", {"since": 0}, more=True)
            kinds = {}
            while "freed" not in kinds:
                event = client.result()["event"]
                kinds[event["kind"]] = event["time_usec"]
            self.assertGreaterEqual(kinds["freed"] - kinds["kept"], 199000)  # by a clock that others set


class Sizes(LimitTest):
    def test_message_bytes(self):
        self.start("--message-bytes-max=4K", shows={"message_bytes": 4096})
        with self.client() as client:
            client.send(STATUS + b" " * (4096 - len(STATUS)) + b"\0")
            self.assertIn("version", client.result())
            client.send(STATUS + b" " * (4097 - len(STATUS)) + b"\0")
            self.assertIsNone(client.read())

    def test_events(self):
        self.start("--events-max=4", shows={"events": 4})
        with self.client() as client, self.client() as watcher:
            for _ in range(3):  # created, opened, released, freed: twelve events
                churn(client, 1)
                wait_for(lambda: client.call("GetStatus")["buffers"] == 0, "the last event")
            told = self.refused("EventsLost", next, watcher.call_more("Watch", {"since": 7}))
            self.assertEqual(told, {"oldest": 9})
            told = self.refused("EventsLost", next, watcher.call_more("Watch", {"since": 0}))
            self.assertEqual(told, {"oldest": 9})
            stream = watcher.call_more("Watch", {"since": 8})
            events = [next(stream)["event"] for _ in range(4)]
            self.assertEqual([(each["sequence"], each["kind"]) for each in events],
                             [(9, "created"), (10, "opened"), (11, "released"), (12, "freed")])


class Descriptors(LimitTest):
    LEFT_FOR_SESSIONS = 64

    @backend.with_descriptors
    def test_descriptors(self):
        self.start("--descriptors-max=128", shows={"descriptors": 128})
        with self.client() as client:
            leases = []
            told = None
            while not told:
                try:
                    leases.append(client.call("Allocate", {"size": 1})["lease"])
                except ReplyError as error:
                    told = error
            self.assertEqual(told.name, "io.gpuipc.Broker.QuotaExceeded")
            numbers = told.parameters
            self.assertEqual((numbers["scope"], numbers["limit"]), ("descriptors", 128))
            self.assertGreater(numbers["used"] + numbers["asked"], 128)
            self.assertLessEqual(numbers["used"], 128)
            self.assertGreater(len(leases), 10)
            # There is still room to come in and be answered.
            self.assertIn("version", self.daemon.status())
            client.call("Release", {"lease": leases.pop()})
            wait_for(lambda: client.call("GetStatus")["buffers"] == len(leases), "the buffer to be gone")
            leases.append(client.call("Allocate", {"size": 1})["lease"])
            self.quota(*(numbers[each] for each in ("scope", "limit", "used", "asked")), client.call, "Allocate", {"size": 1})
            for lease in leases:
                client.call("Release", {"lease": lease})

    def test_descriptors_for_sessions(self):
        self.start("--descriptors-max=128", shows={"descriptors": 128})
        clients, told = [], None
        while not told:
            client = self.client()
            try:
                client.call("GetStatus")
                clients.append(client)
            except ReplyError as error:
                told = error
                client.close()
        self.assertEqual(told.name, "io.gpuipc.Broker.QuotaExceeded")
        self.assertEqual((told.parameters["scope"], told.parameters["limit"]), ("descriptors", 128))
        self.assertGreater(len(clients), 25)  # each reserves four: socket, process, sender, a handle on its way
        n = len(clients)
        clients.pop().close()
        wait_for(lambda: clients[0].call("GetStatus")["sessions"] == n - 1, "one to be gone")
        clients.append(self.client())
        self.assertIn("version", clients[-1].call("GetStatus"))
        for client in clients:
            client.close()

    def test_the_soft_limit_is_raised(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.start_with_ulimit("-S -n 256", shows={"descriptors": hard})
        self.assertEqual(resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE), (hard, hard))

    @backend.with_descriptors
    def test_refused_before_they_run_out(self):
        """With a hard limit that is really low: new buffers are refused in words, never by a failing call."""
        self.start_with_ulimit("-n 160", shows={"descriptors": 160})
        with self.client() as client:
            leases, told = [], None
            while not told:
                try:
                    leases.append(client.call("Allocate", {"size": 1})["lease"])
                    # The read-only descriptor is one more that each may need.
                    buffer = client.call("ListBuffers")["buffers"][-1]["id"]
                    leases.append(client.call("Open", {"buffer": buffer, "access": "ro"})["lease"])
                    client.drop_fds()
                except ReplyError as error:
                    told = error
            self.assertEqual((told.name, told.parameters["scope"]), ("io.gpuipc.Broker.QuotaExceeded", "descriptors"))
            self.assertLess(len(open_fds(self.daemon.pid)), 160)
            self.assertIn("version", self.daemon.status())
            for lease in leases:
                client.call("Release", {"lease": lease})


class People(LimitTest):
    """Who may in, and what he may call things."""

    def assert_let_in(self, **who):
        self.assertIn("version", status_as(self.daemon.socket, **who))

    def assert_kept_out(self, **who):
        path = self.daemon.socket

        def try_it():
            with RawClient(path) as client:
                try:
                    client.call("GetStatus")
                except ReplyError as error:
                    return error.name, error.parameters["reason"], client.read()
            return None

        name, reason, after = in_child(try_it, **who)
        self.assertEqual(name, "io.gpuipc.Broker.AccessDenied")
        self.assertIn(f"uid {who['uid']}", reason)
        self.assertIn("AllowUsers=", reason)
        self.assertIsNone(after)

    def test_allow_users(self):
        self.daemon = Daemon("--allow-users", f"root {ALICE}")
        self.assert_let_in(uid=ALICE)
        self.assert_let_in(uid=0)
        self.assert_kept_out(uid=BOB)
        self.assert_kept_out(uid=BOB, gid=0)

    def test_allow_users_by_name(self):
        self.daemon = Daemon("--allow-users", "root daemon")
        self.assert_let_in(uid=1)
        self.assert_kept_out(uid=2)

    def test_allow_groups(self):
        self.daemon = Daemon("--allow-groups", f"root {CAROL}")
        self.assert_let_in(uid=ALICE, gid=CAROL)
        self.assert_let_in(uid=ALICE, gid=ALICE, groups=(BOB, CAROL))
        self.assert_kept_out(uid=ALICE, gid=ALICE, groups=(BOB,))

    def test_allow_uid_ranges(self):
        self.daemon = Daemon("--allow-uid-ranges", f"0-10 {ALICE}-{BOB}")
        self.assert_let_in(uid=ALICE)
        self.assert_let_in(uid=BOB)
        self.assert_let_in(uid=10)
        self.assert_kept_out(uid=ALICE - 1)
        self.assert_kept_out(uid=BOB + 1)
        self.assert_kept_out(uid=11)

    def test_either_list_lets_in(self):
        self.daemon = Daemon("--allow-users=root", f"--allow-groups={CAROL}", f"--allow-uid-ranges={BOB}-{BOB}")
        self.assert_let_in(uid=BOB)
        self.assert_let_in(uid=ALICE, gid=CAROL)
        self.assert_kept_out(uid=ALICE)

    def test_administrators_are_in_anyway(self):
        self.daemon = Daemon(f"--allow-users={ALICE}", wait=False)
        self.daemon.wait_notified("READY=1")
        self.assert_kept_out(uid=0)
        with self.client(admin=True) as admin:
            self.assertIn("version", admin.call("GetStatus"))
        self.daemon.stop()
        self.daemon = None

    def test_kept_out_of_every_method(self):
        self.daemon = Daemon("--allow-users=root")
        for method in ("Allocate", "List", "Watch", "org.varlink.service.GetInfo", "NoSuchMethod"):
            with self.subTest(method):
                told = self.refused("AccessDenied", self.actor(BOB).call, method, {"size": 1})
                self.assertIn("AllowUsers=", told["reason"])

    def test_reserved_names(self):
        self.daemon = Daemon("--reserved-names", f"models/:{ALICE} models/public/:{BOB}")
        alice, bob, carol = self.actor(ALICE), self.actor(BOB), self.actor(CAROL)

        def take(actor, name):
            actor.call("Release", {"lease": actor.call("Allocate", {"size": 1, "name": name})["lease"]})
            wait_for(lambda: self.daemon.status()["buffers"] == 0, "it to be gone")

        take(alice, "models/a")
        take(bob, "models/public/a")
        take(carol, "model")
        for actor, name, prefix in ((bob, "models/a", "models/"), (alice, "models/public/a", "models/public/"),
                                    (carol, "models/", "models/")):
            told = self.refused("AccessDenied", actor.call, "Allocate", {"size": 1, "name": name})
            self.assertIn(f'"{prefix}"', told["reason"])
            self.assertIn("reserved", told["reason"])
        with self.client(admin=True) as admin:
            admin.call("Release", {"lease": admin.call("Allocate", {"size": 1, "name": "models/b"})["lease"]})

    def test_overflow_uid_owns_and_opens_nothing(self):
        """Whom the kernel cannot name, nobody can trust."""
        self.daemon = Daemon()
        with self.client() as owner:
            lease = owner.call("Allocate", {"size": 1, "name": "open", "mode": "0666"})["lease"]
            for method, parameters in (("Allocate", {"size": 1}), ("Open", {"name": "open"}), ("GetStatus", None)):
                nobody = self.actor(65534)
                told = self.refused("AccessDenied", nobody.call, method, parameters)
                self.assertIn("not mapped", told["reason"])
                self.assertIsNone(nobody.read())
            owner.call("Release", {"lease": lease})

    def test_overflow_uid_on_the_admin_socket(self):
        self.daemon = Daemon()
        os.chmod(self.daemon.admin_socket, 0o666)
        nobody = self.actor(65534, admin=True)
        told = self.refused("AccessDenied", nobody.call, "Allocate", {"size": 1})
        self.assertIn("overflow uid", told["reason"])

    def test_user_in_a_namespace_that_maps_it_to_nobody(self):
        """A real overflow: a user the daemon's namespace does not know is not tried here; uid 65534 stands for it."""
        self.daemon = Daemon("--allow-uid-ranges=0-4294967294")
        nobody = self.actor(65534)
        self.refused("AccessDenied", nobody.call, "GetStatus")


class Releases(LimitTest):
    def test_trust_release_no(self):
        self.daemon = Daemon("--trust-release=no")
        alice = self.actor(ALICE)
        lease = alice.call("Allocate", {"size": PAGE, "name": "n"})["lease"]
        alice.call("Release", {"lease": lease})
        self.refused("NoSuchLease", alice.call, "Release", {"lease": lease})
        self.assertEqual([(each["id"], each["state"]) for each in alice.call("List")["leases"]], [(lease, "draining")])
        device = self.daemon.status()["devices"][0]
        self.assertEqual((device["brokered_bytes"], device["draining_bytes"]), (PAGE, PAGE))
        self.refused("NoSuchBuffer", alice.call, "Open", {"name": "n"})
        alice.kill()
        wait_for(lambda: self.daemon.status()["devices"][0]["brokered_bytes"] == 0, "the bytes to come back with its exit")

    def test_trust_release_yes(self):
        self.daemon = Daemon("--trust-release=yes")
        alice = self.actor(ALICE)
        alice.call("Release", {"lease": alice.call("Allocate", {"size": PAGE})["lease"]})
        wait_for(lambda: self.daemon.status()["devices"][0]["brokered_bytes"] == 0, "the bytes to come back at once")
        self.assertEqual(alice.call("List")["leases"], [])


class Containers(LimitTest):
    """Isolation: two processes of one uid in two containers, told apart by their control groups."""

    CGROUPS = "/sys/fs/cgroup/pids"
    IDS = ("a1" * 32, "b2" * 32)

    def setUp(self):
        self.top = f"{self.CGROUPS}/gpuipc-test-{os.getpid()}"
        self.addCleanup(wait_for, self.remove_cgroups, "the control groups to be empty")
        super().setUp()
        try:
            for each in self.IDS:
                os.makedirs(f"{self.top}/{each}")
        except OSError as error:
            self.skipTest(f"no control groups to make here: {error}")

    def remove_cgroups(self):
        try:
            for each in [f"{self.top}/{each}" for each in self.IDS] + [self.top]:
                if os.path.isdir(each):
                    os.rmdir(each)
        except OSError:
            return False
        return True

    def actor_in(self, container, uid=ALICE):
        def enter():
            with open(f"{self.top}/{container}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))

        return self.actor(uid, enter=enter)

    def pair(self, isolation):
        self.daemon = Daemon(f"--isolation={isolation}")
        one, two = (self.actor_in(each) for each in self.IDS)
        one.call("Allocate", {"size": PAGE, "name": "private"})
        one.call("Allocate", {"size": PAGE, "name": "shared", "mode": "0666"})
        return one, two

    def test_isolation_by_uid(self):
        one, two = self.pair("uid")
        opened = two.call("Open", {"name": "private"})["lease"]
        listed = {each["id"]: each["container"] for each in one.call("List")["leases"]}
        self.assertEqual(set(listed.values()), set(self.IDS))
        self.assertEqual(listed[opened], self.IDS[1])
        two.call("Free", {"name": "private"})

    def test_isolation_by_container(self):
        one, two = self.pair("container")
        self.refused("NoSuchBuffer", two.call, "Open", {"name": "private"})
        self.refused("NoSuchBuffer", two.call, "Free", {"name": "private"})
        self.assertEqual([each["name"] for each in two.call("ListBuffers")["buffers"]], ["shared"])
        two.call("Open", {"name": "shared"})
        self.refused("AccessDenied", two.call, "Free", {"name": "shared"})
        self.refused("NoSuchSession", two.call, "Kick", {"session": one.call("GetStatus")["session"]})
        same = self.actor_in(self.IDS[0])
        same.call("Open", {"name": "private"})
        same.call("Free", {"name": "shared"})


if __name__ == "__main__":
    unittest.main()
