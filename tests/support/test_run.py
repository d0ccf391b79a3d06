# SPDX-License-Identifier: Apache-2.0
"""The runner itself: what it must count, and what it must not let pass. Its suites here are shell scripts."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

RUNNER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "run")
PASSES = "echo '100%: Checks: 3, Failures: 0, Errors: 0'"


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f"{self.root}/tests/unit")
        os.makedirs(f"{self.root}/build/san-address/tests/unit")
        shutil.copy(RUNNER, f"{self.root}/tests/run")

    def suite(self, name, script, head=""):
        with open(f"{self.root}/tests/unit/test_{name}.c", "w", encoding="utf-8") as file:
            file.write(head + "\n")
        program = f"{self.root}/build/san-address/tests/unit/test_{name}"
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(program, 0o755)

    def script_suite(self, name, text):
        os.makedirs(f"{self.root}/tests/integration", exist_ok=True)
        with open(f"{self.root}/tests/integration/test_{name}.py", "w", encoding="utf-8") as file:
            file.write(text)

    def run_all(self, *what):
        done = subprocess.run([f"{self.root}/tests/run", "--build", "build/san-address", *what],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def assert_fails(self, text):
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        self.assertIn(text, output)
        return output

    def test_sums_up(self):
        self.suite("a", PASSES)
        self.suite("b", PASSES)
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"(?m)^tests: 6 passed, 0 failed, 0 skipped in \d+ s$")

    def test_chooses(self):
        self.suite("a", PASSES)
        self.suite("b", "exit 1")
        self.assertEqual(self.run_all("unit/a")[0], 0)
        self.assertEqual(self.run_all("unit")[0], 1)
        status, output = self.run_all("nowhere")
        self.assertNotEqual(status, 0)
        self.assertIn("'nowhere'", output)

    def test_failed_case(self):
        self.suite("a", "echo '66%: Checks: 3, Failures: 1, Errors: 0'; exit 1")
        self.assertIn("2 passed, 1 failed", self.assert_fails("ended with status 1"))

    def test_failed_case_with_status_0(self):
        self.suite("a", "echo '66%: Checks: 3, Failures: 0, Errors: 1'")
        self.assertIn("2 passed, 1 failed", self.assert_fails("cases failed"))

    def test_no_count(self):
        self.suite("a", "exit 0")
        self.assert_fails("printed no count of its cases")

    def test_no_cases(self):
        self.suite("a", "echo '100%: Checks: 0, Failures: 0, Errors: 0'")
        self.assert_fails("printed no count of its cases")

    def test_not_built(self):
        self.suite("a", PASSES)
        os.unlink(f"{self.root}/build/san-address/tests/unit/test_a")
        self.assert_fails("cannot run")

    def test_good_count_but_bad_end(self):
        self.suite("a", PASSES + "; kill -SEGV $$")
        self.assertIn("2 passed, 1 failed", self.assert_fails("ended with status -11"))

    def test_too_slow(self):
        self.suite("a", "sleep 60", head="/* deadline: 0 s */")
        self.assert_fails("not done within 0 s")

    def test_leftover_process(self):
        # Only once it is what it will be: between fork and exec, and for a moment after it has its new name, a process belongs to nobody.
        self.suite("a", f"setsid sleep 60 & until grep -q sleep /proc/$!/comm && grep -q GPUIPC_TEST_MARK /proc/$!/environ; do :; done; "
                        f"{PASSES}")
        output = self.assert_fails("behind: sleep 60")
        pid = int(re.search(r"left process (\d+) behind", output).group(1))
        # Killed: gone, or not yet reaped by its new parent.
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                self.assertEqual(file.read().rpartition(")")[2].split()[0], "Z")
        except (FileNotFoundError, ProcessLookupError):
            pass

    def test_skips(self):
        self.suite("a", f"echo 'SKIP one: needs the moon'; {PASSES}")
        status, output = self.run_all()
        self.assertEqual(status, 0)
        self.assertIn("skipped: unit/a: one: needs the moon", output)
        self.assertRegex(output, r"(?m)^tests: 2 passed, 0 failed, 1 skipped in")

    def test_counts_unittest(self):
        self.script_suite("p", """
import unittest
class Some(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail()
    def test_skip(self): self.skipTest("needs the moon")
unittest.main()
""")
        output = self.assert_fails("ended with status 1")
        self.assertRegex(output, r"(?m)^tests: 1 passed, 1 failed, 1 skipped in")
        self.assertRegex(output, r"skipped: integration/p: .*needs the moon")

    def test_one_gpu_is_seen(self):
        """Suites that name no device mean the only one."""
        self.script_suite("here", '''# Runs on any memory
import os
import unittest
class Some(unittest.TestCase):
    def test_one(self): self.assertEqual(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["EXPECTED"])
if __name__ == "__main__": unittest.main()
''')
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES", None)
        self.addCleanup(os.environ.pop, "EXPECTED", None)
        for given, expected in ((None, "0"), ("1", "1")):
            os.environ.update({"EXPECTED": expected}, **({"CUDA_VISIBLE_DEVICES": given} if given else {}))
            status, output = self.run_all("cuda-fd")
            self.assertEqual(status, 0, output)

    def test_own_directory_is_removed(self):
        self.suite("a", f"echo $TMPDIR; : >$TMPDIR/file; {PASSES}")
        self.assertEqual(self.run_all()[0], 0)
        with open(f"{self.root}/build/san-address/logs/unit-a.log", encoding="utf-8") as file:
            self.assertFalse(os.path.exists(file.readline().strip()))


if __name__ == "__main__":
    unittest.main()
