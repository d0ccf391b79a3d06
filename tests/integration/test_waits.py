# SPDX-License-Identifier: Apache-2.0
"""Calls that wait: for a name, for quota, for memory; whose turn it is, who is passed, who pays. Runs on any memory.
deadline: 240 s"""

import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import SLOWER, ActorTest, Load, Timing, churn, context_kept  # noqa: E402
from daemon import Daemon, memory_of, wait_for  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402

PAGE, MIB = backend.PAGE, backend.MIB
ALICE, BOB, CAROL = 2001, 2002, 2003
LONG = 60000  # ms, never waited out
PATIENCE_S = 1.0


class WaitTest(ActorTest):
    def options(self):
        return ()

    def make_daemon(self):
        return Daemon(*self.options())

    def people(self, *uids):
        people = [self.actor(uid) for uid in uids]
        for each in people:
            each.call("GetStatus")
        return people

    def waiting(self, actor, method, **parameters):
        """A connection on which the call waits: sent, seen by the daemon, and not answered."""
        client = actor.client()
        client.call("GetStatus")
        client.send_call(method, parameters)
        self.barrier()
        self.assertFalse(client.readable(0.02), f"{method} {parameters} should wait")
        return client

    def refusal(self, actor, size):
        """What an allocation is refused with; {}: it is not. One released before it may yet be counted in."""
        try:
            churn(actor, size=size)
        except ReplyError as error:
            return error.parameters
        return {}

    def barrier(self):
        """What was sent before is seen by the daemon: its loop went round."""
        for _ in range(3):
            self.daemon.status()

    def answered(self, client, within_s):
        within_s *= 10 * SLOWER if backend.REAL else SLOWER  # a GPU's context takes its time to be made
        self.assertTrue(client.readable(within_s), f"not answered within {within_s} s")
        return client.result()

    def silent(self, client, seconds):
        self.assertFalse(client.readable(seconds), "answered, but it is not its turn")

    def allocated(self, actor, size, **more):
        return actor.call("Allocate", {"size": size, **more})["lease"]


