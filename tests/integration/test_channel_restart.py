# SPDX-License-Identifier: Apache-2.0
"""Channels and restarts of the daemon: all three pieces come back, numbers go on, deaths in between are told, and a channel of which
something is lost ends as a whole. Runs on memory that has descriptors. deadline: 120 s"""

import contextlib
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import SLOWER  # noqa: E402
from daemon import open_fds, wait_for  # noqa: E402
from ending import Held  # noqa: E402
from holder import Zygote  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402
from ringpage import ALIVE, CONSUMER, DEAD, ENDING, LEFT, REAPED, RING_VERSION, RingPage  # noqa: E402

NEW = {"slots": 4, "slot_bytes": 1000, "role": "producer", "name": "c", "mode": "0666"}
PIECES = 2 if backend.HOST else 3


def file_of(fd):
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class Session:
    """One that comes back, and the part it takes in a channel."""

    def __init__(self, path):
        self.path, self.client = path, RawClient(path)
        self.token = self.client.call("GetStatus").get("resume_token")
        self.page = self.lease = None

    def take(self, reply):
        fds, self.client.fds = self.client.fds, []
        self.files = [file_of(fds[reply[which]["fd"]]) for which in ("data", "fences", "control") if which in reply]
        control = fds[reply["control"]["fd"]]
        self.page = RingPage(os.dup(control))
        for fd in fds:
            os.close(fd)
        self.lease, self.channel, self.number = reply["lease"], reply["channel"], reply["number"]
        self.page.join(self.number)
        return reply

    def create(self, **more):
        return self.take(self.client.call("ChannelCreate", {**NEW, **more}))

    def attach(self, role="consumer"):
        return self.take(self.client.call("ChannelAttach", {"name": "c", "role": role}))

    def resume(self):
        """Whether its lease is active again."""
        self.client.close()
        self.client = RawClient(self.path)
        reply = self.client.call("Resume", {"token": self.token, "leases": [self.lease]})
        self.token = reply["resume_token"]
        return [lease["id"] for lease in reply["leases"]] == [self.lease]

    def close(self):
        with contextlib.suppress(ReplyError, OSError):
            if self.lease:
                self.client.call("Release", {"lease": self.lease})
        self.client.close()
        if self.page:
            self.page.close()


