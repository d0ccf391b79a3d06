# SPDX-License-Identifier: Apache-2.0
"""A newcomer with PyTorch who has the wheel and the two READMEs alone: it is installed by the words that stand there into a virtual
environment, and the pieces of code for PyTorch run as they stand there, one process each. What they leave to the reader is what they say:
README.md's `tensor`, and `...` for what the program does meanwhile."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, ROOT  # noqa: E402
from package import PACKAGE, PackageTest, gpuipc, torch  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

TENSOR = "import torch; tensor = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)"
MEANWHILE = "print('here', flush=True); input()"
SHOW = "print(tensor, gpuipc.__file__, gpuipc._native.library().path, flush=True)"


def pieces(path):
    """The pieces of code of a document that are for PyTorch."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text, [piece for piece in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "gpuipc.torch" in piece]


@unittest.skipUnless(torch, "there is no PyTorch here")
@unittest.skipUnless(glob.glob(f"{BUILD}/python/*.whl"), "no wheel here: make python")
class ReadmeTest(PackageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.place = tempfile.mkdtemp(prefix="venv.", dir=os.environ.get("TMPDIR"))
        cls.addClassCleanup(subprocess.run, ["rm", "-rf", cls.place], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", cls.place], check=True)
        with open(f"{ROOT}/README.md", encoding="utf-8") as file:
            (words,) = set(re.findall(r"\bpip install \S+\.whl\b", file.read()))
        environment = {**cls.own_environment(), "PATH": f"{cls.place}/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
        subprocess.run(["sh", "-ec", words], check=True, cwd=os.path.dirname(BUILD), env=environment, stdout=subprocess.DEVNULL)

    @staticmethod
    def own_environment():
        return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GPUIPC_LIB", "LD_"))}

    def run_piece(self, code):
        environment = {**self.own_environment(), "GPUIPC_SOCKET": self.daemon.socket}
        return self.owned_process(subprocess.Popen([f"{self.place}/bin/python3", "-c", code], stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE, text=True, cwd="/", env=environment))

    def finish(self, process):
        """It may go on, and ends: what it printed."""
        told, _ = process.communicate("\n", timeout=WAIT_S * 2)
        self.assertEqual(process.returncode, 0)
        return told

    def test_readme(self):
        text, (produce, consume) = pieces(f"{ROOT}/README.md")
        self.assertTrue(re.search(r"`tensor` is any\s[^`]*`\.\.\.` what", text))
        self.assertEqual(produce.count("\n...\n"), 1)
        producer = self.run_piece(f"{TENSOR}\n{produce.replace('...', MEANWHILE)}{SHOW}\n")
        consumer = self.run_piece(f"{consume}\n{SHOW}\n{MEANWHILE}\n{SHOW}\n")
        got = consumer.stdout.readline() + consumer.stdout.readline() + consumer.stdout.readline()
        put = self.finish(producer)
        self.assertIn("tensor([[0., 1., 2.],\n        [3., 4., 5.]], dtype=torch.bfloat16)", put)
        self.assertEqual((put, self.finish(consumer)), (f"here\n{got[:-5]}", got[:-5]))
        self.assertEqual(got.count(f" {self.place}/lib"), 2, got)
        with self.assertRaises(gpuipc.NoSuchBufferError):
            self.connect().open("example")

    def test_readme_of_the_package(self):
        _, (piece,) = pieces(f"{PACKAGE}/README.md")
        head, produce, consume = piece.split("\n\n")
        self.assertTrue("# one process" in produce and "# any other" in consume, piece)
        producer = self.run_piece(f"{head}\n{produce}\n{MEANWHILE}\nprint(tensor.shape, tensor.sum().item())\n")
        got = self.finish(self.run_piece(f"{head}\n{consume}"))
        self.assertEqual((got, self.finish(producer)), ("torch.Size([2, 3]) 15.0\n", f"here\n{got}"))


if __name__ == "__main__":
    unittest.main()
