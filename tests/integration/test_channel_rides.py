# SPDX-License-Identifier: Apache-2.0
"""Channels of the library over restarts of a real daemon: items flow all the while, none is lost and none comes twice, members stay
members, deaths in between are seen and their numbers given again, and who comes later is let in. Runs on memory that has descriptors.
deadline: 180 s"""

import os
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from channel_member import NAME, SLOTS, Member  # noqa: E402
from daemon import open_fds, wait_for  # noqa: E402
from library import SANITIZED  # noqa: E402
from manager import Manager  # noqa: E402

ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)

# Who dies leaves one item begun. On a GPU those before it are broken too, as far as its stream had not come to them; all are in the ring.
BROKEN_MAX = 1 if backend.HOST else SLOTS


@unittest.skipIf(SANITIZED, "a sanitized library is not for a plain interpreter; tests/unit/test_client_restart.c is")
class ChannelRides(unittest.TestCase):
    def setUp(self):
        self.fds_before = open_fds()
        self.members = []
        self.manager = Manager(memory="host" if backend.HOST else "auto")
        self.addCleanup(self.manager.kill)

    def tearDown(self):
        for member in self.members:
            member.kill()
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            return
        wait_for(lambda: (self.manager.status()["leases"], self.manager.status()["buffers"], len(self.manager.store.names())) == (0, 0, 1),
                 f"nothing left; {self.manager.status()} {self.manager.store.names()}")
        self.manager.stop()
        self.assertEqual(len(open_fds()), len(self.fds_before))

    def member(self, role, create=False):
        self.members.append(Member(self.manager.socket, role, create))
        return self.members[-1]

    def stop(self, member):
        self.members.remove(member)
        return member.stop()

    def kill(self, member):
        self.members.remove(member)
        member.kill()

    def participants(self):
        """{number: (generation, state)}"""
        with self.manager.client(admin=True) as admin:
            channel = next(each["id"] for each in admin.call("ListBuffers")["buffers"] if each.get("name") == NAME)
            found = admin.call("ChannelParticipants", {"channel": channel})["participants"]
            admin.drop_fds()
        return {each["number"]: (each["generation"], each["state"]) for each in found}

    def flows_on(self, *consumers, n=100):
        """So many items more come to each of them."""
        for consumer in consumers:
            before = consumer.count()
            wait_for(lambda consumer=consumer, before=before: consumer.count() >= before + n, f"{n} items more")

    def told(self, *consumers):
        """How many items they were told of as broken, all in all."""
        return sum(consumer.ask("count")[1] for consumer in consumers)

    def settle(self, producer, consumer):
        """All that was made has come, once each: how many."""
        made, broken, _ = self.stop(producer)
        self.assertEqual(broken, 0)
        wait_for(lambda: consumer.count() >= made, f"{made} items")
        return made

    def test_flow(self):
        producer, consumer = self.member("producer", create=True), self.member("consumer")
        self.flows_on(consumer)
        before, randomly = self.participants(), random.Random(5)
        self.assertEqual(before, {0: (1, "attached"), 1: (1, "attached")})
        outages = 0
        for number in ENDS:
            time.sleep(randomly.random() * 0.05)  # any moment
            self.manager.end(number)
            flowed = consumer.count()
            self.flows_on(consumer)
            outages += consumer.count() - flowed
            self.manager.start()
            wait_for(lambda: self.participants() == before, f"the members of before; {self.participants()}")
            for member in (producer, consumer):
                member.ask("check")
        made = self.settle(producer, consumer)
        counts = self.stop(consumer)
        print(f"{len(ENDS)} restarts: {made} items, {outages} of them without a daemon", file=sys.stderr)
        self.assertEqual(counts, (made, 0, 0))

    def test_who_comes_later(self):
        """A member that was not there before the restart is let in, by the same memory; the old ones learn of it, and of its death."""
        producer, consumer = self.member("producer", create=True), self.member("consumer")
        self.flows_on(consumer)
        self.manager.restart()
        wait_for(lambda: set(self.participants().values()) == {(1, "attached")}, "both are back")
        second, other = self.member("producer"), self.member("consumer")
        self.assertEqual((second.number, other.number), (2, 3))
        self.flows_on(other, n=20)
        self.assertEqual(self.participants(), {number: (1, "attached") for number in range(4)})
        made = second.ask("hold")[0] + 1
        self.kill(second)
        wait_for(lambda: self.told(consumer, other) > 0, "one of them is told")
        # Two consumers take turns, so what one gets has gaps: what matters is that each item came to one of them.
        made += self.stop(producer)[0]
        wait_for(lambda: consumer.count() + other.count() + self.told(consumer, other) == made, f"all {made}")
        self.assertLessEqual(self.told(consumer, other), BROKEN_MAX)
        for member in (consumer, other):
            self.stop(member)

    def test_deaths_in_between(self):
        """While there is no daemon, one dies with an item begun and one with an item taken: survivors are told and go on; the next daemon
        finds them dead, and gives their numbers again."""
        producer, consumer = self.member("producer", create=True), self.member("consumer")
        doomed, taker = self.member("producer"), self.member("consumer")
        self.flows_on(taker, n=20)
        wait_for(lambda: all(each.knows(doomed, taker) for each in (producer, consumer)), "who was there before knows who came")
        self.manager.end()
        doomed.ask("hold")
        self.kill(doomed)
        self.flows_on(consumer, taker, n=20)
        self.assertIn(self.told(consumer, taker), range(1, BROKEN_MAX + 1), "one of them is told of the item that was begun")
        taker.ask("hold")
        self.kill(taker)
        self.flows_on(consumer)
        self.manager.start()
        wait_for(lambda: self.participants() == {0: (1, "attached"), 1: (1, "attached")}, f"the two; {self.participants()}")
        with self.manager.client() as crowd:
            for _ in range(60):  # numbers that nobody had yet come first
                crowd.call("ChannelAttach", {"name": NAME, "role": "consumer"})
                crowd.drop_fds()
            again = [self.member("producer"), self.member("consumer")]
            self.assertEqual({member.number for member in again}, {2, 3})
            self.flows_on(again[1], n=20)
            self.assertEqual({self.participants()[number] for number in (2, 3)}, {(2, "attached")})
            for member in (*again, producer, consumer):
                self.stop(member)
            for lease in crowd.call("List")["leases"]:
                crowd.call("Release", {"lease": lease["id"]})

    def test_closed_in_between(self):
        """A channel that its producer leaves while there is no daemon: leaving is told to the next one."""
        producer, consumer = self.member("producer", create=True), self.member("consumer")
        self.flows_on(consumer)
        self.manager.end()
        self.flows_on(consumer)
        producer.process.stdin.write("stop\n")
        self.manager.start()
        made = tuple(map(int, producer.line().split()))[0]
        self.members.remove(producer)
        self.assertEqual(producer.process.wait(30), 0)
        producer.close()
        wait_for(lambda: consumer.count() == made, "all came")
        wait_for(lambda: self.participants() == {1: (1, "attached")}, f"the consumer alone; {self.participants()}")
        self.assertEqual(self.stop(consumer), (made, 0, 0))


if __name__ == "__main__":
    unittest.main()