class ChannelRestart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.zygote = Zygote()
        cls.addClassCleanup(cls.zygote.close)

    def setUp(self):
        self.fds_before = open_fds()
        self.things = []
        self.manager = Manager(memory="host" if backend.HOST else "auto")
        self.addCleanup(self.manager.kill)

    def tearDown(self):
        for thing in reversed(self.things):
            thing.end() if hasattr(thing, "end") else thing.close()
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            return
        wait_for(lambda: (self.books(), self.manager.store.names()[1:]) == ((0, 0, 0, 0), []),
                 f"nothing left; now {self.books()}, {self.manager.store.names()}")
        self.manager.stop()
        self.assertEqual(len(open_fds()), len(self.fds_before))

    def books(self):
        status = self.manager.status()
        return (status["buffers"], status["leases"], sum(device["brokered_bytes"] for device in status["devices"]),
                sum(device["draining_bytes"] for device in status["devices"]))

    def session(self):
        self.things.append(Session(self.manager.socket))
        return self.things[-1]

    def holder(self):
        self.things.append(self.zygote.holder(self.manager.socket))
        return self.things[-1]

    def listed(self):
        with self.manager.client(admin=True) as admin:
            return admin.call("ListBuffers")["buffers"]

    def participants(self, session):
        found = session.client.call("ChannelParticipants", {"channel": session.channel["id"]})["participants"]
        session.client.drop_fds()
        return {each["number"]: (each["generation"], each["state"]) for each in found}

    def names(self, n):
        """The store holds so many descriptors beside the state."""
        wait_for(lambda: len(self.manager.store.names()) == 1 + n, f"1 + {n} descriptors; {self.manager.store.names()}")

    def pair(self):
        """A session that has made a channel, and a process that has joined it as member 1."""
        first, holder = self.session(), self.holder()
        first.create()
        holder.call("ChannelAttach", {"name": "c", "role": "consumer"})
        first.page.join(1)
        return first, holder

    def test_all_of_it_comes_back(self):
        first, second = self.session(), self.session()
        first.create(meta_bytes=64)
        second.attach()
        self.names(PIECES + 1)
        before, books = self.listed(), self.books()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            self.manager.restart(number)
            self.assertEqual([first.page.member(each)[2] for each in (0, 1, 2)], [ALIVE, ALIVE, 0])
            self.assertFalse(first.page.closed())
            self.assertEqual((self.listed(), self.books()), (before, books))
            self.assertTrue(first.resume() and second.resume())
            self.assertEqual(self.participants(first), {0: (1, "attached"), 1: (1, "attached")})
            self.names(PIECES + 1)
        third = self.session()
        reply = third.attach("producer")
        self.assertEqual((reply["number"], third.files), (2, first.files))
        self.assertEqual(first.page.member(2)[2], ALIVE)
        self.assertEqual([each["number"] for each in reply["participants"]], [0, 1])

    def test_deaths_in_between(self):
        first = self.session()
        first.create()
        holders = [self.holder() for _ in range(3)]
        for holder in holders:
            first.page.join(holder.call("ChannelAttach", {"name": "c", "role": "consumer"})["number"])
        before = first.page.changes()
        self.manager.end()
        holders[0].kill()
        self.manager.start()
        self.assertEqual([first.page.life(number) for number in (1, 2, 3)], [DEAD, ALIVE, ALIVE])
        self.assertNotEqual(first.page.changes(), before)
        holders[1].kill()
        wait_for(lambda: first.page.life(2) == DEAD, "the mark")
        self.assertTrue(first.resume())
        self.assertEqual(self.participants(first), {0: (1, "attached"), 3: (1, "attached")})
        holders[2].kill()
        wait_for(lambda: first.page.life(3) == DEAD, "the mark")

    def test_left_before(self):
        """Whose session was over and whose process lives is still watched by the next daemon."""
        first, holder = self.pair()
        holder.hang_up()
        there = {0: (1, "attached"), 1: (1, "left")}
        wait_for(lambda: self.participants(first) == there, "the news")  # told after the state has it, unlike the mark
        self.assertEqual(first.page.life(1), LEFT)
        self.manager.restart()
        self.assertTrue(first.resume())
        self.assertEqual(self.participants(first), there)
        holder.kill()
        wait_for(lambda: first.page.life(1) == DEAD, "the mark")

    def test_ending(self):
        """Who was seen to be ending still is for the next daemon, which sees its end."""
        first, holder = self.pair()
        holder.begin_thread()
        self.things.append(Held(holder.pid))
        self.things[-1].kill()
        there = {0: (1, "attached"), 1: (1, "left")}
        wait_for(lambda: self.participants(first) == there, "the news")
        for number in (signal.SIGKILL, signal.SIGTERM):
            self.assertEqual(first.page.member(1), (1, CONSUMER, ENDING))
            self.manager.restart(number)
            self.assertTrue(first.resume())
            self.assertEqual(self.participants(first), there)
        for number in range(2, 64):
            self.assertEqual(first.client.call("ChannelAttach", {"name": "c", "role": "consumer"})["number"], number)
            first.client.drop_fds()
        with self.assertRaises(ReplyError):
            first.client.call("ChannelAttach", {"name": "c", "role": "consumer"})
        self.assertEqual(first.page.member(1), (1, CONSUMER, ENDING))
        self.things[-1].let_go()
        wait_for(lambda: first.page.life(1) == DEAD, "the mark")
        first.page.reap(1)
        reply = first.client.call("ChannelAttach", {"name": "c", "role": "consumer"})
        first.client.drop_fds()
        self.assertEqual((reply["number"], reply["generation"]), (1, 2))
        for lease in first.client.call("List")["leases"]:
            if lease["id"] != first.lease:
                first.client.call("Release", {"lease": lease["id"]})

    def test_numbers_go_on(self):
        """Numbers that were given before are given again only when they were given back, and with the generation that follows."""
        first = self.session()
        first.create()
        for generation in (1, 2, 3):
            part = self.session()
            part.attach()
            self.assertEqual(first.page.member(1), (generation, CONSUMER, ALIVE) if generation == 1 else first.page.member(1))
            first.page.leave(part.number)
            part.close()
            self.things.remove(part)
        holder = self.holder()
        dead = holder.call("ChannelAttach", {"name": "c", "role": "consumer"})["number"]
        first.page.join(dead)
        holder.kill()
        wait_for(lambda: first.page.life(dead) == DEAD, "the mark")
        words = [first.page.member(number) for number in range(64)]
        self.manager.restart()
        self.assertEqual([first.page.member(number) for number in range(64)], words)
        self.assertTrue(first.resume())
        given = {}
        client = first.client
        for _ in range(62):
            reply = client.call("ChannelAttach", {"name": "c", "role": "consumer"})
            client.drop_fds()
            given[reply["number"]] = reply["generation"]
        self.assertNotIn(dead, given)
        self.assertEqual({number: words[number][0] + 1 for number in given}, given)
        with self.assertRaises(ReplyError):
            client.call("ChannelAttach", {"name": "c", "role": "consumer"})
        first.page.reap(dead)
        reply = client.call("ChannelAttach", {"name": "c", "role": "consumer"})
        client.drop_fds()
        self.assertEqual((reply["number"], reply["generation"]), (dead, words[dead][0] + 1))
        for lease in client.call("List")["leases"]:
            if lease["id"] != first.lease:
                client.call("Release", {"lease": lease["id"]})

    def test_number_of_a_lease_that_drains(self):
        """Who gave its number back, and whose process lives, keeps nothing of it: not over a restart, and not when it ends."""
        first, second, holder = self.session(), self.session(), self.holder()
        first.create()
        holder.call("ChannelAttach", {"name": "c", "role": "consumer"})
        first.page.join(1)
        holder.hang_up()
        wait_for(lambda: first.page.life(1) == LEFT, "the mark")
        first.page.leave(1)
        for _ in range(62):
            first.client.call("ChannelAttach", {"name": "c", "role": "consumer"})
            first.client.drop_fds()
        self.assertEqual(second.attach()["number"], 1)
        for _ in range(2):
            self.assertEqual(first.page.member(1), (2, CONSUMER, ALIVE))
            self.manager.restart()
            self.assertTrue(first.resume())
            self.assertTrue(second.resume())
        draining = self.manager.status()["leases"]
        holder.kill()
        wait_for(lambda: self.manager.status()["leases"] == draining - 1, "the end of its lease")
        self.assertEqual(first.page.member(1), (2, CONSUMER, ALIVE))

    def test_not_resumed(self):
        """Who does not come back has left; its process lives."""
        self.manager.arguments += [f"--resume-sec={2 * SLOWER}s"]
        self.manager.restart()
        first, second = self.session(), self.session()
        first.create()
        second.attach()
        self.manager.restart()
        self.assertTrue(first.resume())
        wait_for(lambda: first.page.life(1) == LEFT, "the mark")
        self.assertEqual(self.participants(first), {0: (1, "attached"), 1: (1, "left")})
        holder_files = first.files
        self.assertEqual(len(holder_files), PIECES)
        self.drop_process(first, second)

    def drop_process(self, *sessions):
        """What this process left draining cannot end before it does."""
        for session in sessions:
            session.client.close()
            session.page.close()
            self.things.remove(session)
        self.manager.kill()
        self.manager = Manager(memory="host")

    def test_kept(self):
        holder = self.holder()
        holder.call("ChannelCreate", {**NEW, "keep_ms": 3600000})
        holder.kill()
        wait_for(lambda: [each["state"] for each in self.listed()] == ["kept"], "the keep")
        self.manager.restart()
        self.assertEqual([each["state"] for each in self.listed()], ["kept"])
        part = self.session()
        self.assertEqual(part.attach()["number"], 1)
        self.assertEqual(part.page.life(0), REAPED)  # it never came
        part.client.call("Free", {"name": "c"})

    def lose(self, which):
        """One of a channel's descriptors does not come back, by its place among those that were stored."""
        first = self.session()
        first.create()
        self.names(PIECES + 1)
        self.manager.end()
        place = sorted(index for index, (name, fd) in enumerate(self.manager.store.held) if index > 0 and
                       "pidfd" not in os.readlink(f"/proc/self/fd/{fd}"))[which]
        os.close(self.manager.store.held.pop(place)[1])
        self.manager.start()
        self.manager.wait_log("did not come back from the store")
        self.assertEqual([(each["state"], each.get("name")) for each in self.listed()], [("draining", None)])
        with self.assertRaises(ReplyError):
            self.session().attach()
        self.names(1)
        self.drop_process(first)

    def test_lost_piece_first(self):
        self.lose(0)

    @unittest.skipIf(backend.HOST, "of a GPU alone")
    def test_lost_fences(self):
        self.lose(1)

    def test_lost_piece_last(self):
        self.lose(-1)

    def test_page_of_another_version(self):
        """What an older daemon made is left to those who have it, who are told nothing: its words mean something else."""
        first, holder = self.pair()
        self.names(PIECES + 2)
        self.manager.end()
        first.page.set_version(RING_VERSION - 1)
        page = first.page.map[:]
        self.manager.start()
        self.manager.wait_log("is of another version")
        self.assertEqual([(each["state"], each.get("name")) for each in self.listed()], [("draining", None)])
        with self.assertRaises(ReplyError):
            self.session().attach()
        holder.kill()
        wait_for(lambda: self.manager.status()["leases"] == 1, "the end of its lease")
        self.names(1)
        self.assertEqual(first.page.map[:], page)
        self.drop_process(first)

    def test_store_is_full(self):
        """All of a channel finds room, or it is refused."""
        self.manager.arguments += ["--store-max=16"]
        self.manager.restart()
        session = self.session()
        session.create()
        n, leases = 1, []
        while 2 + (n + 1) * PIECES <= 16:
            leases.append(session.client.call("ChannelCreate", {**NEW, "name": f"c{n}"})["lease"])
            n += 1
        with self.assertRaises(ReplyError) as caught:
            session.client.call("ChannelCreate", {**NEW, "name": "more"})
        self.assertEqual(caught.exception.parameters, {"scope": "stored_descriptors", "limit": 16, "used": 2 + n * PIECES, "asked": PIECES})
        self.names(1 + n * PIECES)
        for lease in leases:
            session.client.call("Release", {"lease": lease})
        session.client.drop_fds()
        self.names(1 + PIECES)


if __name__ == "__main__":
    unittest.main()
