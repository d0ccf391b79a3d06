# SPDX-License-Identifier: Apache-2.0
"""The examples for PyTorch, as one would run them. deadline: 300 s"""

import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

from daemon import BUILD, ROOT, Daemon, wait_for
from rawclient import WAIT_S
from torchtest import CUDA, PACKAGE, TorchTest, cuda_only

import torch

EXAMPLES = f"{PACKAGE}/examples"
SANDBOX = next(path for path in (f"{BUILD}/gpu/sandbox.py", f"{ROOT}/tests/gpu/sandbox.py") if os.path.isfile(path))
DOCKER_LIKE = ("--pid", "--mount", "--ipc", "--net", "--uts", "--shm", "own")


class Running:
    """An example: its lines as they come."""

    def __init__(self, *words, sandbox=(), environment=None):
        command = [sys.executable, "-B", f"{EXAMPLES}/{words[0]}", *map(str, words[1:])]
        if sandbox:
            command = [sys.executable, "-B", SANDBOX, *sandbox, "--", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(environment or {})})

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no line, and status {self.process.wait(2 * WAIT_S)}: {self.process.stderr.read()[-3000:]}")
        return line.rstrip("\n")

    def finish(self):
        """It is told that it may end, and does: what else it said."""
        out, err = self.process.communicate("\n", timeout=9 * WAIT_S)
        if self.process.returncode != 0:
            raise AssertionError(f"status {self.process.returncode}: {err[-3000:]}")
        return out.splitlines()

    def kill(self):
        self.process.kill()
        self.process.communicate()


class ExamplesTest(TorchTest):
    def run_example(self, *words, **how):
        running = Running(*words, **how)
        self.addCleanup(running.kill)
        return running

    def producer_and_consumer(self, sandbox=()):
        producer = self.run_example("torch_producer.py", "script", sandbox=sandbox)
        told = producer.line()
        self.assertRegex(told, r"^script: checksum -?\d+\.\d{6}$")
        self.assertEqual(self.run_example("torch_consumer.py", "script", sandbox=sandbox).finish(), [told])
        producer.finish()

    def test_producer_and_consumer(self):
        self.producer_and_consumer()

    @unittest.skipUnless(os.geteuid() == 0, "sandboxes are made by root")
    def test_in_two_sandboxes(self):
        self.producer_and_consumer(DOCKER_LIKE)

    def test_five_lines(self):
        """What the first screen promises."""
        numbers = []
        for name in ("torch_producer.py", "torch_consumer.py"):
            with open(f"{EXAMPLES}/{name}", encoding="utf-8") as file:
                numbers += re.findall(r"^(?:import gpuipc|.*(?:gpuipc\.torch|share)\.).*# (\d)$", file.read(), re.M)
        self.assertEqual(numbers, ["1", "2", "3", "4", "5"])

    def test_page(self):
        """Every piece of code in MIGRATING.md, on host memory where there is no GPU."""
        with open(f"{PACKAGE}/MIGRATING.md", encoding="utf-8") as file:
            pieces = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
        def run(piece):
            with tempfile.NamedTemporaryFile("w", suffix=".py", dir=os.environ.get("TMPDIR"), encoding="utf-8") as file:
                file.write(piece if CUDA else piece.replace('"cuda"', '"cpu"'))
                file.flush()
                done = subprocess.run([sys.executable, "-B", file.name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, timeout=5 * WAIT_S, check=False)
            return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

        with concurrent.futures.ThreadPoolExecutor(8) as executor:
            told = list(executor.map(run, pieces))
        self.assertEqual(told, ["torch.Size([2, 3]) torch.float32 15.0 True\n", "6.0 True\n", "False\n" if CUDA else "",
                                "[2.0, 2.0, 2.0]\n",
                                "0 6.0 [0, 1, 2, 3]\n0 22.0 [4, 5, 6, 7]\n1 6.0 [0, 1, 2, 3]\n1 22.0 [4, 5, 6, 7]\n"])

    def test_with_the_wheel_alone(self):
        wheels = glob.glob(f"{BUILD}/python/*.whl")
        if not wheels:
            self.skipTest("no wheel here: make python")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(directory)
            environment = {"PYTHONPATH": directory, "GPUIPC_LIBRARY": ""}
            producer = self.run_example("torch_producer.py", "wheel", environment=environment)
            told = producer.line()
            self.assertEqual(self.run_example("torch_consumer.py", "wheel", environment=environment).finish(), [told])
            producer.finish()

    @cuda_only
    def test_classic(self):
        producer = self.run_example("classic_producer.py")
        words, told = producer.line().split(), producer.line()
        self.assertEqual(self.run_example("classic_consumer.py", *words).finish(), [told])
        producer.finish()

    def test_weights(self):
        torch.manual_seed(5)
        layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        state = {f"layers.{key}": value for key, value in layers.state_dict().items()}
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
            torch.save(state, f"{directory}/weights.pt")
            loader = self.run_example("weights_loader.py", f"{directory}/weights.pt", "model")
            self.assertEqual(loader.finish(), ["model: 4 tensors, 38656 bytes"])
        servers = [self.run_example("weights_server.py", "model") for _ in range(2)]
        said = [float(server.line().split()[1]) for server in servers]
        self.assertEqual(said[0], said[1])
        with torch.no_grad():
            self.assertAlmostEqual(said[0], layers(torch.ones(1, 64)).double().sum().item(), places=3)
        weights = next(buffer for buffer in self.buffers() if buffer.size == 38656)
        self.assertEqual(self.leases(weights.id), 2)
        servers[0].kill()
        wait_for(lambda: self.leases(weights.id) == 1, "the killed one's lease to end")
        servers[1].finish()
        for buffer in self.buffers():
            self.client.free(id=buffer.id)

    def test_pipeline(self):
        preprocess = self.run_example("preprocess.py", "pipeline", 2, 5)
        train = self.run_example("train.py", "pipeline")
        said = train.finish()
        self.assertEqual([re.sub(r"[\d.]+$", "N", line) for line in said], [f"epoch {n}: 160 images, mean loss N" for n in (1, 2)])
        preprocess.finish()

    def test_classic_handles(self):
        environment = {}
        if not CUDA:
            fake = f"{BUILD}/fake"
            if not os.path.exists(f"{fake}/libcudart.so.13"):
                self.skipTest("built without CUDA")
            directory = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
            with open(f"{directory}/params", "w", encoding="ascii") as file:
                file.write('RegistryDwords: ""\n')
            environment = {"LD_LIBRARY_PATH": fake, "GPUIPC_FAKE_CUDA": f"state {directory}/gpu; devices 1; log no",
                           "GPUIPC_NVIDIA_PARAMS": f"{directory}/params"}
        with Daemon(memory="cuda", environment=environment) as daemon:
            client = self.run_example("classic_client.py", environment={**environment, "GPUIPC_SOCKET": daemon.socket})
            self.assertEqual(client.finish(), ["the server says 522240, and it is 522240"])
            wait_for(lambda: daemon.status()["buffers"] == 0, "the buffer's end")


if __name__ == "__main__":
    unittest.main()
