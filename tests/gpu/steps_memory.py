# SPDX-License-Identifier: Apache-2.0
"""What is in the memory: patterns across processes, zeros at first sight, read-only mappings, offsets, classic handles."""

import base64
import time

from daemon import wait_for
from proxy import Proxy
from rig import GIB, HANDLES, MIB, AgentError, size_text
from step import Step


def pattern(rig):
    """A kernel writes it here, another process's kernel compares."""
    daemon = rig.daemon()
    for handle in HANDLES:
        for size in (rig.middle, rig.big):
            writer, reader = rig.agent(daemon.socket), rig.agent(daemon.socket)
            writer.make("p", size, handle, name="pattern", seed=7)
            reader.ask("open", "p", "pattern", "rw")
            reader.ask("map", "p")
            bad = reader.count("differ", "p", 7)
            yield f"{size_text(size)} by {handle}, read back by a second process", f"{bad} words differ", "0", bad == 0
            writer.end()
            again = reader.count("differ", "p", 7)
            yield f"{size_text(size)} by {handle}, after the writer's end", f"{again} words differ", "0", again == 0
            reader.end()
            wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
    rig.stop(daemon)


def fresh(rig):
    """Two users in turn make a buffer, look at it, fill it and give it back."""
    daemon = rig.daemon()
    rounds = 20 if rig.dry else 200
    for handle in HANDLES:
        users = [rig.agent(daemon.socket, sandbox=("--uid", uid)) for uid in ("1001", "1002")]
        dirty = 0
        for turn in range(rounds):
            user = users[turn % 2]
            user.make("f", rig.middle, handle)
            dirty += user.count("nonzero", "f") > 0
            user.ask("fill", "f", turn + 1)
            user.ask("release", "f")
        yield f"new {size_text(rig.middle)} by {handle}, {rounds} reuses by two users in turn", f"{dirty} not zero", "0", dirty == 0
        for user in users:
            user.end()
    rig.stop(daemon)


def dirty_all(rig):
    """A program that knows nothing of the broker writes to all of the memory and is killed."""
    before = rig.meter.settled_free()
    hog = rig.program("classic", "hog", str(before - 256 * MIB if rig.dry else 512 * MIB))
    taken = int(hog.answer()[0])
    hog.kill()
    hog.end()
    waited = rig.meter.wait_free(before - 64 * MIB)
    if waited is None:
        raise AssertionError("the writer's memory does not come back")
    return taken


def scan(rig):
    """As much as there is, through the broker, right after somebody else wrote to all of it."""
    daemon = rig.daemon()
    agent = rig.agent(daemon.socket)
    agent.ask("device", 0)
    taken = dirty_all(rig)
    free = rig.meter.settled_free()
    piece = 16 * MIB if rig.dry else 8 * GIB
    wanted = 256 * MIB if rig.dry else free * 9 // 10
    seen = dirty = 0
    started = time.monotonic()
    while seen + piece <= wanted:
        agent.make(f"s{seen}", piece, "cuda-fd")
        dirty += agent.count("nonzero", f"s{seen}")
        seen += piece
    seconds = time.monotonic() - started
    share = f"{seen / GIB:.1f} of {free / GIB:.1f} GiB free, after {taken / GIB:.1f} GiB were written to"
    yield f"scan of new memory ({share}, {seconds:.1f} s)", f"{dirty} words not zero", "0", dirty == 0
    yield "share of the free memory that was scanned", f"{100 * seen / free:.0f} %", "≥ 80 %", rig.dry or seen >= free * 8 // 10
    agent.end()
    rig.stop(daemon)


def time_allocate(agent, size, handle):
    """(words not zero, ms) of one new buffer."""
    started = time.monotonic()
    agent.ask("allocate", "w", size, handle)
    spent = time.monotonic() - started
    agent.ask("map", "w")
    dirty = agent.count("nonzero", "w")
    agent.ask("fill", "w", 3)
    agent.ask("release", "w")
    return dirty, spent * 1e3


def wipe(rig):
    """The helper that clears new memory, forced on."""
    times = {}
    for choice in ("never", "always"):
        daemon = rig.daemon("--wipe", choice)
        agent = rig.agent(daemon.socket)
        agent.make("keep", 2 * MIB, "cuda-ipc")  # else each classic buffer would make the daemon's context anew
        if choice == "always":
            zeroed = daemon.status()["devices"][0]["zeroed"]
            yield "zeroed, with Wipe=always", zeroed, "wiped", zeroed == "wiped"
        for handle in HANDLES:
            for size in (2 * MIB, rig.middle, rig.big):
                dirty, times[choice, handle, size] = time_allocate(agent, size, handle)
                if choice == "always":
                    told = (f"{dirty} words not zero; {times[choice, handle, size]:.1f} ms, without "
                            f"{times['never', handle, size]:.1f} ms")
                    yield f"Wipe=always, new {size_text(size)} by {handle}", told, "0", dirty == 0
        agent.end()
        rig.stop(daemon)


