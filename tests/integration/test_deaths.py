# SPDX-License-Identifier: Apache-2.0
"""Deaths of those who hold: at every moment of a call, while waiting, while holding, in every shape a process and its
connection can come apart. Afterwards the books and the daemon's descriptors are what they were before. Runs on any
memory. deadline: 240 s"""

import os
import signal
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from books import PAGE, BooksTest, FaultTest, memory_kb, slower  # noqa: E402
from daemon import GPUIPCD_FAULT, Daemon, memory_of, wait_for  # noqa: E402
from rawclient import ReplyError  # noqa: E402

BEATS = ("begin", "begun", "work", "worked", "finish", "finished", "replied")
ALLOCATE = tuple(f"Allocate.{beat}" for beat in BEATS)
OPEN = tuple(f"Open.{beat}" for beat in BEATS)
# What the buffer's descriptor is there for already needs no work.
OPEN_LEDGER = tuple(point for point in OPEN if ".work" not in point)

STAYS = 3 * PAGE
SO_PASSPIDFD = 76
OWNER, CONSUMER = 4001, 4002


class OlderKernel:
    """Without pidfds from the socket, as before Linux 6.5 and 6.16: processes are found by their numbers."""

    environment = {"GPUIPC_FAULT_ABSENT": "SO_PEERPIDFD,SO_PASSPIDFD"}
    program = GPUIPCD_FAULT


def kinds(events):
    """In order of the alphabet, without the moment between a connection's end and its process's."""
    return sorted(kind for kind, _, _ in events if kind != "draining")


class BeatCase(FaultTest):
    """The holder is killed while its call stands at one point; all points before and after it are passed."""

    points = ALLOCATE + OPEN
    whole_life = ["created", "freed", "opened", "released", "unnamed"]
    opened_life = ["opened", "released"]

    def setUp(self):
        super().setUp()
        self.bystander = self.holder()
        self.bystander.send_call("Allocate", {"size": STAYS, "name": "stays"})
        self.fault.pass_all(*ALLOCATE)
        self.stays = self.bystander.result()
        self.read_events(lambda kind, _, lease: (kind, lease) == ("opened", self.stays["lease"]))

    def die_at(self, points, point, call, noticed=False):
        """`noticed`: the point is on the pool, and the loop learns of the death while the work still stands."""
        holder = self.holder()
        holder.send_call(*call)
        self.fault.pass_all(*points[: points.index(point)])
        self.fault.expect(point)
        holder.kill()
        if noticed:
            wait_for(lambda: self.daemon.status()["sessions"] == 2, "the bystander and who asks")
        self.fault.go()
        self.fault.open()

    def allocate(self, beat, *outcomes, **options):
        self.die_at(ALLOCATE, f"Allocate.{beat}", ("Allocate", {"size": 5 * PAGE, "name": "goes"}), **options)
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS)
        self.assertIn(kinds(self.take_events()), outcomes)
        # The name that was in use, or promised, is free.
        reply = self.bystander.call("Allocate", {"size": PAGE, "name": "goes"})
        self.bystander.call("Release", {"lease": reply["lease"]})
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS)

    def open(self, beat, access, *outcomes, **options):
        # A read-only descriptor is made for one lease and closed once it was sent.
        fds = self.fds(1, 1)
        points = OPEN if access == "ro" and backend.HOST else OPEN_LEDGER
        self.die_at(points, f"Open.{beat}", ("Open", {"name": "stays", "access": access}), **options)
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS, fds=fds)
        self.assertIn(kinds(self.take_events()), outcomes)
        reply = self.bystander.call("Open", {"name": "stays", "access": access})
        self.bystander.call("Release", {"lease": reply["lease"]})
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS, fds=fds)


