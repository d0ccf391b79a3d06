# SPDX-License-Identifier: Apache-2.0
"""The state that an earlier daemon left: of another version, of another layout, damaged. deadline: 180 s"""

import os
import random
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import unittest  # noqa: E402

from daemon import GPUIPCD_FAULT, wait_for  # noqa: E402
from guest import Guest  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import ReplyError  # noqa: E402
from restarting import RestartTest  # noqa: E402
from statefile import KINDS, LIVE, StateFile  # noqa: E402

STATE_NAMES = ("0000", "0001")


def state_of(manager):
    """The state's descriptor in the store."""
    found = [fd for name, fd in manager.store.held if name in STATE_NAMES]
    assert len(found) == 1, manager.store.held
    return found[0]


class Held(RestartTest):
    """What cannot be read stays as it is."""

    def hold(self, change, why):
        self.start()
        guest = self.guest()
        guest.allocate(name="n")
        guest.allocate()
        self.manager.end()
        original = StateFile(state_of(self.manager))
        changed = StateFile(state_of(self.manager))
        change(changed)
        changed.write(state_of(self.manager))
        names = self.manager.store.names()
        self.manager.start()
        self.held(names, why)
        # Another restart changes nothing, and with the right daemon all is there again.
        self.manager.restart(signal.SIGTERM)
        self.held(names, why)
        self.manager.end()
        self.assertEqual(StateFile(state_of(self.manager)).data, changed.data)
        original.write(state_of(self.manager))
        self.manager.start()
        guest.resume()
        self.assertEqual(len(guest.leases), 2)
        guest.check()

    def held(self, names, why):
        self.manager.wait_log(why)
        told = self.manager.store.wait_told("STATUS")
        self.assertIn("holds what an earlier gpuipcd left and cannot read it", told["STATUS"])
        with self.manager.client() as client, self.manager.client(admin=True) as admin:
            status = client.call("GetStatus")
            self.assertIn("restart-state-held", status["features"])
            self.assertNotIn("restart-keeps-buffers", status["features"])
            self.assertNotIn("resume_token", status)
            self.assertIn("io.gpuipc.Broker", client.call("org.varlink.service.GetInfo")["interfaces"])
            for asker in (client, admin):
                for method, parameters in (("Allocate", {"size": 1}), ("Open", {"name": "n"}), ("List", {}), ("ListBuffers", {}),
                                           ("Release", {"lease": "l1"}), ("Resume", {"token": "0" * 32, "leases": []})):
                    with self.assertRaises(ReplyError) as caught:
                        asker.call(method, parameters)
                    self.assertEqual(caught.exception.name, "io.gpuipc.Broker.TooManyRequests")
                    self.assertIn("cannot be read", caught.exception.parameters["reason"])
        self.assertEqual(self.manager.store.names(), names)

    def test_of_a_newer_version(self):
        def newer(state):
            state.version = 99
            state.put_header()
        self.hold(newer, "a newer gpuipcd wrote it")

    def test_with_a_damaged_header(self):
        def damage(state):
            state.data[20] ^= 4
        self.hold(damage, "its header is damaged")

    def test_of_something_else(self):
        def other(state):
            state.data[:8] = b"whatever"
        self.hold(other, "it does not begin as a state of gpuipcd does")


