# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the GPU tier one after the other, goes on after one that fails, and writes the table. See run.sh."""

import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback

import steps_channel
import steps_costs
import steps_fences
import steps_lifetime
import steps_locks
import steps_memory
import steps_pipeline
import steps_python
import steps_sandbox
import steps_suite
import steps_two
from rig import Rig

WHOLE_S = 500  # nothing is begun later
PARTS = {
    "one": steps_suite.STEPS + steps_memory.STEPS + steps_sandbox.STEPS + steps_lifetime.STEPS + steps_costs.STEPS +
           steps_fences.STEPS + steps_channel.STEPS + steps_locks.STEPS,
    "python": steps_python.STEPS,
    "pipeline": steps_pipeline.STEPS,
    "two": steps_two.STEPS + steps_locks.STEPS + steps_fences.TWO_STEPS + steps_channel.TWO_STEPS + steps_python.TWO_STEPS +
           steps_pipeline.TWO_STEPS,
}


class StepTimeout(BaseException):
    """Past a step's time; nothing within a step may take it for a failure of its own."""


def alarm(*_):
    raise StepTimeout


class Report:
    """Rows as they come, shown and written at once, so that what is cut off leaves what it had."""

    def __init__(self, rig, directory, wanted):
        self.rig, self.rows = rig, []
        named = wanted or ([] if rig.part == "one" else [rig.part])
        self.path = f"{directory}/{'-'.join(['RESULTS', *named, *(['dry'] if rig.dry else [])])}.md"
        self.head = head_of(rig)

    def add(self, step, what, figure, target, good):
        self.rows.append((step, what, figure, target, {True: "pass", False: "FAIL", None: "told"}[good]))
        print(f"{self.rows[-1][4]:4}  {step:<12} {what}: {figure}" + (f"  (target {target})" if target else ""), flush=True)
        self.write()

    def write(self):
        def clean(text):
            return str(text).replace("|", "/").replace("\n", " ")

        lines = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "<!-- Written by tests/gpu/run.sh. -->",
                 "# The GPU tier: what was measured", "", *self.head, "",
                 "| step | what | figure | target | |", "| --- | --- | --- | --- | --- |"]
        lines += ["| " + " | ".join(map(clean, row)) + " |" for row in self.rows]
        lines += ["", self.summary(), ""]
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        os.replace(self.path + ".new", self.path)

    def summary(self):
        count = {word: sum(row[4] == word for row in self.rows) for word in ("pass", "FAIL", "told")}
        return f"{count['pass']} passed, {count['FAIL']} failed, {count['told']} told."

    def table(self):
        widths = [max([len(str(row[i])) for row in self.rows] + [1]) for i in range(3)]
        for row in self.rows:
            print(f"{row[4]:4}  {row[0]:<{widths[0]}}  {row[1]:<{min(widths[1], 60)}}  {row[2]}  [{row[3] or '-'}]")
        print(self.summary(), flush=True)


def output_of(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False, text=True).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def head_of(rig):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = [line for line in output_of(nvcc, "--version").splitlines() if "release" in line]
    gpus = [f"{rig.meter.text('nvmlDeviceGetName', i)}, {rig.meter.memory(i).total / 2**30:.0f} GiB"
            for i in range(len(rig.meter.devices))]
    return [
        f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"- GPUs: {len(gpus)} × {gpus[0]}" if gpus else "- GPUs: none",
        f"- driver: {rig.meter.driver()}" + (" (a fake: figures mean nothing)" if rig.dry else ""),
        f"- CUDA: {rig.meter.cuda()} by the driver; toolkit " + (toolkit[0].split(",")[-2].strip() if toolkit else "not found"),
        f"- kernel: {platform.release()}, {os.cpu_count()} processors, Python {platform.python_version()}",
    ]


def run_step(rig, report, step, left):
    """A step yields rows: (what, figure, target, whether it is met; None: only told)."""
    seconds = min(step.seconds, left)
    started = time.monotonic()
    signal.alarm(max(1, int(seconds)))
    try:
        for what, figure, target, good in step.run(rig):
            report.add(step.name, what, figure, target, good)
    except StepTimeout:
        report.add(step.name, "the step", f"not done within {seconds:.0f} s", "", False)
        traceback.print_exc(file=rig.log)
    except Exception as error:  # pylint: disable=broad-except
        report.add(step.name, "the step", f"{type(error).__name__}: {str(error)[:300]}", "", False)
        traceback.print_exc(file=rig.log)
    finally:
        signal.alarm(0)
    rig.log.write(f"==== {step.name}: {time.monotonic() - started:.1f} s\n")
    signal.alarm(40)
    try:
        rig.clean()
    except StepTimeout:
        report.add(step.name, "cleaning up", "not done in time", "", False)
    finally:
        signal.alarm(0)


def main():
    part, dry, wanted = sys.argv[1], bool(sys.argv[2]), sys.argv[3:]
    steps = PARTS[part]
    unknown = set(wanted) - {step.name for step in steps}
    if unknown:
        print(f"run.sh: no step {', '.join(unknown)}; there are {', '.join(step.name for step in steps)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGALRM, alarm)
    directory = os.environ["OUT"]
    with open(f"{directory}/tier-{part}.log", "w", encoding="utf-8", errors="replace") as log:
        rig = Rig(part, dry, log)
        report = Report(rig, directory, wanted)
        print("\n".join(report.head), flush=True)
        began = time.monotonic()
        for step in steps:
            if step.name not in wanted if wanted else step.named:
                continue
            left = WHOLE_S - (time.monotonic() - began)
            if left < 5:
                report.add(step.name, "the step", "no time left for it", "", False)
                continue
            run_step(rig, report, step, left)
        print(f"\n{time.monotonic() - began:.0f} s; {report.path}\n")
        report.table()
    return 1 if any(row[4] == "FAIL" for row in report.rows) or not report.rows else 0


if __name__ == "__main__":
    sys.exit(main())
