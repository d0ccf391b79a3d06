# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every step of the state and the store: after each, all that was granted is there, and nothing else. deadline: 240 s"""

import os
import select
import signal
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import Actor  # noqa: E402
from daemon import GPUIPCD_FAULT, open_fds, wait_for  # noqa: E402
from guest import Guest  # noqa: E402
from manager import Manager  # noqa: E402

GONE = (ConnectionError, BrokenPipeError)


class Undertaker:
    """While the daemon is dead, who connects is turned away: the sockets are the manager's and would let them wait."""

    def __init__(self, manager):
        self.manager, self.ended = manager, False
        self.pidfd = os.dup(manager.pidfd)
        self.listening = [made for _, made in manager.listening]
        self.wake, self.waker = socket.socketpair()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        ready, _, _ = select.select([self.pidfd, self.wake], [], [])
        while not self.ended:
            ready, _, _ = select.select([self.wake, *self.listening], [], [])
            for made in ready:
                if made is not self.wake:
                    try:
                        made.setblocking(False)
                        made.accept()[0].close()
                    except BlockingIOError:
                        pass

    def end(self):
        self.ended = True
        self.waker.send(b"x")
        self.thread.join()
        for end in (self.wake, self.waker):
            end.close()
        os.close(self.pidfd)


class Story:
    """What one guest and one process besides do until the daemon dies, and what must be there afterwards."""

    def __init__(self, manager):
        self.manager = manager
        self.guest = None
        self.actor = None
        self.actor_leases, self.actor_token = [], None
        self.doubtful = set()  # leases whose end was asked for and not answered
        self.sealed, self.freed, self.maybe_freed = set(), set(), set()

    def allocate(self, **parameters):
        return self.guest.allocate(**parameters)

    def release(self, lease):
        self.doubtful.add(lease)
        self.guest.call("Release", {"lease": lease})
        self.guest.forget(lease)
        self.doubtful.remove(lease)

    def seal(self, granted):
        self.guest.call("Seal", {"buffer": granted["buffer"]["id"]})
        self.sealed.add(granted["buffer"]["id"])

    def free(self, granted):
        self.maybe_freed.add(granted["buffer"]["id"])
        self.guest.call("Free", {"buffer": granted["buffer"]["id"]})
        self.freed.add(granted["buffer"]["id"])

    def tell(self):
        """Every kind of change. Ends by itself, or with the daemon."""
        self.guest = Guest(self.manager.socket, 3)
        first = self.allocate(name="first", mode="0666", meta={"n": 1})
        second = self.allocate()
        self.actor.client()
        self.actor_token = self.actor.call("GetStatus")["resume_token"]
        self.actor_leases.append(self.actor.call("Allocate", {"size": 3000})["lease"])
        self.actor_leases.append(self.actor.call("Open", {"name": "first"})["lease"])
        again = self.guest.open(name="first", access="ro")
        self.seal(first)
        self.release(again["lease"])
        self.release(second["lease"])
        kept = self.allocate(name="kept", keep_ms=30)
        self.release(kept["lease"])
        third = self.allocate(name="third")
        self.free(third)
        self.actor.kill()
        wait_for(lambda: len(self.listed()) == 2, "the actor to be gone")
        wait_for(lambda: self.manager.status()["buffers"] == 2, "the keep to end")
        self.release(third["lease"])
        self.allocate(name="last")

    def listed(self):
        with self.manager.client(admin=True) as client:
            return {lease["id"]: lease["state"] for lease in client.call("List")["leases"]}

    def come_back(self):
        """Everything that was granted comes back, and what was not does not."""
        guest = self.guest
        if guest is None:
            return
        for lease in self.doubtful:
            guest.forget(lease)
        expected = set(guest.leases)
        for buffer in self.maybe_freed:
            guest.digests.pop(buffer, None)
        reply = guest.resume()
        if {lease["id"]: lease["state"] for lease in reply["leases"]} != dict.fromkeys(expected, "active"):
            raise AssertionError(f"{expected} were granted, {reply} came back")
        guest.check()
        if self.actor.pid and self.actor_token:
            client = self.actor.client()
            back = client.call("Resume", {"token": self.actor_token, "leases": self.actor_leases})["leases"]
            if {lease["id"] for lease in back} != set(self.actor_leases):
                raise AssertionError(f"the other process: {self.actor_leases} were granted, {back} came back")
            expected |= set(self.actor_leases)
        self.check_books(expected)

    def check_books(self, expected):
        def settled():
            return set(self.listed()) == expected

        wait_for(settled, f"leases {expected}; there are {self.listed()}")
        with self.manager.client(admin=True) as client:
            buffers = {buffer["id"]: buffer for buffer in client.call("ListBuffers")["buffers"]}
        for buffer in self.sealed & set(buffers):
            assert buffers[buffer]["sealed"], f"{buffer} was sealed"
        for buffer in self.freed & set(buffers):
            assert buffers[buffer].get("name") is None, f"{buffer} was freed"

    def end(self):
        """Everything goes, and the store is empty but for the state."""
        self.actor.kill()
        if self.guest:
            self.guest.leave()
        wait_for(lambda: all(self.manager.status()[what] == 0 for what in ("buffers", "leases")), "an empty ledger")
        wait_for(lambda: not self.manager.status()["devices"][0]["brokered_bytes"], "no bytes")
        wait_for(lambda: len(self.manager.store.names()) == 1, f"the state alone, not {self.manager.store.names()}")


