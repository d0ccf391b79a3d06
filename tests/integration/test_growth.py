# SPDX-License-Identifier: Apache-2.0
"""A thousand times the same life and death: the daemon is as it was, in descriptors, memory and books. Runs on any
memory. deadline: 180 s"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from books import PAGE, BooksTest, memory_kb  # noqa: E402

WINDOWS, CYCLES, WARM_UP = 4, 250, 200
GROWTH_KB = 16  # in a window; 66 bytes lost in each cycle are as much


class GrowthTest(BooksTest):
    # A ring that fills while it warms up.
    daemon_args = ("--events-max", "128")

    def cycle(self, producer, consumer):
        made = producer.call("Allocate", {"size": 2 * PAGE, "name": "round", "label": "again and again", "meta": {"shape": [2, 3]}})
        buffer = {"buffer": made["buffer"]["id"]}
        lease = consumer.call("Open", {**buffer, "access": backend.READ})["lease"]
        victim = producer.fork()
        try:
            victim.connect()
            victim.call("Open", buffer)
        finally:
            victim.end()
        consumer.call("Release", {"lease": lease})
        producer.call("Release", {"lease": made["lease"]})
        for holder in (producer, consumer):
            holder.drop_fds()

    def figures(self):
        held = {"leases": 1, "buffers": 1, "brokered": PAGE} if backend.CLASSIC else {}
        self.wait_books(sessions=2, **held)
        return self.fds_now(), memory_kb(self.daemon.pid)

    def test_a_thousand_cycles(self):
        producer, consumer = self.holder(), self.holder()
        if backend.CLASSIC:
            consumer.call("Allocate", {"size": 1})  # so that the daemon's context is not made anew each time
        for _ in range(WARM_UP):
            self.cycle(producer, consumer)
        figures = [self.figures()]
        for _ in range(WINDOWS):
            for _ in range(CYCLES):
                self.cycle(producer, consumer)
            figures.append(self.figures())
        fds, resident = zip(*figures)
        grown = [after - before for before, after in zip(resident, resident[1:])]
        print(f"descriptors {fds[0]} and {fds[-1]}, resident {resident[0]} KiB and each {CYCLES} cycles {grown} more", flush=True)
        self.assertEqual(fds[0], fds[-1])
        # An allocator may grow in one window or another; what is lost in each cycle shows in all of them. What a sanitizer keeps to itself
        # is not the daemon's; it looks for what was lost when the daemon ends.
        if not os.environ.get("GPUIPC_SANITIZER"):
            self.assertLess(min(grown), GROWTH_KB, grown)


if __name__ == "__main__":
    unittest.main()
