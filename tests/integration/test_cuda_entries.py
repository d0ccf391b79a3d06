# SPDX-License-Identifier: Apache-2.0
"""Every function of the driver's that the daemon calls, found out by watching it: each fails, and each does not return, and afterwards
the books, the descriptors and the GPU's memory are what they were; other devices never notice. On the fakes. deadline: 300 s"""

import contextlib
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER, Timing  # noqa: E402
from daemon import Daemon, open_fds, wait_for  # noqa: E402
from rawclient import WAIT_S, ReplyError  # noqa: E402
from test_cuda_faults import GPUS, SCRUBBED, TWO, UNSCRUBBED, Machine, assert_as_usual, with_fakes  # noqa: E402

PROBE_S = 30  # what the daemon gives a driver at its start
KINDS = ("cuda-fd", "cuda-ipc")
UNKNOWN, NVML_UNKNOWN = 999, 999


def live(client, device, handle="auto"):
    """One buffer's life; what the daemon refuses is its answer."""
    with contextlib.suppress(ReplyError):
        lease = client.call("Allocate", {"size": 1, "device": device, "handle": handle})["lease"]
        client.drop_fds()
        client.call("Release", {"lease": lease})


def live_well(client, device, handle="auto"):
    lease = client.call("Allocate", {"size": 1, "device": device, "handle": handle})["lease"]
    client.drop_fds()
    client.call("Release", {"lease": lease})


class Calls:
    """What the daemon and its helper call, in the order of the log."""

    def __init__(self, machine):
        self.path = f"{machine.path}.state/calls"

    def lines(self):
        try:
            with open(self.path, encoding="ascii") as file:
                return [line.split() for line in file if line.split()[1:2] == ["gpuipcd"]]
        except FileNotFoundError:
            return []

    def entries(self, since=0):
        return list(dict.fromkeys(line[2] for line in self.lines()[since:]))

    def met(self, entry, since):
        """Whether the fault came to pass."""
        return any(line[2] == entry and line[4] in ("waits", str(UNKNOWN)) for line in self.lines()[since:])


@with_fakes
class EntriesTest(unittest.TestCase):
    params = SCRUBBED
    args = ("--drain-sec", "1s")

    def start(self, script=TWO, wait=True):
        """A machine and its daemon, both ended with the case."""
        machine = Machine(script, self.params)
        self.addCleanup(machine.end)
        daemon = Daemon(*self.args, environment=machine.environment, memory="auto", wait=wait)
        return machine, daemon, Calls(machine)

    def watch(self):
        """The entry points called at the start, and those called for a buffer of each kind."""
        _, daemon, calls = self.start()
        at_start = calls.entries()
        at_work = {}
        with daemon.client() as client:
            for handle in KINDS:
                n = len(calls.lines())
                live_well(client, GPUS[0], handle)
                wait_for(lambda: daemon.status()["buffers"] == 0, "no buffer")
                at_work[handle] = calls.entries(n)
        daemon.stop()
        self.assertGreater(len(at_start), 8)
        self.assertGreater(len(at_work["cuda-fd"]), 2)
        self.assertGreater(len(at_work["cuda-ipc"]), 6)
        return at_start, at_work

    def device(self, daemon, uuid):
        return next(device for device in daemon.status()["devices"] if device["uuid"] == uuid)

    def settle(self, machine, daemon, free):
        """As if nothing had been."""
        machine.script(TWO)
        for uuid in GPUS:
            wait_for(lambda u=uuid: not self.device(daemon, u)["degraded"], f"{uuid} well again")
        daemon.wait_idle()
        with daemon.client() as client:
            for handle in KINDS:
                live_well(client, GPUS[0], handle)
        daemon.wait_idle()
        wait_for(lambda: self.device(daemon, GPUS[0])["free_bytes"] == free,
                 f"all {free} bytes back: {self.device(daemon, GPUS[0])}")


class FailTest(EntriesTest):
    def fail(self, machine, daemon, calls, handle, entry):
        """With the fault in the first GPU's way; entry points that concern no GPU fail for all of them."""
        others = [GPUS[1], "host"]
        for where in ("device=0 ", ""):
            n = len(calls.lines())
            machine.script(f"{TWO}on {entry} exe=gpuipcd {where}fail={UNKNOWN}\n")
            with daemon.client() as client, daemon.client() as other:
                live(client, GPUS[0], handle)
                for device in others if where else ["host"]:
                    live_well(other, device)
                self.assertEqual(len(daemon.status()["devices"]), 3)
            if calls.met(entry, n):
                return

    def fail_each(self):
        _, at_work = self.watch()
        machine, daemon, calls = self.start()
        free = self.device(daemon, GPUS[0])["free_bytes"]
        self.settle(machine, daemon, free)
        for handle, entries in at_work.items():
            for entry in entries:
                with self.subTest(handle=handle, entry=entry):
                    self.fail(machine, daemon, calls, handle, entry)
                    self.settle(machine, daemon, free)
        daemon.stop()

    def test_at_work(self):
        self.fail_each()

    def test_at_the_start(self):
        at_start, _ = self.watch()
        for entry in at_start:
            for where in ("device=0 ", ""):
                with self.subTest(entry=entry, where=where):
                    code = UNKNOWN if entry.startswith("cu") else NVML_UNKNOWN
                    _, daemon, _ = self.start(f"{TWO}on {entry} {where}fail={code}\n")
                    with daemon.client() as client:
                        live_well(client, "host")
                        if where:
                            live_well(client, GPUS[1])
                    daemon.wait_idle()
                    daemon.stop()


