# SPDX-License-Identifier: Apache-2.0
"""Suites of this tree run in Debian 13 (tests/foreign/trixie), whose Python and libraries are newer than this machine's, with the daemon and
the library that were built here."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

from daemon import ROOT
from library import SANITIZED
from rawclient import WAIT_S

TREE = f"{ROOT}/build/cache/trixie"
OF_A_GPU = {"of a GPU alone", "of two GPUs", "host memory has no streams"}  # why a case is skipped
# In a mount namespace of its own: what is bound there is gone with the process. Only the scratch directory can be written to.
INSIDE = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
mount --bind "$2" "$1/mnt" && mount -o remount,bind,ro "$1/mnt" &&
mount --bind "$3" "$1/media" && mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && tree=$1 && shift 3 &&
exec chroot "$tree" sh -c 'cd /mnt && exec "$@"' sh "$@"
"""


@unittest.skipIf(SANITIZED, "a sanitized daemon needs this machine's libraries")
@unittest.skipUnless(os.geteuid() == 0, "needs root, to make a Debian tree and to bind directories into it")
class NewerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([f"{ROOT}/tests/foreign/trixie", TREE], check=True)

    def inside(self, *command, seconds=WAIT_S):
        """What it printed; it must end with status 0. The tree of the sources is /mnt there."""
        scratch = tempfile.mkdtemp(prefix="n.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(scratch, 0o755)  # other users come to a daemon's socket
        self.addCleanup(shutil.rmtree, scratch, ignore_errors=True)
        environment = {key: value.replace(ROOT, "/mnt") for key, value in os.environ.items()}
        environment["TMPDIR"] = "/media"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", INSIDE, "sh", TREE, ROOT, scratch, *command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False, env=environment)
        told = done.stdout[max(0, done.stdout.find("=" * 70)):]  # from the first case that failed on
        self.assertEqual(done.returncode, 0, told[-8000:])
        return done.stdout

    def suite(self, name):
        """Of the Python package. All its cases but those that no host memory serves; none may fail."""
        told = self.inside("python3", "-B", f"tests/python/test_{name}.py", "-v", seconds=WAIT_S * 6)
        skipped = re.findall(r"\.\.\. skipped '(.*)'$", told, re.M)
        self.assertLessEqual(set(skipped), OF_A_GPU)
        self.assertGreater(int(re.search(r"^Ran (\d+) tests? in", told, re.M).group(1)) - len(skipped), 5, told)
