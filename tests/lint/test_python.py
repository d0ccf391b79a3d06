# SPDX-License-Identifier: Apache-2.0
"""The Python package and its tests as their own checkers see them: mypy in its strict mode, ruff."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import sources  # noqa: E402
from sources import ROOT, read  # noqa: E402

PACKAGE = f"{ROOT}/client/python"
TOOLS = f"{ROOT}/build/venv/bin"


class PythonTest(unittest.TestCase):
    def check(self, *command):
        cache = os.environ.get("TMPDIR", "/tmp")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=PACKAGE, check=False,
                              env={**os.environ, "MYPY_CACHE_DIR": f"{cache}/mypy", "RUFF_CACHE_DIR": f"{cache}/ruff"})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_mypy(self):
        self.assertRegex(self.check(f"{TOOLS}/mypy"), r"no issues found in \d\d+ source files")

    def test_ruff(self):
        self.check(f"{TOOLS}/ruff", "check", ".")
        self.check(f"{TOOLS}/ruff", "check", "--isolated", "--line-length=140", "--target-version=py311", "--select=E,F,W,C4", "--ignore=E402",
                   f"{ROOT}/tests/python", f"{ROOT}/tests/support/package.py")

    def test_strict_it_is(self):
        text = read("client/python/pyproject.toml")
        for line in ("strict = true", 'target-version = "py39"', 'requires-python = ">=3.9"'):
            self.assertIn(f"\n{line}\n", text)

    def test_no_hard_dependency(self):
        """Nothing but the standard library is imported when a module is."""
        own = set(sys.stdlib_module_names) | {"gpuipc"}
        faults = []
        for path in sources.files(".py", rooms=("client",)):
            if path.startswith("client/python/gpuipc/"):
                for name in re.findall(r"^(?:import|from) (\w+)", read(path), re.M):
                    if name not in own and "/torch/" not in path:
                        faults.append(f"{path}: imports {name}")
        self.assertEqual(faults, [])

    def test_the_wheel_is_told_of_by_its_name(self):
        version = re.search(r'GPUIPC_VERSION "(.*)"', read("include/gpuipc.h")).group(1)
        self.assertRegex(read("client/python/README.md"), rf"gpuipc-{re.escape(version)}-py3-none-manylinux_2_34_x86_64\.whl")


if __name__ == "__main__":
    unittest.main()
