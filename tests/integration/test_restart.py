# SPDX-License-Identifier: Apache-2.0
"""Restart with nothing lost: what the service manager's descriptor store keeps, and who gets it back. deadline: 240 s"""

import os
import select
import signal
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER  # noqa: E402
from daemon import GPUIPCD_FAULT, Daemon, open_fds, wait_for  # noqa: E402
from guest import Guest  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from restarting import RestartTest  # noqa: E402

ALICE, BOB = 2001, 2002
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT)


class Kept(RestartTest):
    def kept(self, number):
        self.start()
        guest, other = self.guest(1), self.guest(2)
        for _ in range(20):
            guest.allocate()
        named = guest.allocate(size=5000, name="models/a", mode="0640", meta={"dtype": "f4", "shape": [2, 3]}, label="loader")
        guest.call("Seal", {"buffer": guest.allocate(size=100, name="sealed")["buffer"]["id"]})
        freed = guest.allocate(size=100, name="freed")
        guest.call("Free", {"buffer": freed["buffer"]["id"]})
        del guest.digests[freed["buffer"]["id"]]  # it cannot be opened again
        other.open(name="models/a", access="ro")
        other.open(buffer=named["buffer"]["id"])
        before = self.listed()
        seconds = self.manager.restart(number)
        after = self.listed()
        self.assertEqual(after[1], before[1])
        self.assertEqual([{**lease, "state": "detached"} for lease in before[0]], after[0])
        self.assertLess(seconds, 1 * SLOWER)
        for one in (guest, other):
            reply = one.resume()
            self.assertEqual({lease["id"]: lease["state"] for lease in reply["leases"]}, dict.fromkeys(one.leases, "active"))
        self.assertEqual(self.listed(), before)
        guest.check()
        self.assert_books()
        self.refused("AlreadySealed", guest.call, "Open", {"name": "sealed"})
        self.refused("NoSuchBuffer", guest.call, "Open", {"name": "freed"})
        self.refused("NameTaken", guest.call, "Allocate", {"size": 1, "name": "models/a"})
        for one in (guest, other):
            for lease in list(one.leases):
                one.release(lease)

    def test_over_sigkill(self):
        self.kept(signal.SIGKILL)

    def test_over_sigterm(self):
        self.kept(signal.SIGTERM)
        self.manager.wait_log("stopping: 23 buffers stay in the service manager's store until it empties it; "
                              "25 leases of 2 sessions")

    def test_over_sigabrt(self):
        self.kept(signal.SIGABRT)

    def test_many_times(self):
        """Thirty restarts in a row, before anybody came back."""
        self.start()
        guest = self.guest()
        for _ in range(5):
            guest.allocate()
        for i in range(30):
            self.manager.restart(ENDS[i % 3])
        guest.resume()
        guest.check()
        self.assert_books()

    def open_kinds(self):
        """(memory, states, pidfds) the daemon has open."""
        names = list(open_fds(self.manager.pid).values())
        return (sum(name.startswith("/memfd:gpuipc ") for name in names), sum("gpuipc-state" in name for name in names),
                sum("pidfd" in name for name in names))

    def test_descriptors_exact(self):
        """A daemon that took over has one descriptor open for each thing it holds, and none once it gave all back."""
        self.start()
        guest = self.guest()
        leases = [guest.allocate()["lease"] for _ in range(20)]
        for number in ENDS:
            self.manager.restart(number)
            guest.resume()
            # The process is known twice: from before, and as the one that came back.
            wait_for(lambda: self.open_kinds() == (20, 1, 2), "20 buffers, the state, two pidfds")
        for lease in leases:
            guest.release(lease)
        guest.close()
        wait_for(lambda: self.open_kinds() == (0, 1, 0), "the state alone")

    def test_numbers_go_on(self):
        """No id and no event's number is given twice."""
        self.start()
        guest = self.guest()
        first = guest.allocate()
        guest.release(first["lease"])
        with self.manager.client() as client:
            client.send_call("Watch", {"since": 0}, more=True)
            seen = [client.result()["event"] for _ in range(3)]
        self.manager.restart()
        again = self.guest()
        second = again.allocate()
        number = lambda text: int(text[1:])  # noqa: E731
        self.assertGreater(number(second["lease"]), number(first["lease"]))
        self.assertGreater(number(second["buffer"]["id"]), number(first["buffer"]["id"]))
        self.assertGreater(number(again.call("GetStatus")["session"]), number(guest.resume()["session"]))
        with self.manager.client() as client:
            client.send_call("Watch", {"since": 1}, more=True)
            oldest = self.refused("EventsLost", client.result)["oldest"]
            self.assertGreater(oldest, seen[-1]["sequence"])
            client.send_call("Watch", {"since": oldest - 1}, more=True)
            self.assertEqual(client.result()["event"]["sequence"], oldest)

    def test_keeps_run_on(self):
        self.start("--resume-sec=1h")  # waiting for a keep may take longer than the default, on a crowded machine
        guest = self.guest()
        short = guest.allocate(size=4096, name="short", keep_ms=3000 * SLOWER)
        long = guest.allocate(size=4096, name="long", keep_ms=3600000)
        for granted in (short, long):
            guest.release(granted["lease"])
        wait_for(lambda: [buffer["state"] for buffer in self.listed()[1]] == ["kept", "kept"], "the keeps")
        self.manager.restart()
        self.assertEqual([buffer["state"] for buffer in self.listed()[1]], ["kept", "kept"])
        wait_for(lambda: [buffer.get("name") for buffer in self.listed()[1]] == ["long"], "the short keep to end")
        self.manager.restart()
        self.assertEqual(self.listed()[1][0]["state"], "kept")
        guest.resume()
        # It is kept once: after this lease it goes, unless its time still runs.
        guest.open(name="long")
        self.manager.restart()
        guest.resume()
        guest.call("Free", {"name": "long"})

    def test_a_keep_is_not_begun_anew(self):
        """Its time runs on while there is no daemon."""
        self.start()
        guest = self.guest()
        guest.release(guest.allocate(name="n", keep_ms=1500)["lease"])
        over = time.monotonic() + 1.5
        self.manager.end()
        wait_for(lambda: time.monotonic() > over, "the keep to be over")
        self.manager.start()
        self.assertNotIn("kept", [buffer["state"] for buffer in self.listed()[1]])

    def test_charges(self):
        """Who pays after the owner has left is who pays after the restart."""
        self.start()
        alice, bob = self.actor(ALICE), self.actor(BOB)
        buffer = alice.call("Allocate", {"size": 5000, "mode": "0666"})["buffer"]["id"]
        bob.call("Open", {"buffer": buffer})
        alice.end()
        wait_for(lambda: self.listed()[1][0]["charged_uid"] == BOB, "the charge to move")
        self.manager.restart()
        self.assertEqual(self.listed()[1][0]["charged_uid"], BOB)
        self.assertEqual(self.listed()[1][0]["owner_uid"], ALICE)
        bob.kill()

    def test_draining_bytes(self):
        """A process that only hung up still has its memory after the restart, until it exits."""
        self.start()
        alice, bob = self.actor(ALICE), self.actor(BOB)
        buffer = alice.call("Allocate", {"size": 5000, "mode": "0666"})["buffer"]["id"]
        bob.call("Open", {"buffer": buffer})
        alice.close()
        bob.close()
        wait_for(lambda: [lease[1] for lease in self.states()] == ["draining", "draining"], "both to drain")
        for _ in range(2):
            self.manager.restart()
            self.assertEqual([lease[1] for lease in self.states()], ["draining", "draining"])
            self.assertEqual(self.manager.status()["devices"][0]["draining_bytes"], 8192)
            self.assert_books()
        bob.kill()
        wait_for(lambda: len(self.states()) == 1, "one to be gone")
        alice.kill()

    def test_isolated_containers(self):
        """With no container to tell apart, an owner is the uid, over a restart too."""
        self.start("--isolation=container")
        guest = self.guest()
        guest.allocate(name="n")
        self.manager.restart()
        guest.resume()
        guest.check()

    def test_half_a_million_bytes_each(self):
        self.start()
        guest = self.guest()
        for _ in range(8):
            guest.allocate(size=500000)
        self.manager.restart()
        guest.resume()
        guest.check()


