# SPDX-License-Identifier: Apache-2.0
"""The integration suite on the GPU, with the same assertions as on host memory."""

import os
import re
import subprocess
import sys

from step import Step

ROOT = os.getcwd()  # of the tree: run.sh starts there
JOBS = "10"


def run_suite(rig, kind, suite=None, environment=None):
    """tests/run starts from a clean environment but for what a GPU needs; it shows what failed, and is stopped as a whole. The package
    gpuipc is tested with the Python that runs this, and with what that has: NumPy, PyTorch, CuPy."""
    what = f"{kind}/{suite}" if suite else kind
    runner = subprocess.Popen([sys.executable, "-B", "tests/run", "--build", "build/gpu", "--jobs", JOBS, what], cwd=ROOT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              env={**os.environ, "TMPDIR": "/tmp", **(environment or {})})
    told, reasons = "nothing was counted", []
    try:
        for line in runner.stdout:
            rig.log.write(line)
            if match := re.match(rf"(?:ok|FAIL) +{kind}/(\S+) +(.*)$", line):
                yield f"{kind}: {match.group(1)}", match.group(2), "all pass", "failed" not in match.group(2)
            elif match := re.match(r"tests: (.*)$", line):
                told = match.group(1)
            elif match := re.match(rf"skipped: {kind}/(.*)$", line):
                reasons.append(match.group(1))
        status = runner.wait(timeout=20)
    finally:
        if runner.poll() is None:
            runner.terminate()
            runner.wait()
        runner.stdout.close()
        rig.log.flush()
    yield f"integration suite on {what}", told, "all pass", status == 0
    for reason in reasons:
        yield f"{kind}: skipped", reason, "", None


def kinds(rig):
    return ("fake-fd", "fake-ipc") if rig.dry else ("cuda-fd", "cuda-ipc")


STEPS = [
    Step("suite-fd", 180, lambda rig: run_suite(rig, kinds(rig)[0])),
    Step("suite-ipc", 180, lambda rig: run_suite(rig, kinds(rig)[1])),
]
