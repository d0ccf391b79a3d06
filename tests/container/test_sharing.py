# SPDX-License-Identifier: Apache-2.0
"""Memory shared between real containers, the same cases in those of podman, of runc and of bubblewrap. Each container has the namespaces
that its tool gives it by default and the directory of the daemon's socket, and nothing of the machine's. deadline: 300 s"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import for_each, main  # noqa: E402
from daemon import wait_for  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from sandbox import MAPPED  # noqa: E402

ALICE, BOB, TEAM = 1001, 1002, 1100


class Bytes:
    """The consumer reads what the producer put."""

    def share(self, **how):
        with self.producer("--seal", **how):
            self.works(self.inside("gpuipcctl", "get", "--wait", "10s", "--sealed", "w", **how), self.original())
        self.daemon.wait_idle()

    def test_by_default(self):
        self.share()

    def test_with_the_machines_ipc(self):
        self.share(host_ipc=True)

    def test_another_user(self):
        self.share(user=(ALICE, ALICE))

    def test_hardened(self):
        """Root read-only, no capability, no new privileges."""
        self.share(hardened=True)
        self.share(hardened=True, user=(ALICE, ALICE))

    def test_user_namespace(self):
        self.share(mapped=True)
        self.share(mapped=True, user=(5, 5))

    def test_socket_mounted_read_only(self):
        """Nobody inside, root included, can then take the socket away or put another in its place."""
        self.read_only = True
        self.share()
        done = self.inside("sh", "-c", "exec 2>&1; > /run/gpuipcd/new || rm /run/gpuipcd/gpuipcd.sock")
        self.refused(done, "Read-only file system")
        self.assertTrue(os.path.exists(self.daemon.socket))

    def test_across_user_namespaces(self):
        """The owner is whom the machine knows: not the root that the container believes in."""
        with self.producer("--mode", "0600", mapped=True):
            self.refused(self.inside("gpuipcctl", "get", "--owner", "any", "w"), "No such buffer")
        with self.producer("--mode", "0604", mapped=True):
            self.refused(self.inside("gpuipcctl", "get", "w"), "No such buffer")
            self.works(self.inside("gpuipcctl", "get", "--owner", str(MAPPED), "w"), self.original())

    def test_it_is_one_memory(self):
        """What the consumer writes, the producer reads."""
        with self.box("sh", "-c", "gpuipcctl alloc -n w -m 0666 4096 & read x; gpuipcctl get w | head -c 5; kill $!") as producer:
            producer.line()
            writer = self.inside("gpuipcctl", "hold", "--rw", "--owner", "any", "w", "--", "sh", "-c", "echo hello >&3", user=(ALICE, ALICE))
            self.works(writer)
            producer.say("go")
            self.assertEqual(producer.finish().out, b"hello")


class Modes:
    """Unix modes hold between containers."""

    def consumer(self, *words, **how):
        return self.inside("gpuipcctl", *words, "--owner", "any", "w", **how)

    def test_private(self):
        with self.producer("--mode", "0600", user=(ALICE, ALICE)):
            for how in ({"user": (BOB, BOB)}, {"user": (BOB, ALICE)}, {}, {"mapped": True}):
                self.refused(self.consumer("get", **how), "No such buffer")
            self.works(self.consumer("get", user=(ALICE, ALICE)), self.original())

    def test_group(self):
        with self.producer("--mode", "0640", user=(ALICE, TEAM)):
            self.refused(self.consumer("get", user=(BOB, BOB)), "No such buffer")
            self.works(self.consumer("get", user=(BOB, TEAM)), self.original())
            self.works(self.consumer("get", user=(BOB, BOB), groups=(TEAM,)), self.original())
            self.refused(self.inside("gpuipcctl", "hold", "--rw", "--owner", "any", "w", "--", "true", user=(BOB, TEAM)), "No such buffer")

    def test_all(self):
        with self.producer("--mode", "0666", user=(ALICE, ALICE)):
            for how in ({"user": (BOB, BOB)}, {}, {"mapped": True}):
                self.works(self.consumer("get", **how), self.original())
                self.works(self.inside("gpuipcctl", "hold", "--rw", "--owner", "any", "w", "--", "true", **how))

    def test_waiting_goes_on_past_what_one_may_not_open(self):
        with self.producer("--mode", "0600", user=(ALICE, ALICE)):
            self.refused(self.consumer("get", "--wait", "100ms", user=(BOB, BOB)), "did not come in time")


class Writes:
    """What is lent read-only, by whom it can be written to all the same: by whoever the daemon runs as, root here, outside of any user
    namespace. Nobody can once it is sealed."""

    def write(self, *options, **how):
        with self.producer("--mode", "0644", *options):
            return self.inside("gpuipcctl", "hold", "--owner", "any", "w", "--", "sh", "-c", "echo x 1<> /proc/self/fd/3", **how)

    def test_lent_read_only(self):
        self.refused(self.write(user=(ALICE, ALICE)), "Permission denied", status=2)
        self.refused(self.write(mapped=True), "Permission denied", status=2)
        self.works(self.write())

    def test_sealed(self):
        for how in ({}, {"user": (ALICE, ALICE)}, {"mapped": True}):
            done = self.write("--seal", **how)
            self.assertNotEqual(done.status, 0, done)
            self.assertRegex(done.said, "Permission denied|Operation not permitted|I/O error")


class Rights:
    """Root in a container is no administrator, and who may in is decided in words."""

    def test_root_is_no_administrator(self):
        with self.producer("--mode", "0606", user=(ALICE, ALICE)):
            session = self.leases()[0]["session"]
            self.refused(self.inside("gpuipcctl", "free", "w"), f"owner (uid {ALICE})")
            self.refused(self.inside("gpuipcctl", "kick", session), "No such session")
            self.assertEqual(self.inside("ls", "-A", "/run/gpuipcd").out, b"gpuipcd.sock\n")
            self.refused(self.inside("ls", "/run/gpuipcd-admin"), "No such file", status=2)
            self.assertEqual(len(self.leases()), 1)

    def test_root_sees_what_it_may_open(self):
        with self.producer("--mode", "0600", user=(ALICE, ALICE)):
            self.assertNotIn(" w ", self.inside("gpuipcctl", "list").said)
            self.assertNotIn(" w ", self.inside("gpuipcctl", "list", "--buffers").said)
        with self.producer("--mode", "0604", user=(ALICE, ALICE)):
            self.assertIn(" w ", self.inside("gpuipcctl", "list").said)

    def test_everyone_may_in(self):
        for how in ({}, {"user": (ALICE, ALICE)}, {"user": (4242424, 4242424)}, {"mapped": True}, {"mapped": True, "user": (7, 7)}):
            self.works(self.inside("gpuipcctl", "status", **how))

    def test_allow(self):
        self.restart(config=f"[Access]\nAllowUsers=root {BOB}\nAllowUidRanges=1500-1599 {MAPPED}-{MAPPED + 9}\nAllowGroups={TEAM}\n")
        with self.box("sh", "-c", "gpuipcctl status; read x"):  # whom it keeps out it does not keep waiting
            for how in ({}, {"user": (BOB, BOB)}, {"user": (1500, 5)}, {"user": (ALICE, TEAM)}, {"user": (ALICE, ALICE), "groups": (TEAM,)},
                        {"mapped": True}, {"mapped": True, "user": (9, 9)}):
                self.works(self.inside("gpuipcctl", "status", **how))
            for uid, how in ((ALICE, {"user": (ALICE, ALICE)}), (MAPPED + 10, {"mapped": True, "user": (10, 10)})):
                self.refused(self.inside("gpuipcctl", "status", **how), f"uid {uid} ", "AllowUsers=", "AllowUidRanges=")


class Ends:
    """Containers go in every order."""

    def test_removed_by_force(self):
        """What it held is back at once, though it never said goodbye."""
        box = self.box("gpuipcctl", "alloc", "--name", "w", "64M")
        box.line()
        self.assertEqual(self.bytes_held(), (64 << 20, 0))
        self.assertEqual([each["name"] for each in self.leases()], ["w"])
        box.remove()
        removed = time.monotonic()
        self.wait_leases(0)
        wait_for(lambda: self.bytes_held() == (0, 0), "the bytes back")
        self.assertLess(time.monotonic() - removed, WAIT_S / 10)

    def test_producer_ends_first(self):
        producer = self.producer("--seal")
        with self.box("gpuipcctl", "hold", "w", "--", "sh", "-c", "echo held; read x; cat <&3") as consumer:
            consumer.line()
            producer.remove()
            self.wait_leases(1)
            self.assertGreater(self.bytes_held()[0], 0)
            consumer.say("go")
            done = consumer.finish()
            self.works(done, self.original())
        self.daemon.wait_idle()

    def test_producer_leaves_before_anyone_comes(self):
        self.works(self.inside("gpuipcctl", "put", "--detach", "--keep", "60s", "w", "/bin/gpuipcctl"))
        self.works(self.inside("gpuipcctl", "get", "w"), self.original())
        self.works(self.inside("gpuipcctl", "free", "w"))

    def test_one_release_frees_nothing_of_others(self):
        producer = self.producer("--seal")
        words = ("gpuipcctl", "hold", "w", "--", "sh", "-c", "echo held; read x; cat <&3")
        first, second = self.box(*words), self.box(*words)
        for box in (first, second):
            box.line()
        producer.remove()
        first.say("go")
        self.works(first.finish(), self.original())
        self.wait_leases(1)
        second.say("go")
        self.works(second.finish(), self.original())
        self.daemon.wait_idle()

    def test_consumer_removed_by_force(self):
        with self.producer("--seal"):
            consumer = self.box("gpuipcctl", "hold", "w")
            consumer.line()
            consumer.remove()
            self.wait_leases(1)
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())

    def test_daemon_restarts(self):
        """The directory is mounted, so what runs inside finds the new socket."""
        inside = self.box("sh", "-c", "gpuipcctl status >&2 && echo ready; read x; gpuipcctl get --owner any w")
        holder = self.producer(name="old")
        self.assertEqual(inside.line(), "ready")
        self.restart()
        with self.producer("--mode", "0604", user=(ALICE, ALICE)):
            inside.say("go")
            self.works(inside.finish(), self.original())
        done = holder.finish()  # nobody kept its memory, and it says so
        self.assertIn(done.status, (1, 3), done)
        self.assertRegex(done.said, "is over|Cannot connect|no store")


for_each(globals(), Bytes, Modes, Writes, Rights, Ends)

if __name__ == "__main__":
    main()