class Older(RestartTest):
    def test_with_shorter_records(self):
        """Rewritten for this daemon, under the state's other name; and the other way round the next time."""
        self.start()
        guest = self.guest()
        granted = guest.allocate(name="n", meta={"a": [1, 2]}, label="text", keep_ms=100000)
        guest.allocate()
        guest.call("Seal", {"buffer": granted["buffer"]["id"]})
        for name in ("0001", "0000"):
            before = self.listed()
            self.manager.end()
            state = StateFile(state_of(self.manager))
            state.shorten({"buffer": 72, "lease": 16, "process": 16})
            state.write(state_of(self.manager))
            self.manager.start()
            self.manager.wait_log("was rewritten for this one")
            after = self.listed()
            self.assertEqual(after[1], before[1])
            self.assertEqual([{**lease, "state": "detached", "since_usec": 0} for lease in before[0]], after[0])
            wait_for(lambda: [name for name in self.manager.store.names() if name in STATE_NAMES] == [name], "one state")
            guest.resume()
            guest.check()
            self.assert_books()
        self.manager.restart()
        guest.resume()
        guest.check()
        guest.call("Free", {"name": "n"})

    def test_two_states(self):
        """A change of layout was cut short: the newer one counts, the other goes."""
        self.start()
        guest = self.guest()
        guest.allocate()
        self.manager.end()
        state = StateFile(state_of(self.manager))
        self.assertEqual(state.generation, 1)
        copy = os.memfd_create("older")
        os.pwrite(copy, bytes(len(state.data)), 0)
        for kind, at in list(state.records()):
            state.data[at:at + 4] = bytes(4)
            self.assertLess(kind, len(KINDS))
        state.data[56:64] = bytes(8)  # generation 0, without a record
        state.put_header()
        state.write(copy)
        self.manager.store.held.append(("0001", copy))
        self.manager.start()
        wait_for(lambda: [name for name in self.manager.store.names() if name in STATE_NAMES] == ["0000"], "one state")
        guest.resume()
        guest.check()


class Damaged(unittest.TestCase):
    """Whatever bits are flipped, the daemon starts and its books are right; the fault build looks at them itself."""

    def flip(self, seed, n_flips):
        dice = random.Random(seed)
        manager = Manager("--resume-sec=1h", program=GPUIPCD_FAULT)
        try:
            with Guest(manager.socket, seed) as guest:
                for i in range(4):
                    guest.allocate(name=f"n{i}", keep_ms=1000000 * i, meta={"i": i})
                guest.open(name="n1")
                guest.call("Free", {"name": "n2"})
                manager.end()
                state = StateFile(state_of(manager))
                ranges = list(state.used())
                for _ in range(n_flips):
                    start, length = dice.choice(ranges)
                    bit = dice.randrange(length * 8)
                    state.data[start + bit // 8] ^= 1 << bit % 8
                state.write(state_of(manager))
                manager.start()
                status = manager.status()
                outcome = "held" if "restart-state-held" in status["features"] else \
                    "damaged" if "is damaged" in manager.log() else "whole"
                if outcome != "held":
                    with manager.client() as client:
                        wait_for(lambda: sum(buffer["allocated"] for buffer in client.call("ListBuffers")["buffers"]) ==
                                 client.call("GetStatus")["devices"][0]["brokered_bytes"], "books that agree")
                        buffers = client.call("ListBuffers")["buffers"]
                        granted = client.call("Allocate", {"size": 100})
                        self.assertNotIn(granted["buffer"]["id"], {buffer["id"] for buffer in buffers})
                        client.call("Release", {"lease": granted["lease"]})
                manager.restart()
                manager.status()
        except BaseException as error:
            log = manager.log()[-2000:]
            raise AssertionError(f"seed {seed}, {n_flips} bits:\n{log}") from error
        finally:
            manager.kill()
        return outcome

    def test_bits(self):
        outcomes = {}
        for seed in range(80):
            outcome = self.flip(seed, 1 if seed < 50 else seed)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        print(outcomes, file=sys.stderr)
        self.assertTrue(outcomes.get("damaged"), outcomes)

    def test_each_word(self):
        """A record's word that says nothing known: the record goes, the others stay."""
        for kind, name in enumerate(KINDS):
            with self.subTest(name):
                manager = Manager(program=GPUIPCD_FAULT)
                try:
                    with Guest(manager.socket) as guest:
                        guest.allocate()
                        manager.end()
                        state = StateFile(state_of(manager))
                        at = next(at for found, at in state.records() if found == kind)
                        self.assertEqual(int.from_bytes(state.data[at:at + 4], "little"), LIVE)
                        state.data[at] ^= 1
                        state.write(state_of(manager))
                        manager.start()
                        manager.wait_log("is damaged")
                        manager.status()
                finally:
                    manager.kill()


if __name__ == "__main__":
    unittest.main()