class ForName(WaitTest):
    def test_name_that_comes(self):
        alice, bob = self.people(ALICE, BOB)
        wait = self.waiting(bob, "Open", name="n", wait_ms=LONG)
        self.allocated(alice, 10, name="n", mode="0666")
        self.assertEqual(self.answered(wait, 1)["buffer"]["name"], "n")

    def test_name_that_is_there(self):
        (alice,) = self.people(ALICE)
        self.allocated(alice, 10, name="n")
        self.assertEqual(alice.call("Open", {"name": "n", "wait_ms": LONG})["buffer"]["name"], "n")

    def test_several_who_wait_all_get_it(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        waits = [self.waiting(each, "Open", name="n", wait_ms=LONG, access=backend.READ) for each in (bob, carol, alice, bob)]
        self.allocated(alice, 10, name="n", mode="0666")
        for wait in waits:
            self.assertEqual(self.answered(wait, 1)["buffer"]["name"], "n")

    def test_past_a_buffer_one_may_not_open(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        self.allocated(alice, 10, name="n", mode="0600")
        self.refused("NoSuchBuffer", bob.call, "Open", {"name": "n"})
        wait = self.waiting(bob, "Open", name="n", wait_ms=LONG)
        alice.call("Free", {"name": "n"})
        self.silent(wait, 0.05)
        self.allocated(carol, 10, name="n", mode="0666")
        self.assertEqual(self.answered(wait, 1)["buffer"]["owner_uid"], CAROL)

    def test_past_another_owners_buffer(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        self.allocated(alice, 10, name="n", mode="0666")
        wait = self.waiting(bob, "Open", name="n", wait_ms=LONG, owner=CAROL)
        other = bob.client()
        other.send_call("Open", {"name": "n", "wait_ms": 300, "owner": BOB})
        alice.call("Free", {"name": "n"})
        self.silent(wait, 0.05)
        self.allocated(carol, 10, name="n", mode="0666")
        self.assertEqual(self.answered(wait, 1)["buffer"]["owner_uid"], CAROL)
        self.refused("TimedOut", other.result)

    @backend.read_only
    def test_a_name_not_openable_in_the_way_asked(self):
        """One who wants to write waits on past a buffer that may only be read."""
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 10, name="n", mode="0604")
        wait = self.waiting(bob, "Open", name="n", wait_ms=LONG, access="rw")
        bob.call("Open", {"name": "n", "access": "ro"})
        alice.call("Free", {"name": "n"})
        self.allocated(alice, 10, name="n", mode="0606")
        self.assertEqual(self.answered(wait, 1)["buffer"]["mode"], "0606")

    def test_timed_out(self):
        (bob,) = self.people(BOB)
        began = time.monotonic()
        self.refused("TimedOut", bob.call, "Open", {"name": "n", "wait_ms": 200})
        took = time.monotonic() - began
        self.assertGreaterEqual(took, 0.199)
        self.assertLess(took, 0.5 * SLOWER)
        self.assertIn("version", bob.call("GetStatus"))

    def test_without_waiting(self):
        (bob,) = self.people(BOB)
        self.refused("NoSuchBuffer", bob.call, "Open", {"name": "n"})
        self.refused("NoSuchBuffer", bob.call, "Open", {"name": "n", "wait_ms": 0})

    def test_an_id_is_not_waited_for(self):
        (bob,) = self.people(BOB)
        self.assertEqual(self.refused("org.varlink.service.InvalidParameter", bob.call, "Open",
                                      {"buffer": "b99", "wait_ms": LONG}), {"parameter": "wait_ms"})

    def test_who_dies_is_forgotten(self):
        alice, bob = self.people(ALICE, BOB)
        self.waiting(bob, "Open", name="n", wait_ms=LONG)
        bob.kill()
        wait_for(lambda: self.daemon.status()["sessions"] == 2, "the session's end")
        self.allocated(alice, 10, name="n", mode="0666")
        self.assertEqual([each["uid"] for each in alice.call("List")["leases"]], [ALICE])

    def test_the_next_call_is_served_after_the_wait(self):
        alice, bob = self.people(ALICE, BOB)
        wait = self.waiting(bob, "Open", name="n", wait_ms=LONG)
        wait.send_call("org.varlink.service.GetInfo")
        self.silent(wait, 0.05)
        self.allocated(alice, 10, name="n", mode="0666")
        self.assertEqual(self.answered(wait, 1)["buffer"]["name"], "n")
        self.assertEqual(wait.result()["product"], "gpuipcd")


class ForQuota(WaitTest):
    def options(self):
        return (f"--bytes-per-user={10 * MIB}",)

    def test_quota_that_comes_free(self):
        (alice,) = self.people(ALICE)
        lease = self.allocated(alice, 10 * MIB)
        wait = self.waiting(alice, "Allocate", size=MIB, wait_ms=LONG)
        alice.call("Release", {"lease": lease})
        self.assertEqual(self.answered(wait, 1)["buffer"]["size"], MIB)

    def test_others_are_not_concerned(self):
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 10 * MIB)
        self.waiting(alice, "Allocate", size=MIB, wait_ms=LONG)
        self.allocated(bob, 10 * MIB, wait_ms=LONG)

    def test_never_possible_fails_at_once(self):
        (alice,) = self.people(ALICE)
        told = self.refused("QuotaExceeded", alice.call, "Allocate", {"size": 10 * MIB + 1, "wait_ms": LONG})
        self.assertEqual(told, {"scope": "bytes_per_uid", "limit": 10 * MIB, "used": 0, "asked": 10 * MIB + PAGE})

    def test_timed_out(self):
        (alice,) = self.people(ALICE)
        self.allocated(alice, 10 * MIB)
        self.refused("TimedOut", alice.call, "Allocate", {"size": 1, "wait_ms": 100})

    def test_smaller_may_pass_for_a_second(self):
        (alice,) = self.people(ALICE)
        lease = self.allocated(alice, 8 * MIB)
        head = self.waiting(alice, "Allocate", size=4 * MIB, wait_ms=LONG)
        churn(alice, size=MIB)
        alice.call("Release", {"lease": self.allocated(alice, MIB, wait_ms=LONG)})
        # It has waited its second now, or soon: then nobody passes, however small.
        wait_for(lambda: self.refusal(alice, MIB).get("used") == 8 * MIB, "the head's second to be over", 3 * SLOWER)
        told = self.refused("QuotaExceeded", alice.call, "Allocate", {"size": MIB})
        self.assertEqual((told["scope"], told["limit"], told["used"]), ("bytes_per_uid", 10 * MIB, 8 * MIB))
        behind = self.waiting(alice, "Allocate", size=MIB, wait_ms=LONG)
        self.silent(behind, 1.5 * PATIENCE_S)
        alice.call("Release", {"lease": lease})
        self.answered(head, 1)
        self.answered(behind, 1)

    def test_in_order_of_age(self):
        (alice,) = self.people(ALICE)
        leases = [(alice, self.allocated(alice, 5 * MIB)) for _ in range(2)]
        waits = [self.waiting(alice, "Allocate", size=5 * MIB, wait_ms=LONG) for _ in range(4)]
        for i, wait in enumerate(waits):
            holder, lease = leases.pop(0)
            holder.call("Release", {"lease": lease})
            leases.append((wait, self.answered(wait, 1)["lease"]))
            for other in waits[i + 1:]:
                self.silent(other, 0.02)

    def test_who_dies_makes_way(self):
        (alice,) = self.people(ALICE)
        lease = self.allocated(alice, 8 * MIB)
        head = self.waiting(alice, "Allocate", size=10 * MIB, wait_ms=LONG)
        second = self.waiting(alice, "Allocate", size=5 * MIB, wait_ms=LONG)
        alice.call("Release", {"lease": self.allocated(alice, PAGE)})
        head.close()
        alice.call("Release", {"lease": lease})
        self.answered(second, 0.5)


class ForMemory(WaitTest):
    def options(self):
        return memory_of(10 * MIB)

    def test_memory_that_comes_free(self):
        alice, bob = self.people(ALICE, BOB)
        lease = self.allocated(alice, 10 * MIB)
        wait = self.waiting(bob, "Allocate", size=MIB, wait_ms=LONG)
        alice.call("Release", {"lease": lease})
        self.assertEqual(self.answered(wait, 1)["buffer"]["size"], MIB)

    def test_never_possible_fails_at_once(self):
        (alice,) = self.people(ALICE)
        told = self.refused("OutOfMemory", alice.call, "Allocate", {"size": 10 * MIB + 1, "wait_ms": LONG})
        self.assertEqual(told, {"device": self.device(), "free": 10 * MIB, "asked": 10 * MIB + PAGE})

    def test_timed_out(self):
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 10 * MIB)
        began = time.monotonic()
        self.refused("TimedOut", bob.call, "Allocate", {"size": 1, "wait_ms": 200})
        self.assertGreaterEqual(time.monotonic() - began, 0.199)

    def test_smaller_ones_may_pass_for_a_second(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        self.allocated(alice, 8 * MIB)
        self.waiting(bob, "Allocate", size=5 * MIB, wait_ms=LONG)
        for each in (carol, bob):
            each.call("Release", {"lease": self.allocated(each, MIB, wait_ms=LONG)})

    def test_a_larger_one_never_passes(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        lease = self.allocated(alice, 9 * MIB)
        waits = [self.waiting(each, "Allocate", size=size, wait_ms=LONG)
                 for each, size in ((bob, 6 * MIB), (carol, 6 * MIB), (bob, 7 * MIB))]
        alice.call("Release", {"lease": lease})
        for i, wait in enumerate(waits):
            granted = self.answered(wait, 2 * PATIENCE_S)
            for other in waits[i + 1:]:
                self.silent(other, 0.02)
            wait.call("Release", {"lease": granted["lease"]})

    def head_in_its_claim(self, alice, bob, size=5 * MIB):
        """Bob heads the queue and his second is over; Alice holds 8 of 10 MiB. The moment his claim began."""
        lease = self.allocated(alice, 8 * MIB)
        head = self.waiting(bob, "Allocate", size=size, wait_ms=LONG)

        def stalled():
            bob_may = bob.client()
            try:
                return self.refusal(bob_may, PAGE).get("free") == 2 * MIB
            finally:
                bob_may.close()

        wait_for(stalled, "nobody of the head's uid to pass", 3 * SLOWER)
        return head, lease, time.monotonic()

    def test_none_of_the_heads_uid_passes_after_its_second(self):
        alice, bob = self.people(ALICE, BOB)
        head, lease, _ = self.head_in_its_claim(alice, bob)
        behind = self.waiting(bob, "Allocate", size=PAGE, wait_ms=LONG)
        until = time.monotonic() + 2.2 * PATIENCE_S
        while time.monotonic() < until:  # neither during its claims nor between them
            told = self.refused("OutOfMemory", bob.call, "Allocate", {"size": PAGE})
            self.assertEqual(told, {"device": self.device(), "free": 2 * MIB, "asked": PAGE})
            self.silent(behind, 0.05)
        alice.call("Release", {"lease": lease})
        self.answered(head, 1)
        self.answered(behind, 1)

    def test_others_wait_for_one_claim_and_pass(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        head, _, claim = self.head_in_its_claim(alice, bob)
        wait = self.waiting(carol, "Allocate", size=MIB, wait_ms=LONG)
        began = time.monotonic()
        self.answered(wait, 2 * PATIENCE_S)
        took = time.monotonic() - began
        self.assertLess(took, PATIENCE_S * 1.3 * SLOWER)
        self.assertGreater(time.monotonic() - claim, 0.5 * PATIENCE_S, "it passed during the head's claim")
        self.silent(head, 0)

    def test_who_will_not_wait_is_bound_only_by_its_own_uid(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        self.head_in_its_claim(alice, bob)
        churn(carol, size=MIB)

    def test_what_comes_free_during_its_claim_is_the_heads(self):
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        head, lease, _ = self.head_in_its_claim(alice, bob, size=9 * MIB)
        rival = self.waiting(carol, "Allocate", size=8 * MIB, wait_ms=LONG)
        alice.call("Release", {"lease": lease})
        granted = self.answered(head, 1)
        self.silent(rival, 0.1)
        head.call("Release", {"lease": granted["lease"]})
        self.answered(rival, 2 * PATIENCE_S)

    def test_a_head_that_wants_nearly_all_does_not_stall_small_ones(self):
        """Past its second, small requests of others take their turn: each waits for at most one claim."""
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        self.allocated(alice, MIB)
        head = self.waiting(bob, "Allocate", size=10 * MIB - PAGE, wait_ms=LONG)
        worst, impatient = 0, 0
        until = time.monotonic() + 4.5 * PATIENCE_S
        while time.monotonic() < until:
            began = time.monotonic()
            carol.call("Release", {"lease": self.allocated(carol, PAGE, wait_ms=LONG)})
            worst = max(worst, time.monotonic() - began)
            began = time.monotonic()
            churn(carol, size=PAGE)
            impatient = max(impatient, time.monotonic() - began)
            time.sleep(0.01)  # a steady trickle
        self.silent(head, 0)
        self.assertLess(worst, PATIENCE_S * 1.3 * SLOWER)
        self.assertGreater(worst, PATIENCE_S * 0.5, "nobody ever waited for the head: the test tries nothing")
        self.assertLess(impatient, PATIENCE_S * 0.5 * SLOWER)

    def test_the_head_dies(self):
        """The next in the queue gets what the dead one waited for, at once."""
        alice, bob, carol = self.people(ALICE, BOB, CAROL)
        lease = self.allocated(alice, 8 * MIB)
        self.waiting(bob, "Allocate", size=10 * MIB, wait_ms=LONG)
        second = self.waiting(carol, "Allocate", size=5 * MIB, wait_ms=LONG)
        alice.call("Release", {"lease": self.allocated(alice, MIB)})
        bob.kill()
        wait_for(lambda: self.daemon.status()["sessions"] == 4, "the head's sessions to end")
        alice.call("Release", {"lease": lease})
        self.answered(second, 1)

    def test_the_heads_death_alone_frees_the_way(self):
        alice, bob = self.people(ALICE, BOB)
        (other,) = self.people(BOB)
        head, _, _ = self.head_in_its_claim(alice, bob)
        behind = self.waiting(other, "Allocate", size=MIB, wait_ms=LONG)
        bob.kill()
        self.answered(behind, 0.5)
        del head

    def test_the_heads_time_is_up(self):
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 9 * MIB)
        head = self.waiting(bob, "Allocate", size=5 * MIB, wait_ms=1200)
        (other,) = self.people(BOB)
        wait_for(lambda: self.refusal(other, PAGE), "its second to be over", 3 * SLOWER)
        behind = self.waiting(other, "Allocate", size=PAGE, wait_ms=LONG)
        self.refused("TimedOut", head.result)
        self.answered(behind, 0.5)


class Draining(WaitTest):
    def options(self):
        return memory_of(10 * MIB)

    def test_bytes_that_drain_are_waited_for(self):
        """The connection is closed, the process lives on: only its end frees the bytes, and then at once."""
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 8 * MIB)
        alice.close()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 8 * MIB, "the bytes to drain")
        told = self.refused("OutOfMemory", bob.call, "Allocate", {"size": 5 * MIB})
        self.assertEqual(told, {"device": self.device(), "free": 2 * MIB, "asked": 5 * MIB})
        wait = self.waiting(bob, "Allocate", size=5 * MIB, wait_ms=LONG)
        self.silent(wait, 0.1)
        alice.kill()
        self.answered(wait, 0.5)

    def test_tried_again_as_each_drainer_exits(self):
        drainers = self.people(ALICE, CAROL)
        (bob,) = self.people(BOB)
        for each in drainers:
            self.allocated(each, 5 * MIB)
            each.close()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 10 * MIB, "the bytes to drain")
        wait = self.waiting(bob, "Allocate", size=10 * MIB, wait_ms=LONG)
        drainers[0].kill()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 5 * MIB, "the first half")
        self.silent(wait, 0.05)
        drainers[1].kill()
        self.answered(wait, 0.5)

    def test_timed_out(self):
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 8 * MIB)
        alice.close()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 8 * MIB, "the bytes to drain")
        self.refused("TimedOut", bob.call, "Allocate", {"size": 5 * MIB, "wait_ms": 100})

    def test_a_frozen_drainer_holds_on(self):
        alice, bob = self.people(ALICE, BOB)
        self.allocated(alice, 8 * MIB)
        alice.close()
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == 8 * MIB, "the bytes to drain")
        alice.freeze()
        wait = self.waiting(bob, "Allocate", size=5 * MIB, wait_ms=LONG)
        self.silent(wait, 0.1)
        alice.kill()
        self.answered(wait, 0.5)


