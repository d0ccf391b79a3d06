# SPDX-License-Identifier: Apache-2.0
"""Fences between two processes: a race that is there without them and not with them, round trips, streams that are stuck."""

import contextlib
import time

from rig import DOCKER_LIKE, HANDLES, KIB, AgentError, size_text
from step import Step

SLOTS = 4
PLACES = (("same namespaces", ()), ("Docker-like", DOCKER_LIKE))
FENCED, LOOSE = "fenced", "loose"
HANDOFF_USEC = 15  # what a handoff may take, there alone; here it is there and back
MEMORY_S = 5
DELAY_USEC = 20


def place(agent, key):
    """A stream on the current GPU, and the two fences of the buffer, which is mapped; whether they are synchronous."""
    agent.ask("map", key)
    agent.ask("stream")
    synchronous = [int(agent.ask("fence", name, key, offset)[0]) for name, offset in (("produced", 0), ("consumed", 256))]
    return synchronous[0]


def pair(rig, daemon, name, size, handle="cuda-fd", sandbox=(), device=0):
    """A producer outside and a consumer in the sandbox, on a new buffer; whether either's fences are synchronous."""
    producer, consumer = rig.agent(daemon.socket), rig.agent(daemon.socket, sandbox=sandbox)
    producer.ask("device", 0)
    producer.ask("allocate", "f", size, handle, producer.gpu, name, "0666")
    consumer.ask("device", device)
    consumer.ask("open", "f", name, "rw")
    synchronous = max(place(producer, "f"), place(consumer, "f"))
    return producer, consumer, synchronous


def end(*agents):
    for agent in agents:
        agent.ask("unfence")
        agent.ask("release", "f")
        agent.end()


def items(rig, daemon, name, modes, handle="cuda-fd", sandbox=(), device=0, delays=(0, 0)):
    """(words that were not the item's, items a second, items, bytes of each)"""
    n, size = (2000, 4 * KIB) if rig.dry else (100_000, 256 * KIB)
    producer, consumer, _ = pair(rig, daemon, name, 4096 + SLOTS * size, handle, sandbox, device)
    for agent, verb, mode, delay in ((consumer, "consume", modes[1], delays[1]), (producer, "produce", modes[0], delays[0])):
        agent.tell(verb, "f", n, SLOTS, size, mode, delay)
    bad, usec = map(int, consumer.answer(100))
    producer.answer(100)
    end(producer, consumer)
    return bad, n / (usec / 1e6), n, size


def who_is_late(rig, daemon, name, who, device=0):
    """The other one is always early: with fences it waits, and without it meets another item."""
    producing = who == "producer"
    delays = (DELAY_USEC, 0) if producing else (0, DELAY_USEC)
    modes = (FENCED, LOOSE) if producing else (LOOSE, FENCED)
    bad, rate, n, _ = items(rig, daemon, f"{name}-fenced", (FENCED, FENCED), device=device, delays=delays)
    yield (f"{n} items, the {who} {DELAY_USEC} µs late with each, with fences", f"{bad} words are another item's; {rate:.0f} items/s", "0",
           bad == 0)
    bad, _, n, _ = items(rig, daemon, f"{name}-loose", modes, device=device, delays=delays)
    yield (f"{n} items, the {who} as late, and the other does not wait", f"{bad} words are another item's",
           "more than 0: else the test shows nothing", bad > 0)


def race(rig):
    """A kernel writes a slot while the other process's kernel may still, or already, read it."""
    daemon = rig.daemon()
    for number, (where, sandbox) in enumerate(PLACES):
        for handle in HANDLES:
            bad, rate, n, size = items(rig, daemon, f"race-{number}-{handle}", (FENCED, FENCED), handle, sandbox)
            yield (f"{n} items of {size_text(size)} through {SLOTS} slots by {handle}, {where}, with fences",
                   f"{bad} words are another item's; {rate:.0f} items/s", "0", bad == 0)
    for who in ("producer", "consumer"):
        yield from who_is_late(rig, daemon, f"race-{who}", who)
    rig.stop(daemon)


def round_trips(rig):
    """A word there and back, by the streams alone, and as a processor sees it that waits for each."""
    daemon = rig.daemon()
    n = 500 if rig.dry else 10_000
    for number, (where, sandbox) in enumerate(PLACES):
        for handle in HANDLES:
            producer, consumer, synchronous = pair(rig, daemon, f"ping-{number}-{handle}", 4096, handle, sandbox)
            yield f"{handle}, {where}: fences are synchronous", synchronous, "0", synchronous == 0
            consumer.tell("pong", n)
            usec = int(producer.ask("ping", n, timeout=100)[0])
            consumer.answer(100)
            told = rig.dry
            yield (f"{handle}, {where}: there and back, streams alone, mean of {n}", f"{usec / n:.1f} µs",
                   "" if told else f"≤ {HANDOFF_USEC} µs", None if told else usec / n <= HANDOFF_USEC)
            end(producer, consumer)
            producer, consumer, _ = pair(rig, daemon, f"each-{number}-{handle}", 4096, handle, sandbox)
            consumer.tell("pong", n)
            median, slow = producer.ask("ping", n, "each", timeout=100)
            consumer.answer(100)
            yield f"{handle}, {where}: there and back, each waited for by the processor", f"p50 {median} µs, p99 {slow} µs", "", None
            end(producer, consumer)
    rig.stop(daemon)