class FailWipingTest(FailTest):
    """Where new memory is wiped, there is more to fail."""

    params = UNSCRUBBED

    def watch(self):
        at_start, at_work = super().watch()
        self.assertIn("cuMemsetD8_v2", at_work["cuda-fd"])
        self.assertIn("cudaMemset", at_work["cuda-ipc"])
        return at_start, at_work

    def test_at_the_start(self):
        self.skipTest("no other than where memory is not wiped")


class HangTest(EntriesTest):
    def lives(self, client, n=8):
        """How long buffers on the other devices take to be made and given back."""
        def live():
            for device in (GPUS[1], "host"):
                live_well(client, device)

        return Timing(live, n)

    def hang(self, machine, calls, client, handle, entry):
        """A buffer's life that stands still in the entry point; the flag that lets it go on."""
        flag = machine.flag()
        n = len(calls.lines())
        machine.script(f"{TWO}on {entry} exe=gpuipcd device=0 hang-while={flag}\n")
        client.send_call("Allocate", {"size": 1, "device": GPUS[0], "handle": handle})
        released = []

        def stands():
            if not released and client.readable():
                released.append(client.result()["lease"])
                client.drop_fds()
                client.send_call("Release", {"lease": released[0]})
            return calls.met(entry, n) or (released and client.readable(0.1))

        wait_for(stands, f"the daemon in {entry}")
        return flag, calls.met(entry, n), bool(released)

    def test_others_go_on(self):
        _, at_work = self.watch()
        machine, daemon, calls = self.start()
        with daemon.client() as client:
            usual = self.lives(client)
            for handle in KINDS:
                live_well(client, GPUS[0], handle)
        daemon.wait_idle()
        free = self.device(daemon, GPUS[0])["free_bytes"]
        n_met = 0
        for handle, entries in at_work.items():
            for entry in entries:
                with self.subTest(handle=handle, entry=entry), daemon.client() as client, daemon.client() as other:
                    flag, met, released = self.hang(machine, calls, client, handle, entry)
                    n_met += met
                    assert_as_usual(self.lives(other), usual)
                    os.unlink(flag)
                    if not released:
                        client.call("Release", {"lease": client.result()["lease"]})
                        client.drop_fds()
                    else:
                        client.result()
                self.settle(machine, daemon, free)
        self.assertGreater(n_met, 8, "hardly an entry point stood still: the test tries nothing")
        daemon.stop()

    def test_the_stop_keeps_its_deadline(self):
        _, at_work = self.watch()
        for handle, entries in at_work.items():
            for entry in entries:
                with self.subTest(handle=handle, entry=entry):
                    self.stop_while(handle, entry)

    def stop_while(self, handle, entry):
        fds = len(open_fds())
        machine, daemon, calls = self.start()
        with daemon.client() as client:
            _, met, _ = self.hang(machine, calls, client, handle, entry)
            began = time.monotonic()
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(timeout=WAIT_S), 0, daemon.log()[-2000:])
            if met:
                self.assertLess(time.monotonic() - began, 1 + 2 * SLOWER)
        daemon.forget()
        self.assertEqual(len(open_fds()), fds)

    def test_at_the_start(self):
        """All at once, as each takes as long as a driver is given."""
        at_start, _ = self.watch()
        started = []
        for entry in at_start:
            machine = Machine(TWO, self.params)
            self.addCleanup(machine.end)
            machine.script(f"{TWO}on {entry} hang-while={machine.flag()}\n")
            started.append((entry, Daemon(*self.args, environment=machine.environment, memory="auto", wait=False)))
        began = time.monotonic()
        for entry, daemon in started:
            with self.subTest(entry=entry):
                self.wait_ready(daemon, began + PROBE_S + 10 * SLOWER)
                with daemon.client() as client:
                    live_well(client, "host")
                daemon.process.terminate()
                self.assertEqual(daemon.process.wait(timeout=WAIT_S), 0, daemon.log()[-2000:])
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.wait()
            daemon.forget()

    def wait_ready(self, daemon, deadline):
        while True:
            try:
                daemon.wait_notified("READY=1")
                return
            except AssertionError:
                if daemon.process.poll() is not None or time.monotonic() > deadline:
                    raise


if __name__ == "__main__":
    unittest.main()