class BeatTest(BeatCase):
    # What stands in the loop's way keeps the death from it until the work is under way; then either is first.
    def test_allocate_at_begin(self):
        self.allocate("begin", [], self.whole_life)

    def test_allocate_between_begin_and_work(self):
        self.allocate("begun", [], self.whole_life)

    def test_allocate_at_work(self):
        self.allocate("work", [], self.whole_life)

    def test_allocate_at_work_and_noticed(self):
        self.allocate("work", [], noticed=True)

    def test_allocate_after_work(self):
        self.allocate("worked", [], self.whole_life)

    def test_allocate_after_work_and_noticed(self):
        self.allocate("worked", [], noticed=True)

    def test_allocate_at_finish(self):
        self.allocate("finish", self.whole_life)

    def test_allocate_between_finish_and_reply(self):
        self.allocate("finished", self.whole_life)

    def test_allocate_after_the_reply(self):
        self.allocate("replied", self.whole_life)

    @backend.read_only
    def test_open_ro_at_begin(self):
        self.open("begin", "ro", [], self.opened_life)

    @backend.read_only
    def test_open_ro_between_begin_and_work(self):
        self.open("begun", "ro", [], self.opened_life)

    @backend.opened_by_work
    def test_open_ro_at_work(self):
        self.open("work", "ro", [], self.opened_life)

    @backend.opened_by_work
    def test_open_ro_at_work_and_noticed(self):
        self.open("work", "ro", [], noticed=True)

    @backend.opened_by_work
    def test_open_ro_after_work(self):
        self.open("worked", "ro", [], self.opened_life)

    @backend.opened_by_work
    def test_open_ro_after_work_and_noticed(self):
        self.open("worked", "ro", [], noticed=True)

    @backend.read_only
    def test_open_ro_at_finish(self):
        self.open("finish", "ro", self.opened_life)

    @backend.read_only
    def test_open_ro_between_finish_and_reply(self):
        self.open("finished", "ro", self.opened_life)

    @backend.read_only
    def test_open_ro_after_the_reply(self):
        self.open("replied", "ro", self.opened_life)

    def test_open_rw_at_begin(self):
        self.open("begin", "rw", self.opened_life)

    def test_open_rw_between_begin_and_finish(self):
        self.open("begun", "rw", self.opened_life)

    def test_open_rw_at_finish(self):
        self.open("finish", "rw", self.opened_life)

    def test_open_rw_between_finish_and_reply(self):
        self.open("finished", "rw", self.opened_life)

    def test_open_rw_after_the_reply(self):
        self.open("replied", "rw", self.opened_life)

    @backend.opened_by_work
    def test_owner_while_its_buffer_is_being_opened(self):
        # The last lease ends while another one on the same buffer is on its way: the buffer lives on by it.
        opener = self.holder()
        opener.send_call("Open", {"name": "stays", "access": "ro"})
        self.fault.pass_all("Open.begin", "Open.begun")
        self.fault.expect("Open.work")
        self.bystander.kill()
        wait_for(lambda: self.daemon.status()["leases"] == 0, "the owner's lease over")
        self.assertEqual([buffer["state"] for buffer in self.buffers()], ["live"])
        self.fault.go()
        self.fault.open()
        self.assertEqual(opener.result()["buffer"]["id"], self.stays["buffer"]["id"])
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS, fds=self.fds(1, 1))
        opener.kill()
        self.wait_books()

    @backend.opened_by_work
    def test_both_while_the_buffer_is_being_opened(self):
        opener = self.holder()
        opener.send_call("Open", {"name": "stays", "access": "ro"})
        self.fault.pass_all("Open.begin", "Open.begun")
        self.fault.expect("Open.work")
        self.bystander.kill()
        opener.kill()
        wait_for(lambda: self.daemon.status()["sessions"] == 1, "both gone")
        self.assertEqual(self.daemon.status()["devices"][0]["brokered_bytes"], STAYS)
        self.fault.go()
        self.fault.open()
        self.wait_books()


class BeatOnOlderKernelTest(OlderKernel, BeatCase):
    def test_allocate_after_work(self):
        self.allocate("worked", [], self.whole_life)

    def test_allocate_after_work_and_noticed(self):
        self.allocate("worked", [], noticed=True)

    def test_allocate_between_finish_and_reply(self):
        self.allocate("finished", self.whole_life)

    @backend.opened_by_work
    def test_open_ro_at_work_and_noticed(self):
        self.open("work", "ro", [], noticed=True)

    def test_open_rw_after_the_reply(self):
        self.open("replied", "rw", self.opened_life)


