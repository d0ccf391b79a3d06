# SPDX-License-Identifier: Apache-2.0
"""make install and uninstall: everything under the prefix, and exactly that away again."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, ROOT  # noqa: E402


class InstallTest(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(f"{BUILD}/install/gpuipcctl"):
            self.skipTest("nothing to install was built")
        self.tree = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(shutil.rmtree, self.tree)

    def place(self, *words, **variables):
        done = subprocess.run(["mk/install", *words, BUILD], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env={"PATH": os.environ["PATH"], "DESTDIR": self.tree, **variables})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def found(self):
        return {os.path.relpath(f"{directory}/{name}", self.tree) for directory, _, names in os.walk(self.tree) for name in names}

    def read(self, path):
        with open(f"{self.tree}/{path}", encoding="utf-8") as file:
            return file.read()

    def test_nothing_outside_the_prefix(self):
        self.place(prefix="/opt/gpuipc")
        files = self.found()
        self.assertEqual({path for path in files if not path.startswith("opt/gpuipc/")}, set())
        for path in ("sbin/gpuipcd", "bin/gpuipcctl", "lib/libgpuipc.so.0", "etc/gpuipcd/gpuipcd.conf", "include/gpuipc.h",
                     "lib/systemd/system/gpuipcd.service", "share/man/man8/gpuipcd.8"):
            self.assertIn(f"opt/gpuipc/{path}", files)
        self.assertEqual([path for path in files if "python" in path], [], "that is left to pip")

    def test_the_unit_runs_what_was_installed(self):
        self.place(prefix="/opt/gpuipc")
        unit = self.read("opt/gpuipc/lib/systemd/system/gpuipcd.service")
        self.assertIn("\nExecStart=/opt/gpuipc/sbin/gpuipcd --config=/opt/gpuipc/etc/gpuipcd/gpuipcd.conf\n", unit)
        self.assertIn("\nExecReload=/opt/gpuipc/sbin/gpuipcd --config=/opt/gpuipc/etc/gpuipcd/gpuipcd.conf --test-config\n", unit)
        self.assertNotIn("/usr/sbin/gpuipcd", unit)
        self.assertIn("prefix=/opt/gpuipc\n", self.read("opt/gpuipc/lib/pkgconfig/gpuipc.pc"))

    def test_the_system_s_prefix_has_the_system_s_configuration(self):
        self.place(prefix="/usr")
        self.assertIn("etc/gpuipcd/gpuipcd.conf", self.found())
        self.assertIn("\nExecStart=/usr/sbin/gpuipcd\n", self.read("usr/lib/systemd/system/gpuipcd.service"))

    def test_each_directory_can_be_chosen(self):
        self.place(prefix="/usr", libdir="/usr/lib64", sysconfdir="/conf", unitdir="/units", mandir="/pages", sbindir="/s", bindir="/b",
                   includedir="/i", sysusersdir="/users", tmpfilesdir="/temporary", catalogdir="/catalog")
        files = self.found()
        for path in ("usr/lib64/libgpuipc.so.0", "conf/gpuipcd/gpuipcd.conf", "units/gpuipcd.socket", "pages/man1/gpuipcctl.1", "s/gpuipcd",
                     "b/gpuipcctl", "i/gpuipc.h", "users/gpuipcd.conf", "temporary/gpuipcd.conf", "catalog/gpuipcd.catalog"):
            self.assertIn(path, files)

    def test_uninstall_takes_exactly_that_away(self):
        for path in ("usr/bin/other", "etc/other", "usr/lib/systemd/system/other.service", "usr/share/man/man8/other.8"):
            os.makedirs(os.path.dirname(f"{self.tree}/{path}"), exist_ok=True)
            with open(f"{self.tree}/{path}", "w", encoding="ascii"):
                pass
        before = self.found()
        self.place(prefix="/usr")
        self.assertGreater(len(self.found()), len(before) + 20)
        self.place("--remove", prefix="/usr")
        self.assertEqual(self.found(), before)
        left = [path for path, names, _ in os.walk(self.tree) for name in names if "gpuipc" in name]
        self.assertEqual(left, [], "directories of our own")

    def test_a_changed_configuration_is_the_machine_s(self):
        self.place(prefix="/usr")
        with open(f"{self.tree}/etc/gpuipcd/gpuipcd.conf", "a", encoding="utf-8") as file:
            file.write("[Limits]\nClientsMax=5\n")
        changed = self.read("etc/gpuipcd/gpuipcd.conf")
        self.place(prefix="/usr")
        self.assertEqual(self.read("etc/gpuipcd/gpuipcd.conf"), changed)
        self.assertIn("kept", self.place("--remove", prefix="/usr"))
        self.assertEqual(self.found(), {"etc/gpuipcd/gpuipcd.conf"})

    def test_make_passes_its_variables_on(self):
        done = subprocess.run(["make", "-n", "install", "DESTDIR=/stage", "PREFIX=/opt/x", "unitdir=/units"], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env={"PATH": os.environ["PATH"]})
        line = re.search(r"^.*mk/install build$", done.stdout, re.M).group(0)
        for word in ("DESTDIR='/stage'", "prefix='/opt/x'", "unitdir='/units'"):
            self.assertIn(word, line)
        done = subprocess.run(["make", "-n", "uninstall"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=True, env={"PATH": os.environ["PATH"]})
        self.assertRegex(done.stdout, r"DESTDIR='' prefix='/usr/local' +mk/install --remove build")


if __name__ == "__main__":
    unittest.main()
