# SPDX-License-Identifier: Apache-2.0
"""Preprocessing in one process and training in another: what pipeline.py measures, in rows, and its plot."""

import json
import os
import subprocess
import sys
import time

from rig import Process
from step import Step

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {"light": "light step", "resnet": "ResNet-18 step"}
WAYS = {"channel": "a channel", "torch": "torch.multiprocessing", "ring": "torch.multiprocessing, tensors and events sent once",
        "pinned": "pinned host memory and a queue"}
SECONDS = 85  # of measuring; with what goes before it stays below the step's
DRY = ("--device", "cpu", "--tiny", "--batches", "1,2", "--slots", "4", "--seconds", "1", "--window", "0.02")


def has(interpreter, module):
    return subprocess.run([interpreter, "-c", f"import {module}"], check=False, stderr=subprocess.DEVNULL).returncode == 0


def interpreter_with(module):
    """The one that runs this, else the system's; None when neither has the module."""
    return next((each for each in (sys.executable, "/usr/bin/python3") if os.path.exists(each) and has(each, module)), None)


def rate(case, way):
    batches = case["batches_per_s"][way]
    return f"{batches * case['batch']:.0f} samples/s ({batches:.1f} batches/s)"


def rows_of(case):
    where = f"{NAMES[case['step']]}, batches of {case['batch']}"
    over = case["channel_over"]
    yield f"{where}: by a channel", f"{rate(case, 'channel')}; medians of {case['rounds']} rounds", "", None
    for way, words in WAYS.items():
        if way != "channel":
            yield f"… by {words}", f"{rate(case, way)}; the channel {over[way]:.2f} times as many", "", None
    yield "… both in one process, nothing handed over", f"{rate(case, 'one')}; the channel {over['one']:.2f} times as many", "", None
    yield "… the training alone", rate(case, "alone-consumer"), "", None
    yield "… the preprocessing alone", rate(case, "alone-producer"), "", None


def sums_of(checks):
    """Whether every batch came as it was sent, by checksums of all its bits; batches that are alike would hide a wrong slot."""
    for way, words in WAYS.items():
        mine = [check for check in checks if check["way"] == way]
        n, different, wrong = (sum(check[word] for check in mine) for word in ("batches", "different", "wrong"))
        yield (f"batches that came by {words} as they were sent", f"{n - wrong} of {n}, {different} of them different from one another",
               f"{n}, {n}" if n else "some", n > 0 and wrong == 0 and different == n)


def gains_of(cases):
    for other, words in list(WAYS.items())[1:]:
        gains = sorted((case["channel_over"][other], f"{NAMES[case['step']]}, {case['batch']}") for case in cases)
        if gains:
            (least, at_least), (most, at_most) = gains[0], gains[-1]
            yield (f"samples/s by a channel over those by {words}",
                   f"{100 * (least - 1):+.0f} % ({at_least}) to {100 * (most - 1):+.0f} % ({at_most})", "", None)


def plot(rig, directory):
    interpreter = interpreter_with("matplotlib")
    if not interpreter:
        yield "the plot", "not drawn: no matplotlib here", "", None
        return
    gpu = "a processor" if rig.dry else rig.meter.text("nvmlDeviceGetName")
    target = f"{directory}/pipeline{'-dry' if rig.dry else ''}.svg"
    done = subprocess.run([interpreter, "-B", f"{HERE}/pipeline_plot.py", f"{directory}/pipeline.json", target,
                           f"Preprocessing in one process, training in another, on one {gpu}"], stdout=rig.log, stderr=rig.log,
                          timeout=60, check=False)
    yield "the plot", f"{os.path.basename(target)}, ended with {done.returncode}", "0", done.returncode == 0


def pipeline(rig):
    interpreter, directory = interpreter_with("torch"), os.environ["OUT"]
    if not interpreter:
        yield "the pipeline", "not run: no torch here", "", None
        return
    daemon = rig.daemon(memory="host" if rig.dry else "auto")
    arguments = DRY if rig.dry else ("--seconds", str(SECONDS))
    process = rig.owned(Process(rig, interpreter, "-B", f"{HERE}/pipeline.py", *arguments, os.path.abspath(directory),
                                environment={"GPUIPC_SOCKET": daemon.socket}))
    checks, cases, began = [], [], time.monotonic()
    try:
        while True:
            told = json.loads(process.line(100))
            if told["what"] == "failed":
                yield "pipeline.py", told["why"], "", False
            elif told["what"] == "check":
                checks.append(told)
            else:
                cases.append(told)
                yield from rows_of(told)
    except EOFError:
        pass
    status = process.process.wait(timeout=30)
    yield "pipeline.py", f"ended with {status} after {time.monotonic() - began:.0f} s", "0", status == 0
    yield from sums_of(checks)
    yield from gains_of(cases)
    if status == 0:
        yield from plot(rig, directory)
    rig.stop(daemon)


STEPS = [Step("pipeline", 150, pipeline)]