class UnheardTest(BooksTest):
    """The daemon stands still meanwhile, so that it learns of the call and of the death at once."""

    def test_killed_before_its_connection_is_accepted(self):
        holder = self.holder(connect=False)
        with self.daemon.frozen():
            holder.connect()
            holder.send_call("Allocate", {"size": PAGE})
            holder.kill()
        self.wait_books()
        self.assertIn(kinds(self.take_events()), ([], ["created", "freed", "opened", "released"]))

    def test_killed_before_its_call_is_read(self):
        holder = self.holder()
        holder.call("GetStatus")
        with self.daemon.frozen():
            holder.send_call("Allocate", {"size": PAGE})
            holder.send_call("Allocate", {"size": PAGE})
            holder.kill()
        self.wait_books()

    def test_killed_with_release_unread(self):
        holder = self.holder()
        lease = holder.call("Allocate", {"size": PAGE})["lease"]
        with self.daemon.frozen():
            holder.send_call("Release", {"lease": lease})
            holder.kill()
        self.wait_books()
        self.assertEqual(kinds(self.take_events()), ["created", "freed", "opened", "released"])


class UnheardOnOlderKernelTest(OlderKernel, UnheardTest):
    pass


class WaitingTest(BooksTest):
    """Killed while its call waits: nothing of it is left, and those behind it go on."""

    def make_daemon(self):
        return Daemon("--waits-per-user", "1", *memory_of(8 * PAGE), program=self.program, environment=self.environment)

    def killed_waiting(self, *call):
        holder = self.holder()
        holder.send_call(*call)
        other = self.holder()
        impatient = ("Open", {"name": "never", "wait_ms": 1})
        wait_for(lambda: self.refusal(other, *impatient) == "QuotaExceeded", "one call that waits")
        holder.kill()
        wait_for(lambda: self.refusal(other, *impatient) == "TimedOut", "the waiting call forgotten")
        return other

    def refusal(self, holder, *call):
        try:
            holder.call(*call)
        except ReplyError as error:
            return error.name.rpartition(".")[2]
        return None

    def test_for_a_name(self):
        other = self.killed_waiting("Open", {"name": "to-come", "wait_ms": 60000})
        other.call("Allocate", {"size": PAGE, "name": "to-come"})
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=PAGE)
        self.assertEqual([kind for kind in kinds(self.take_events()) if kind != "refused"], ["created", "opened"])

    def test_for_memory(self):
        owner = self.holder()
        lease = owner.call("Allocate", {"size": 8 * PAGE})["lease"]
        other = self.killed_waiting("Allocate", {"size": 8 * PAGE, "name": "late", "wait_ms": 60000})
        other.send_call("Allocate", {"size": 8 * PAGE, "wait_ms": 60000})
        owner.call("Release", {"lease": lease})
        self.assertEqual(other.result()["buffer"]["size"], 8 * PAGE)
        self.wait_books(leases=1, buffers=1, sessions=2, brokered=8 * PAGE)
        self.assertEqual(self.refusal(owner, "Open", {"name": "late"}), "NoSuchBuffer")


class WaitingForQuotaTest(BooksTest):
    daemon_args = ("--waits-per-user", "1", "--bytes-per-user", str(8 * PAGE))
    killed_waiting, refusal = WaitingTest.killed_waiting, WaitingTest.refusal
    test_for_quota = WaitingTest.test_for_memory


class WaitingOnOlderKernelTest(OlderKernel, WaitingTest):
    pass


