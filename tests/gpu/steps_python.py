# SPDX-License-Identifier: Apache-2.0
"""gpuipc.torch on the GPU: its suites, deaths of producers and consumers, and its figures beside those of others."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading

from daemon import open_fds, wait_for
from rig import KIB, MIB, size_text
from step import Step
from steps_lifetime import memory_kb

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = ("page", "weights:classic_handles", "producer_and_consumer:five_lines:classic", "in_two_sandboxes:pipeline")
SUITES = ("share", "pool", "compile", "channel", "interfaces", "multiprocessing",
          *(":".join(["examples", *(f"ExamplesTest.test_{one}" for one in some.split(":"))]) for some in EXAMPLES))
# For a short run: which suites (with a test of each, perhaps: "share:LeaseTest"), and the seconds that each may take.
SUITES = tuple(os.environ.get("GPUIPC_PYTHON_SUITES", " ".join(SUITES)).split())
TWO_SUITES = tuple(f"{name}:TwoGpusTest" for name in ("share", "channel", "multiprocessing"))
SUITE_S = int(os.environ.get("GPUIPC_PYTHON_SECONDS", "70"))
SIZES = ((256, 100), (64 * KIB, 100), (MIB, 100), (64 * 3 * 224 * 224 * 4, 100), (256 * MIB, 40))  # bytes, rounds
DRY_SIZES = ((256, 20), (MIB, 20))
GROWTH_KB = 128  # what an allocator may differ by; a small struct lost with each that is killed is more
COMPARE_S = 100  # nothing is begun later
SURVIVED = "taken before: whole; on its way: whole"


def environment(rig):
    """PyTorch is the machine's own, with or without a GPU; in a dry run there is host memory alone."""
    own = dict(os.environ)
    extra = f"{HERE}/../pypi"
    own["PYTHONPATH"] = ":".join([f"{HERE}/../support", f"{HERE}/../python", extra, own.get("PYTHONPATH", "")])
    own["GPUIPC_LIBRARY"] = f"{HERE}/../libgpuipc.so.0"
    own["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    own["PYTHONFAULTHANDLER"] = "1"
    own.pop("CUDA_CACHE_DISABLE", None)
    if rig.dry:
        own["GPUIPC_TEST_BACKEND"] = "host"
        own["LD_LIBRARY_PATH"] = ""
    return own


def has_torch(rig):
    return subprocess.run([sys.executable, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL,
                          env=environment(rig)).returncode == 0


def without_torch(run):
    def step(rig):
        if has_torch(rig):
            yield from run(rig)
        else:
            yield "gpuipc.torch", "not run: no torch here", "", None
    return step


# ---- the suites ------------------------------------------------------------------------------------------------


def run_suites(rig, suites=SUITES, visible="0"):
    """All at once, each with a daemon of its own. Where nothing is said of a device they mean the only GPU, so that no other is seen."""
    own = {**environment(rig), "GPUIPC_TEST_LIMIT_S": str(SUITE_S - 2), **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    done = {}

    def one(what):
        name, *some = what.split(":")
        path = f"{HERE}/../pythontests/test_torch_{name}.py"
        with open(os.environ["OUT"] + f"/test_torch_{what.replace(':', '-')}.log", "w+", encoding="utf-8", errors="replace") as output:
            suite = subprocess.Popen([sys.executable, "-B", path, "-v", *some], stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=output, start_new_session=True, env=own)
            try:
                status = suite.wait(timeout=SUITE_S)
            except subprocess.TimeoutExpired:
                status = f"no end within {SUITE_S} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(suite.pid, signal.SIGKILL)
            suite.wait()
            output.seek(0)
            done[what] = (status, output.read())

    threads = [threading.Thread(target=one, args=(what,)) for what in suites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, (status, output) in sorted(done.items()):
        rig.log.write(f"---- test_torch_{name}: {status}\n{output[-20000:]}\n")
        rig.log.flush()
        stood = re.findall(r"^(test_\w+) \(", output, re.M)
        ran = re.search(r"^Ran (\d+) tests? in ([\d.]+)s", output, re.M)
        failed = sorted(set(re.findall(r"^(?:FAIL|ERROR): (\S+)", output, re.M)))
        skipped = re.search(r"skipped=(\d+)", output)
        nothing = bool(ran and skipped) and ran.group(1) == skipped.group(1)
        words = f"{ran.group(1)} tests in {ran.group(2)} s" if ran else f"{status}; stood at {', '.join(stood[-1:]) or 'its beginning'}"
        yield (f"gpuipc.torch, {name}", words + (f", {skipped.group(1)} skipped" if skipped else "") +
               (f"; failed: {', '.join(failed)}" if failed else ""), "" if nothing and rig.dry else "some run, and all of those pass",
               None if nothing and rig.dry and status == 0 else status == 0 and bool(ran) and not nothing)


# ---- deaths ----------------------------------------------------------------------------------------------------


def deaths(rig):
    """A producer ends, then the consumer that reads is killed; and nothing has grown."""
    # A ring of events that is full once all is warm.
    daemon = rig.daemon("--events-max", "128", memory="host" if rig.dry else "auto")
    wanted, seconds = (200, 8) if rig.dry else (1000, 40)
    driver = subprocess.Popen([sys.executable, "-B", f"{HERE}/torch_deaths.py", daemon.socket, "cpu" if rig.dry else "cuda", str(wanted),
                               str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=rig.log, text=True,
                              env=environment(rig))
    try:
        def books():
            return (rig.meter.settled_free(), len(open_fds(daemon.pid)), len(open_fds(driver.pid)))

        def hear():
            line = driver.stdout.readline()
            if not line:
                raise AssertionError(f"torch_deaths.py ended with {driver.wait(timeout=10)}; the log has its words")
            return json.loads(line)

        def go_on():
            driver.stdin.write("go\n")
            driver.stdin.flush()

        def resident():
            wait_for(lambda: daemon.status()["sessions"] <= sessions, f"{sessions} sessions as before")
            return memory_kb(daemon.pid, "VmRSS")

        hear()
        before, sessions = books(), daemon.status()["sessions"]
        go_on()
        warm, size_before = hear()["warm"], resident()
        go_on()
        told = hear()
        total = told["killed"] + told["held"]
        size = resident() - size_before
        after = books()
        yield (f"consumers SIGKILLed, {total} in all: {told['killed']} while their kernels read a tensor whose producer had ended, "
               f"{told['held']} with a lease on such memory and its descriptor, not mapped yet",
               f"{told['wrong']} saw other bytes; {'; '.join(told['errors']) or 'no errors'}",
               "0, none" if rig.dry else "0, none; 1,000 in all",
               told["wrong"] == 0 and not told["errors"] and total >= wanted and told["killed"] > 0)
        yield ("… after that GPU memory in use, descriptors of the daemon and of a client that stayed are more by",
               f"{before[0] - after[0]} bytes, {after[1] - before[1]}, {after[2] - before[2]}", "0, 0, 0",
               before[0] <= after[0] and after[1:] == before[1:])
        yield (f"… and the daemon's resident memory, since the first {warm} were killed", f"{size} kB", f"< {GROWTH_KB} kB",
               size < GROWTH_KB)
        go_on()
        driver.wait(timeout=20)
    finally:
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
    rig.stop(daemon)


# ---- beside others ---------------------------------------------------------------------------------------------


def latency_text(row):
    if "p50" not in row:
        return ""
    text = f"p50 {row['p50']:.0f} µs, p99 {row['p99']:.0f} µs; "
    if "acknowledged" in row:
        text += (f"one outstanding, from its loader's giving to the program's having (its own acknowledgement, of the consumer's queue, "
                 f"p50 {row['acknowledged']:.0f} µs); ")
    return text


def figures(rig, row):
    """The row of a way and a size. tensorsocket's is only told: its producer writes over what may not have been read yet."""
    bandwidth = row["rate"] * row["size"] / 1e9
    text = latency_text(row) + f"{row['rate']:.0f} a second" + (f" ({bandwidth:.1f} GB/s)" if bandwidth >= 0.1 else "")
    if "held" in row and not rig.dry:
        text += f"; {row['held'] / 2**20:.0f} MiB of the GPU"
    if row["way"] == "tensorsocket":
        return text + f"; {row['bad']} wrong", "", None
    return text, "0 wrong" if "bad" in row else "", row["bad"] == 0 if "bad" in row else None


def compared(rig, row):
    if "death" in row:
        return (f"producer killed, {row['death']}", row["words"], SURVIVED if row["outlives"] else "",
                row["words"] == SURVIVED if row["outlives"] else None)
    what = f"{row['way']}, {size_text(row['size'])}"
    if "words" in row:
        return what, row["words"], "", None if row["way"] == "tensorsocket" else False
    return what, *figures(rig, row)


def compare(rig):
    daemon = rig.daemon(memory="host" if rig.dry else "auto")
    sizes = [f"{size}:{rounds}" for size, rounds in (DRY_SIZES if rig.dry else SIZES)]
    driver = subprocess.Popen([sys.executable, "-B", f"{HERE}/torch_compare.py", "cpu" if rig.dry else "cuda", str(COMPARE_S), *sizes],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=rig.log, text=True,
                              env={**environment(rig), "GPUIPC_SOCKET": daemon.socket})
    try:
        for line in driver.stdout:
            if line.startswith("{"):
                yield compared(rig, json.loads(line))
            else:
                rig.log.write(line)
        status = driver.wait(timeout=20)
        if status != 0:
            yield "torch_compare.py", f"ended with {status}", "0", False
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
    wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
    rig.stop(daemon)


STEPS = [Step("python-suite", 85, without_torch(run_suites)), Step("python-deaths", 100, without_torch(deaths)),
         Step("python-compare", COMPARE_S + 30, without_torch(compare))]
TWO_STEPS = [Step("python-two", 80, without_torch(lambda rig: run_suites(rig, TWO_SUITES, None)))]
