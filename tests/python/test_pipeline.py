# SPDX-License-Identifier: Apache-2.0
"""The pipeline benchmark of the GPU tier, with a processor in the GPU's place: that it runs, and that it would notice a wrong batch."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
GPU = f"{ROOT}/tests/gpu"
sys.path[:0] = [f"{ROOT}/tests/support", f"{ROOT}/client/python", GPU]
os.environ["PYTHONPATH"] = f"{ROOT}/client/python:{ROOT}/tests/support"

import steps_pipeline  # noqa: E402
from daemon import BUILD  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from rig import Rig  # noqa: E402

os.environ["GPUIPC_LIBRARY"] = f"{BUILD}/libgpuipc.so.0"
try:
    import torch

    import pipeline
    import pipeline_ways
    import pipeline_work
    from pipeline_worker import Consumer, Producer, Setup
except ImportError as error:  # what needs it says so
    if error.name != "torch":
        raise
    torch = None

needs_torch = unittest.skipUnless(torch, "no torch here")
VENV = f"{ROOT}/build/venv/bin/python3"


class HostRig(Rig):
    """A tier's, without a GPU to ask."""

    def __init__(self, log):  # pylint: disable=super-init-not-called
        self.machine, self.dry, self.log, self.things = "one", True, log, []


class StepTest(unittest.TestCase):
    def run_step(self, directory):
        os.environ["OUT"] = directory
        with open(f"{directory}/log", "w+", encoding="utf-8") as log:
            rig = HostRig(log)
            try:
                rows = list(steps_pipeline.pipeline(rig))
            finally:
                rig.clean()
            log.seek(0)
            return rows, log.read()

    @needs_torch
    def test_the_step_tells_of_every_way(self):
        with tempfile.TemporaryDirectory() as directory:
            rows, log = self.run_step(directory)
            with open(f"{directory}/pipeline-shared.json", encoding="utf-8") as file:
                found = json.load(file)
        self.assertEqual([row for row in rows if row[3] is False], [], log)
        self.assertEqual(sorted((case["step"], case["batch"]) for case in found["cases"]),
                         [("light", 1), ("light", 2), ("resnet", 1), ("resnet", 2)])
        for case in found["cases"]:
            for figures in ("least", "batches_per_s", "most", "channel_over", "cpu_s_per_1000"):
                self.assertEqual(set(case[figures]), set(steps_pipeline.WAYS))
                self.assertGreater(min(case[figures].values()), 0)
            for way in steps_pipeline.WAYS:
                self.assertLessEqual(case["least"][way], case["batches_per_s"][way])
                self.assertLessEqual(case["batches_per_s"][way], case["most"][way])
            self.assertGreaterEqual(case["rounds"], pipeline.FEWEST_ROUNDS)
        came = [row for row in rows if row[0].startswith("batches that came as they were sent")]
        self.assertEqual([row[1:] for row in came], [("36 of 36, 36 of them unlike the others", "36, 36", True)] * 4)
        told = [row for row in rows if "ResNet-18 step, batches of 2" in row[0]]
        self.assertEqual(len(told), 1)
        for words in steps_pipeline.WAYS.values():
            self.assertIn(words, told[0][1])

    def test_without_torch_it_says_so(self):
        there = steps_pipeline.interpreter_with
        steps_pipeline.interpreter_with = lambda module: None
        try:
            with tempfile.TemporaryDirectory() as directory:
                rows, _ = self.run_step(directory)
        finally:
            steps_pipeline.interpreter_with = there
        self.assertEqual(rows, [("the pipeline", "not run: no torch here", "", None)])


MPS_CONTROL = """#!/bin/sh
[ "${1-}" = -d ] && { echo "$CUDA_MPS_PIPE_DIRECTORY" >> "$LOG"; echo started > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit "$STATUS"; }
cat >> "$LOG"
"""


