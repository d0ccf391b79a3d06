# SPDX-License-Identifier: Apache-2.0
"""What the tests of restarts have in common: a manager, guests, and books that must be empty at the end."""

import resource
import unittest

from actors import Actor
from daemon import open_fds, wait_for
from guest import Guest
from manager import Manager
from rawclient import ReplyError


class RestartTest(unittest.TestCase):
    """Each case starts the manager it needs; afterwards nothing is left in daemon, store and this process. What is started is ended by a
    cleanup where tearDown() does not come to it."""

    def setUp(self):
        self.fds_before = open_fds()
        self.manager, self.guests, self.actors = None, [], []
        # An aborted daemon leaves no core behind.
        core = resource.getrlimit(resource.RLIMIT_CORE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, core)
        resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))

    def tearDown(self):
        for actor in self.actors:
            actor.kill()
        result = self._outcome.result
        if not self.manager or any(test is self for test, _ in result.failures + result.errors):
            return
        for guest in self.guests:
            guest.leave()
        self.assert_empty()
        self.manager.stop()
        after = open_fds()
        self.assertEqual(len(self.fds_before), len(after), f"descriptors before {self.fds_before}, after {after}")

    def start(self, *options, **others):
        self.manager = Manager(*options, **others)
        self.addCleanup(self.manager.kill)
        return self.manager

    def guest(self, seed=1, admin=False):
        self.guests.append(Guest(self.manager.admin_socket if admin else self.manager.socket, seed))
        self.addCleanup(self.guests[-1].close)
        return self.guests[-1]

    def actor(self, uid=None, **options):
        self.actors.append(Actor(self.manager.socket, uid, **options))
        self.addCleanup(self.actors[-1].kill)
        self.actors[-1].client()
        return self.actors[-1]

    def refused(self, error, call, *args, **kwargs):
        with self.assertRaises(ReplyError) as caught:
            call(*args, **kwargs)
        self.assertEqual(caught.exception.name.rpartition(".")[2], error, caught.exception)
        return caught.exception.parameters

    def listed(self):
        with self.manager.client(admin=True) as client:
            leases = [lease for page in client.call_more("List") for lease in page["leases"]]
            buffers = [buffer for page in client.call_more("ListBuffers") for buffer in page["buffers"]]
        return leases, buffers

    def states(self):
        return sorted((lease["id"], lease["state"]) for lease in self.listed()[0])

    def brokered(self):
        return sum(device["brokered_bytes"] for device in self.manager.status()["devices"])

    def assert_books(self):
        """Bytes told equal the bytes of the list; the store holds a descriptor for each buffer and each process, and the state."""
        after = self.listed()
        while True:  # what is on its way out may leave between one look and the next
            (leases, buffers), brokered, after = after, self.brokered(), self.listed()
            if (leases, buffers) == after:
                break
        self.assertEqual(brokered, sum(buffer["allocated"] for buffer in buffers))
        processes = {lease["pid"] for lease in leases}
        held = sum(buffer["state"] != "draining" for buffer in buffers)
        wait_for(lambda: len(self.manager.store.names()) == 1 + held + len(processes),
                 f"1 + {held} + {len(processes)} descriptors; there are {self.manager.store.names()}")

    def drop(self):
        """What this process left draining cannot end before it does."""
        self.manager.kill()
        self.manager = None

    def assert_empty(self):
        wait_for(lambda: self.manager.status()["leases"] == self.manager.status()["buffers"] == self.brokered() == 0,
                 f"an empty ledger; {[len(part) for part in self.listed()]}")
        wait_for(lambda: len(self.manager.store.names()) == 1, f"the state alone; {self.manager.store.names()}")
        self.assertEqual(self.manager.store.dropped, 0)
