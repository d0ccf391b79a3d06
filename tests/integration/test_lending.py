# SPDX-License-Identifier: Apache-2.0
"""Descriptors that are lent: each is its holder's alone, whoever closes his. And those on their way: the kernel counts those sent and not
yet received against one limit of the daemon's user, so a client that does not read must not use it up for all. Runs on memory that has
descriptors."""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import backend
from books import PAGE, HoldersTest
from daemon import GPUIPCD, Daemon, script, wait_for
from rawclient import WAIT_S

USER = 4100
N_OPEN = 1024
N_CALLS = 300
OPEN = b'{"method":"io.gpuipc.Broker.Open","parameters":{"buffer":"b1"}}\0'


class OrdinaryUserTest(unittest.TestCase):
    """The daemon without privileges: for root the kernel does not count."""

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="lending.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.directory, 0o777)
        self.addCleanup(shutil.rmtree, self.directory)
        program = script(f"{self.directory}/gpuipcd", f"exec setpriv --reuid {USER} --regid {USER} --clear-groups "
                         f"prlimit --nofile={N_OPEN}:{N_OPEN} {GPUIPCD} \"$@\" --socket {self.directory}/s")
        # A fake GPU belongs to who made it.
        environment = {} if backend.HOST or backend.REAL else {"GPUIPC_FAKE_CUDA": f"state {self.directory}/gpu; devices 1; log no"}
        self.daemon = Daemon(program=program, admin=False, wait=False, environment=environment)
        self.daemon.socket = f"{self.directory}/s"
        self.addCleanup(self.daemon.kill)
        wait_for(lambda: os.path.exists(self.daemon.socket), "the socket")
        self.owner = self.daemon.client()
        self.addCleanup(self.owner.close)
        handle = self.owner.call("Allocate", {"size": 4096, "mode": "0666"})["handle"]
        self.assertEqual(handle["kind"], backend.HANDLE)

    def flood(self):
        """A client that asks and never reads."""
        client = self.daemon.client()
        self.addCleanup(client.close)
        client.socket.setblocking(False)
        client.n_asked = 0
        try:
            while client.n_asked < N_CALLS:
                client.socket.send(OPEN)
                client.n_asked += 1
        except BlockingIOError:
            pass
        client.socket.settimeout(WAIT_S)
        return client

    def test_clients_that_never_read_cost_others_nothing(self):
        for _ in range(40):
            self.flood()
            self.owner.call("GetStatus")
        with self.daemon.client() as innocent:
            for _ in range(20):
                lease = innocent.call("Open", {"buffer": "b1"})["lease"]
                os.close(innocent.take_fd())
                innocent.call("Release", {"lease": lease})

    def test_who_reads_late_misses_nothing(self):
        client = self.flood()
        self.owner.call("GetStatus")
        ids = set()
        for _ in range(client.n_asked):
            ids.add(client.result()["lease"])
            os.close(client.take_fd())
        self.assertEqual(len(ids), client.n_asked)


class ClosedByOneTest(HoldersTest):
    """What one holder closes takes nothing from another, nor from who comes later."""

    DATA = b"still here"

    def opened(self, name, access):
        """By another process, which has not mapped it yet."""
        holder = self.holder()
        holder.lease = holder.call("Open", {"name": name, "access": access})["lease"]
        return holder

    def assert_reads(self, holder, access):
        holder.map_next("memory", PAGE, access == "rw")
        self.assertEqual(holder.peek("memory", len(self.DATA)), self.DATA)

    def leave(self, holder):
        holder.drop_fds()
        holder.call("Release", {"lease": holder.lease})

    def test_descriptor_and_lease(self):
        for mine in ("ro", "rw"):
            for theirs in ("ro", "rw"):
                with self.subTest(mine=mine, theirs=theirs):
                    name = f"lent/{mine}-{theirs}"
                    owner = self.holder()
                    owner.lease = owner.call("Allocate", {"size": PAGE, "name": name})["lease"]
                    stays, goes = self.opened(name, theirs), self.opened(name, mine)
                    owner.map_next("memory", PAGE)
                    owner.write("memory", self.DATA)
                    for each in (goes, owner):
                        self.leave(each)
                    goes.kill()
                    self.assert_reads(stays, theirs)
                    for access in ("ro", "rw"):
                        late = self.opened(name, access)
                        self.assert_reads(late, access)
                        self.leave(late)
                    self.leave(stays)


if __name__ == "__main__":
    unittest.main(verbosity=2)
