# SPDX-License-Identifier: Apache-2.0
"""Preprocessing in one process and training in another: what pipeline.py measures, a row for each size of batches, and its plot."""

import json
import os
import shutil
import subprocess
import sys
import time

from rig import Process
from step import Step

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS_NAMED = {"light": "light step", "resnet": "ResNet-18 step"}
PLACES = {"shared": "one GPU, its time sliced", "mps": "one GPU, with MPS", "two": "from one GPU to the other"}
WAYS = {"channel": "channel", "torch": "torch.multiprocessing", "ring": "torch.multiprocessing by hand", "pinned": "pinned host memory",
        "one": "one process", "alone-consumer": "training alone", "alone-producer": "preprocessing alone"}
PIPED = ("channel", "torch", "ring", "pinned")
SAMPLE_BYTES = 2 * 3 * 224 * 224
DRY = ("--devices", "cpu", "--tiny", "--batches", "1,2", "--slots", "3", "--seconds", "1", "--window", "0.01")


def has(interpreter, module):
    return subprocess.run([interpreter, "-c", f"import {module}"], check=False, stderr=subprocess.DEVNULL).returncode == 0


def interpreter_with(module):
    """The one that runs this, else the system's; None when neither has the module."""
    return next((each for each in (sys.executable, "/usr/bin/python3") if os.path.exists(each) and has(each, module)), None)


def few(number):
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def row_of(case):
    rates, ratios, cpu = case["batches_per_s"], case["channel_over"], case["cpu_s_per_1000"]
    each = ", ".join(f"{WAYS[way]} {few(rate * case['batch'])} ({few(rate)})" for way, rate in rates.items())
    over = ", ".join(f"{ratios[way]:.2f} × {WAYS[way]}" for way in PIPED + ("one",) if way in ratios and way != "channel")
    spent = ", ".join(f"{WAYS[way]} {cpu[way]:.2f}" for way in PIPED)
    notes = "; the channel waits for the GPU on the processor" if case["synchronous"] else ""
    yield (f"{PLACES[case['place']]}, {STEPS_NAMED[case['step']]}, batches of {case['batch']}: samples/s (batches/s)",
           f"{each}; the channel {over}; processors' seconds for 1000 batches: {spent}; {case['rounds']} rounds{notes}", "", None)


def sums_of(checks):
    """Whether every batch came as it was sent, by checksums of all its bits; batches that are alike would hide a wrong slot."""
    for way in PIPED:
        mine = [check for check in checks if check["way"] == way]
        n, different, wrong = (sum(check[word] for check in mine) for word in ("batches", "different", "wrong"))
        yield (f"batches that came as they were sent: {WAYS[way]}", f"{n - wrong} of {n}, {different} of them unlike the others",
               f"{n}, {n}" if n else "some", n > 0 and wrong == 0 and different == n)


def gains_of(cases):
    for other in PIPED[1:]:
        for place in dict.fromkeys(case["place"] for case in cases):
            gains = sorted((case["channel_over"][other], f"{STEPS_NAMED[case['step']]}, {case['batch']}") for case in cases
                           if case["place"] == place)
            (least, at_least), (most, at_most) = gains[0], gains[-1]
            yield (f"{PLACES[place]}: samples/s of the channel over those of {WAYS[other]}",
                   f"{100 * (least - 1):+.0f} % ({at_least}) to {100 * (most - 1):+.0f} % ({at_most})", "", None)


