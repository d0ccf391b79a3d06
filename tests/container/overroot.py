# SPDX-License-Identifier: Apache-2.0
"""Programs of Python's in containers over a throw-away copy of the machine's own root, beside a daemon outside. Standard library only."""

import os
import shutil
import tempfile
import unittest

from containertest import make_scratch
from daemon import Daemon
from podman import Podman, unavailable


class OverRootTest(unittest.TestCase):
    """What `self.shared` has, the socket, is for containers to mount; `self.scratch` is for anything else."""

    def missing(self):
        """What else the cases need and is not there; None: nothing."""
        return None

    def setUp(self):
        reason = unavailable() or self.missing()
        if not reason and os.environ.get("GPUIPC_SANITIZER"):
            reason = "what a sanitizer watches cannot be loaded into an interpreter"
        if reason:
            self.skipTest(reason)
        # Podman takes no long names for it.
        self.scratch, self.shared = tempfile.mkdtemp(prefix="gpuipc.", dir="/tmp"), make_scratch("shared.")
        os.chmod(self.scratch, 0o755)
        self.addCleanup(shutil.rmtree, self.scratch)
        self.addCleanup(shutil.rmtree, self.shared)
        self.podman = Podman(f"{self.scratch}/podman")
        self.addCleanup(self.podman.close)
        self.daemon = Daemon(memory="host", socket_path=f"{self.shared}/gpuipcd.sock")
        self.addCleanup(self.daemon.kill)

    def options(self, *more):
        return ("-v", f"{self.shared}:/run/gpuipcd:ro", "-e", "PYTHONDONTWRITEBYTECODE=1", *more)

    def assert_in_containers(self):
        """Whoever holds something is in a container, and lists say so."""
        with self.daemon.client(admin=True) as admin:
            self.assertEqual({lease["container"] is not None for lease in admin.call("List")["leases"]}, {True})
