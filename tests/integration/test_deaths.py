# SPDX-License-Identifier: Apache-2.0
"""Deaths of those who hold: at every moment of a call, while waiting, while holding, in every shape a process and its
connection can come apart. Afterwards the books and the daemon's descriptors are what they were before. deadline: 240 s"""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from books import PAGE, BooksTest, FaultTest  # noqa: E402
from daemon import GPUIPCD_FAULT, wait_for  # noqa: E402
from rawclient import ReplyError  # noqa: E402

BEATS = ("begin", "begun", "work", "worked", "finish", "finished", "replied")
LEDGER_BEATS = ("begin", "begun", "finish", "finished", "replied")
ALLOCATE = tuple(f"Allocate.{beat}" for beat in BEATS)
OPEN = tuple(f"Open.{beat}" for beat in BEATS)
OPEN_AGAIN = tuple(f"Open.{beat}" for beat in LEDGER_BEATS)


class OlderKernel:
    """Without pidfds from the socket, as before Linux 6.5 and 6.16: processes are found by their numbers."""

    environment = {"GPUIPC_FAULT_ABSENT": "SO_PEERPIDFD,SO_PASSPIDFD"}
    program = GPUIPCD_FAULT


def kinds(events):
    return [kind for kind, _, _ in events]


class BeatTest(FaultTest):
    """The holder dies while its call stands at a point; everything before and after it is run through."""

    points = ALLOCATE + OPEN
    life = ["created", "opened", "released", "freed"]

    def bystander_with_buffer(self):
        """A client that stays, and a buffer of its own that everyone may open."""
        client = self.bystander()
        client.send_call("Allocate", {"size": 3 * PAGE, "name": "stays", "mode": "0666"})
        self.fault.pass_all(*ALLOCATE)
        return client, client.result()["buffer"]["id"]

    def run_to(self, points, point):
        self.fault.pass_all(*points[: points.index(point)])
        self.fault.expect(point)

    def die_at(self, holder, points, point, noticed):
        """Kills the holder at the point. `noticed`: the point is on the pool, and the loop learns of the death first."""
        self.run_to(points, point)
        holder.kill()
        if noticed:
            wait_for(lambda: self.daemon.status()["sessions"] == 2, "the bystander and whoever asks")
        self.fault.go()
        self.fault.open()

    def allocate(self, point, events, noticed=False):
        bystander, kept = self.bystander_with_buffer()
        holder = self.holder()
        holder.send_call("Allocate", {"size": 5 * PAGE, "name": "goes"})
        self.die_at(holder, ALLOCATE, point, noticed)
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=3 * PAGE)
        self.check_events(kept, events)
        self.check_survivor(bystander)

    def open(self, points, point, events, noticed=False):
        bystander, kept = self.bystander_with_buffer()
        if points is OPEN_AGAIN:
            bystander.send_call("Open", {"buffer": kept, "access": "ro"})
            self.fault.pass_all(*OPEN)
            bystander.call("Release", {"lease": bystander.result()["lease"]})
        holder = self.holder()
        holder.send_call("Open", {"buffer": kept, "access": "ro"})
        self.die_at(holder, points, point, noticed)
        # The read-only descriptor, once made, is the buffer's and stays with it.
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=3 * PAGE, fds=2 + 2)
        self.check_events(kept, events)
        self.check_survivor(bystander)

    def check_events(self, kept, expected):
        """`expected` for the buffer that goes, or the stranger's lease; None: either all of it or nothing."""
        events = [event for event in self.take_events() if event[:2] != ("created", kept)][1:]
        if events[:2] and events[0][1] == kept and len(events) == 4:
            events = events[2:]  # the bystander's own first read-only lease
        self.assertIn(kinds(events), ([], expected or self.whole) if expected is None else (expected,))
        leases = {lease for _, _, lease in events if lease}
        self.assertLessEqual(len(leases), 1, events)

    def check_survivor(self, bystander):
        """Who stayed can still do everything, under the very name that was in use."""
        reply = bystander.call("Allocate", {"size": PAGE, "name": "goes"})
        bystander.call("Release", {"lease": reply["lease"]})
        self.wait_books(leases=1, buffers=1, sessions=1, brokered=3 * PAGE,
                        fds=len([fd for fd in self.daemon_fds() if "memfd" in fd]) + 2)


if __name__ == "__main__":
    unittest.main()
