# SPDX-License-Identifier: Apache-2.0
"""The daemon's own image: built by its recipe upon a base that has the libraries, and serving from a container. deadline: 300 s"""

import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import INSIDE, ContainerTest, main, make_scratch  # noqa: E402
from daemon import GPUIPCCTL, wait_for  # noqa: E402
from image import IMAGE, RECIPE, build  # noqa: E402
from rawclient import WAIT_S, RawClient, ReplyError  # noqa: E402
from sandbox import Podman  # noqa: E402

# As README says.
OPTIONS = ("--read-only", "--cap-drop=all", "--security-opt", "no-new-privileges")
PID = ("--pid=host",)


def said_options():
    """The options of the `podman run` that the recipe begins with."""
    with open(RECIPE, encoding="utf-8") as file:
        return re.search(r"podman run (.*?) localhost/gpuipcd\n", file.read(), re.S).group(1).replace("\\\n#", " ").split()


class Image(ContainerTest):
    """One build; each case has a daemon of its own in a container, and none on the host."""

    @classmethod
    def make_sandbox(cls, directory):
        sandbox = Podman(directory)
        try:
            cls.said = build(sandbox, directory)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def setUp(self):
        self.admin = make_scratch("admin.")
        self.addCleanup(shutil.rmtree, self.admin)
        super().setUp()

    def make_daemon(self):
        return None

    def serve(self, *more, arguments=(), options=OPTIONS):
        """A container that serves."""
        box = self.sandbox.start(*arguments, image=IMAGE, mounts={self.shared: INSIDE, self.admin: "/run/gpuipcd-admin"},
                                 more=(*options, *more))
        self.things.callback(box.remove)
        wait_for(lambda: os.path.exists(f"{self.admin}/admin.sock") or box.process.poll() is not None, "the daemon")
        return box

    def client(self, admin=False):
        return RawClient(f"{self.admin}/admin.sock" if admin else f"{self.shared}/gpuipcd.sock")

    def wait_idle(self):
        def idle():
            with self.client() as client:
                status = client.call("GetStatus")
            return (status["buffers"], status["leases"]) == (0, 0)
        wait_for(idle, "an empty ledger")

    def test_recipe(self):
        self.assertRegex(self.said, r"(?m)^gpuipcd \d+\.\d+\.\d+$")
        told = json.loads(self.sandbox.podman("inspect", IMAGE))[0]
        self.assertEqual(told["Config"]["Entrypoint"], ["gpuipcd"])
        self.assertEqual(told["Healthcheck"]["Test"], ["CMD", "gpuipcctl", "status"])
        for word in (*OPTIONS[:2], "no-new-privileges", *PID):
            self.assertIn(word, said_options())

    def test_serves_host_and_containers(self):
        self.serve(*PID)
        with self.producer("--seal") as producer:
            self.works(self.inside("gpuipcctl", "get", "--wait", "10s", "--sealed", "w"), self.original())
            done = subprocess.run([GPUIPCCTL, "--socket", f"{self.shared}/gpuipcd.sock", "get", "w"], stdout=subprocess.PIPE,
                                  check=True, timeout=WAIT_S)
            self.assertEqual(done.stdout, self.original())
            lease = self.leases()[0]
            self.assertEqual((lease["container"], lease["command"]), (producer.id(), "gpuipcctl"))
            with open(f"/proc/{lease['pid']}/comm", encoding="ascii") as file:
                self.assertEqual(file.read(), "gpuipcctl\n")
        self.wait_idle()

    def test_in_a_pid_namespace_of_its_own(self):
        """It knows when clients die, but not who they are."""
        self.serve()
        with self.producer("--seal"):
            self.works(self.inside("gpuipcctl", "get", "w"), self.original())
            lease = self.leases()[0]
            self.assertEqual((lease["pid"], lease.get("command"), lease.get("container")), (0, None, None))
            told = subprocess.run([GPUIPCCTL, "--socket", f"{self.admin}/admin.sock", "list"], stdout=subprocess.PIPE, check=True,
                                  timeout=WAIT_S).stdout.decode()
            self.assertIn(" outside ", told)
        self.wait_idle()

    def test_isolation_by_container_needs_the_machines_pids(self):
        for pid, refused in ((PID, False), ((), True)):
            box = self.serve(*pid, arguments=("--isolation=container",))
            with self.client() as client:
                try:
                    client.call("GetStatus")
                    self.assertFalse(refused)
                except ReplyError as error:
                    self.assertTrue(refused, error)
                    self.assertIn("--pid=host", error.parameters["reason"])
            box.remove()
            for directory, name in ((self.shared, "gpuipcd.sock"), (self.admin, "admin.sock")):
                os.unlink(f"{directory}/{name}")

    def test_health(self):
        box = self.serve(*PID)
        self.sandbox.podman("healthcheck", "run", box.name)
        os.unlink(f"{self.shared}/gpuipcd.sock")
        os.unlink(f"{self.admin}/admin.sock")
        with self.assertRaisesRegex(AssertionError, "healthcheck"):
            self.sandbox.podman("healthcheck", "run", box.name)

    def test_stops_in_time_and_takes_its_sockets_away(self):
        box = self.serve(*PID)
        with self.client() as client:
            client.call("Allocate", {"size": 4096})
            self.sandbox.podman("stop", "-t", "10", box.name)
        self.assertEqual(box.finish().status, 0)
        self.assertEqual((os.listdir(self.shared), os.listdir(self.admin)), ([], []))

    def test_a_new_one_takes_over_the_place(self):
        """What is mounted is the directory: containers that stay reach the new daemon. The old one's buffers are gone."""
        old = self.serve(*PID)
        inside = self.box("sh", "-c", "gpuipcctl put --detach --keep 1h old /bin/cat; echo ready; read x; gpuipcctl list --buffers")
        self.assertRegex(inside.line(), "old")
        self.assertEqual(inside.line(), "ready")
        self.sandbox.podman("stop", "-t", "10", old.name)
        self.serve(*PID)
        with self.producer(name="new"):
            inside.say("go")
            done = inside.finish()
            self.assertIn(" new ", done.said)
            self.assertNotIn(" old ", done.said)


if __name__ == "__main__":
    main()
