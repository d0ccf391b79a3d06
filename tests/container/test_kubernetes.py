# SPDX-License-Identifier: Apache-2.0
"""The manifests for Kubernetes: valid by the schemas of Kubernetes, and run by podman kube play as they stand. deadline: 300 s"""

import glob
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import machine  # noqa: E402
from containertest import main, make_scratch  # noqa: E402
from daemon import ROOT, Daemon, wait_for  # noqa: E402
from image import IMAGE, build  # noqa: E402
from rawclient import WAIT_S, RawClient  # noqa: E402
from sandbox import Podman  # noqa: E402

MANIFESTS = f"{ROOT}/packaging/kubernetes"
VALIDATE = f"{ROOT}/build/venv/bin/kubernetes-validate"

setUpModule = machine.enter


def read(name):
    with open(f"{MANIFESTS}/{name}", encoding="utf-8") as file:
        return file.read()


class Schema(unittest.TestCase):
    """By kubernetes-validate of PyPI, which brings the schemas with it."""

    def check(self, *files):
        if not os.path.exists(VALIDATE):
            self.skipTest("needs kubernetes-validate (make deps)")
        done = subprocess.run([VALIDATE, "--strict", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
        return done.returncode, done.stdout.decode()

    def test_valid(self):
        files = sorted(glob.glob(f"{MANIFESTS}/*.yaml"))
        self.assertGreaterEqual(len(files), 3)
        status, said = self.check(*files)
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count(" passed "), sum(read(os.path.basename(file)).count("\nkind: ") for file in files), said)

    def test_a_mistake_is_found(self):
        directory = make_scratch("bad.")
        self.addCleanup(shutil.rmtree, directory)
        with open(f"{directory}/bad.yaml", "w", encoding="utf-8") as file:
            file.write(read("daemonset.yaml").replace("hostPID:", "hostPid:"))
        status, said = self.check(f"{directory}/bad.yaml")
        self.assertNotEqual(status, 0, said)

    def test_no_more_than_is_needed(self):
        """No example asks for the node's IPC, for privilege, or for a GPU of its own."""
        for name in ("pods.yaml", "gpu.yaml", "daemonset.yaml"):
            told = "\n".join(line for line in read(name).splitlines() if not line.startswith("#"))
            for word in ("hostIPC", "privileged", "nvidia.com/gpu:", "gpuipcd.sock"):
                self.assertNotIn(word, told, name)
        for name in ("pods.yaml", "gpu.yaml"):
            told = read(name)
            self.assertNotIn("hostPID:", told)
            self.assertEqual(told.count("readOnly: true"), told.count("mountPath:"))


class Play(unittest.TestCase):
    """The daemon's socket is at /run/gpuipcd, of a /run of the test's own."""

    @classmethod
    def setUpClass(cls):
        reason = Podman.missing() or (None if shutil.which("catatonit") else "podman kube play: catatonit not installed")
        if reason:
            raise unittest.SkipTest(reason)
        cls.scratch = make_scratch("box.")
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        cls.podman = Podman(f"{cls.scratch}/sandbox")
        cls.addClassCleanup(cls.podman.close)
        cls.addClassCleanup(cls.podman.podman, "pod", "rm", "-fa", "-t", "0", check=False)
        build(cls.podman, f"{cls.scratch}/sandbox")

    def play(self, text):
        path = f"{self.scratch}/play.yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.addCleanup(self.podman.podman, "kube", "down", path, check=False)
        return self.podman.podman("kube", "play", path)

    def logs(self, container):
        return self.podman.podman("logs", container)

    def test_pods(self):
        shutil.rmtree(machine.SOCKETS, ignore_errors=True)
        with Daemon(socket_path=f"{machine.SOCKETS}/gpuipcd.sock") as daemon:
            self.play(read("pods.yaml"))
            wait_for(lambda: "-" in self.logs("gpuipc-consumer-consumer"), "the consumer's sum", 3 * WAIT_S)
            with daemon.client(admin=True) as admin:
                wait_for(lambda: len(admin.call("List")["leases"]) == 1, "the producer's lease alone")
                leases = admin.call("List")["leases"]
            self.assertEqual([(each["uid"], each["name"], each["command"]) for each in leases], [(1000, "weights", "gpuipcctl")])
            self.assertTrue(leases[0]["container"])
            with open(f"{self.scratch}/sandbox/stage/usr/bin/gpuipcctl", "rb") as file:
                wanted = subprocess.run(["sha256sum"], stdin=file, stdout=subprocess.PIPE, check=True).stdout.decode()
            self.assertEqual(self.logs("gpuipc-consumer-consumer"), wanted)
            self.podman.podman("kube", "down", f"{self.scratch}/play.yaml")
            daemon.wait_idle()

    def test_daemonset(self):
        """The Pod that it makes: podman knows no DaemonSet."""
        head, _, template = read("daemonset.yaml").partition("  template:\n")
        self.assertIn("kind: DaemonSet", head)
        lines = [line[4:] for line in template.splitlines()]
        self.assertEqual(lines[0], "metadata:")
        lines.insert(1, "  name: gpuipcd")
        for directory in (machine.SOCKETS, "/run/gpuipcd-admin"):
            shutil.rmtree(directory, ignore_errors=True)
        self.play("\n".join(["apiVersion: v1", "kind: Pod", *lines, ""]))
        wait_for(lambda: os.path.exists("/run/gpuipcd-admin/admin.sock"), "the daemon")
        with RawClient(f"{machine.SOCKETS}/gpuipcd.sock") as client:
            lease = client.call("Allocate", {"size": 4096})["lease"]
            # Not by its pid: podman 4 does not heed hostPID. test_image.py has what it does, as --pid=host.
            self.assertEqual([each["id"] for each in client.call("List")["leases"]], [lease])


if __name__ == "__main__":
    main()
