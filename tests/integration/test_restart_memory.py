# SPDX-License-Identifier: Apache-2.0
"""Restarts, whatever the memory is made of: the descriptor handed out afterwards is the one from before; devices that are
not there any more, and memory that cannot be kept. Runs on memory that has descriptors. deadline: 90 s"""

import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import in_child  # noqa: E402
from daemon import wait_for  # noqa: E402
from gpumap import Driver, GpuMap  # noqa: E402
from restarting import RestartTest  # noqa: E402

on_a_gpu = unittest.skipIf(backend.HOST, "of a machine with a GPU")


def file_of(fd):
    """What tells one open file from another; closes the descriptor."""
    found = os.fstat(fd)
    os.close(fd)
    return found.st_dev, found.st_ino


def touch(fd, handle, size, data=None):
    """Writes to the memory behind a descriptor, or reads it: by mapping it in a process of its own, which then is gone."""
    if backend.HOST:
        return os.pwrite(fd, data, 0) if data else os.pread(fd, size, 0)

    def mapped():
        memory = GpuMap(Driver(), handle, size, fd)
        return memory.write(data) if data else memory.read(size)

    return in_child(mapped, keep=(fd,))


class Memory(RestartTest):
    def grant(self, client, **parameters):
        granted = client.call("Allocate", {"size": 5000, **parameters})
        return granted, file_of(client.client.fds.pop())

    def test_kept(self):
        self.start()
        guest = self.guest()
        granted, made = self.grant(guest, name="n")
        self.assertEqual(granted["buffer"]["handle"], backend.HANDLE)
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = self.listed()[1]
            self.manager.restart(number)
            self.assertEqual(self.listed()[1], before)
            guest.reconnect()
            guest.token = guest.call("Resume", {"token": guest.token, "leases": [granted["lease"]]})["resume_token"]
            opened = guest.call("Open", {"name": "n"})
            self.assertEqual(file_of(guest.client.fds.pop()), made)
            guest.call("Release", {"lease": opened["lease"]})
        self.assert_books()
        guest.call("Release", {"lease": granted["lease"]})

    def test_bytes_that_only_the_manager_holds(self):
        """Nobody has the memory mapped and no daemon runs: what was written is there afterwards."""
        self.start()
        guest = self.guest()
        granted = guest.call("Allocate", {"size": 100000})
        fd, data = guest.client.fds.pop(), os.urandom(100000)
        touch(fd, granted["handle"], 100000, data)
        os.close(fd)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
            self.manager.restart(number)
            self.assertEqual(self.resume(guest, [granted["lease"]]), [granted["lease"]])
            opened = guest.call("Open", {"buffer": granted["buffer"]["id"], "access": "ro"})
            fd = guest.client.fds.pop()
            self.assertEqual(touch(fd, opened["handle"], 100000), data)
            os.close(fd)
            guest.call("Release", {"lease": opened["lease"]})
        guest.call("Release", {"lease": granted["lease"]})

    def switch(self, memory, number=signal.SIGKILL):
        self.manager.end(number)
        self.manager.arguments[self.manager.arguments.index("--backend") + 1] = memory
        self.manager.start()

    def resume(self, guest, leases):
        guest.reconnect()
        reply = guest.call("Resume", {"token": guest.token, "leases": leases})
        guest.token = reply["resume_token"]
        return [lease["id"] for lease in reply["leases"]]

    def device(self, uuid):
        return next(device for device in self.manager.status()["devices"] if device["uuid"] == uuid)

    @on_a_gpu
    def test_the_gpu_is_gone(self):
        """Its memory is held and lent, nothing is made on it; when it is back, all is well."""
        self.start()
        guest = self.guest()
        granted, made = self.grant(guest, name="n", mode="0600")
        uuid = granted["buffer"]["device"]
        self.switch("host")
        self.manager.wait_log(f"device {uuid} is not there: its buffers are held")
        self.assertTrue(self.device(uuid)["degraded"])
        self.assertEqual(self.device(uuid)["brokered_bytes"], granted["buffer"]["allocated"])
        self.assertEqual(self.resume(guest, [granted["lease"]]), [granted["lease"]])
        opened = guest.call("Open", {"name": "n", "access": "ro"})
        self.assertEqual(file_of(guest.client.fds.pop()), made)
        guest.call("Release", {"lease": opened["lease"]})
        self.refused("DeviceDegraded", guest.call, "Allocate", {"size": 1, "device": uuid})
        other = guest.call("Allocate", {"size": 1, "device": "host"})
        os.close(guest.client.fds.pop())
        self.switch("cuda")
        self.assertFalse(self.device(uuid)["degraded"])
        self.assertTrue(self.device("host")["degraded"])
        self.assertEqual(self.resume(guest, [granted["lease"]]), [granted["lease"]])
        wait_for(lambda: len(self.listed()[1]) == 1, f"{other['lease']} to end")
        guest.call("Release", {"lease": granted["lease"]})

    @on_a_gpu
    def test_host_memory_is_not_wanted_any_more(self):
        self.start(memory="auto")
        guest = self.guest()
        granted, made = self.grant(guest, device="host", name="n")
        self.switch("cuda")
        self.assertEqual(self.resume(guest, [granted["lease"]]), [granted["lease"]])
        # A read-only descriptor would have to be made.
        self.refused("DeviceDegraded", guest.call, "Open", {"name": "n", "access": "ro"})
        guest.call("Open", {"name": "n"})
        self.assertEqual(file_of(guest.client.fds.pop()), made)
        self.refused("DeviceDegraded", guest.call, "Seal", {"buffer": granted["buffer"]["id"]})
        self.switch("auto", signal.SIGTERM)
        self.assertEqual(self.resume(guest, [granted["lease"]]), [granted["lease"]])
        guest.call("Release", {"lease": granted["lease"]})

    @on_a_gpu
    def test_classic_handles_end_with_the_daemon(self):
        self.start()
        guest = self.guest()
        kept, _ = self.grant(guest)
        classic = guest.call("Allocate", {"size": 5000, "handle": "cuda-ipc", "name": "classic"})
        self.manager.restart(signal.SIGTERM)
        self.manager.wait_log("stopping: 1 buffers with 2 leases of 1 sessions end with the daemon")
        self.manager.wait_log("stopping: 1 buffers stay in the service manager's store")
        self.assertEqual(self.resume(guest, [kept["lease"], classic["lease"]]), [kept["lease"]])
        self.assertEqual([buffer["id"] for buffer in self.listed()[1]], [kept["buffer"]["id"]])
        guest.call("Release", {"lease": kept["lease"]})


if __name__ == "__main__":
    unittest.main()
