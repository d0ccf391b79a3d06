# SPDX-License-Identifier: Apache-2.0
"""Memory made ahead on GPUs: who gets it and when, what takes it away, what the books say, and a driver that fails, hangs or is killed
while it is made. On the fakes. deadline: 180 s"""

import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER, in_child  # noqa: E402
from books import FaultLine  # noqa: E402
from daemon import GPUIPCCTL, GPUIPCD_FAULT, Daemon, wait_for  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from restarting import RestartTest  # noqa: E402
from test_cuda_faults import GPUS, STUCK_S, TWO, UNSCRUBBED, CudaTest, Machine, with_fakes  # noqa: E402

MIB = 1 << 20
SIZE = 2 * MIB  # what a buffer of one byte takes


class SpareTest(CudaTest):
    def spare(self, device=0):
        return self.device(GPUS[device]).get("spare_bytes")

    def made(self):
        """Buffers that the driver has made, and is making."""
        return len([line for line in self.machine.calls("cuMemCreate") if not line.endswith("waits\n")])

    def given(self):
        return len(self.machine.calls("cuMemRelease"))

    def wait_spare(self, n_made, device=0, size=SIZE):
        """One is there: so many were made in all."""
        wait_for(lambda: self.spare(device) == size and self.given() >= n_made, f"a spare beside {n_made - 1} buffers")

    def prepare(self, client, device=0, **more):
        """Two buffers, after which a third lies ready."""
        given = self.given()
        grants = [self.allocate(client, device, **more) for _ in range(2)]
        self.wait_spare(given + 3, device, grants[0]["buffer"]["allocated"])
        return grants

    def hang(self, more=""):
        flag = self.machine.flag()
        self.machine.script(f"{self.script}{more}on cuMemCreate device=0 hang-while={flag}\n")
        return flag

    def wait_hanging(self, n=1):
        wait_for(lambda: len([line for line in self.machine.calls("cuMemCreate") if line.endswith("waits\n")]) >= n, "the driver's call")

    def metric(self, name):
        text = subprocess.run([GPUIPCCTL, "--socket", self.daemon.socket, "metrics"], check=True, capture_output=True, text=True).stdout
        return {line.partition('"')[2].partition('"')[0]: int(line.split()[-1]) for line in text.splitlines()
                if line.startswith(f"{name}{{")}


