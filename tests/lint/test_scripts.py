# SPDX-License-Identifier: Apache-2.0
"""Shell and Python as their own checkers see them; what is said of make and of the tests is there."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources  # noqa: E402
from sources import ROOT, read  # noqa: E402


class ScriptsTest(unittest.TestCase):
    def test_shellcheck(self):
        found = sources.scripts("sh", "bash", "dash")
        self.assertIn(".ci/run", found)
        done = subprocess.run(["shellcheck", *found], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_scripts_are_executable(self):
        for path in sources.scripts("sh", "bash", "dash", "python3"):
            self.assertTrue(os.access(f"{ROOT}/{path}", os.X_OK), path)

    def test_python_compiles(self):
        for path in sources.files(".py") + sources.scripts("python3"):
            compile(read(path), path, "exec")

    def test_make_defines_every_target_it_tells_of(self):
        lines = [line for line in read("Makefile").splitlines() if line.startswith("#   make")]
        told = {word for line in lines for word in line.removeprefix("#   make").split("  ")[0].split() if "=" not in word}
        self.assertTrue({"deps", "demo", "check", "fuzz", "bench", "lint", "valgrind", "install", "clean"} <= told, told)
        done = subprocess.run(["make", "--question", "--dry-run", *sorted(told - {"deps"})], cwd=ROOT,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertNotIn("No rule to make target", done.stdout)

    def test_what_is_told_of_tests_is_there(self):
        """CONTRIBUTING.md's `room/suite` and `room/suite:case`."""
        table = re.findall(r"^\| .* \|$", read("CONTRIBUTING.md"), re.M)
        self.assertGreater(len(table), 10)
        for line in table[2:]:
            told = re.findall(r"`(\w+)/(\w+)(?::(\w+))?`", line)
            self.assertTrue(told, line)
            for room, suite, case in told:
                with self.subTest(line.split(" | ")[0], room=room, suite=suite, case=case):
                    names = [f"tests/{room}/{prefix}{suite}.{end}" for prefix in ("test_", "fuzz_", "") for end in ("c", "py")]
                    found = [name for name in names if os.path.exists(f"{ROOT}/{name}")]
                    self.assertTrue(found)
                    if case:
                        self.assertRegex(read(found[0]), rf"(def |START_TEST\(){case}\b")


if __name__ == "__main__":
    unittest.main()