class Measured:
    """What the runs of pipeline.py found."""

    def __init__(self, rig, daemon, interpreter):
        self.rig, self.daemon, self.interpreter = rig, daemon, interpreter
        self.checks, self.cases, self.files = [], [], []

    def rows(self, place, seconds, arguments=(), environment=None, needed=True):
        """A run of it; where it may fail (not `needed`), its end is only told."""
        file = f"{os.path.abspath(os.environ['OUT'])}/pipeline-{place}.json"
        arguments = DRY if self.rig.dry else ("--seconds", str(seconds), *arguments)
        process = self.rig.owned(Process(self.rig, self.interpreter, "-B", f"{HERE}/pipeline.py", "--place", place, *arguments, file,
                                         environment={"GPUIPC_SOCKET": self.daemon.socket, **(environment or {})}))
        began, good = time.monotonic(), None if not needed else False
        try:
            while True:
                told = json.loads(process.line(100))
                if told["what"] == "failed":
                    yield f"{PLACES[place]}: pipeline.py", told["why"], "", good
                elif told["what"] == "check":
                    self.checks.append(told)
                else:
                    self.cases.append(told)
                    yield from row_of(told)
        except EOFError:
            pass
        status = process.process.wait(timeout=30)
        yield f"{PLACES[place]}: pipeline.py", f"ended with {status} after {time.monotonic() - began:.0f} s", "0", status == 0 or good
        if status == 0:
            self.files.append(file)

    def summary(self):
        yield from sums_of(self.checks)
        if self.cases:
            yield from gains_of(self.cases)
        yield ("bytes of a sample that cross PCIe, computed", f"{2 * SAMPLE_BYTES} by pinned host memory (there and back), 0 by the others",
               "", None)

    def plot(self, name, title):
        interpreter = interpreter_with("matplotlib")
        if not interpreter:
            yield "the plot", "not drawn: no matplotlib here", "", None
            return
        target = f"{os.environ['OUT']}/{name}{'-dry' if self.rig.dry else ''}.svg"
        done = subprocess.run([interpreter, "-B", f"{HERE}/pipeline_plot.py", title, target, *self.files], stdout=self.rig.log,
                              stderr=self.rig.log, timeout=60, check=False)
        yield "the plot", f"{os.path.basename(target)}, ended with {done.returncode}", "0", done.returncode == 0


class Mps:
    """The driver's multi-process service, with its pipes and logs in a directory of its own; no setting of the GPU's is touched."""

    def __init__(self):
        self.program = shutil.which("nvidia-cuda-mps-control")
        self.directory = f"{os.environ['TMPDIR']}/mps"
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{self.directory}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{self.directory}/log"}

    def control(self, *arguments, words=""):
        return subprocess.run([self.program, *arguments], input=words, env={**os.environ, **self.environment}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=20, check=False, text=True)

    def start(self):
        """None, or why not."""
        if not self.program:
            return "no nvidia-cuda-mps-control here"
        for path in self.environment.values():
            os.makedirs(path)
        done = self.control("-d")
        return None if done.returncode == 0 else f"nvidia-cuda-mps-control ended with {done.returncode}: {done.stdout.strip()}"

    def end(self, _seconds=0):
        """Returns once the service has ended."""
        if self.program and os.path.isdir(self.directory):
            self.control(words="quit -t 5\n")

    def log(self):
        texts = []
        for name in ("control.log", "server.log"):
            try:
                with open(f"{self.environment['CUDA_MPS_LOG_DIRECTORY']}/{name}", encoding="utf-8", errors="replace") as file:
                    texts.append(f"---- MPS, {name}\n{file.read()[-3000:]}\n")
            except OSError:
                continue
        return "".join(texts)


def with_mps(rig, measured):
    """The same while both processes' kernels may run at one time, where the machine lets them."""
    if rig.dry:
        yield f"{PLACES['mps']}", "not run: a dry run", "", None
        return
    mps = rig.owned(Mps())
    why_not = mps.start()
    if why_not:
        yield f"{PLACES['mps']}", f"not run: {why_not}", "", None
        return
    yield from measured.rows("mps", 35, environment=mps.environment, needed=False)
    mps.end()
    rig.log.write(mps.log())


def begun(rig):
    interpreter = interpreter_with("torch")
    return Measured(rig, rig.daemon(memory="host" if rig.dry else "auto"), interpreter) if interpreter else None


def pipeline(rig):
    measured = begun(rig)
    if not measured:
        yield "the pipeline", "not run: no torch here", "", None
        return
    yield from measured.rows("shared", 45)
    yield from with_mps(rig, measured)
    yield from measured.summary()
    gpu = "processor" if rig.dry else rig.meter.text("nvmlDeviceGetName")
    yield from measured.plot("pipeline", f"Preprocessing in one process, training in another, on one {gpu}")
    rig.stop(measured.daemon)


def peer_pipeline(rig):
    """Preprocessing on the first GPU, training on the second."""
    measured = begun(rig)
    if not measured:
        yield "the pipeline", "not run: no torch here", "", None
        return
    yield from measured.rows("two", 45, arguments=("--devices", "0,1"))
    yield from measured.summary()
    gpu = "processor" if rig.dry else rig.meter.text("nvmlDeviceGetName")
    yield from measured.plot("pipeline-two", f"Preprocessing on one {gpu}, training on another, two processes")
    rig.stop(measured.daemon)


STEPS = [Step("pipeline", 160, pipeline)]
TWO_STEPS = [Step("peer-pipeline", 90, peer_pipeline, named=True)]