class TakenTest(SpareTest):
    def test_the_third_does_not_wait_for_the_driver(self):
        with self.client() as client:
            grants = self.prepare(client)
            flag = self.hang()
            grants.append(self.allocate(client))  # while the driver makes nothing at all
            self.wait_hanging()
            self.assertEqual(self.made(), 3)
            os.unlink(flag)
            self.assertEqual(len({grant["buffer"]["id"] for grant in grants}), 3)
            self.release(client, *grants)

    def test_one_off_costs_nothing(self):
        with self.client() as client:
            grants = [self.allocate(client, size=size) for size in (1, 3 * MIB, 5 * MIB)]
            self.assertEqual((self.spare(), self.made()), (0, 3))
            self.release(client, *grants)

    def test_it_is_given_back_by_itself(self):
        free = self.device(GPUS[0])["free_bytes"]
        with self.client() as client:
            self.release(client, *self.prepare(client))
            wait_for(lambda: self.spare() == 0, "no spare")
        wait_for(lambda: self.device(GPUS[0])["free_bytes"] == free, "all of it back")
        self.assertEqual(self.made(), 3)

    def test_it_lasts_while_there_is_a_pace(self):
        """A steady client has each of its buffers from what lies ready, and all of them are different memory."""
        with self.client() as client:
            grants = self.prepare(client)
            for n in range(4, 14):
                grants.append(client.call("Allocate", {"size": 1, "device": GPUS[0]}))
                self.wait_spare(n)
            inodes = {os.fstat(fd).st_ino for fd in client.fds}
            self.assertEqual(len(inodes), 10)
            client.drop_fds()
            self.assertEqual(self.made(), 13)
            self.release(client, *grants)

    def test_who_comes_while_it_is_made_gets_it(self):
        with self.client() as client, self.client() as other:
            grants = self.prepare(client)
            flag = self.machine.flag()
            # What is being made will be; whatever else the driver is asked for fails.
            self.machine.script(f"{TWO}on cuMemCreate device=0 nth=1 hang-while={flag}\non cuMemCreate device=0 from=2 fail=1\n")
            grants.append(self.allocate(client))
            self.wait_hanging()
            other.send_call("Allocate", {"size": 1, "device": GPUS[0]})
            self.daemon.status()
            os.unlink(flag)
            taken = other.result()
            other.drop_fds()
            self.machine.script(TWO)
            self.release(client, *grants)
            self.release(other, taken)

    def test_each_device_has_its_own(self):
        with self.client() as client:
            grants = self.prepare(client, 0)
            self.assertEqual((self.spare(0), self.spare(1)), (SIZE, 0))
            grants += [self.allocate(client, 1) for _ in range(2)]
            self.wait_spare(6, 1)
            self.assertNotIn("spare_bytes", self.device("host"))
            self.release(client, *grants)

    def test_of_descriptors_alone(self):
        """A classic handle made ahead would keep a context; host memory is made in no time."""
        with self.client() as client:
            grants = [self.allocate(client, 0, "cuda-ipc") for _ in range(3)] + [self.allocate(client, "host", "memfd") for _ in range(3)]
            self.assertEqual((self.spare(), len(self.machine.calls("cuMemAlloc"))), (0, 3))
            self.release(client, *grants)

    def test_the_books(self):
        with self.client() as client:
            grants = self.prepare(client)
            status = self.daemon.status()
            device = status["devices"][0]
            self.assertEqual((status["buffers"], device["brokered_bytes"], device["spare_bytes"]), (2, 2 * SIZE, SIZE))
            self.assertIn("spares", status["features"])
            self.assertEqual(status["limits"]["spare_bytes"], 1 << 30)
            self.assertEqual(self.metric("gpuipc_device_spare_bytes"), {GPUS[0]: SIZE, GPUS[1]: 0})
            grants.append(self.allocate(client))
            self.wait_spare(4)
            device = self.device(GPUS[0])
            self.assertEqual((device["brokered_bytes"], device["spare_bytes"]), (3 * SIZE, SIZE))
            table = subprocess.run([GPUIPCCTL, "--socket", self.daemon.socket, "devices"], check=True, capture_output=True, text=True).stdout
            self.assertIn("SPARE", table)
            self.release(client, *grants)

    def die_asking(self):
        """A process that ends without waiting for the answer."""
        def ask():
            self.client().send_call("Allocate", {"size": 1, "device": GPUS[0]})

        in_child(ask)

    def test_a_client_that_dies(self):
        """One that takes what lies ready; and one that waits for what is being made."""
        with self.client() as client:
            grants = self.prepare(client)
            flag = self.hang()
            self.die_asking()
            self.wait_hanging()
            self.die_asking()
            os.unlink(flag)
            self.release(client, *grants)

    def test_a_stop(self):
        with self.client() as client:
            self.prepare(client)
        began = time.monotonic()
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=WAIT_S), 0)
        self.assertNotIn("does not answer", self.daemon.log())
        self.assertLess(time.monotonic() - began, 5 * SLOWER)
        self.daemon.forget()
        self.machine.end()
        self.daemon = self.make_daemon()


class LimitsTest(SpareTest):
    args = ("--spare-max", "2M")

    def test_up_to_a_size(self):
        with self.client() as client:
            grants = [self.allocate(client, size=SIZE + 1) for _ in range(4)]
            self.assertEqual((self.spare(), self.made()), (0, 4))
            grants += [self.allocate(client, size=SIZE) for _ in range(2)]
            self.wait_spare(7)
            self.release(client, *grants)

    def test_a_reload(self):
        self.daemon.stop()  # the command line's word would go on
        self.daemon = Daemon("--backend", "auto", environment=self.machine.environment)
        with self.client() as client:
            grants = self.prepare(client)
            with open(f"{self.daemon.directory}/conf", "w", encoding="utf-8") as file:
                file.write("[Limits]\nSpareMax=0\n")
            self.daemon.process.send_signal(signal.SIGHUP)
            self.daemon.wait_log("configuration reloaded")
            self.assertEqual(self.daemon.status()["limits"]["spare_bytes"], 0)
            wait_for(lambda: self.spare() == 0, "no spare")
            grants += [self.allocate(client) for _ in range(3)]
            self.assertEqual((self.spare(), self.made()), (0, 6))
            self.release(client, *grants)


class NeverTest(SpareTest):
    args = ("--spare-max", "0")

    def test_never(self):
        with self.client() as client:
            grants = [self.allocate(client) for _ in range(4)]
            self.assertEqual((self.spare(), self.made()), (0, 4))
            self.release(client, *grants)


