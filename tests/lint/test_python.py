# SPDX-License-Identifier: Apache-2.0
"""The Python package and its tests as their own checkers see them: mypy in its strict mode, ruff, vermin; and what it has no part in."""

import ast
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
OLDEST = (3, 9)
# What runs what it is given, or can be made to by who made its input.
BY_IMPORT = {"pickle", "_pickle", "pickletools", "marshal", "shelve", "copyreg", "dill", "cloudpickle", "joblib", "code", "codeop", "runpy",
             "multiprocessing", "torch.multiprocessing"}
BY_NAME = {"eval", "exec", "compile", "__import__"}
BY_ATTRIBUTE = {"torch.load", "torch.jit.load", "torch.package", "numpy.load"}


def package_files():
    return [path for path in sources.files(".py", rooms=("client",)) if path.startswith("client/python/")]


def dotted(node):
    """"a.b.c" of such an expression, else ""."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_or_within(name, names):
    return any(name == each or name.startswith(f"{each}.") for each in names)


def that_run_input(text):
    """What of a source runs what it is given: [(line, what)]."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Name) and node.id in BY_NAME:
            found.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        found += [(node.lineno, name) for name in names if is_or_within(name, BY_IMPORT | BY_ATTRIBUTE)]
    return sorted(set(found))


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

    def test_the_oldest_python_reads_it(self):
        for path in package_files():
            with self.subTest(path):
                ast.parse(read(path), path, feature_version=OLDEST)

    def test_the_oldest_python_has_what_it_uses(self):
        """Of the standard library; vermin takes a tensor's long() for Python 2's."""
        told = self.check(f"{TOOLS}/vermin", f"--target={OLDEST[0]}.{OLDEST[1]}-", "--violations", "--eval-annotations", "--no-tips",
                          "--exclude=long", *(f"{ROOT}/{path}" for path in package_files()))
        self.assertRegex(told, r"Minimum required versions: +3\.\d")

    def test_it_runs_nothing_that_it_is_given(self):
        """No pickles, which are programs: torch.multiprocessing's own queues are the exception, of which PyTorch makes pickles."""
        users = {}
        for path in package_files():
            if path.startswith("client/python/gpuipc/"):
                found = that_run_input(read(path))
                if found:
                    users[path] = [what for _, what in found]
        self.assertEqual(users, {"client/python/gpuipc/torch/multiprocessing.py": [
            "multiprocessing.reduction.ForkingPickler", "torch.multiprocessing.reductions"]})

    def test_what_runs_its_input_is_found(self):
        for text in ("import pickle", "import os, marshal as m", "from pickle import loads", "def f():\n    import shelve", "eval('1')",
                     "f = exec", "import torch\ntorch.load('x')", "from torch import load", "from multiprocessing import connection",
                     "import numpy\nnumpy.load(x, allow_pickle=True)", "__import__('pick' + 'le')"):
            with self.subTest(text):
                self.assertTrue(that_run_input(text))
        self.assertEqual(that_run_input("import re, torch\nfrom .torch import multiprocessing\nre.compile('x')\nx.load()\ntorch.compile(x)"), [])

    def test_jax_is_told_of_by_its_version(self):
        version = re.search(r"\bjax==(\S+);", read("mk/deps")).group(1)
        self.assertIn(f"\n| JAX | {version}: ", read("client/python/README.md"))

    def test_the_wheel_is_told_of_by_its_name(self):
        version = re.search(r'GPUIPC_VERSION "(.*)"', read("include/gpuipc.h")).group(1)
        self.assertRegex(read("client/python/README.md"), rf"gpuipc-{re.escape(version)}-py3-none-manylinux_2_34_x86_64\.whl")


if __name__ == "__main__":
    unittest.main()