class MpsTest(unittest.TestCase):
    """The service's own program is a script here."""

    def run_with(self, directory, status, there=True):
        if there:
            with open(f"{directory}/nvidia-cuda-mps-control", "w", encoding="utf-8") as file:
                file.write(MPS_CONTROL)
            os.chmod(file.name, 0o755)
        before = dict(os.environ)
        os.environ.update(PATH=f"{directory}:{os.environ['PATH']}", TMPDIR=directory, LOG=f"{directory}/log", STATUS=str(status))
        rig, measured = unittest.mock.Mock(dry=False, owned=lambda thing: thing), unittest.mock.Mock()
        measured.rows.side_effect = lambda place, *_, **options: iter([(place, options["environment"], "", None)])
        try:
            rows = list(steps_pipeline.with_mps(rig, measured))
        finally:
            os.environ.clear()
            os.environ.update(before)
        log = ""
        if os.path.exists(f"{directory}/log"):
            with open(f"{directory}/log", encoding="utf-8") as file:
                log = file.read()
        return rows, log, rig

    def test_it_is_there_meanwhile(self):
        with tempfile.TemporaryDirectory() as directory:
            rows, log, rig = self.run_with(directory, 0)
        there = {f"CUDA_MPS_{what.upper()}_DIRECTORY": f"{directory}/mps/{what}" for what in ("pipe", "log")}
        self.assertEqual(rows, [("mps", there, "", None)])
        self.assertEqual(log, f"{directory}/mps/pipe\nquit -t 5\n")
        rig.log.write.assert_called_once_with("---- MPS, control.log\nstarted\n\n")

    def test_one_that_does_not_start_is_told_of(self):
        with tempfile.TemporaryDirectory() as directory:
            rows, log, _ = self.run_with(directory, 3)
        self.assertEqual(rows, [("one GPU, with MPS", "not run: nvidia-cuda-mps-control ended with 3: ", "", None)])
        self.assertNotIn("quit", log)

    @unittest.skipIf(shutil.which("nvidia-cuda-mps-control"), "the real one is here")
    def test_one_that_is_not_there_is_told_of(self):
        with tempfile.TemporaryDirectory() as directory:
            rows, _, _ = self.run_with(directory, 0, there=False)
        self.assertEqual(rows, [("one GPU, with MPS", "not run: no nvidia-cuda-mps-control here", "", None)])


@needs_torch
class ProgramTest(unittest.TestCase):
    def test_what_failed_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-B", f"{GPU}/pipeline.py", *steps_pipeline.DRY, f"{directory}/found"]
            done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "GPUIPC_SOCKET": f"{directory}/nobody"},
                                  check=False, text=True, timeout=9 * WAIT_S)
            said = json.loads(done.stdout.splitlines()[-1])
            self.assertEqual((done.returncode, said["what"]), (1, "failed"))
            self.assertIn("G101", said["why"])
            self.assertEqual(os.listdir(directory), [])

    def test_a_process_that_dies_is_told_of(self):
        context = multiprocessing.get_context("spawn")
        shared = pipeline_ways.Shared(context, 4, 4096)
        pair = pipeline.Pair(Setup(None, pipeline_work.TINY, shared, None), context)
        pair.processes[1].kill()
        pair.processes[1].join()
        with self.assertRaisesRegex(pipeline.Failed, "the consumer has ended"):
            pair.ask(("consumer",), "run", "one", (1, 1, 1))
        pair.end(2 * WAIT_S)
        self.assertEqual([process.exitcode for process in pair.processes], [0, -signal.SIGKILL])
        os.close(shared.memory)


@needs_torch
class WorkTest(unittest.TestCase):
    def setUp(self):
        self.device, self.size = pipeline_work.Host(), pipeline_work.TINY

    def test_what_is_prepared(self):
        """Of frames of one grey, nothing but light and normalising is left to see."""
        frames = pipeline_work.frames_of(self.device, self.size).fill_(100)
        preparation = pipeline_work.Preparation(self.device, self.size, frames, 4)
        out = torch.empty_like(preparation.out)
        preparation.into(out)
        mean, deviation = (torch.tensor(each).view(1, 3, 1, 1) for each in (pipeline_work.MEAN, pipeline_work.DEVIATION))
        light = (out.float() * deviation + mean) * 255 / 100
        self.assertLess((light.amax((1, 2, 3)) - light.amin((1, 2, 3))).max().item(), 0.02)
        self.assertTrue(0.78 < light.min().item() and light.max().item() < 1.22, light)
        self.assertEqual(len(set(light.mean((1, 2, 3)).tolist())), 4)

    def test_batches_differ(self):
        preparation = pipeline_work.Preparation(self.device, self.size, pipeline_work.frames_of(self.device, self.size), 2)
        out, sums = torch.empty_like(preparation.out), set()
        for _ in range(100):
            preparation.into(out)
            sums.add(pipeline_work.checksum(out).item())
        self.assertEqual(len(sums), 100)

    def test_frames_and_places_take_turns(self):
        """Without the chances, what is left of one batch is a part of the next ones' frames."""
        frames = pipeline_work.frames_of(self.device, self.size)
        for each in range(self.size.frames):
            frames[each] = 10 + 20 * each
        preparation = pipeline_work.Preparation(self.device, self.size, frames, 3)
        means, original = [], torch.rand
        torch.rand = lambda *shape, **options: torch.full(*shape, 0.5, **options)
        try:
            for _ in range(4):
                preparation.step()
                means += ((preparation.out[:, 0].float().mean((1, 2)) * 0.229 + 0.485) * 255).round().int().tolist()
        finally:
            torch.rand = original
        self.assertEqual([round((mean - 10) / 20) for mean in means], [number % self.size.frames for number in range(12)])
        self.assertEqual(preparation.number.item(), 4)

    def test_checksum_sees_bits_and_places(self):
        batch = torch.arange(24, dtype=torch.float32).view(1, 3, 2, 4).to(pipeline_work.DTYPE)
        before = pipeline_work.checksum(batch).item()
        self.assertEqual(pipeline_work.checksum(batch.contiguous(memory_format=torch.channels_last)).item(), before)
        self.assertNotEqual(pipeline_work.checksum(batch.flip(3)).item(), before)
        batch.view(torch.int16)[0, 0, 0, 0] ^= 1
        self.assertNotEqual(pipeline_work.checksum(batch).item(), before)

    def test_training_learns(self):
        shape = (2, 3, self.size.out, self.size.out)
        for kind in pipeline_work.STEPS:
            training = pipeline_work.Training(self.device, self.size, kind, shape)
            training.load(torch.ones(shape, dtype=pipeline_work.DTYPE))
            before = [parameter.clone() for parameter in training.net.parameters()]
            training.step()
            self.assertTrue(all((one != other).any() for one, other in zip(before, training.net.parameters())
                                if other.grad.abs().max() > 0))
            self.assertTrue(any(parameter.grad.abs().max() > 0 for parameter in training.net.parameters()))

    def test_the_network_is_a_resnet_18(self):
        self.assertEqual(sum(each.numel() for each in pipeline_work.residual(pipeline_work.FULL).parameters()), 11_689_512)