class ShortTest(SpareTest):
    """A GPU of 64 MiB, of which the daemon's own use takes 4."""

    script = "device total=64M\ndevice\n"

    def test_it_gives_way(self):
        free = self.device(GPUS[0])["free_bytes"]
        with self.client() as client:
            grants = self.prepare(client)
            grants.append(self.allocate(client, size=free - 2 * SIZE))  # all there is, but for those two
            self.assertEqual(self.spare(), 0)
            self.assertEqual(self.device(GPUS[0])["brokered_bytes"], free)
            name, parameters = self.refused(client)
            self.assertEqual((name, parameters["asked"], parameters["free"]), ("OutOfMemory", SIZE, 0))
            self.release(client, *grants)

    def test_what_is_refused_has_what_it_held_counted_in(self):
        with self.client() as client:
            free = self.device(GPUS[0])["free_bytes"]
            grants = self.prepare(client)
            name, parameters = self.refused(client, size=free - SIZE)
            self.assertEqual((name, parameters["free"]), ("OutOfMemory", free - 2 * SIZE))
            self.release(client, *grants)

    def test_a_channel_takes_it_away_too(self):
        free = self.device(GPUS[0])["free_bytes"]
        with self.client() as client:
            grants = self.prepare(client)
            channel = client.call("ChannelCreate", {"device": GPUS[0], "role": "producer", "slots": 1, "slot_bytes": free - 3 * SIZE})
            client.drop_fds()
            self.assertEqual(self.device(GPUS[0])["brokered_bytes"], free)
            self.release(client, *grants, channel)

    def test_a_channel_short_of_its_second_part(self):
        """All of it is made anew, once what lay ready is gone."""
        with self.client() as client:
            grants = self.prepare(client)
            self.machine.script(f"{self.script}on cuMemCreate device=0 nth=2 fail=2\n")
            channel = client.call("ChannelCreate", {"device": GPUS[0], "role": "producer", "slots": 1, "slot_bytes": 3 * MIB})
            client.drop_fds()
            self.assertEqual((self.made(), self.spare()), (3 + 2 + 2, 0))
            self.release(client, *grants, channel)

    def test_none_is_made_of_the_last_memory(self):
        """Eight times its size stays free beside it."""
        with self.client() as client:
            grants = [self.allocate(client, size=7 * MIB) for _ in range(3)]
            self.assertEqual((self.spare(), self.made()), (0, 3))
            self.release(client, *grants)


class KeptFreeTest(SpareTest):
    script = "device total=64M\ndevice\n"
    args = ("--keep-free-bytes", "46M")

    def test_none_is_made_of_what_stays_free(self):
        with self.client() as client:
            grants = [self.allocate(client) for _ in range(3)]
            self.assertEqual((self.spare(), self.made()), (0, 3))
            self.release(client, *grants)


class KeptFreeOfOthersTest(KeptFreeTest):
    """The books would allow it, what is measured does not, be it before the buffers or after."""

    script = "device total=64M used=28M\ndevice\n"
    args = ("--keep-free-bytes", "20M")


class CrowdedTest(SpareTest):
    """Somebody else has most of the GPU: the books do not know, the driver does, from before the first buffer on."""

    script = "device total=64M used=48M\ndevice\n"

    def test_none_is_made_of_what_others_left(self):
        with self.client() as client:
            grants = [self.allocate(client) for _ in range(3)]
            self.assertEqual((self.spare(), self.made()), (0, 3))
            self.release(client, *grants)


class WipedTest(SpareTest):
    script = "device scrub=no\ndevice\n"
    params = UNSCRUBBED
    args = ("--log-level", "debug")

    def test_it_is_wiped_ahead(self):
        flag = self.machine.flag()
        with self.client() as client:
            grants = self.prepare(client)
            self.wait_wiped(3)
            self.machine.script(f"{self.script}on cuMemsetD8_v2 exe=gpuipcd hang-while={flag}\n")
            grants.append(client.call("Allocate", {"size": SIZE, "device": GPUS[0]}))
            self.assertEqual(os.pread(client.fds[0], SIZE, 0), bytes(SIZE))
            client.drop_fds()
            os.unlink(flag)
            self.release(client, *grants)

    def wait_wiped(self, n):
        """So many helpers have cleared memory, and the last has been reaped."""
        wait_for(lambda: len(self.machine.calls("cuMemsetD8")) >= n and not self.helpers(), f"{n} wipes")

    def helpers(self):
        found = []
        for task in os.listdir(f"/proc/{self.daemon.pid}/task"):
            with open(f"/proc/{self.daemon.pid}/task/{task}/children", encoding="ascii") as file:
                found += file.read().split()
        return found

    def test_a_wipe_that_fails(self):
        with self.client() as client:
            grants = self.prepare(client)
            self.wait_wiped(3)
            self.machine.script(f"{self.script}on cuMemsetD8_v2 exe=gpuipcd fail=719\n")
            grants.append(self.allocate(client))
            self.daemon.wait_log("bytes made ahead: Input/output error: wiping new memory: cuMemsetD8: CUDA_ERROR_LAUNCH_FAILED (719)")
            wait_for(lambda: self.spare() == 0, "no spare")
            self.assertEqual(self.refused(client)[0], "Internal")  # who makes it himself is told
            self.machine.script(self.script)
            grants.append(self.allocate(client))
            self.release(client, *grants)


