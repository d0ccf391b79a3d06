# SPDX-License-Identifier: Apache-2.0
"""The runner itself: what it must count, and what it must not let pass. Its suites here are shell scripts."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TESTS}/support")
import reports  # noqa: E402

loader = importlib.machinery.SourceFileLoader("run", f"{TESTS}/run")
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
loader.exec_module(run)

PASSES = "echo '100%: Checks: 3, Failures: 0, Errors: 0'"


class RunnerTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f"{self.root}/tests/unit")
        os.makedirs(f"{self.root}/build/san-address/tests/unit")
        os.makedirs(f"{self.root}/tests/support")
        for name in ("run", "support/reports.py"):
            shutil.copy(f"{TESTS}/{name}", f"{self.root}/tests/{name}")

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

    def test_too_slow_says_where_it_is(self):
        self.script_suite("p", """
import threading
def hang():
    print("here", flush=True)
    threading.Event().wait()
hang()
""")
        process = subprocess.Popen([sys.executable, "-X", "faulthandler", f"{self.root}/tests/integration/test_p.py"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(process.stdout.readline(), "here\n")
        run.end_hung(process)
        with process.stdout:
            (line, whole), = reports.read_reports(process.stdout.read())
        self.assertIn("Fatal Python error: Aborted", line)
        self.assertRegex("\n".join(whole), r"test_p.py\", line [45] in hang\n")

    def test_crowd_that_comes_moves_the_deadline(self):
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        crowds = []

        def crowd_now():
            crowds.append(1000 if crowds else 1)
            if len(crowds) == 2:
                process.stdin.close()  # so that it ends
            return crowds[-1]

        with unittest.mock.patch.object(run, "crowd_now", crowd_now):
            self.assertEqual(run.wait_for_end(process, 0.1), (0, 100))

    def test_scripts_can_say_where_they_are(self):
        self.script_suite("p", """
import faulthandler
import unittest
class Some(unittest.TestCase):
    def test_one(self): self.assertTrue(faulthandler.is_enabled())
unittest.main()
""")
        status, output = self.run_all()
        self.assertEqual(status, 0, output)

    def test_runner_fails(self):
        """What it could not do for one suite is that suite's failure, whatever it was, and the others are run."""
        self.suite("a", PASSES)
        self.suite("b", PASSES)
        os.makedirs(f"{self.root}/build/san-address/logs/unit-a.log")
        output = self.assert_fails("IsADirectoryError")
        self.assertRegex(output, r"(?m)^tests: 3 passed, 1 failed, 0 skipped in \d+ s$")
        self.assertIn("failed: unit/a: the runner failed", output)

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

    def test_process_that_is_ending(self):
        """It takes longer than one that is left may stay, but it is not idle."""
        started, ended = f"{self.root}/started", f"{self.root}/ended"
        self.suite("a", f"""python3 -c '
import os, time
suite = os.getppid()
open("{started}", "w").close()
while os.getppid() == suite: time.sleep(0.01)
while time.process_time() < {run.LEFT_S + 0.5}: pass
open("{ended}", "w").close()' & until [ -e {started} ]; do :; done; {PASSES}""")
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertTrue(os.path.exists(ended))

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

    def test_says_why(self):
        """What a case said of its failure is there, beside however much else was printed, and stands once more at the end."""
        noise = "print('\\n'.join(f'noise {i}' for i in range(300)), flush=True)"
        self.script_suite("p", f"""
import atexit
import unittest
atexit.register(lambda: {noise})
class Some(unittest.TestCase):
    def check(self, text): self.assertEqual(text, "", "the moon is away")
    def test_bad(self):
        "It says so."
        {noise}
        self.check("\\n".join(f"line {{i}}" for i in range(300)) + " of many")
    def test_worse(self):
        with self.subTest("a star"):
            raise RuntimeError("it fell")
unittest.main()
""")
        self.suite("a", "echo '50%: Checks: 2, Failures: 1, Errors: 0'; echo 'a.c:3:F:core:one:0: no sun; it logged:'; seq 900; exit 1")
        output = self.assert_fails("ended with status 1")
        head, end = output.rsplit("whole output: ", 1)
        for expected in ("> FAIL: test_bad (__main__.Some.test_bad)\n", "line 10, in test_bad\n", "> AssertionError: 'line 0",
                         "the moon is away\n",
                         "> ERROR: test_worse (__main__.Some.test_worse) [a star]\n", "> RuntimeError: it fell\n",
                         "> a.c:3:F:core:one:0: no sun; it logged:\n", "| noise 299\n"):
            self.assertIn(expected, head)
        for expected in ("failed: integration/p: ended with status 1\n        ERROR: test_worse",
                         "        FAIL: test_bad (__main__.Some.test_bad): AssertionError: 'line 0",
                         "failed: unit/a: ended with status 1\n        a.c:3:F:core:one:0: no sun"):
            self.assertIn(expected, end)
        self.assertLess(len(output.splitlines()), 150)

    def test_reports_of_checkers(self):
        for text in ("==7== Invalid read of size 4\n==7==    at 0x1: f (a.c:3)\n",
                     "==7==ERROR: AddressSanitizer: heap-use-after-free on x\n    #0 f a.c:3\n",
                     "==7==ERROR: LeakSanitizer: detected memory leaks\n\n    #0 f a.c:3\n",
                     "a.c:3:1: runtime error: it ran over\n    #0 f a.c:3\n",
                     "WARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 8\n    #0 f a.c:3\n",
                     "==7== 8 bytes in 1 blocks are definitely lost in loss record 1 of 2\n==7==    by 0x1: f (a.c:3)\n"):
            (line, whole), = reports.read_reports("before\n" * 99 + text + "after\n" * 99)
            self.assertEqual(line, text.split("\n", maxsplit=1)[0])
            self.assertIn("a.c:3", "\n".join(whole))

    def test_others_write_too(self):
        """Half a line before a count, and whole ones between two of unittest's."""
        self.assertEqual(reports.read_counts("half a line100%: Checks: 3, Failures: 1, Errors: 0\n"), (3, 1, 0, []))
        text = "-" * 70 + "\nRan 4 tests in 0.1s\n{}\n{}FAILED (failures=1, skipped=1)\n"
        for more in ("", "a daemon's line\n", "two\nOKAY\n"):
            for twice in (text.format("", more), text.format(more, "")):
                self.assertEqual(reports.read_counts(twice)[:3], (4, 1, 1), twice)

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
