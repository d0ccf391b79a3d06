# SPDX-License-Identifier: Apache-2.0
"""The wheel of the Python package in containers that have Python and nothing of gpuipc's: installed by what the documents say to type, or
unpacked outside and mounted. An array goes from one to another. deadline: 300 s"""

import glob
import os
import re
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import main  # noqa: E402
from daemon import BUILD, ROOT, wait_for  # noqa: E402
from overroot import OverRootTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

PYTHON = "/usr/bin/python3"
WHERE = "print(gpuipc._native.library().path, 'numpy' in sys.modules, flush=True)"
PUT = f"""import array, sys, gpuipc, gpuipc._native
client = gpuipc.Client()
{WHERE}
buffer = client.put('array', memoryview(array.array('d', range(6))).cast('B').cast('d', (3, 2)), mode=0o644)
sys.stdin.readline()
"""
GET = f"""import sys, gpuipc, gpuipc._native
got = gpuipc.Client().get('array', owner=0, wait=20)
print(got.dtype, got.shape, got.memoryview().tolist())
{WHERE}
"""
NOT_HERE = 'import importlib.util as u, sys; sys.exit("gpuipc is there already" if u.find_spec("gpuipc") else 0)'
GOT = "float64 (3, 2) [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]\n"


def told_to_type():
    """(document, what it says to type) of the ways in which a wheel is installed."""
    found = set()
    for name in ("README.md", "client/python/README.md", "client/python/MIGRATING.md"):
        with open(f"{ROOT}/{name}", encoding="utf-8") as file:
            found |= {(name, words) for words in re.findall(r"\bpip install \S+\.whl\b", file.read())}
    return sorted(found)


class WheelTest(OverRootTest):
    def options(self, *more):
        return super().options("-w", "/", *more)

    def unpacked(self):
        """Options for a container that is given it so."""
        (path,) = glob.glob(f"{BUILD}/python/*.whl")
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(f"{self.scratch}/unpacked")
        return self.options("-v", f"{self.scratch}/unpacked:/gpuipc:ro", "-e", "PYTHONPATH=/gpuipc")

    def install_and_get(self, document, words, consumer):
        """In a new environment of the container's own, as Debian wants it; paths are from where the document's reader is."""
        place = "/checkout" if document == "README.md" else "/checkout/build/python"
        gate = tempfile.mkdtemp(dir=self.scratch)
        os.mkfifo(f"{gate}/go")
        self.podman.start("producer", *self.options("-v", f"{BUILD}/python:/checkout/build/python:ro", "-v", f"{gate}:/gate"), root="/:O",
                          command=["sh", "-c", "read -r _ </gate/go; sleep 600 | exec /opt/v/bin/python3 -c \"$0\"", PUT])
        install = f"{PYTHON} -m venv /opt/v; export PATH=/opt/v/bin:$PATH; python3 -c '{NOT_HERE}'; {words}"
        try:
            self.podman.call("exec", "-w", place, "producer", "sh", "-ec", install, seconds=WAIT_S * 12)
            self.podman.call("exec", "producer", "sh", "-c", "echo >/gate/go")
            done = self.podman.run(*consumer, root="/:O", command=[PYTHON, "-c", GET])
            log = self.podman.call("logs", "producer").stdout
            self.assertEqual(done.stdout, f"{GOT}/gpuipc/gpuipc/libgpuipc.so.0 False\n", f"{done.stderr}{log}")
            self.assertRegex(log, r"^/opt/v/lib/python3\.\d+/site-packages/gpuipc/libgpuipc\.so\.0 False\n$")
            self.assert_in_containers()
        finally:
            self.podman.remove("producer")
        wait_for(lambda: self.daemon.status()["buffers"] == 0, "the array to go with its container")

    def test_as_told(self):
        consumer = self.unpacked()
        told = told_to_type()
        self.assertLessEqual({"README.md", "client/python/README.md"}, {document for document, _ in told})
        for document, words in told:
            with self.subTest(document, words=words):
                self.install_and_get(document, words, consumer)

    def test_another_user(self):
        """Unpacked on both sides; the consumer without privileges, in a root that it cannot write to."""
        options = self.unpacked()
        self.podman.start("producer", *options, "-i", root="/:O", command=["sh", "-c", f"sleep 600 | exec {PYTHON} -c \"$0\"", PUT])
        done = self.podman.run(*options, "--user", "1234:1234", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
                               "--security-opt", "no-new-privileges", root="/:O", command=[PYTHON, "-c", GET])
        self.assertEqual(done.stdout, f"{GOT}/gpuipc/gpuipc/libgpuipc.so.0 False\n", done.stderr)


if __name__ == "__main__":
    main()