class FailingTest(SpareTest):
    args = ("--drain-sec", "2s", "--log-level", "debug")

    def test_nobody_is_told(self):
        for n, (code, words) in enumerate(((2, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"), (1, "cuMemCreate: CUDA_ERROR_INVALID_VALUE (1)"),
                                           (801, "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801)"))):
            with self.subTest(code=code), self.client() as client:
                grants = self.prepare(client, size=1 + SIZE * n)
                self.machine.script(f"{TWO}on cuMemCreate device=0 fail={code}\n")
                grants.append(self.allocate(client, size=1 + SIZE * n))
                self.daemon.wait_log(words)
                wait_for(lambda: self.spare() == 0, "no spare")
                self.machine.script(TWO)
                self.assertFalse(self.device(GPUS[0])["degraded"])
                grants.append(self.allocate(client, size=1 + SIZE * n))
                self.release(client, *grants)
            self.daemon.wait_idle()

    def test_a_device_that_is_sick(self):
        with self.client() as client:
            grants = self.prepare(client)
            self.machine.script(f"{TWO}on cuMemCreate device=0 fail=999\n")
            grants.append(self.allocate(client))
            wait_for(lambda: self.device(GPUS[0])["degraded"], "a degraded device")
            self.assertEqual(self.spare(), 0)
            self.assertEqual(self.refused(client)[0], "DeviceDegraded")
            self.heal()
            grants.append(self.allocate(client))
            self.release(client, *grants)

    def test_a_device_that_falls_sick_loses_it(self):
        with self.client() as client:
            grants = self.prepare(client)
            self.machine.script(f"{TWO}on cuMemCreate device=0 fail=999\n")
            self.assertEqual(self.refused(client, size=9 * MIB)[0], "DeviceDegraded")
            wait_for(lambda: self.spare() == 0, "no spare")
            self.assertEqual(self.refused(client)[0], "DeviceDegraded")  # what lay ready is lent no more
            self.heal()
            self.release(client, *grants)

    def test_a_descriptor_is_not_lost(self):
        """Made, but not exported; exported, but not let go of."""
        for entry in ("cuMemExportToShareableHandle", "cuMemRelease"):
            with self.subTest(entry=entry), self.client() as client:
                grants = self.prepare(client)
                self.machine.script(f"{TWO}on {entry} device=0 fail=999\n")
                other = self.allocate(client)
                wait_for(lambda: self.device(GPUS[0])["degraded"], "a degraded device")
                self.heal()
                self.release(client, *grants, other)
            self.daemon.wait_idle()

    def test_a_driver_that_hangs(self):
        with self.client() as client, self.client() as stuck:
            grants = self.prepare(client)
            flag = self.hang()
            grants.append(self.allocate(client))
            self.wait_hanging()
            stuck.send_call("Allocate", {"size": 1, "device": GPUS[0]})
            grants += [self.allocate(client, 1), self.allocate(client, "host", "auto")]
            wait_for(lambda: self.device(GPUS[0])["degraded"], "a degraded device", seconds=STUCK_S + 5 * SLOWER)
            self.assertEqual(self.refused(client)[0], "DeviceDegraded")
            os.unlink(flag)
            grants.append(stuck.result())
            stuck.drop_fds()
            wait_for(lambda: not self.device(GPUS[0])["degraded"], "a device that answers")
            self.release(stuck, grants.pop())
            self.release(client, *grants)

    def test_a_stop_while_it_is_made(self):
        with self.client() as client:
            self.prepare(client)
            flag = self.hang()
            self.allocate(client)
            self.wait_hanging()
        self.daemon.process.terminate()
        os.unlink(flag)
        self.assertEqual(self.daemon.process.wait(timeout=WAIT_S), 0)
        self.assertNotIn("does not answer", self.daemon.log())
        self.daemon.forget()
        self.machine.end()
        self.daemon = self.make_daemon()

    def test_a_stop_while_the_driver_hangs(self):
        with self.client() as client:
            self.prepare(client)
            self.hang()
            self.allocate(client)
            self.wait_hanging()
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=WAIT_S), 0)
        self.assertIn("a device or a client does not answer", self.daemon.log())
        self.daemon.forget()
        self.machine.end()
        self.daemon = self.make_daemon()