def read_only(rig):
    """A kernel that writes to a read-only mapping."""
    daemon = rig.daemon()
    owner, reader = rig.agent(daemon.socket), rig.agent(daemon.socket)
    owner.make("r", 4 * MIB, "cuda-fd", name="read-only", seed=5)
    reader.ask("open", "r", "read-only", "ro")
    reader.ask("map", "r")
    bad = reader.count("differ", "r", 5)
    yield "a read-only mapping reads", f"{bad} words differ", "0", bad == 0
    try:
        reader.ask("poke", "r")
        said = "no fault"
    except AgentError as error:
        said = error.name
    yield "a kernel that writes to it", said, "cuda.700 (illegal address)", said == "cuda.700"
    bad = owner.count("differ", "r", 5)
    yield "the owner's bytes afterwards", f"{bad} words differ", "0", bad == 0
    reader.end()
    owner.ask("release", "r")
    owner.make("c", 4 * MIB, "cuda-ipc", name="classic")
    other = rig.agent(daemon.socket)
    try:
        other.ask("open", "c", "classic", "ro")
        said = "opened"
    except AgentError as error:
        said = error.name.rpartition(".")[2]
    yield "a classic handle, read-only", said, "HandleUnsupported", said == "HandleUnsupported"
    other.end()
    owner.end()
    rig.stop(daemon)


def grant(raw, name, size, handle):
    """A buffer made by hand: lease and handle."""
    reply = raw.call("Allocate", {"size": size, "handle": handle, "name": name, "mode": "0666"})
    return reply["lease"], reply["handle"]


def classic(rig):
    """A program linked with CUDA's runtime alone opens the daemon's classic handle."""
    daemon = rig.daemon()
    raw, agent = rig.raw(daemon), rig.agent(daemon.socket)
    for size in (3 * MIB, rig.middle):
        lease, handle = grant(raw, f"n{size}", size, "cuda-ipc")
        agent.ask("open", "n", f"n{size}", "rw")
        agent.ask("map", "n")
        agent.ask("fill", "n", 9)
        words = base64.b64decode(handle["ipc"]).hex()
        reader = rig.program("classic", "check", words, str(handle["offset"]), str(size), "9")
        bad = int(reader.answer()[0])
        yield f"{size_text(size)} through cudaIpcOpenMemHandle alone", f"{bad} words differ", "0", bad == 0
        reader.end()
        agent.ask("release", "n")
        raw.call("Release", {"lease": lease})
    agent.end()
    raw.end()
    rig.stop(daemon)
    maker = rig.program("classic", "small")
    words, distance = maker.answer()
    for offset in sorted({"0", distance}):
        reader = rig.program("classic", "check", words, offset, "8", "1")
        try:
            told = "is there" if reader.answer()[0] == "0" else "is not there"
        except EOFError:
            told = "is no memory of this handle's"
        yield f"second of two small cudaMallocs, {distance} bytes apart: at offset {offset} of its handle", told, "", None
        reader.end()
    maker.end()


def offset(rig):
    """A broker whose buffers begin inside what their handles map: the real one's grants, with another offset and size."""
    daemon = rig.daemon()
    at, size = MIB + 4096, MIB
    proxy = rig.owned(Proxy(daemon, {"offset": at, "size": size}))
    owner = rig.agent(daemon.socket)
    for handle in HANDLES:
        reader = rig.agent(proxy.path)
        owner.make("o", 4 * MIB, handle, name="inside", seed=11)
        place = reader.ask("open", "o", "inside", "rw")[4]
        reader.ask("map", "o")
        bad = reader.count("differ", "o", 11, at // 8)
        yield f"{handle} buffer at offset {place} of its handle", f"{bad} words differ", "0", bad == 0 and int(place) == at
        reader.ask("fill", "o", 12)
        reader.ask("release", "o")  # else the proxy's process, which asked for it, would hold it
        reader.end()
        bad = owner.count("differ", "o", 11)
        yield f"{handle}: words of the whole that a writer at the offset changed", f"{bad} of {size // 8}", "as many", bad == size // 8
        owner.ask("release", "o")
    owner.end()
    proxy.end()
    rig.stop(daemon)


STEPS = [
    Step("pattern", 60, pattern), Step("fresh", 60, fresh), Step("scan", 60, scan), Step("wipe", 90, wipe),
    Step("read-only", 40, read_only), Step("classic", 40, classic), Step("offset", 40, offset),
]