@needs_torch
class CheckTest(unittest.TestCase):
    """A producer and a consumer as the benchmark has them, in two threads."""

    def sums(self, receiver):
        shared = pipeline_ways.Shared(multiprocessing.get_context("spawn"), 4, 2 * 3 * 16 * 16 * 2)
        setup = Setup(None, pipeline_work.TINY, shared, None)
        producer, consumer = Producer(setup), Consumer(setup)
        producer.preparation = pipeline_work.Preparation(producer.device, setup.size, producer.frames, 2)
        shape, came = tuple(producer.preparation.out.shape), []

        def consume():
            consumer.ends["way"] = receiver(consumer.device, shared, shape)
            consumer.training = pipeline_work.Training(consumer.device, pipeline_work.TINY, "light", shape)
            came.extend(consumer.check("way", 16))

        thread = threading.Thread(target=consume)
        thread.start()
        producer.ends["way"] = pipeline_ways.RingSender(producer.device, shared, shape)
        sent = producer.check("way", 16)
        thread.join(6 * WAIT_S)
        os.close(shared.memory)
        return sent, came

    def test_right_ones_are(self):
        sent, came = self.sums(pipeline_ways.RingReceiver)
        self.assertEqual((len(sent), pipeline.wrong(sent, came)), (16, 0))

    def test_another_slot_is_noticed(self):
        class Astray(pipeline_ways.RingReceiver):
            def take(self):
                super().take()
                return self.here[self.slot - 1]

        sent, came = self.sums(Astray)
        self.assertGreater(pipeline.wrong(sent, came), 8)

    def test_what_is_missing_is_wrong(self):
        self.assertEqual([pipeline.wrong([1, 2, 3], came) for came in ([1, 2, 3], [1, 2], [2, 1, 3], [])], [0, 1, 2, 3])


@unittest.skipUnless(os.path.exists(VENV) and steps_pipeline.has(VENV, "matplotlib"), "no matplotlib here")
class PlotTest(unittest.TestCase):
    def test_it_is_drawn(self):
        ways = ("channel", "torch", "ring", "pinned", "one", "alone-producer", "alone-consumer")
        cases = [{"step": step, "place": place, "batch": batch, "batches_per_s": dict.fromkeys(ways, 1000 / batch),
                  "channel_over": dict.fromkeys(ways, 1.5), "cpu_s_per_1000": dict.fromkeys(ways, batch / 100)}
                 for step in ("light", "resnet") for place in ("shared", "mps") for batch in (1, 16, 256)]
        with tempfile.TemporaryDirectory() as directory:
            with open(f"{directory}/pipeline.json", "w", encoding="utf-8") as file:
                json.dump({"cases": cases}, file)
            subprocess.run([VENV, "-B", f"{GPU}/pipeline_plot.py", "A title", f"{directory}/plot.svg", f"{directory}/pipeline.json"],
                           check=True, timeout=9 * WAIT_S)
            with open(f"{directory}/plot.svg", encoding="utf-8") as file:
                text = file.read()
        drawn = "".join(xml.etree.ElementTree.fromstring(text.encode()).itertext())
        for words in ("A title", "throughput (samples/s)", "batch size (samples, log₂)", "a gpuipc channel", "torch.multiprocessing",
                      "pinned host memory", "256", "GPU time-sliced", "GPU shared by MPS", "light step", "ResNet-18 step",
                      "(s for 1000 batches)"):
            self.assertIn(words, drawn)
        self.assertIn("SPDX-License-Identifier", text.splitlines()[1])


if __name__ == "__main__":
    unittest.main()
