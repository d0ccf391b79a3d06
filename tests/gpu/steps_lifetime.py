# SPDX-License-Identifier: Apache-2.0
"""What an idle daemon costs, when memory comes back, and that nothing grows."""

import time

from daemon import open_fds, wait_for
from rig import HANDLES, MIB, size_text
from step import Step


def idle(rig):
    """The GPU's memory in use: nobody, a program that called cuInit(), the daemon before and after a classic buffer."""
    nobody = rig.smi_used()
    bare = rig.program("cost", "idle")
    bare.answer()
    with_bare = rig.smi_used()
    bare.end()
    rig.meter.settled_free()
    daemon = rig.daemon()
    with_daemon = rig.smi_used()
    yield "GPU memory in use with nobody", f"{nobody} MiB", "", None
    yield "… with a bare cuInit()", f"{with_bare} MiB", "", None
    yield "… with an idle daemon", f"{with_daemon} MiB", f"{with_bare} MiB", with_daemon == with_bare
    raw = rig.raw(daemon)
    lease = raw.call("Allocate", {"size": 1, "handle": "cuda-fd"})["lease"]
    held = rig.smi_used()
    yield "… while it holds 2 MiB by cuda-fd", f"{held} MiB", "", None
    raw.call("Release", {"lease": lease})
    raw.drop_fds()
    lease = raw.call("Allocate", {"size": 1, "handle": "cuda-ipc"})["lease"]
    yield "… while it holds 2 MiB by cuda-ipc", f"{rig.smi_used()} MiB", "", None
    raw.call("Release", {"lease": lease})
    wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
    rig.meter.settled_free()
    after = rig.smi_used()
    yield "… after the last cuda-ipc buffer", f"{after} MiB", f"{with_bare} MiB", after == with_bare
    raw.end()
    rig.stop(daemon)


def killed(rig):
    """An importer, the last holder, is killed: until all that it held is free, its context included."""
    daemon = rig.daemon()
    rounds = 5
    for handle in HANDLES:
        # With a classic buffer about, so that the daemon's context neither comes nor goes meanwhile.
        keeper = rig.raw(daemon)
        lease = keeper.call("Allocate", {"size": 1, "handle": handle})["lease"]
        times = []
        free_before = rig.meter.settled_free()
        for _ in range(rounds):
            owner, importer = rig.agent(daemon.socket), rig.agent(daemon.socket)
            owner.make("k", rig.big, handle, name="killed")
            importer.ask("open", "k", "killed", "rw")
            importer.ask("map", "k")
            importer.ask("fill", "k", 1)
            owner.end()
            wait_for(lambda: daemon.status()["leases"] == 2, "the importer to be the last")
            held = rig.meter.settled_free()
            if free_before - held < rig.big:
                raise AssertionError(f"{free_before - held} bytes are held while {rig.big} should be")
            importer.kill()
            started = time.monotonic()
            bytes_back = rig.meter.wait_free(held + rig.big)
            rig.meter.wait_free(free_before)
            all_back = time.monotonic() - started
            times.append((bytes_back if bytes_back is not None else 99.0, all_back))
            importer.end()
        worst = max(time[0] for time in times) * 1e3
        told = ", ".join(f"{first * 1e3:.0f}" for first, _ in times)
        yield (f"importer of {size_text(rig.big)} by {handle} killed → bytes free, {rounds} times",
               f"worst {worst:.0f} ms ({told}; its context too: worst {max(time[1] for time in times) * 1e3:.0f})",
               "≤ 200 ms", worst <= 200)
        keeper.call("Release", {"lease": lease})
        keeper.end()
    rig.stop(daemon)


def many(rig):
    """2,000 buffers at once, all mapped."""
    daemon = rig.daemon()
    wanted = 200 if rig.dry else 2000
    for handle in HANDLES:
        agent = rig.agent(daemon.socket)
        agent.ask("device", 0)
        n, allocating, mapping = map(int, agent.ask("many", wanted, 2 * MIB, handle, timeout=60))
        status = daemon.status()
        fds = len(open_fds(daemon.pid))
        books = (status["buffers"], status["devices"][0]["brokered_bytes"])
        yield (f"{wanted:,} buffers of 2 MiB by {handle} at once", f"{n} ({allocating / n:.0f} µs to allocate, {mapping / n:.0f} to map; "
               f"the daemon has {fds} descriptors)", str(wanted), n == wanted and books == (wanted, wanted * 2 * MIB))
        releasing = int(agent.ask("few", timeout=60)[0])
        yield f"… released, {handle}", f"{releasing / n:.0f} µs each", "", None
        wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
        agent.end()
    rig.stop(daemon)


def memory_kb(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return int([line for line in file if line.startswith(f"{field}:")][0].split()[1])


def cycles(rig):
    """1,000 times opened, mapped and released, after as many that count for nothing."""
    daemon = rig.daemon()
    for handle in HANDLES:
        owner, user = rig.agent(daemon.socket), rig.agent(daemon.socket)
        owner.make("y", 4 * MIB, handle, name="cycle")
        user.ask("device", 0)
        _, space, fds = map(int, user.ask("cycle", 1000, "cycle", timeout=60))
        theirs = (memory_kb(daemon.pid, "VmSize"), len(open_fds(daemon.pid)))
        spent, space_after, fds_after = map(int, user.ask("cycle", 1000, "cycle", timeout=60))
        theirs_after = (memory_kb(daemon.pid, "VmSize"), len(open_fds(daemon.pid)))
        yield (f"1,000 open/map/release by {handle}: the client grows by", f"{space_after - space} kB, {fds_after - fds} descriptors "
               f"({spent / 1000:.0f} µs each)", "0, 0", (space_after, fds_after) == (space, fds))
        yield (f"… the daemon, {handle}", f"{theirs_after[0] - theirs[0]} kB, {theirs_after[1] - theirs[1]} descriptors", "0, 0",
               theirs_after == theirs)
        user.end()
        owner.end()
        wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
    rig.stop(daemon)


STEPS = [Step("idle", 40, idle), Step("killed", 60, killed), Step("many", 60, many), Step("cycles", 60, cycles)]