@with_fakes
class StoredTest(RestartTest):
    """With a store: what lies ready is in no record, and what was taken of it is kept as any buffer is."""

    def setUp(self):
        super().setUp()
        self.machine = Machine("devices 1\n")
        self.addCleanup(self.machine.end)

    def begin(self, **more):
        self.start("--backend", "cuda", environment={**self.machine.environment, **more.pop("environment", {})}, memory="cuda", **more)
        self.free = self.manager.status()["devices"][0]["free_bytes"]
        return self.guest()

    def spare(self):
        return self.manager.status()["devices"][0]["spare_bytes"]

    def prepare(self, guest):
        for _ in range(2):
            guest.allocate(1)
        wait_for(lambda: self.spare() == SIZE, "a spare")
        wait_for(lambda: len(self.machine.calls("cuMemRelease")) >= 3, "it made")

    def assert_free(self):
        """All memory is back, whoever had it."""
        wait_for(lambda: self.manager.status()["devices"][0]["free_bytes"] == self.free, f"{self.free} bytes free")

    def test_a_restart_loses_it(self):
        guest = self.begin()
        for number in (signal.SIGKILL, signal.SIGTERM):
            for _ in range(2):
                guest.allocate(1)
            wait_for(lambda: self.spare() == SIZE, "a spare")
            self.assert_books()
            self.manager.restart(number)
            self.assertEqual(self.spare(), 0)
            guest.resume()
            guest.check()
            self.assert_books()
        for lease in list(guest.leases):
            guest.release(lease)
        self.assert_free()

    def test_what_was_taken_is_kept(self):
        guest = self.begin()
        self.prepare(guest)
        self.machine.script("devices 1\non cuMemCreate fail=1\n")
        guest.allocate(1)  # of what lay ready: there is no other
        self.assert_books()
        for number in (signal.SIGKILL, signal.SIGTERM):
            self.manager.restart(number)
            guest.resume()
            guest.check()
            self.assert_books()
        self.machine.script("devices 1\n")
        for lease in list(guest.leases):
            guest.release(lease)
        self.assert_free()

    def kill_at(self, point, moment):
        """SIGKILL while the daemon stands at the point: all that was granted is there afterwards, and nothing else."""
        fault = FaultLine()
        guest = self.begin(program=GPUIPCD_FAULT, pass_fds=[fault.there.fileno()], environment={"GPUIPC_FAULT_POINT": point})
        try:
            moment(guest, fault)
            del self.manager.environment["GPUIPC_FAULT_POINT"]
            self.manager.restart(signal.SIGKILL)
            guest.resume()
            guest.check()
            self.assertEqual(len(self.listed()[1]), len(guest.leases))
            self.assert_books()
            for lease in list(guest.leases):
                guest.release(lease)
            self.assert_free()
        finally:
            fault.close()

    def test_killed_while_it_is_made(self):
        for point in ("Spare.make", "Spare.made"):
            with self.subTest(point=point):
                def moment(guest, fault, point=point):
                    guest.allocate(1)
                    guest.allocate(1)
                    fault.expect(point)

                self.kill_at(point, moment)
                self.drop_case()

    def test_killed_when_it_is_taken(self):
        def moment(guest, fault):
            self.prepare(guest)
            guest.client.send_call("Allocate", {"size": 1})
            fault.expect("Spare.taken")

        self.kill_at("Spare.taken", moment)

    def test_killed_while_it_is_dropped(self):
        def moment(guest, fault):
            self.prepare(guest)
            fault.expect("Spare.drop")

        self.kill_at("Spare.drop", moment)

    def drop_case(self):
        """Room for the next one of the same test."""
        for guest in self.guests:
            guest.leave()
        self.guests.clear()
        self.assert_empty()
        self.manager.stop()
        self.manager = None


del CudaTest, SpareTest, RestartTest  # of others, or without a case

if __name__ == "__main__":
    unittest.main()