class KillTest(unittest.TestCase):
    def setUp(self):
        self.n_kills, self.fds_before = 0, len(open_fds())
        self.began = time.monotonic()

    def tearDown(self):
        self.assertEqual(len(open_fds()), self.fds_before)

    def tell(self, story):
        """True when it came to its end."""
        try:
            story.tell()
            return True
        except GONE:
            return False
        except AssertionError:
            # Waiting for something, it saw that the daemon was gone.
            if story.manager.status_word() is None:
                raise
            return False

    def conclude(self, manager, story, done):
        """Who was killed is followed by one that serves on; who was not has passed every step."""
        if done:
            manager.kill()
            story.actor.kill()
            story.guest.close()
            return
        self.end_dead(manager)
        self.n_kills += 1
        manager.environment["GPUIPC_FAULT_KILL"] = "0"
        manager.start()
        story.come_back()
        story.end()
        manager.stop()

    def end_dead(self, manager):
        wait_for(lambda: manager.pid is None or manager.status_word() is not None, "its end")

    def test_every_step(self):
        """The daemon dies at its nth step, for every n there is."""
        n = 0
        while True:
            n += 1
            manager = Manager(program=GPUIPCD_FAULT, environment={"GPUIPC_FAULT_KILL": str(n)}, wait=False)
            story = Story(manager)
            story.actor = Actor(manager.socket, 2001)
            undertaker = Undertaker(manager)
            try:
                done = self.tell(story)
                undertaker.end()
                self.conclude(manager, story, done)
            except BaseException as error:
                log = manager.log()[-2000:]
                manager.kill()
                story.actor.kill()
                raise AssertionError(f"step {n}:\n{log}") from error
            if done:
                break
        print(f"{self.n_kills} kills in {time.monotonic() - self.began:.0f} s", file=sys.stderr)
        self.assertGreater(self.n_kills, 150)

    def test_every_step_of_coming_back(self):
        """And while it takes up what an earlier one left, and the clients come back."""
        n = 0
        while True:
            n += 1
            manager = Manager(program=GPUIPCD_FAULT)
            story = Story(manager)
            story.actor = Actor(manager.socket, 2001)
            try:
                story.guest = Guest(manager.socket, 5)
                story.guest.allocate(name="a", mode="0666")
                lost = story.guest.allocate(name="b")
                story.actor.client()
                story.actor_token = story.actor.call("GetStatus")["resume_token"]
                story.actor_leases.append(story.actor.call("Open", {"name": "a"})["lease"])
                manager.end(signal.SIGKILL)
                manager.environment["GPUIPC_FAULT_KILL"] = str(n)
                manager.start(wait=False)
                undertaker = Undertaker(manager)
                story.guest.forget(lost["lease"])
                done = True
                try:
                    story.come_back()
                    story.allocate(name="c")
                except GONE:
                    done = False
                except AssertionError:
                    if manager.status_word() is None:
                        raise
                    done = False
                undertaker.end()
                self.conclude(manager, story, done)
            except BaseException as error:
                log = manager.log()[-2000:]
                manager.kill()
                story.actor.kill()
                raise AssertionError(f"step {n}:\n{log}") from error
            if done:
                break
        print(f"{self.n_kills} kills in {time.monotonic() - self.began:.0f} s", file=sys.stderr)
        self.assertGreater(self.n_kills, 20)


if __name__ == "__main__":
    unittest.main()