class Flood(ActorTest):
    """One user's large allocations, and another's small one."""

    SIZE = 300 << 20
    N = 6

    def test_large_allocations_of_one_do_not_hold_up_anothers(self):
        path, size, n = self.daemon.socket, self.SIZE, self.N

        def load():
            clients = [RawClient(path) for _ in range(n)]
            for client in clients:
                client.send_call("Allocate", {"size": size})
            while True:
                for client in clients:
                    lease = client.result()["lease"]
                    client.drop_fds()
                    client.call("Release", {"lease": lease})
                    client.send_call("Allocate", {"size": size, "wait_ms": LONG})
                    yield

        bob = self.client()
        bob.call("GetStatus")
        with context_kept(bob):
            normal = Timing(lambda: churn(bob, size=PAGE), 200)
            with Load(load, uid=ALICE) as running:
                during = Timing(lambda: churn(bob, size=PAGE), 30)
                running.wait_round()
        bob.close()
        told = f"normally {normal}; during the flood {during}"
        if os.environ.get("GPUIPC_TEST_TELL"):
            print(told, file=sys.stderr)
        # One stretch of the flood's work may be under way; never one of its allocations, let alone all of them.
        self.assertLessEqual(during.median, max(10 * normal.median, 0.02 * SLOWER), told)