class Coming(RestartTest):
    """Who comes back, and who does not."""

    def test_leases_not_listed_end(self):
        self.start()
        guest = self.guest()
        kept, lost = guest.allocate(name="kept"), guest.allocate(name="lost")
        self.manager.restart()
        reply = guest.resume([kept["lease"]])
        self.assertEqual([lease["id"] for lease in reply["leases"]], [kept["lease"]])
        self.refused("NoSuchLease", guest.call, "Release", {"lease": lost["lease"]})
        self.refused("NoSuchBuffer", guest.call, "Open", {"name": "lost"})
        self.assert_books()

    def test_leases_of_others_cannot_be_listed(self):
        self.start()
        guest, other = self.guest(1), self.guest(2)
        guest.allocate()
        theirs = other.allocate()
        self.manager.restart()
        reply = guest.resume([*guest.leases, theirs["lease"], "l999", "", theirs["lease"]])
        self.assertEqual({lease["id"] for lease in reply["leases"]}, set(guest.leases))
        self.assertEqual(dict(self.states())[theirs["lease"]], "detached")
        other.resume()
        other.check()

    def test_in_parts(self):
        """More leases than one message holds."""
        self.start("--message-bytes-max=4K")
        guest = self.guest()
        first = guest.allocate(mode="0600")
        leases = [first["lease"]] + [guest.open(buffer=first["buffer"]["id"])["lease"] for _ in range(59)]
        self.manager.restart()
        guest.reconnect()
        reply = guest.call("Resume", {"token": guest.token, "leases": leases[:20], "follow": 39})
        self.assertEqual({lease["id"] for lease in reply["leases"]}, set(leases[:20]))
        self.refused("NoSuchLease", guest.call, "Release", {"lease": leases[40]})
        reply = guest.call("Resume", {"token": reply["resume_token"], "leases": leases[20:40], "follow": 19})
        self.assertEqual(sum(state == "detached" for _, state in self.states()), 20)
        reply = guest.call("Resume", {"token": reply["resume_token"], "leases": leases[40:59]})
        self.assertEqual({lease["id"] for lease in reply["leases"]}, set(leases[40:59]))
        self.assertEqual([state for _, state in self.states()], ["active"] * 59)
        told = self.refused("AccessDenied", guest.call, "Resume", {"token": reply["resume_token"], "leases": []})
        self.assertIn("has all its leases", told["reason"])
        guest.forget(leases[59])

    def test_parts_that_never_came(self):
        self.start(f"--resume-sec={3 * SLOWER}s")
        guest = self.guest()
        leases = [guest.allocate()["lease"] for _ in range(3)]
        self.manager.restart()
        guest.reconnect()
        guest.call("Resume", {"token": guest.token, "leases": leases[:1], "follow": 2})
        wait_for(lambda: self.states() == [(leases[0], "active")], "the others to end")
        self.assert_books()
        for lease in leases[1:]:
            guest.forget(lease)

    def test_a_token_serves_once(self):
        self.start()
        guest = self.guest()
        guest.allocate()
        used = guest.token
        self.manager.restart()
        guest.resume()
        self.assertNotEqual(guest.token, used)
        guest.call("GetStatus")
        with self.manager.client() as thief:
            self.refused("NoSuchSession", thief.call, "Resume", {"token": used, "leases": list(guest.leases)})
            told = self.refused("AccessDenied", thief.call, "Resume", {"token": guest.token, "leases": list(guest.leases)})
            self.assertIn("still stands", told["reason"])
        self.manager.restart()
        with self.manager.client() as thief:
            self.refused("NoSuchSession", thief.call, "Resume", {"token": used, "leases": list(guest.leases)})
        guest.resume()
        guest.check()

    def test_a_reply_that_was_lost(self):
        """The daemon was killed before the client could read its new token: the one it knows still serves."""
        self.start()
        guest = self.guest()
        guest.allocate()
        for _ in range(3):
            self.manager.restart()
            guest.reconnect()
            guest.call("Resume", {"token": guest.token, "leases": list(guest.leases)})  # and the reply is forgotten
        self.manager.restart()
        guest.resume()
        guest.check()

    def test_a_token_that_never_was(self):
        self.start()
        with self.manager.client() as client:
            for token in ("", "0" * 32, "0" * 31, "x" * 32, client.call("GetStatus")["resume_token"].upper() + "0"):
                self.refused("NoSuchSession", client.call, "Resume", {"token": token, "leases": []})
            own = client.call("GetStatus")["resume_token"]
            self.refused("AccessDenied", client.call, "Resume", {"token": own, "leases": []})

    def test_another_user(self):
        self.start()
        alice = self.actor(ALICE)
        token = alice.call("GetStatus")["resume_token"]
        lease = alice.call("Allocate", {"size": 1})["lease"]
        self.manager.restart()
        bob = self.actor(BOB)
        self.refused("NoSuchSession", bob.call, "Resume", {"token": token, "leases": [lease]})
        with self.manager.client() as root, self.manager.client(admin=True) as admin:
            self.refused("NoSuchSession", root.call, "Resume", {"token": token, "leases": [lease]})
            self.refused("NoSuchSession", admin.call, "Resume", {"token": token, "leases": [lease]})
        self.assertEqual(self.states(), [(lease, "detached")])
        again = alice.client()
        self.assertEqual(again.call("Resume", {"token": token, "leases": [lease]})["leases"][0]["state"], "active")
        alice.kill()

    def test_administrators_by_their_own_door(self):
        self.start()
        guest = self.guest(admin=True)
        granted = guest.allocate()
        self.manager.restart()
        with self.manager.client() as client:
            self.refused("NoSuchSession", client.call, "Resume", {"token": guest.token, "leases": list(guest.leases)})
        guest.resume()
        self.assertEqual(self.states(), [(granted["lease"], "active")])

    def test_on_a_connection_with_leases(self):
        self.start()
        guest, other = self.guest(1), self.guest(2)
        guest.allocate()
        self.manager.restart()
        other.reconnect()
        other.allocate()
        told = self.refused("AccessDenied", other.call, "Resume", {"token": guest.token, "leases": list(guest.leases)})
        self.assertIn("resume on a new one", told["reason"])
        guest.resume()

    def test_nobody_came(self):
        """A process that lives drains; one that died while it waited is gone at once."""
        self.start(f"--resume-sec={3 * SLOWER}s")
        guest, actor = self.guest(), self.actor(ALICE)
        lease = guest.allocate(name="n")["lease"]
        theirs = actor.call("Allocate", {"size": 1})["lease"]
        token = guest.token
        self.manager.restart()
        self.assertEqual(self.states(), sorted([(lease, "detached"), (theirs, "detached")]))
        actor.kill()
        wait_for(lambda: self.states() == [(lease, "detached")], "the dead one's to end")
        wait_for(lambda: self.states() == [(lease, "draining")], "the other to drain")
        with self.manager.client() as client:
            self.refused("NoSuchSession", client.call, "Resume", {"token": token, "leases": [lease]})
            self.refused("NoSuchBuffer", client.call, "Open", {"name": "n"})
        self.manager.wait_log("1 sessions did not come back in time: their 1 leases end")
        self.assert_books()
        self.manager.restart()
        self.assertEqual(self.states(), [(lease, "draining")])
        self.drop()

    def test_the_daemon_stood_still(self):
        """When the time to come back was up it could not hear who came: it gives the time once more, and ends nothing unheard."""
        seconds = 2 * SLOWER
        self.start(f"--resume-sec={seconds}s")
        guest = self.guest()
        lease = guest.allocate(name="n")["lease"]
        self.manager.restart()
        with self.manager.frozen():
            time.sleep(seconds + 1.2)  # no event tells that a time has passed
        guest.resume()
        self.assertEqual(self.states(), [(lease, "active")])
        self.manager.wait_log("stood still")
        self.assert_books()

    def test_died_meanwhile(self):
        self.start()
        guest, actor = self.guest(), self.actor(ALICE)
        mine = guest.allocate(mode="0666")
        theirs = actor.call("Allocate", {"size": 100000, "name": "theirs"})["lease"]
        shared = actor.call("Open", {"buffer": mine["buffer"]["id"]})["lease"]
        self.manager.end()
        actor.kill()
        self.manager.start()
        self.assertEqual(self.states(), [(mine["lease"], "detached")])
        self.assertNotIn(theirs, dict(self.states()), shared)
        guest.resume()
        guest.check()
        self.assert_books()

    def test_died_meanwhile_in_another_pid_namespace(self):
        self.start()

        actor = self.namespaced_actor()
        actor.call("Allocate", {"size": 4096, "name": "theirs"})
        lease = self.listed()[0][0]
        self.assertNotEqual(os.stat(f"/proc/{lease['pid']}/ns/pid").st_ino, os.stat("/proc/self/ns/pid").st_ino)
        self.manager.restart()
        self.assertEqual(self.states(), [(lease["id"], "detached")])
        self.manager.end()
        pidfd = os.pidfd_open(lease["pid"])
        actor.kill()
        self.assertTrue(select.select([pidfd], [], [], WAIT_S)[0])
        os.close(pidfd)
        self.manager.start()
        self.assertEqual(self.states(), [])

    def namespaced_actor(self):
        """A process that is number 1 of a pid namespace of its own: a child of one that entered it."""
        import ctypes  # pylint: disable=import-outside-toplevel
        libc = ctypes.CDLL(None, use_errno=True)

        def enter():
            if libc.unshare(0x20000000) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            child = os.fork()
            if child:
                libc.prctl(1, signal.SIGKILL)
                os.waitpid(child, 0)
                os._exit(0)
            libc.prctl(1, signal.SIGKILL)  # dies with its parent

        return self.actor(ALICE, enter=enter)

    def test_kicked_while_detached(self):
        self.start()
        guest = self.guest()
        guest.allocate()
        session = guest.call("GetStatus")["session"]
        self.manager.restart()
        with self.manager.client() as client:
            client.call("Kick", {"session": session})
            self.refused("NoSuchSession", client.call, "Resume", {"token": guest.token, "leases": []})
        self.assertEqual([state for _, state in self.states()], ["draining"])
        self.drop()

    def test_sessions_without_leases(self):
        self.start()
        guest = self.guest()
        session = guest.call("GetStatus")["session"]
        self.manager.restart()
        self.assertEqual(guest.resume()["session"], session)

    def test_released_after_the_restart(self):
        """The store is emptied by the last release."""
        self.start()
        guest = self.guest()
        leases = [guest.allocate()["lease"] for _ in range(10)]
        self.manager.restart()
        guest.resume()
        for lease in leases:
            guest.release(lease)
        self.assert_empty()

    def test_one_process_of_many_connections(self):
        """Its pidfd is stored once, and again after it came back once."""
        self.start()
        guests = [self.guest(i) for i in range(5)]
        for guest in guests:
            guest.allocate()
        wait_for(lambda: len(self.manager.store.names()) == 1 + 5 + 1, "seven descriptors")
        self.manager.restart()
        for guest in guests:
            guest.resume()
            guest.allocate()
        wait_for(lambda: len(self.manager.store.names()) == 1 + 10 + 1, "twelve descriptors")
        for guest in guests:
            guest.check()


