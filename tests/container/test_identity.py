# SPDX-License-Identifier: Apache-2.0
"""Whom the daemon takes real containers for: by container, with Isolation=container, and not at all. deadline: 300 s"""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import ContainerTest, for_each, main  # noqa: E402
from daemon import GPUIPCCTL, GPUIPCD, script  # noqa: E402
from sandbox import Bwrap, Podman, Runc  # noqa: E402

ALICE = 1001
# One container, two processes: what one puts, the other gets.
BOTH = "gpuipcctl put --seal w /bin/cat >/dev/null & for i in 1 2; do gpuipcctl get --wait 10s --sealed w | sha256sum; done; kill $!"


def in_a_container():
    """Whether all this runs in one: the outermost is what the daemon goes by."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        return re.search(r"\b[0-9a-f]{64}\b|kubepods", file.read())


on_a_host = unittest.skipIf(in_a_container(), "this is run in a container, which all others are in")


def ctl(daemon, *words):
    done = subprocess.run([GPUIPCCTL, "--socket", daemon.admin_socket, *words], stdout=subprocess.PIPE, check=True, timeout=60)
    return done.stdout.decode()


@on_a_host
class Names:
    """Lists say which container."""

    def test_in_the_list(self):
        with self.producer("--label", "of the test") as box:
            row = ctl(self.daemon, "list").splitlines()[1]
            self.assertIn(f" {box.id()[:12]} ", row)
            self.assertIn(" gpuipcctl ", row)
            self.assertEqual([each["container"] for each in json.loads(ctl(self.daemon, "list", "--json"))["leases"]], [box.id()])

    def test_in_a_user_namespace(self):
        with self.producer(mapped=True) as box:
            self.assertEqual(self.leases()[0]["container"], box.id())

    def test_on_the_host(self):
        with self.client() as client:
            lease = client.call("Allocate", {"size": 1})["lease"]
            self.assertIsNone(self.leases()[0].get("container"))
            client.call("Release", {"lease": lease})


@on_a_host
class Isolation:
    """Two containers whose root is one uid: apart with Isolation=container, else not."""

    def test_by_uid(self):
        with self.producer("--mode", "0600"):
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())
            self.works(self.inside("gpuipcctl", "free", "w"))

    def test_by_container(self):
        self.restart(config="[Access]\nIsolation=container\n")
        with self.producer("--mode", "0600"):
            session = self.leases()[0]["session"]
            self.refused(self.inside("gpuipcctl", "get", "w"), "No such buffer")
            self.refused(self.inside("gpuipcctl", "free", "w"), "No such buffer")
            self.refused(self.inside("gpuipcctl", "kick", session), "No such session")
            self.assertNotIn(" w ", self.inside("gpuipcctl", "list").said)
            with self.client() as host:  # root of the machine is in no container
                self.assertEqual(host.call("ListBuffers")["buffers"], [])
        self.daemon.wait_idle()
        with self.producer("--mode", "0644"):
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())
            self.refused(self.inside("gpuipcctl", "free", "w"), "owner (uid 0)")

    def test_within_one_container(self):
        self.restart(config="[Access]\nIsolation=container\n")
        sums = self.inside("sh", "-c", BOTH).out.split()[::2]
        self.assertEqual(len(set(sums)), 1, sums)
        self.works(self.inside("sha256sum", "/bin/cat"), sums[0] + b"  /bin/cat\n")


@on_a_host
class NoGroup(ContainerTest):
    """bubblewrap makes no control group: what it starts counts as the machine's own, and is apart by uid alone."""

    tool = Bwrap

    def test_is_in_no_container(self):
        self.restart(config="[Access]\nIsolation=container\n")
        with self.producer():
            self.assertIsNone(self.leases()[0].get("container"))
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())
        with self.producer(user=(ALICE, ALICE)):
            self.refused(self.inside("gpuipcctl", "get", "--owner", "any", "w"), "No such buffer")


class Unseen(ContainerTest):
    """A daemon in namespaces of its own, which clients are outside of."""

    def wrapped(self, command):
        """A program that starts the daemon so."""
        path = script(f"{self.shared}.daemon", f'exec {command} {GPUIPCD} "$@"')
        self.addCleanup(os.unlink, path)
        return path

    def test_the_unmapped_own_nothing(self):
        """In a user namespace of the daemon's, users that it does not map are all one: nobody, who may not in."""
        self.restart(program=self.wrapped("unshare --user --map-root-user"))
        for user in ((ALICE, ALICE), (65534, 65534)):
            self.refused(self.inside("gpuipcctl", "put", "w", "/bin/cat", user=user), "not mapped where the daemon runs")
        with self.producer("--mode", "0666"):
            self.refused(self.inside("gpuipcctl", "get", "--owner", "any", "w", user=(ALICE, ALICE)), "not mapped where the daemon runs")
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())
            self.assertEqual(self.leases()[0]["uid"], 0)


for_each(globals(), Names, Isolation, tools=(Podman, Runc))

if __name__ == "__main__":
    main()