class Charges(ActorTest):
    """Whose quota a buffer counts against, when its owner leaves and a consumer stays."""

    daemon_args = (f"--bytes-per-user={8 * MIB}",)

    def buffer(self):
        with self.client(admin=True) as admin:
            buffers = [each for each in admin.call("ListBuffers")["buffers"] if each["size"] == 6 * MIB]
        return buffers[0] if buffers else None

    def shared(self, keep_ms=0):
        """Alice owns 6 of her 8 MiB; Bob, who has 4 of his own, holds them too, and is frozen."""
        alice, bob = self.actor(ALICE), self.actor(BOB)
        lease = alice.call("Allocate", {"size": 6 * MIB, "mode": "0666", "keep_ms": keep_ms})
        bob.call("Allocate", {"size": 4 * MIB})
        bob.call("Open", {"buffer": lease["buffer"]["id"]})
        bob.freeze()
        self.assertEqual(self.buffer()["charged_uid"], ALICE)
        return alice, bob, lease

    def assert_moved(self, alice, bob):
        wait_for(lambda: self.buffer()["charged_uid"] == BOB, "the charge to move")
        # The owner's quota is free again, to the last byte.
        alice.call("Release", {"lease": alice.call("Allocate", {"size": 8 * MIB})["lease"]})
        # The consumer is over his own limit, which is told with the true numbers.
        other = self.actor(BOB)
        told = self.refused("QuotaExceeded", other.call, "Allocate", {"size": PAGE})
        self.assertEqual(told, {"scope": "bytes_per_uid", "limit": 8 * MIB, "used": 10 * MIB, "asked": PAGE})
        wait_for(lambda: self.daemon.status()["devices"][0]["brokered_bytes"] == 10 * MIB, "the owner's bytes to be back")
        bob.signal(signal.SIGCONT)
        bob.kill()
        wait_for(lambda: self.daemon.status()["devices"][0]["brokered_bytes"] == 0, "the buffers to go with their last holder")
        other.call("Allocate", {"size": 8 * MIB})

    def test_owner_releases(self):
        alice, bob, lease = self.shared()
        alice.call("Release", {"lease": lease["lease"]})
        self.assert_moved(alice, bob)

    def test_owner_is_killed(self):
        alice, bob, _ = self.shared()
        alice.kill()
        self.assert_moved(self.actor(ALICE), bob)

    def test_owner_closes_but_lives(self):
        """Draining, the owner still holds it and still pays."""
        alice, bob, _ = self.shared()
        alice.close()
        wait_for(lambda: self.daemon.status()["sessions"] == 2, "the owner's session to end")
        self.assertEqual(self.buffer()["charged_uid"], ALICE)
        alice.kill()
        self.assert_moved(self.actor(ALICE), bob)

    def test_consumer_closes_but_lives(self):
        """A drainer pays as a holder does."""
        alice, bob, lease = self.shared()
        bob.signal(signal.SIGCONT)
        bob.close()
        wait_for(lambda: self.daemon.status()["sessions"] == 2, "the consumer's session to end")
        bob.freeze()
        alice.call("Release", {"lease": lease["lease"]})
        wait_for(lambda: self.buffer()["state"] == "draining", "only the drainer to be left")
        self.assert_moved(alice, bob)

    def test_a_keep_is_the_owners(self):
        alice, bob, lease = self.shared(keep_ms=LONG)
        alice.call("Release", {"lease": lease["lease"]})
        wait_for(lambda: self.buffer()["charged_uid"] == BOB, "the charge to move")
        bob.signal(signal.SIGCONT)
        bob.kill()
        wait_for(lambda: self.buffer()["state"] == "kept", "the keep to begin")
        self.assertEqual(self.buffer()["charged_uid"], ALICE)
        alice.call("Free", {"buffer": lease["buffer"]["id"]})

    def test_a_name_is_the_owners(self):
        alice, bob = self.actor(ALICE), self.actor(BOB)
        lease = alice.call("Allocate", {"size": 6 * MIB, "mode": "0666", "name": "n"})["lease"]
        bob.call("Open", {"name": "n"})
        alice.call("Release", {"lease": lease})
        self.assertEqual(self.buffer()["charged_uid"], ALICE)
        alice.call("Free", {"name": "n"})
        self.assertEqual(self.buffer()["charged_uid"], BOB)

    def test_the_oldest_of_several_pays(self):
        alice, bob, lease = self.shared()
        carol = self.actor(CAROL)
        carol.call("Open", {"buffer": lease["buffer"]["id"]})
        alice.call("Release", {"lease": lease["lease"]})
        wait_for(lambda: self.buffer()["charged_uid"] == BOB, "the charge to move")
        bob.signal(signal.SIGCONT)
        bob.kill()
        wait_for(lambda: self.buffer()["charged_uid"] == CAROL, "the charge to move on")

    def test_the_owner_comes_back(self):
        alice, bob, lease = self.shared()
        alice.call("Release", {"lease": lease["lease"]})
        wait_for(lambda: self.buffer()["charged_uid"] == BOB, "the charge to move")
        alice.call("Open", {"buffer": lease["buffer"]["id"]})
        self.assertEqual(self.buffer()["charged_uid"], ALICE)
        bob.signal(signal.SIGCONT)


if __name__ == "__main__":
    unittest.main()
