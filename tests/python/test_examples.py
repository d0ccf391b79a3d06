# SPDX-License-Identifier: Apache-2.0
"""What a newcomer runs: the examples, every piece of code in the package's README, and the wheel in a virtual environment of its own."""

import glob
import os
import re
import subprocess
import sys
import tarfile
import unittest
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, ROOT  # noqa: E402
from package import PACKAGE, PackageTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

EXAMPLES = f"{PACKAGE}/examples"
with open(f"{ROOT}/include/gpuipc.h", encoding="utf-8") as file:
    VERSION = re.search(r'GPUIPC_VERSION "(.*)"', file.read()).group(1)


class ExamplesTest(PackageTest):
    def run_file(self, name, *arguments, python=sys.executable, environment=None):
        done = subprocess.run([python, f"{EXAMPLES}/{name}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=WAIT_S, check=False, env=environment or self.environment_of_programs())
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    SHARED = "<gpuipc.Array float64[3] on host read-only> [1.0, 2.0, 3.0]\n"

    def test_share(self):
        self.assertEqual(self.run_file("share.py"), self.SHARED)

    def test_two_processes(self):
        with subprocess.Popen([sys.executable, f"{EXAMPLES}/get.py", "example/matrix"], stdout=subprocess.PIPE, text=True,
                              env=self.environment_of_programs()) as early:
            self.assertEqual(self.run_file("put.py", "example/matrix", "3", "5"), "example/matrix: 3 x 5\n")
            wanted = "example/matrix: 3 x 5 of float32, sum 105\n"
            self.assertEqual(early.communicate(timeout=WAIT_S)[0], wanted)
        self.assertEqual(self.run_file("get.py", "example/matrix"), wanted)
        client = self.connect()
        client.free("example/matrix")

    def test_readme(self):
        with open(f"{PACKAGE}/README.md", encoding="utf-8") as file:
            pieces = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
        told = [self.run_program(piece) for piece in pieces]
        self.assertEqual(len(pieces), 7)
        self.assertEqual(told[0], "float64 (2, 3) 15.0\n")
        self.assertRegex(told[1], r"^5\.0\ntensor\(\[5\., 1\.,.*\n.*b'\\x00\\x00\\xa0@'\n$")
        self.assertEqual(told[2], "b'header' 1\n")
        self.assertEqual(told[3], "0 0\n1 16\n2 32\n3 36.0\n")
        self.assertEqual(told[4], "b'here'\n")
        self.assertRegex(told[5], r"^No such buffer")
        self.assertEqual(told[6], "torch.Size([2, 3]) 15.0\n")

    # ---- what make python makes ----

    def made(self, pattern):
        (path,) = glob.glob(f"{BUILD}/python/{pattern}")
        return path

    def test_wheel(self):
        with zipfile.ZipFile(self.made("*.whl")) as wheel:
            names = {name for name in wheel.namelist() if not name.startswith("gpuipc-")}
            metadata = wheel.read(f"gpuipc-{VERSION}.dist-info/METADATA").decode()
            tags = wheel.read(f"gpuipc-{VERSION}.dist-info/WHEEL").decode()
        sources = {os.path.relpath(path, PACKAGE) for path in glob.glob(f"{PACKAGE}/gpuipc/**/*.py", recursive=True)}
        self.assertEqual(names - {"gpuipc/libcjson.so.1"}, sources | {"gpuipc/py.typed", "gpuipc/libgpuipc.so.0"})
        self.assertIn(f"\nVersion: {VERSION}\n", metadata)
        self.assertNotIn("Requires-Dist", metadata)
        self.assertIn("# gpuipc", metadata)
        self.assertIn("Root-Is-Purelib: false", tags)
        self.assertRegex(tags, r"Tag: py3-none-manylinux_2_\d+_\w+")

    def test_source_distribution(self):
        with tarfile.open(self.made("*.tar.gz")) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        self.assertTrue({"pyproject.toml", "setup.py", "VERSION", "LICENSE", "README.md", "gpuipc/py.typed", "gpuipc/client.py",
                         "examples/share.py"} <= names, names)
        self.assertFalse([name for name in names if ".so" in name])

    def test_the_wheel_alone(self):
        """In a new environment, with nothing else: neither this tree nor NumPy. The first example runs."""
        place = f"{os.environ.get('TMPDIR', '/tmp')}/venv"
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GPUIPC", "LD_"))}
        environment["GPUIPC_SOCKET"] = self.daemon.socket
        subprocess.run([f"{place}/bin/python3", "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check",
                        self.made("*.whl")], check=True, env=environment, cwd="/")
        told = self.run_file("share.py", python=f"{place}/bin/python3", environment=environment)
        self.assertEqual(told, self.SHARED)
        code = "import gpuipc, importlib.metadata, gpuipc._native as n; print(n.library().path, importlib.metadata.version('gpuipc'))"
        where = subprocess.run([f"{place}/bin/python3", "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment,
                               cwd="/").stdout.split()
        self.assertTrue(where[0].startswith(f"{place}/lib"), where)
        self.assertEqual(where[1], VERSION)


if __name__ == "__main__":
    unittest.main()
