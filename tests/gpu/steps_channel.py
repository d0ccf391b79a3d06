# SPDX-License-Identifier: Apache-2.0
"""Channels between two processes: how long a handoff takes, what flows, who is told of a death; beside what one uses without."""

import json
import os
import subprocess
import sys
import time

import steps_suite
from rig import DOCKER_LIKE, KIB, AgentError, size_text
from step import Step

PLACES = (("one namespace", ()), ("separate namespaces", DOCKER_LIKE))
SIZES = ((256, 15), (64 * 3 * 224 * 224 * 4, 20))  # bytes, and the µs that a handoff may take
ALTERNATIVES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_alternatives.py")
TOLD_MS = 100
DEATHS = 5
SLEEPING = {"GPUIPC_CHANNEL_SPIN_USEC": "0"}


def actor(rig, daemon, device=0, sandbox=(), environment=None):
    agent = rig.agent(daemon.socket, sandbox=sandbox, environment=environment)
    agent.ask("device", device)
    agent.ask("stream")
    return agent


def pair(rig, daemon, name, slots, size, sandbox=(), device=0, kind="queue", there=True):
    """A producer outside and a consumer in the sandbox, of a new channel on the first GPU."""
    producer, consumer = actor(rig, daemon), actor(rig, daemon, device, sandbox)
    producer.ask("channel", "c", name, kind, slots, size, "producer", producer.gpu)
    if there:
        consumer.ask("attach", "c", name, "consumer")
    return producer, consumer


def end(*agents, keys=("c",)):
    for agent in agents:
        for key in keys:
            agent.ask("leave", key)
        agent.end()


# ---- handoff --------------------------------------------------------------------------------------------------


def handoffs(rig, daemon, name, size, mode, sandbox=(), device=0, environment=None):
    """Half of an item's way there and one back: (p50, p99) in µs, words that were not the item's, and how often either side slept."""
    n = 200 if rig.dry else 5000 if size < KIB else 2000
    one, other = actor(rig, daemon, environment=environment), actor(rig, daemon, device, sandbox, environment)
    one.ask("channel", "there", f"{name}-there", "queue", 4, size, "producer", one.gpu)
    other.ask("attach", "there", f"{name}-there", "consumer")
    one.ask("channel", "back", f"{name}-back", "queue", 4, size, "consumer", one.gpu)
    other.ask("attach", "back", f"{name}-back", "producer")
    other.tell("handback", "there", "back", n, mode)
    p50, p99, bad, sleeps = one.ask("handoff", "there", "back", n, mode, timeout=60)
    _, _, other_bad, other_sleeps = other.answer(60)
    end(one, other, keys=("there", "back"))
    return float(p50), float(p99), int(bad) + int(other_bad), (int(sleeps) + int(other_sleeps)) / (2 * n)


def handoff(rig):
    daemon = rig.daemon(memory="auto")
    for place, (where, sandbox) in enumerate(PLACES):
        for size, target in SIZES:
            p50, p99, _, sleeps = handoffs(rig, daemon, f"plain-{place}-{size}", size, "plain", sandbox)
            yield (f"handoff of {size_text(size)}, {where}, ordered by streams",
                   f"p50 {p50:.1f} µs, p99 {p99:.1f} µs; slept in {sleeps:.0%} of the handoffs",
                   "" if rig.dry else f"p50 ≤ {target} µs", None if rig.dry else p50 <= target)
            p50, p99, _, sleeps = handoffs(rig, daemon, f"asleep-{place}-{size}", size, "plain", sandbox, environment=SLEEPING)
            yield (f"… {size_text(size)}, {where}, where waits may not look before they sleep",
                   f"p50 {p50:.1f} µs, p99 {p99:.1f} µs; slept in {sleeps:.0%} of the handoffs", "", None)
            for mode, words in (("settled", "both sides wait for their stream"), ("worked", "a kernel writes and one reads all of it")):
                p50, p99, bad, _ = handoffs(rig, daemon, f"{mode}-{place}-{size}", size, mode, sandbox)
                yield (f"… {size_text(size)}, {where}, {words}", f"p50 {p50:.1f} µs, p99 {p99:.1f} µs; {bad} wrong words",
                       "0 wrong words", bad == 0)
    rig.stop(daemon)


def calls(rig):
    """What the driver takes for the calls that a handoff is made of, and for two of them in one."""
    program = rig.program("cost", "calls")
    for what, usec in zip(("cuStreamWriteValue64()", "cuStreamWaitValue64() of what is reached", "both in one cuStreamBatchMemOp()",
                           "cuStreamGetCtx() and cuCtxGetCurrent()", "cuCtxGetDevice()"), program.line(30).split(" ")):
        yield f"a call of the driver's: {what}", f"{usec} µs", "", None
    program.end()