class HoldingTest(BooksTest):
    def test_killed_while_holding(self):
        holder, other = self.holder(), self.holder()
        made = holder.call("Allocate", {"size": STAYS, "name": "held"})
        holder.call("Open", {"name": "held", "access": backend.READ})
        kept = other.call("Allocate", {"size": PAGE})["lease"]
        self.assertEqual([lease["pid"] for lease in self.leases(name="held")], [holder.pid] * 2)
        self.wait_books(leases=3, buffers=2, sessions=2, brokered=STAYS + PAGE, fds=self.fds(2, 2))
        holder.kill()
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=PAGE)
        events = [event for event in self.take_events() if event[1] == made["buffer"]["id"]]
        self.assertEqual(kinds(events), ["created", "freed", "opened", "opened", "released", "released", "unnamed"])
        other.call("Release", {"lease": kept})

    def test_killed_and_not_reaped(self):
        parent = self.holder()
        parent.keep_zombies()
        child = self.owned(parent.fork())
        child.connect()
        child.call("Allocate", {"size": STAYS})
        child.kill()
        self.assertEqual(child.state(), "Z")
        self.wait_books(sessions=1)

    def test_killed_with_replies_unread(self):
        holder = self.holder()
        for _ in range(50):
            holder.send_call("Allocate", {"size": PAGE})
        wait_for(lambda: self.daemon.status()["leases"] >= 4, "some leases; the rest waits for the client to read")
        holder.kill()
        self.wait_books()

    def test_exit_with_leases_of_others_on_its_buffer(self):
        # The first to come is the last to go.
        owner = self.holder()
        made = owner.call("Allocate", {"size": STAYS})
        opener = self.holder()
        opener.call("Open", {"buffer": made["buffer"]["id"]})
        opener.kill()
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS)
        owner.call("Release", {"lease": made["lease"]})
        self.wait_books(sessions=1)

    def test_half_a_message_then_silence_then_death(self):
        holder, other = self.holder(), self.holder()
        holder.call("Allocate", {"size": PAGE})
        holder.send(b'{"method":"io.gpuipc.Broker.Allocate","parameters":{"si')
        reply = other.call("Allocate", {"size": PAGE})
        other.call("Release", {"lease": reply["lease"]})
        # Half a message has a pidfd of whoever began it, where the kernel gives one.
        self.wait_books(leases=1, buffers=1, sessions=2, brokered=PAGE,
                        fds=self.fds(2, 1) + self.kernel_tells_senders())
        holder.kill()
        self.wait_books(sessions=1)

    def kernel_tells_senders(self):
        if isinstance(self, OlderKernel):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                return probe.getsockopt(socket.SOL_SOCKET, SO_PASSPIDFD) == 0
            except OSError:
                return False

    def test_closed_without_release_while_the_process_lives(self):
        holder = self.holder()
        made = holder.call("Allocate", {"size": STAYS, "name": "mapped"})
        holder.map_next("m", STAYS)
        holder.hang_up()
        wait_for(lambda: [lease["state"] for lease in self.leases()] == ["draining"], "a lease that drains")
        self.wait_books(leases=1, buffers=1, draining_leases=1, brokered=STAYS, draining=STAYS, fds=1)
        self.assertEqual([(buffer["state"], buffer.get("name"), buffer["leases"]) for buffer in self.buffers()],
                         [("draining", None, 1)])
        self.assertEqual([lease["pid"] for lease in self.leases()], [holder.pid])
        self.assertIn(("draining", made["buffer"]["id"], made["lease"]), self.take_events())
        self.assertEqual(self.opens("mapped"), "NoSuchBuffer")
        holder.write("m", b"still there")
        self.assertEqual(holder.peek("m", 11), b"still there")
        holder.kill()
        self.wait_books()
        self.assertEqual([kind for kind, _, _ in self.take_events()], ["released", "freed"])

    def opens(self, name):
        with self.client() as client:
            try:
                client.call("Open", {"name": name})
            except ReplyError as error:
                return error.name.rpartition(".")[2]
        return None

    def test_drained_by_exit_among_those_that_stay(self):
        # One of two holders closes without Release: the buffer is live, that lease drains, and ends at the exit.
        owner, leaver = self.holder(), self.holder()
        made = owner.call("Allocate", {"size": STAYS})
        leaver.call("Open", {"buffer": made["buffer"]["id"]})
        leaver.hang_up()
        self.wait_books(leases=2, buffers=1, draining_leases=1, sessions=1, brokered=STAYS, fds=self.fds(1, 1) + 1)
        leaver.kill()
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS)

    def test_child_keeps_the_connection_when_its_parent_dies(self):
        parent = self.holder()
        parent.call("Allocate", {"size": STAYS})
        child = self.owned(parent.fork())
        parent.kill()
        # The parent's process is remembered with its pidfd while the session lasts.
        self.wait_books(sessions=1, fds=2)
        made = child.call("Allocate", {"size": PAGE})
        self.assertEqual([(lease["id"], lease["pid"]) for lease in self.leases()], [(made["lease"], child.pid)])
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=PAGE, fds=self.fds(1, 1) + 1)
        child.kill()
        self.wait_books()

    def test_child_makes_the_request_itself(self):
        parent = self.holder()
        first = parent.call("Allocate", {"size": STAYS})["lease"]
        child = self.owned(parent.fork())
        second = child.call("Allocate", {"size": PAGE})["lease"]
        self.assertEqual([(lease["id"], lease["pid"], lease["session"]) for lease in self.leases()],
                         [(first, parent.pid, self.leases()[0]["session"]), (second, child.pid, self.leases()[0]["session"])])
        child.kill()
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS, fds=self.fds(1, 1) + 1)
        self.assertEqual([lease["id"] for lease in self.leases()], [first])
        parent.call("Release", {"lease": first})
        self.wait_books(sessions=1, fds=3)

    def test_child_dies_while_its_request_waits_and_the_parent_goes_on(self):
        parent = self.holder()
        child = self.owned(parent.fork())
        child.send_call("Open", {"name": "to-come", "wait_ms": 60000})
        self.daemon.status()
        child.kill()
        # The connection is the parent's too: it gets the refusal, and may call again.
        with self.assertRaises(ReplyError) as caught:
            parent.result()
        self.assertEqual(caught.exception.name, "io.gpuipc.Broker.AccessDenied")
        self.assertEqual(parent.call("GetStatus")["sessions"], 1)

    def test_half_closed_peer(self):
        holder = self.holder()
        holder.send_call("Allocate", {"size": STAYS})
        holder.shutdown()
        made = holder.result()
        self.assertEqual(made["buffer"]["size"], STAYS)
        holder.map_next("m", STAYS)
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS)
        self.assertEqual([lease["state"] for lease in self.leases()], ["active"])
        holder.hang_up()
        self.wait_books(leases=1, buffers=1, draining_leases=1, brokered=STAYS, draining=STAYS, fds=1)
        holder.kill()
        self.wait_books()

    def test_half_closed_peer_is_killed(self):
        holder = self.holder()
        holder.send_call("Allocate", {"size": STAYS})
        holder.shutdown()
        holder.result()
        holder.kill()
        self.wait_books()

    def test_half_closed_peer_without_leases_is_let_go(self):
        holder = self.holder()
        holder.send_call("GetStatus")
        holder.shutdown()
        self.assertEqual(holder.result()["sessions"], 1)
        self.assertIsNone(holder.read())
        self.wait_books()