class Manager_(RestartTest):  # pylint: disable=invalid-name
    """The manager is slow, full, or not there."""

    def test_stopped_for_five_seconds(self):
        """What needs no store goes on; what needs it waits, and is done."""
        self.start("--log-level=debug")
        guest = self.guest()
        mine = guest.allocate(name="mine", mode="0666")
        self.manager.store.pause()
        began = time.monotonic()
        made, stop = [], threading.Event()

        def allocating():
            with Guest(self.manager.socket, 7) as other:
                for _ in range(400):
                    made.append(other.call("Allocate", {"size": 1})["lease"])
                    if stop.is_set():
                        break
                for lease in made:
                    other.call("Release", {"lease": lease})

        loads = [threading.Thread(target=allocating)]
        for load in loads:
            load.start()
        worst, n = 0, 0
        while time.monotonic() - began < 5:
            for method, parameters in (("GetStatus", {}), ("List", {}), ("Open", {"name": "mine"})):
                at = time.monotonic()
                reply = guest.call(method, parameters)
                worst, n = max(worst, time.monotonic() - at), n + 1
                if method == "Open":
                    os.close(guest.client.fds.pop())
                    guest.call("Release", {"lease": reply["lease"]})
        stop.set()
        self.manager.store.resume()
        for load in loads:
            load.join()
        print(f"{n} calls while the manager stood, the slowest {worst * 1000:.1f} ms", file=sys.stderr)
        self.assertLess(worst, 0.5 * SLOWER)
        self.assertGreater(n, 300 / SLOWER)
        self.assertTrue(made)
        self.manager.restart()
        guest.resume()
        guest.check()
        guest.release(mine["lease"])

    def test_a_free_waits_for_the_manager_in_the_books(self):
        """Until the manager has let go of its copy, the bytes are not free."""
        self.start()
        guest = self.guest()
        granted = guest.allocate(size=1 << 20)
        self.manager.store.pause()
        guest.release(granted["lease"])
        status = guest.call("GetStatus")["devices"][0]
        self.assertEqual((status["brokered_bytes"], status["draining_bytes"]), (1 << 20, 1 << 20))
        self.manager.store.resume()
        self.assert_empty()

    def test_full(self):
        self.start("--store-max=16", store_max=16)
        guest = self.guest()
        leases = [guest.allocate()["lease"] for _ in range(14)]
        told = self.refused("QuotaExceeded", guest.call, "Allocate", {"size": 1})
        self.assertEqual(told, {"scope": "stored_descriptors", "limit": 16, "used": 16, "asked": 1})
        # A process that is not stored yet finds no room either, but one that is opens on.
        guest.open(buffer=guest.leases[leases[0]])
        actor = self.actor(ALICE)
        self.refused("NoSuchBuffer", actor.call, "Open", {"buffer": guest.leases[leases[0]]})
        self.manager.restart()
        guest.resume()
        guest.check()
        self.refused("QuotaExceeded", guest.call, "Allocate", {"size": 1})
        guest.release(leases[-1])
        guest.allocate()
        self.assert_books()

    def test_who_does_not_read_delays_nobody(self):
        """A client that watches and never reads: a stop does not wait for it as long as for work."""
        self.start()
        guest, deaf = self.guest(), self.manager.client()
        deaf.send_call("Watch", {"since": 0}, more=True)
        for _ in range(200):
            guest.release(guest.allocate(meta={"m": "x" * 4000})["lease"])
        kept = guest.allocate()["lease"]
        began = time.monotonic()
        self.manager.end(signal.SIGTERM)
        self.assertLess(time.monotonic() - began, 5)
        deaf.close()
        self.manager.start()
        self.assertEqual([lease["id"] for lease in guest.resume()["leases"]], [kept])
        guest.check()

    def test_one_user_leaves_room_for_others(self):
        """Buffers and processes alike count for their user, before a restart and after, and for nobody else."""
        self.start("--store-max=32", "--stored-per-user=8", store_max=32)
        alice, bob = self.actor(ALICE), self.actor(BOB)
        buffers = [alice.call("Allocate", {"size": 1, "mode": "0644"}) for _ in range(7)]
        full = {"scope": "stored_per_uid", "limit": 8, "used": 8, "asked": 1}
        self.assertEqual(self.refused("QuotaExceeded", alice.call, "Allocate", {"size": 1}), full)
        other = self.actor(ALICE)
        self.assertEqual(self.refused("QuotaExceeded", other.call, "Open", {"buffer": buffers[0]["buffer"]["id"], "access": "ro"}), full)
        # Whom she lends to pays for his process alone, until he is the last to hold it.
        for granted in buffers[:3]:
            bob.call("Open", {"buffer": granted["buffer"]["id"], "access": "ro"})
        for _ in range(7):
            bob.call("Allocate", {"size": 1})
        self.assertEqual(self.refused("QuotaExceeded", bob.call, "Allocate", {"size": 1}), full)
        for granted in buffers[:3]:
            alice.call("Release", {"lease": granted["lease"]})
        self.assertEqual(self.refused("QuotaExceeded", bob.call, "Allocate", {"size": 1}), {**full, "used": 11})
        for _ in range(3):
            alice.call("Allocate", {"size": 1})
        self.manager.restart()
        alice, bob, carol = (self.actor(uid) for uid in (ALICE, BOB, 2003))
        self.assertEqual(self.refused("QuotaExceeded", alice.call, "Allocate", {"size": 1}), {**full, "asked": 2})
        self.assertEqual(self.refused("QuotaExceeded", bob.call, "Allocate", {"size": 1}), {**full, "used": 11, "asked": 2})
        carol.call("Allocate", {"size": 1})

    def test_two_thousand_and_forty_eight(self):
        self.start("--stored-per-user=2048")
        guest = self.guest()
        leases = [guest.allocate(size=16)["lease"] for _ in range(2046)]
        wait_for(lambda: len(self.manager.store.names()) == 2048, "2048 descriptors")
        told = self.refused("QuotaExceeded", guest.call, "Allocate", {"size": 1})
        self.assertEqual((told["scope"], told["limit"], told["used"]), ("stored_descriptors", 2048, 2048))
        seconds = self.manager.restart()
        print(f"2048 descriptors: serving again after {seconds * 1000:.0f} ms", file=sys.stderr)
        self.assertLess(seconds, 1 * SLOWER)
        reply = guest.resume()
        self.assertEqual({lease["id"] for lease in reply["leases"]}, set(leases))
        guest.check()
        self.assert_books()
        self.refused("QuotaExceeded", guest.call, "Allocate", {"size": 1})

    def test_more_than_the_manager_takes(self):
        self.start(store_max=20)
        self.assertEqual(self.manager.status()["limits"]["stored_descriptors"], 20)
        self.manager.wait_log("StoreMax=2048 is more than the service manager keeps (FileDescriptorStoreMax=")
        guest = self.guest()
        for _ in range(18):
            guest.allocate()
        self.refused("QuotaExceeded", guest.call, "Allocate", {"size": 1})

    def test_more_than_open_files_allow(self):
        self.start("--descriptors-max=1000")
        self.assertEqual(self.manager.status()["limits"]["stored_descriptors"], 1000 - 128)
        self.manager.wait_log("limit of open files allows (LimitNOFILE=")

    def test_emptied(self):
        """A real stop: the manager forgets everything, and the next daemon begins anew."""
        self.start()
        guest = self.guest()
        guest.allocate()
        self.manager.end(signal.SIGTERM)
        self.manager.store.empty()
        self.manager.start()
        self.assertEqual(self.listed(), ([], []))
        guest.reconnect()
        self.refused("NoSuchSession", guest.call, "Resume", {"token": guest.token, "leases": list(guest.leases)})
        for lease in list(guest.leases):
            guest.forget(lease)

    def test_none(self):
        """Without a store the daemon says so at start, and clients get no token."""
        for environment in ({"FDSTORE": "0"}, {"NOTIFY_SOCKET": ""}):
            with self.subTest(environment):
                daemon = Daemon("--store=auto", environment=environment, wait="NOTIFY_SOCKET" not in environment)
                try:
                    daemon.wait_log("no descriptor store: a restart of the daemon loses all buffers")
                    wait_for(lambda: os.path.exists(daemon.socket), "the socket")
                    status = daemon.status()
                    self.assertNotIn("resume_token", status)
                    self.assertNotIn("restart-keeps-buffers", status["features"])
                finally:
                    daemon.kill()

    def test_an_older_systemd(self):
        """It does not say that it has a store; that it started the daemon is taken for it."""
        environment = {"FDSTORE": None, "SYSTEMD_EXEC_PID": "self"}
        self.start(environment=environment)
        self.assertIn("restart-keeps-buffers", self.manager.status()["features"])
        guest = self.guest()
        guest.allocate()
        self.manager.restart()
        guest.resume()
        guest.check()

    def test_switched_off(self):
        self.start()
        guest = self.guest()
        guest.allocate()
        self.manager.end()
        self.manager.arguments.append("--store=no")
        self.manager.start()
        self.manager.wait_log("what an earlier one left is dropped, as Store=no says")
        self.assertEqual(self.listed(), ([], []))
        wait_for(lambda: not self.manager.store.names(), f"an empty store; {self.manager.store.names()}")
        self.manager.kill()
        self.manager = None

    def test_what_belongs_to_nothing(self):
        """Strange descriptors in the store are taken out of it and closed."""
        self.start()
        guest = self.guest()
        guest.allocate()
        self.manager.end()
        ours, theirs = os.pipe()
        with self.manager.store.changed:
            self.manager.store.held += [("zz9Z", ours), ("zz9Y", theirs)]
        n_before = len(self.manager.store.names())
        self.manager.start()
        wait_for(lambda: len(self.manager.store.names()) == n_before - 2, "them to be taken out")
        self.manager.wait_log("2 descriptors in the service manager's store belong to nothing")
        guest.resume()
        guest.check()
        self.assert_books()

    def test_what_did_not_come_back(self):
        """A buffer whose descriptor the manager lost ends, in words; the others stay. A lost pidfd costs only the sight of its end."""
        self.start()
        guest = self.guest()
        lost, kept = guest.allocate(name="lost"), guest.allocate(name="kept")
        self.manager.end()
        with self.manager.store.changed:
            names = sorted(self.manager.store.held)
            gone = [item for item in names if os.fstat(item[1]).st_size == lost["buffer"]["size"] and "memfd" in
                    os.readlink(f"/proc/self/fd/{item[1]}")]
            self.assertEqual(len(gone), 1)
            gone += [item for item in names if "pidfd" in os.readlink(f"/proc/self/fd/{item[1]}")]
            self.assertEqual(len(gone), 2)
            for item in gone:
                self.manager.store.held.remove(item)
                os.close(item[1])
        self.manager.start()
        self.manager.wait_log("the memory of buffer b1 lost did not come back from the store")
        self.manager.wait_log(f"the descriptor of process {os.getpid()} did not come back")
        self.assertEqual({buffer["id"]: buffer["state"] for buffer in self.listed()[1]}, {"b1": "draining", "b2": "live"})
        reply = guest.resume()
        self.assertEqual([lease["id"] for lease in reply["leases"]], [kept["lease"]])
        guest.check()
        self.drop()


class Crash(RestartTest):
    def test_a_reply_lost_leaves_nothing_behind(self):
        """Killed after the allocation was made and before the client heard of it: the retry succeeds."""
        for point in ("Allocate.keep", "Allocate.finished"):
            with self.subTest(point):
                self.lose_reply(point)

    def lose_reply(self, point):
        ours, theirs = socket.socketpair()
        with Manager(program=GPUIPCD_FAULT, environment={"GPUIPC_FAULT_POINT": point}, pass_fds=(theirs.fileno(),)) as manager:
            self.manager = manager
            theirs.close()
            guest = Guest(manager.socket)
            guest.client.send_call("Allocate", {"size": 4096, "name": "n"})
            self.assertEqual(ours.recv(64).decode(), f"{point}\n")
            manager.pass_fds = ()
            manager.environment["GPUIPC_FAULT_POINT"] = ""
            manager.restart()
            ours.close()
            self.assertIsNone(guest.client.read())
            guest.resume()
            wait_for(lambda: self.listed() == ([], []), "nothing to be left")
            guest.allocate(name="n")
            guest.check()
            guest.leave()
            self.assert_empty()
        self.manager = None


if __name__ == "__main__":
    unittest.main()