def alternatives(rig):
    """The same sizes by torch.multiprocessing and through pinned host memory."""
    command = [sys.executable, "-B", ALTERNATIVES, "100", *(str(size) for size, _ in SIZES)]
    if rig.dry or subprocess.run([sys.executable, "-c", "import torch"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        yield "torch.multiprocessing, pinned host memory", "not run: " + ("a dry run" if rig.dry else "no torch here"), "", None
        return
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=rig.log, text=True, timeout=100, check=False)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        yield f"{row['way']}, {size_text(row['size'])}", f"p50 {row['p50']:.1f} µs, p99 {row['p99']:.1f} µs", "", None
    if done.returncode != 0:
        yield "torch_alternatives.py", f"ended with {done.returncode}", "", None


# ---- flow -----------------------------------------------------------------------------------------------------


def flows(rig, daemon, name, n, size, mode, slots=8, **place):
    producer, consumer = pair(rig, daemon, name, slots, size, **place)
    consumer.tell("flow", "c", n, mode)
    producer.tell("flow", "c", n, mode)
    usec, bad = map(int, consumer.answer(100))
    producer.answer(100)
    end(producer, consumer)
    return n / (usec / 1e6), bad


def flow(rig):
    """Nothing but the order; then each item written by a kernel and compared by one, which is the race that the fences are for."""
    daemon = rig.daemon(memory="auto")
    n, size = (1000, 4 * KIB) if rig.dry else (100_000, 256 * KIB)
    for kind in ("queue", "broadcast"):
        rate, _ = flows(rig, daemon, f"bare-{kind}", n, 256, "plain", slots=64, kind=kind)
        yield f"{n} items of 256 B, {kind}, nothing but the order", f"{rate:.0f} items/s", "", None
    for place, (where, sandbox) in enumerate(PLACES):
        rate, bad = flows(rig, daemon, f"race-{place}", n, size, "worked", slots=4, sandbox=sandbox)
        yield (f"{n} items of {size_text(size)} written and compared by kernels, {where}", f"{bad} words are another item's; "
               f"{rate:.0f} items/s", "0", bad == 0)
    _, bad = flows(rig, daemon, "loose", n, size, "loose", slots=4)
    yield (f"{n} items, the comparing stream does not wait for them", f"{bad} words are another item's", "more than 0: else the test shows "
           "nothing", bad > 0)
    n, size = (50, 64 * KIB) if rig.dry else (2000, SIZES[1][0])
    rate, bad = flows(rig, daemon, "large", n, size, "worked", slots=4)
    yield f"{n} items of {size_text(size)} likewise", f"{bad} words are another item's; {rate:.0f} items/s", "0", bad == 0
    rig.stop(daemon)


# ---- pace -----------------------------------------------------------------------------------------------------


def pace(seconds):
    """A consumer at half its producer's speed: integration/channel_pace on this GPU, for so long, and what it printed."""
    def run(rig):
        kind = steps_suite.kinds(rig)[0]
        yield from steps_suite.run_suite(rig, kind, "channel_pace", {"CHANNEL_PACE_S": str(seconds)})
        try:
            with open(f"build/gpu/logs/{kind}-channel_pace.log", encoding="utf-8", errors="replace") as log:
                told = [line.removeprefix("pace: ").strip() for line in log if line.startswith("pace: ")]
        except OSError as error:
            told = [str(error)]
        for line in told:
            yield f"a consumer at half its producer's speed for {seconds} s", line, "", None
    return run


# ---- deaths ---------------------------------------------------------------------------------------------------


def gate(agent):
    """The agent's stream behind a fence that nobody signals."""
    agent.ask("allocate", "g", 4096, "cuda-fd", agent.gpu, "gate")
    agent.ask("map", "g")
    agent.ask("fence", "gate", "g", 0)
    agent.ask("queue", "wait", "gate", 1)


def long_kernel(agent):
    """The agent's stream behind a kernel that outlasts what is measured, were it ended by the driver alone."""
    agent.ask("delay", 3_000_000)


STUCK = (("by a fence that nobody signals", gate), ("by a long kernel", long_kernel))


def settled_after(killed, other, asks=False):
    """ms from SIGKILL until the other one, if it asks, is told that its item is broken, else None; until its stream is free; and that
    from the end of the one that was killed."""
    other.tell(*(("told", "c") if asks else ("settle",)))
    started, told = time.monotonic(), None
    killed.kill()
    if asks:
        other.answer(20)
        told = (time.monotonic() - started) * 1e3
        other.tell("settle")
    killed.process.wait(timeout=20)
    ended = time.monotonic()
    other.answer(20)
    free = time.monotonic()
    return told, (free - started) * 1e3, (free - ended) * 1e3


def one_death(rig, hold_up, down):
    """A producer is killed that has published what its stream has not written: (whether the consumer's stream was busy; ms from SIGKILL
    until the consumer was told, None where only the producer's end tells, until that stream was free, and the same from the producer's end;
    which items were told as broken)"""
    daemon = rig.daemon(memory="auto")
    producer, consumer = pair(rig, daemon, "death", 4, 64 * KIB)
    hold_up(producer)
    producer.ask("put", "c", 64 * KIB)
    producer.ask("put", "c", 64 * KIB)
    consumer.ask("get", "c")
    busy = int(consumer.ask("busy")[0])
    if down:
        time.sleep(0.2)  # by then the consumer has been told who the producer is
        daemon.kill()
    told, from_kill, from_end = settled_after(producer, consumer, asks=not down)
    broken = int(consumer.ask("broken", "c")[0])
    consumer.ask("let", "c")
    second = int(consumer.ask("get", "c")[0])
    consumer.kill()
    consumer.process.wait(timeout=20)
    rig.clean()
    return busy, told, from_kill, from_end, (broken, second)


def bare_death(rig, hold_up):
    """ms until a process has ended that has work in a stream and no channel: what the driver takes."""
    daemon = rig.daemon(memory="auto")
    agent = rig.agent(daemon.socket)
    agent.ask("device", 0)
    agent.ask("stream")
    hold_up(agent)
    started = time.monotonic()
    agent.kill()
    agent.process.wait(timeout=20)
    spent = (time.monotonic() - started) * 1e3
    rig.clean()
    return spent


def listed(times):
    return ", ".join(f"{ms:.0f}" for ms in times)


def deaths(rig, stuck, hold_up, n):
    yield (f"a process killed whose stream is held up {stuck}, no channel: until it has ended, each of {n}",
           f"{listed(bare_death(rig, hold_up) for _ in range(n))} ms after SIGKILL", "", None)
    for down in (False, True):
        busy, told, from_kill, from_end, broken = zip(*(one_death(rig, hold_up, down) for _ in range(n)))
        where = "the daemon down" if down else "the daemon there"
        if not down:
            yield (f"a producer killed with an unfinished fence, held up {stuck}, {where}: until the consumer is told, each of {n}",
                   f"{listed(told)} ms after SIGKILL", f"≤ {TOLD_MS} ms", max(told) <= TOLD_MS)
        yield (f"a producer killed with an unfinished fence, held up {stuck}, {where}: until the consumer's stream is free, each of {n}",
               f"busy {min(busy)}; at most {max(from_end):.1f} ms after its end", f"busy 1, ≤ {TOLD_MS} ms after its end",
               min(busy) == 1 and max(from_end) <= TOLD_MS)
        yield "… with the driver's time to end it", f"{listed(from_kill)} ms after SIGKILL", "", None
        yield ("… its items, taken before and not taken: broken", ", ".join(f"{a} and {b}" for a, b in broken), "1 and 1 each",
               set(broken) == {(1, 1)})


def death(rig):
    """Dead is who has ended, for which the driver takes its time, by steps of 50 ms, so several die; a daemon that is there has told before
    that whose items are broken."""
    for stuck, hold_up in STUCK:
        yield from deaths(rig, stuck, hold_up, 1 if rig.dry else DEATHS)


def read_death(rig):
    """A consumer is killed whose stream has not read what it released."""
    daemon = rig.daemon(memory="auto")
    producer, consumer = pair(rig, daemon, "reader", 1, 64 * KIB)
    producer.ask("put", "c", 64 * KIB)
    consumer.ask("get", "c")
    gate(consumer)
    consumer.ask("let", "c")
    producer.ask("put", "c", 64 * KIB)
    busy = int(producer.ask("busy")[0])
    _, from_kill, from_end = settled_after(consumer, producer)
    yield ("a consumer killed with an unfinished fence: until the producer's stream is free",
           f"busy {busy}; {from_end:.1f} ms after its end, {from_kill:.0f} ms after SIGKILL", f"busy 1, ≤ {TOLD_MS} ms after its end",
           busy == 1 and from_end <= TOLD_MS)
    end(producer)
    rig.stop(daemon)


# ---- two GPUs -------------------------------------------------------------------------------------------------


def two_gpus(rig):
    """The consumer computes on the other GPU."""
    daemon = rig.daemon(memory="auto")
    n, size = (1000, 4 * KIB) if rig.dry else (100_000, 256 * KIB)
    rate, bad = flows(rig, daemon, "peer", n, size, "worked", slots=4, device=1)
    yield (f"{n} items of {size_text(size)} written here and compared on the other GPU",
           f"{bad} words are another item's; {rate:.0f} items/s", "0", bad == 0)
    for size, _ in SIZES:
        p50, p99, *_ = handoffs(rig, daemon, f"peer-{size}", size, "plain", device=1)
        yield f"handoff of {size_text(size)} to a stream of the other GPU", f"p50 {p50:.1f} µs, p99 {p99:.1f} µs", "", None
    rig.stop(daemon)


def guarded(*parts):
    """A part that fails does not keep the others from being tried."""
    def run(rig):
        for part in parts:
            try:
                yield from part(rig)
            except (AssertionError, AgentError, EOFError, OSError, TimeoutError, subprocess.TimeoutExpired) as error:
                yield part.__name__, f"{type(error).__name__}: {str(error)[:300]}", "", False
                rig.clean()
    return run


STEPS = [
    Step("channel", 150, guarded(handoff, calls, flow, death, read_death)),
    Step("channel-pace", 50, pace(20)),
    Step("channel-pace-minute", 100, pace(60), named=True),
    Step("channel-torch", 110, guarded(alternatives)),
]
TWO_STEPS = [Step("peer-channel", 100, guarded(two_gpus))]