@unittest.skipUnless(os.geteuid() == 0, "needs root, to act as other users")
class SecondHolderTest(BooksTest):
    daemon_args = ("--bytes-per-user", str(STAYS))

    def left_behind(self, stopped):
        owner, consumer = self.holder(uid=OWNER), self.holder(uid=CONSUMER)
        made = owner.call("Allocate", {"size": STAYS, "name": "inherited", "mode": "0666"})
        owner.map_next("m", STAYS)
        owner.write("m", b"all that was written")
        consumer.call("Open", {"name": "inherited", "access": backend.READ})
        consumer.map_next("m", STAYS, writable=backend.CLASSIC)
        self.assertEqual([buffer["charged_uid"] for buffer in self.buffers()], [OWNER])
        if stopped:
            consumer.stop()
        owner.kill()
        wait_for(lambda: [buffer["charged_uid"] for buffer in self.buffers()] == [OWNER], "the charge, with the name, still")
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=STAYS, fds=self.fds(1, 1))
        return made, consumer

    def holder_stays(self, stopped):
        made, consumer = self.left_behind(stopped)
        other = self.holder(uid=OWNER)
        other.call("Free", {"name": "inherited"})
        self.assertEqual([buffer["charged_uid"] for buffer in self.buffers()], [CONSUMER])
        # The owner's quota is whole again.
        lease = other.call("Allocate", {"size": STAYS})["lease"]
        other.call("Release", {"lease": lease})
        if stopped:
            consumer.signal(signal.SIGCONT)
        self.assertEqual(consumer.peek("m", 20), b"all that was written")
        self.wait_books(leases=1, buffers=1, sessions=2, brokered=STAYS, fds=self.fds(2, 1))
        self.assertEqual([lease["buffer"] for lease in self.leases()], [made["buffer"]["id"]])
        consumer.kill()
        self.wait_books(sessions=1)

    def test_holder_that_stays(self):
        self.holder_stays(stopped=False)

    def test_holder_that_stays_stopped(self):
        self.holder_stays(stopped=True)


