# SPDX-License-Identifier: Apache-2.0
"""Rootless podman, by a user made for the test, and the CDI device, as root and rootless. deadline: 300 s"""

import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import machine  # noqa: E402
from containertest import ContainerTest, main  # noqa: E402
from daemon import ROOT  # noqa: E402
from sandbox import Podman  # noqa: E402

SPEC = f"{ROOT}/packaging/cdi/gpuipc.json"
DEVICE = ("--device", "gpuipc.io/broker=host")
KEEP = ("--userns=keep-id",)

setUpModule = machine.enter


class RootlessTest(ContainerTest):
    """The sandbox is a user's own podman."""

    @classmethod
    def setUpClass(cls):
        reason = machine.Account.missing()
        if reason:
            raise unittest.SkipTest(reason)
        super().setUpClass()

    @classmethod
    def make_sandbox(cls, directory):
        cls.account = machine.Account(os.path.dirname(directory))
        cls.addClassCleanup(cls.account.remove)
        return Podman(directory, cls.account)


class Rootless(RootlessTest):
    """What a user's containers are to the daemon: root inside is the user, others are of the user's range."""

    def share(self, producer=None, consumer=None, uid=None):
        with self.producer("--seal", **(producer or {})):
            if uid is not None:
                self.assertEqual(self.leases()[0]["uid"], uid)
            self.works(self.inside("gpuipcctl", "get", "--wait", "10s", "--sealed", "w", **(consumer or producer or {})), self.original())
        self.daemon.wait_idle()

    def test_root_inside_is_the_user(self):
        self.share(uid=self.account.uid)

    def test_others_are_of_the_users_range(self):
        self.share({"user": (1000, 1000)}, uid=self.account.outside(1000))

    def test_keep_id(self):
        """The same user inside and out, who shares with the root of a container of the same user."""
        self.share({"more": KEEP}, uid=self.account.uid)
        self.share({"more": KEEP}, {}, uid=self.account.uid)
        self.share({}, {"more": KEEP}, uid=self.account.uid)

    def test_uidmap(self):
        """Root inside is now one of the user's range."""
        self.share({"more": ("--uidmap", "0:1:1000", "--gidmap", "0:1:1000")}, uid=self.account.outside(1))

    def test_hardened(self):
        self.share({"hardened": True}, uid=self.account.uid)

    def test_with_the_machines_ipc(self):
        self.share({"host_ipc": True}, uid=self.account.uid)

    def test_modes(self):
        with self.producer("--mode", "0600"):
            with self.client() as root:  # of the machine, on the socket for everyone
                self.assertEqual(root.call("ListBuffers")["buffers"], [])
            self.refused(self.inside("gpuipcctl", "get", "--owner", "any", "w", user=(1000, 1000)), "No such buffer")
        with self.producer("--mode", "0604"):
            self.works(self.inside("gpuipcctl", "get", "--owner", "any", "w", user=(1000, 1000)), self.original())

    def test_the_container_is_told_by_its_control_group(self):
        """Without a delegated control group rootless podman makes none: then there is nothing to tell it by."""
        with self.producer() as box:
            lease = self.leases()[0]
            with open(f"/proc/{lease['pid']}/cgroup", encoding="ascii") as file:
                self.assertEqual(lease.get("container"), box.id() if box.id() in file.read() else None)

    def test_who_may_in(self):
        self.restart(config=f"[Access]\nAllowUsers=root {self.account.name}\n")
        self.works(self.inside("gpuipcctl", "status"))
        self.works(self.inside("gpuipcctl", "status", more=KEEP))
        self.refused(self.inside("gpuipcctl", "status", user=(1000, 1000)), f"uid {self.account.outside(1000)} ", "AllowUidRanges=")
        self.restart(config=f"[Access]\nAllowUsers=root\nAllowUidRanges={self.account.first}-{self.account.first + self.account.n - 1}\n")
        self.works(self.inside("gpuipcctl", "status", user=(1000, 1000)))
        self.refused(self.inside("gpuipcctl", "status"), f"uid {self.account.uid} ", "AllowUsers=")

    def test_removed_by_force(self):
        box = self.box("gpuipcctl", "alloc", "64M")
        box.line()
        self.assertEqual(self.bytes_held(), (64 << 20, 0))
        box.remove()
        self.daemon.wait_idle()


class CdiCases:
    """--device gpuipc.io/broker=host and nothing else."""

    def setUp(self):
        os.makedirs(machine.CDI, exist_ok=True)
        shutil.copy(SPEC, machine.CDI)
        super().setUp()

    def mounts(self, more=None):
        return more or {}

    def make_daemon(self, **more):
        self.shared, own = machine.SOCKETS, self.shared
        os.makedirs(self.shared, exist_ok=True)
        try:
            return super().make_daemon(**more)
        finally:
            self.shared = own

    def test_gives_socket_and_variable(self):
        with self.producer("--seal", more=DEVICE):
            self.works(self.inside("gpuipcctl", "get", "--wait", "10s", "--sealed", "w", more=DEVICE), self.original())
        self.assertIn("\nGPUIPC_SOCKET=/run/gpuipcd/gpuipcd.sock\n", self.inside("env", more=DEVICE).said)
        self.refused(self.inside("rm", "/run/gpuipcd/gpuipcd.sock", more=DEVICE), "Read-only file system")

    def test_without_it_there_is_none(self):
        self.refused(self.inside("gpuipcctl", "status"), "no such socket", status=3)


class Cdi(CdiCases, ContainerTest):
    pass


class CdiRootless(CdiCases, RootlessTest):
    pass


class Spec(unittest.TestCase):
    def test_is_what_podman_4_takes(self):
        with open(SPEC, encoding="utf-8") as file:
            spec = json.load(file)
        self.assertIn(spec["cdiVersion"], ("0.3.0", "0.4.0", "0.5.0"))
        self.assertEqual((spec["kind"], [each["name"] for each in spec["devices"]]), ("gpuipc.io/broker", ["host"]))


if __name__ == "__main__":
    main()