def middle(times):
    return sorted(times)[len(times) // 2]


def processor(rig):
    """What the processor pays for a look and for a signal, and that both pass a stream that is stuck."""
    daemon = rig.daemon()
    agent, other, _ = pair(rig, daemon, "processor", 4096)
    for idle in (True, False):
        if not idle:
            agent.ask("queue", "wait", "consumed", 5)
        looks = [int(agent.ask("query", "produced")[0]) for _ in range(200)]
        signals = [int(agent.ask("signal", "produced", i)[0]) for i in range(1, 201)]
        state = "nothing else going on" if idle else "a stream of the same process stuck"
        yield f"gpuipc_fence_query(), gpuipc_fence_signal(), {state}: median of 200", f"{middle(looks)} µs, {middle(signals)} µs", "", None
    other.tell("await", "consumed", 5, 20_000)
    agent.ask("signal", "consumed", 5)
    yield "gpuipc_fence_wait() of the other process, from signal to return", f"{other.answer()[0]} µs from its call on", "", None
    agent.ask("settle")
    with contextlib.suppress(AgentError):
        agent.ask("await", "consumed", 6, 30)
        yield "gpuipc_fence_wait() for what does not come", "came", "TimedOut", False
    end(agent, other)
    rig.stop(daemon)


def stuck(rig):
    """Streams that wait for what nobody signals: freed by their own process, or killed with it."""
    daemon = rig.daemon()
    for stream in ((), ("default",)):
        agent, other, _ = pair(rig, daemon, f"stuck-{len(stream)}", 4096)
        agent.ask("queue", "wait", "produced", 1 << 33, *stream)
        busy = int(agent.ask("busy", *stream)[0])
        made = agent.ask("fence", "late", "f", 512)[1]
        value = int(agent.ask("query", "late")[1])
        spent = agent.ask("signal", "produced", 1 << 33)[0]
        agent.ask("settle", *stream, timeout=20)
        name = "the default stream" if stream else "a stream"
        yield (f"{name} that waits, freed by gpuipc_fence_signal() of its own process", f"busy {busy}, signal {spent} µs; a fence made "
               f"meanwhile {made} µs", "busy 1, freed", busy == 1 and value == 0)
        end(agent, other)
    free = rig.meter.settled_free()
    agent, other, _ = pair(rig, daemon, "killed", 4096)
    other.ask("queue", "wait", "produced", 1)
    other.ask("queue", "signal", "consumed", 1)
    agent.ask("queue", "wait", "consumed", 1)
    with_both = rig.meter.settled_free()
    started = time.monotonic()
    other.kill()
    other.process.wait(timeout=20)
    spent = (time.monotonic() - started) * 1e3
    waited = rig.meter.wait_free(with_both + (free - with_both) // 3, MEMORY_S)
    yield "a process killed while its stream waits: until it is reaped", f"{spent:.0f} ms", "", None
    yield ("… until its context's memory is free", "not at all" if waited is None else f"{spent + waited * 1e3:.0f} ms", f"≤ {MEMORY_S} s",
           waited is not None)
    still = int(agent.ask("busy")[0])
    agent.ask("signal", "consumed", 1)
    agent.ask("settle", timeout=20)
    yield "… who waits for it", f"busy {still}, then freed by its own process", "busy 1, freed", still == 1
    agent.ask("unfence")
    agent.ask("release", "f")
    agent.end()
    rig.stop(daemon)


def read_only(rig):
    """A consumer whose mapping is read-only."""
    daemon = rig.daemon()
    producer, consumer = rig.agent(daemon.socket), rig.agent(daemon.socket)
    producer.ask("device", 0)
    producer.ask("allocate", "f", 4096, "cuda-fd", producer.gpu, "fence-ro")
    place(producer, "f")
    consumer.ask("device", 0)
    consumer.ask("open", "f", "fence-ro", "ro")
    place(consumer, "f")
    try:
        consumer.ask("signal", "produced", 1)
        said = "signalled"
    except AgentError as error:
        said = error.name
    yield "a signal through a read-only mapping", said, "gpuipc.InvalidParameter", said == "gpuipc.InvalidParameter"
    consumer.ask("queue", "wait", "produced", 1)
    busy = int(consumer.ask("busy")[0])
    producer.ask("queue", "signal", "produced", 1)
    consumer.ask("settle", timeout=20)
    value = consumer.ask("query", "produced")[1]
    yield "a stream that waits through a read-only mapping", f"busy {busy}, then goes on; reads {value}", "busy 1, 1", (busy, value) == (1, "1")
    end(consumer, producer)
    rig.stop(daemon)


def two_gpus(rig):
    """The consumer computes on the other GPU: words and slots over peer access."""
    daemon = rig.daemon()
    for handle in HANDLES:
        try:
            bad, rate, n, size = items(rig, daemon, f"peer-{handle}", (FENCED, FENCED), handle, device=1)
            yield (f"{n} items of {size_text(size)} by {handle}, consumer on the other GPU, with fences",
                   f"{bad} words are another item's; {rate:.0f} items/s", "0", bad == 0)
        except AgentError as error:
            yield f"fences over peer access by {handle}", f"refused: {error.code} {error.text}"[:300], "0 words", False
    for who in ("producer", "consumer"):
        yield from who_is_late(rig, daemon, f"peer-{who}", who, device=1)
    rig.stop(daemon)


PARTS = (race, round_trips, processor, stuck, read_only)


def fences(rig):
    """All of the above; a part that fails does not keep the others from being tried."""
    for part in PARTS:
        try:
            yield from part(rig)
        except (AssertionError, AgentError, EOFError, OSError) as error:
            yield part.__name__, f"{type(error).__name__}: {str(error)[:300]}", "", False
            rig.clean()


STEPS = [Step("fences", 180, fences)]
TWO_STEPS = [Step("peer-fences", 100, two_gpus)]
