# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl doctor run somewhere, and what it reports: what its tests share."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from daemon import BUILD, GPUIPCCTL, Daemon, DaemonTest
from rawclient import WAIT_S

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
FAKE = f"{BUILD}/fake"
GPUS = ["GPU-fa4e0000-0000-4000-8000-000000000000", "GPU-fa4e0000-0000-4000-8000-000000000001"]
as_root = unittest.skipUnless(os.geteuid() == 0, "needs root for namespaces")
with_fake = unittest.skipUnless(os.path.exists(f"{FAKE}/libcuda.so.1"), "built without CUDA")


class Report:
    """What doctor printed as JSON."""

    def __init__(self, text, status):
        self.status = status
        self.document = json.loads(text)
        self.findings = self.document["findings"]

    def __str__(self):
        return json.dumps(self.document, indent=1)

    def codes(self, level=None):
        return [finding["code"] for finding in self.findings if level in (None, finding["level"])]

    def find(self, code):
        return next((finding for finding in self.findings if finding["code"] == code), None)


class DoctorTest(DaemonTest):
    """A healthy daemon, and a command that is run elsewhere."""

    environment = {}

    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="doctor.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.scratch, 0o755)
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        super().setUp()

    def command(self, *options, path=None):
        return [GPUIPCCTL, "doctor", "--json", "--socket", path or self.daemon.socket, *options]

    def report(self, *options, path=None, before=(), environment=None, expect=None, codes=(), without=()):
        """Runs it behind the words of `before` (unshare, setpriv, ...) and looks at the exit status and the codes."""
        done = subprocess.run([*before, *self.command(*options, path=path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=WAIT_S * 3, check=False,
                              env={**os.environ, **self.environment, **(environment or {})})
        return self.looked_at(done, expect, codes, without)

    def looked_at(self, done, expect, codes, without):
        self.assertTrue(done.stdout, done.stderr)
        report = Report(done.stdout, done.returncode)
        self.assertEqual(done.stderr, b"", report)
        self.assertEqual(report.document["exit_status"], done.returncode, report)
        if expect is not None:
            self.assertEqual(done.returncode, expect, report)
        for code in codes:
            self.assertIn(code, report.codes(), report)
        for code in without:
            self.assertNotIn(code, report.codes(), report)
        for finding in report.findings:
            self.assertTrue(finding["cause"], finding)
            if finding["level"] in ("warn", "fail"):
                self.assertTrue(finding["fix"], finding)
        return report

    def shell(self, script, *options, path=None, flags="-m", **looks):
        """The same after a script in namespaces of its own."""
        return self.report(*options, path=path, before=["unshare", *flags.split(), "sh", "-ec", f'{script}\nexec "$@"', "sh"],
                           **looks)


@with_fake
class FakeTest(DoctorTest):
    """A daemon with two GPUs that are none."""

    script = ""
    config = ""

    def make_daemon(self):
        self.say(self.script)
        self.environment = {"LD_LIBRARY_PATH": FAKE, "GPUIPC_FAKE_CUDA": f"{self.scratch}/script"}
        return Daemon("--backend", "auto", config=self.config, environment=self.environment)

    def say(self, script):
        with open(f"{self.scratch}/new", "w", encoding="utf-8") as file:
            file.write(f"state {self.scratch}/state\n{script}\n")
        os.rename(f"{self.scratch}/new", f"{self.scratch}/script")

    def scripted(self, script, *options, **looks):
        """With a driver that has these whims in the command alone: a script of its own, over the same machine."""
        return self.report(*options, environment={"GPUIPC_FAKE_CUDA": f"state {self.scratch}/state;{script}"}, **looks)