class HoldingOnOlderKernelTest(OlderKernel, HoldingTest):
    pass


class StoppedReaderTest(BooksTest):
    """Stopped by SIGSTOP with output it does not read: it is paused, then dropped; others notice nothing."""

    unread_sec = 1
    daemon_args = ("--unread-sec", f"{unread_sec}s", "--unread-bytes-max", "128K")
    n_leases = 300

    def holders(self):
        """One of many leases, of which the other, who has one, can ask for more than fits on the way to it."""
        owner, reader = self.holder(), self.holder()
        for _ in range(self.n_leases):
            owner.call("Allocate", {"size": 1, "label": "x" * 60})
        reader.call("Allocate", {"size": PAGE})
        return owner, reader

    def wait_dropped(self, owner, reader, since):
        """It asked since then, and stands still. Meanwhile the others are served as ever."""
        reader.stop()
        slowest = 0.0
        while "session dropped: its client does not read" not in self.daemon.log():
            began = time.monotonic()
            lease = owner.call("Allocate", {"size": PAGE})["lease"]
            owner.call("Release", {"lease": lease})
            slowest = max(slowest, time.monotonic() - began)
            self.assertLess(time.monotonic() - since, slower(20), "it is not dropped")
        self.assertGreaterEqual(time.monotonic() - since, self.unread_sec)
        self.assertLess(slowest, slower(0.5))
        # What it mapped it may still use, so its lease drains until the process ends.
        self.assertEqual([lease["state"] for lease in self.leases() if lease["pid"] == reader.pid], ["draining"])
        reader.kill()
        self.wait_books(leases=self.n_leases, buffers=self.n_leases, sessions=1, brokered=self.n_leases * PAGE)

    def test_flood_of_lists(self):
        owner, reader = self.holders()
        since = time.monotonic()
        reader.fill("List")
        before = memory_kb(self.daemon.pid)
        self.wait_dropped(owner, reader, since)
        if not os.environ.get("GPUIPC_SANITIZER"):
            self.assertLess(memory_kb(self.daemon.pid) - before, 4096)

    def test_watch(self):
        owner, reader = self.holders()
        since = time.monotonic()
        reader.flood("Watch", 1, {"since": 0})
        self.wait_dropped(owner, reader, since)


class PausedReaderTest(BooksTest):
    daemon_args = ("--unread-sec", "1h", "--unread-bytes-max", "128K")

    def test_stopped_for_a_while_loses_nothing(self):
        owner, reader = self.holder(), self.holder()
        for _ in range(100):
            owner.call("Allocate", {"size": 1, "label": "x" * 60})
        # As many calls as the socket takes without anyone reading, but far more of answers.
        reader.flood("List", 150)
        reader.stop()
        for _ in range(50):
            owner.call("Release", {"lease": owner.call("Allocate", {"size": PAGE})["lease"]})
        reader.signal(signal.SIGCONT)
        self.assertGreaterEqual(reader.drain_replies(150), 150)


if __name__ == "__main__":
    unittest.main()
