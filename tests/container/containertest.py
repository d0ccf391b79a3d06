# SPDX-License-Identifier: Apache-2.0
"""What the tests in containers stand on: a daemon on the host whose socket's directory is what containers get. Standard library only."""

import os
import shutil
import sys
import tempfile
import unittest

import backend
from daemon import BUILD, Daemon, DaemonTest, wait_for
from sandbox import Bwrap, Podman, Runc

FAKE = f"{BUILD}/fake"
INSIDE = "/run/gpuipcd"


def make_scratch(prefix):
    path = tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("TMPDIR", "/tmp"))
    os.chmod(path, 0o755)
    return path


def file_bytes(path):
    with open(path, "rb") as file:
        return file.read()


class ContainerTest(DaemonTest):
    """`tool` says which sandbox; one is made for all cases of the class."""

    tool = Podman
    config = ""
    read_only = False  # the mount of the socket's directory

    @classmethod
    def make_sandbox(cls, directory):
        return cls.tool(directory)

    @classmethod
    def setUpClass(cls):
        reason = cls.tool.missing()
        if reason:
            raise unittest.SkipTest(reason)
        cls.scratch = make_scratch("box.")
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        cls.sandbox = cls.make_sandbox(f"{cls.scratch}/sandbox")
        cls.addClassCleanup(cls.sandbox.close)

    def setUp(self):
        self.shared = make_scratch("shared.")
        self.addCleanup(shutil.rmtree, self.shared)
        super().setUp()

    def make_daemon(self, **more):
        return Daemon(*self.daemon_args, config=self.config, socket_path=f"{self.shared}/gpuipcd.sock", **more)

    def restart(self, config=None, **more):
        self.daemon.stop()
        if config is not None:
            self.config = config
        self.daemon = self.make_daemon(**more)

    def mounts(self, more=None):
        return {self.shared: INSIDE + (":ro" if self.read_only else ""), **(more or {})}

    def box(self, *argv, mounts=None, **how):
        """A container that goes on until the case ends."""
        box = self.sandbox.start(*argv, mounts=self.mounts(mounts), **how)
        self.things.callback(box.remove)
        return box

    def inside(self, *argv, mounts=None, **how):
        """A container that has ended: what it did."""
        return self.sandbox.run(*argv, mounts=self.mounts(mounts), **how)

    def producer(self, *options, name="w", file="/bin/gpuipcctl", **how):
        """A container that holds a buffer of a file's contents, once it does."""
        box = self.box("gpuipcctl", "put", *options, name, file, **how)
        self.assertRegex(box.line(), rf"^b\d+ {name} \d+$")
        return box

    def original(self, path="/bin/gpuipcctl"):
        return file_bytes(f"{self.scratch}/sandbox/tree{path}")

    def works(self, done, out=None):
        self.assertEqual(done.status, 0, done)
        if out is not None:
            self.assertTrue(done.out == out, f"{len(done.out)} bytes, not the {len(out)} expected")

    def refused(self, done, *words, status=1):
        self.assertEqual(done.status, status, done)
        for word in words:
            self.assertIn(word, done.said)

    def leases(self):
        with self.client(admin=True) as admin:
            return admin.call("List")["leases"]

    def wait_leases(self, n):
        wait_for(lambda: len(self.leases()) == n, f"{n} leases, not {self.leases()}")

    def bytes_held(self):
        device = self.daemon.status()["devices"][0]
        return device["brokered_bytes"], device["draining_bytes"]


def for_each(namespace, *mixins, tools=(Podman, Runc, Bwrap)):
    """A class of cases for each tool: BytesPodman, BytesRunc …"""
    for mixin in mixins:
        for tool in tools:
            name = f"{mixin.__name__}{tool.__name__}"
            namespace[name] = type(name, (mixin, ContainerTest), {"tool": tool, "__module__": namespace["__name__"]})


def main():
    if not backend.HOST:
        sys.exit("these run on host memory")
    unittest.main()
