# SPDX-License-Identifier: Apache-2.0
"""The daemon outside, a client in each kind of sandbox: which handles it can use, and whether the doctor says why when not."""

import collections
import ctypes
import os
import subprocess
import time

from rig import DOCKER_LIKE, HANDLES, AgentError, codes
from step import Step

# event: whether a classic event handle of the daemon's user can be opened, or the error; code: the doctor's, where something fails or is
# noted; number: whose pid number the client has, in a pid namespace of its own.
Row = collections.namedtuple("Row", "name sandbox event code number", defaults=(None,))
SHARED = DOCKER_LIKE[:-1] + ("shared",)
WITHOUT_PID = ("--mount", "--ipc", "--net", "--uts", "--shm", "own")
PRIVATE, ONE_USER, SAME_PID = "G311", "G310", "G009"
OK, CLOSED, OWN = "ok", "205", "201"  # what another's event answers; at an equal pid number the driver takes it for its own process's
ROWS = (
    Row("same namespaces", (), OK, None),
    Row("another uid, same namespaces", ("--uid", "1001"), CLOSED, ONE_USER),
    Row("Docker-like", DOCKER_LIKE, CLOSED, PRIVATE),
    Row("Docker-like, another uid", DOCKER_LIKE + ("--uid", "1001"), CLOSED, PRIVATE),
    Row("Docker-like with --ipc=host", SHARED, OK, None),
    Row("… --ipc=host, another uid", SHARED + ("--uid", "1001"), CLOSED, ONE_USER),
    Row("only --pid=host", WITHOUT_PID, CLOSED, PRIVATE),
    Row("user namespace and all others", DOCKER_LIKE + ("--user",), CLOSED, PRIVATE),
    Row("Docker-like, the daemon's pid number", DOCKER_LIKE, CLOSED, SAME_PID, "daemon"),
    Row("… --ipc=host, the daemon's pid number", SHARED, OK, SAME_PID, "daemon"),
    Row("Docker-like, the pid number of the event's exporter", DOCKER_LIKE, OWN, PRIVATE, "exporter"),
    Row("… --ipc=host, the pid number of the event's exporter", SHARED, OWN, None, "exporter"),
)
THERE, BACK = 0, 256  # where the two fences are in their buffer
FENCE_S = 10


def refusal(error):
    return error.code if error.code != "-" else error.name


def try_handle(agent, handle):
    """"ok", or the error's code: 205, G009."""
    try:
        agent.ask("open", handle, f"sandbox-{handle}", "rw")
        agent.ask("map", handle)
        bad = agent.count("differ", handle, 21)
        agent.ask("release", handle)
        return "ok" if bad == 0 else f"{bad} words differ"
    except AgentError as error:
        return refusal(error)


def try_event(agent, event):
    if not event:
        return None
    try:
        agent.ask("event", event)
        return "ok"
    except AgentError as error:
        return error.name.removeprefix("cuda.")


# ---- a fence there and back ----------------------------------------------------------------------------------


def fences_make(agent, handle):
    """Of a buffer that is held by the key `handle`, and mapped: there and back; whether either is synchronous."""
    return any(int(agent.ask("fence", f"{name}-{handle}", f"fence-{handle}", offset)[0]) for name, offset in (("there", THERE), ("back", BACK)))


def owner_of_fences(rig, daemon):
    """One word for each direction, in memory by each kind of handle; the stream of who has made it waits and signals."""
    owner = rig.agent(daemon.socket)
    owner.ask("device", 0)
    owner.ask("stream")
    for handle in HANDLES:
        owner.make(f"fence-{handle}", 4096, handle, name=f"sandbox-fence-{handle}", mode="0666")
        fences_make(owner, handle)
    return owner


def idle_within(agents, seconds):
    """Whether their streams have nothing left to do by then."""
    deadline = time.monotonic() + seconds
    while any(int(agent.ask("busy")[0]) for agent in agents):
        if time.monotonic() > deadline:
            return False
    return True


def passes(waiter, signaller, word, value):
    """One stream waits for what the other signals: None, or what went another way."""
    waiter.ask("queue", "wait", word, value)
    early = int(waiter.ask("busy")[0])
    signaller.ask("queue", "signal", word, value)
    if idle_within((waiter, signaller), FENCE_S):
        return None if early else f"{word} not waited for"
    for one in (waiter, signaller):  # the processor's own word frees the stream
        one.ask("signal", word, value)
    idle_within((waiter, signaller), FENCE_S)
    return f"{word} not within {FENCE_S} s"


def try_fence(owner, agent, handle, value):
    """"ok", or the error's code, or what went another way."""
    try:
        agent.ask("open", f"fence-{handle}", f"sandbox-fence-{handle}", "rw")
        agent.ask("map", f"fence-{handle}")
        if fences_make(agent, handle):
            return "synchronous"
        return passes(agent, owner, f"there-{handle}", value) or passes(owner, agent, f"back-{handle}", value) or "ok"
    except AgentError as error:
        return refusal(error)


# ---- the table -----------------------------------------------------------------------------------------------


def is_told(row, findings, event):
    """Whether doctor says what fails here, and nothing else of the kind."""
    said, shm = codes(findings), [finding for finding in findings if finding["code"] == ONE_USER]
    if event and any((finding["level"] == "note") != (row.code == ONE_USER) for finding in shm):
        return False
    return (row.code is None or row.code in said) and (row.code == SAME_PID or SAME_PID not in said)


def try_doctor(rig, daemon, row, sandbox, event):
    status, findings = rig.doctor(daemon.socket, *sandbox)
    told = [finding["code"] + (" (one user)" if finding["code"] == ONE_USER and finding["level"] == "note" else "")
            for finding in findings if finding["code"] in (PRIVATE, ONE_USER, SAME_PID)]
    expected = 1 if row.code == SAME_PID else 0
    return (f"{row.name}: doctor", f"exits {status}, {' '.join(told)}; failures: {' '.join(codes(findings, 'fail')) or 'none'}",
            f"exits {expected}" + (f", {row.code}" if row.code else ""), status == expected and is_told(row, findings, event))


def try_row(rig, daemon, row, owner, event, value):
    pid = {None: None, "daemon": daemon.pid, "exporter": owner.process.pid}[row.number]
    sandbox = row.sandbox + (("--pid-number", str(pid)) if pid else ())
    agent = rig.agent(daemon.socket, sandbox=sandbox)
    agent.ask("device", 0)
    agent.ask("stream")
    classic = SAME_PID if row.code == SAME_PID else "ok"
    for what, attempt in (("", lambda handle: try_handle(agent, handle)),
                          (", a fence there and back by streams", lambda handle: try_fence(owner, agent, handle, value))):
        found = [attempt(handle) for handle in HANDLES]
        yield f"{row.name}: {', '.join(HANDLES)}{what}", ", ".join(found), f"ok, {classic}", found == ["ok", classic]
    if event:
        found = try_event(agent, event)
        yield f"{row.name}: classic event handle", found, row.event, found == row.event
    agent.end()
    yield try_doctor(rig, daemon, row, sandbox, event)


def sandboxes(rig):
    daemon = rig.daemon(memory="auto")
    owner = owner_of_fences(rig, daemon)
    for handle in HANDLES:
        owner.make(handle, 4 << 20, handle, name=f"sandbox-{handle}", mode="0666", seed=21)
    try:
        event = owner.ask("event", "make")[0]
    except AgentError as error:
        event = None
        yield "classic event handles", f"not to be had here: {error.text}", "", None if rig.dry else False
    for number, row in enumerate(ROWS, 1):
        try:
            yield from try_row(rig, daemon, row, owner, event, number)
        except (AssertionError, AgentError, EOFError, OSError) as error:
            yield row.name, f"{type(error).__name__}: {str(error)[:200]}", "", False
    owner.ask("unfence")
    owner.end()
    rig.stop(daemon)


# ---- sandboxes that lack something ---------------------------------------------------------------------------

def driver_files():
    """Every file that the loader could take for the driver's library."""
    ctypes.CDLL("libcuda.so.1")
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith("libcuda.so"):
                found.add(path)
    listed = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, check=False, text=True).stdout
    for line in listed.splitlines():
        if "libcuda.so" in line:
            found.add(os.path.realpath(line.rpartition("=> ")[2].strip()))
    return sorted(found)


def broken(rig):
    """What is missing, and the code that must say so."""
    daemon = rig.daemon(memory="auto")
    hidden = [word for path in driver_files() for word in ("--hide", path)]
    cases = [
        ("the socket's directory is not mounted", DOCKER_LIKE + ("--hide", daemon.directory), ("G101",)),
        ("/proc is the host's", DOCKER_LIKE + ("--no-proc",), ("G004",)),
        ("the driver's library cannot be loaded", DOCKER_LIKE + tuple(hidden), ("G001",)),
    ]
    if not rig.dry:
        cases.append(("no device nodes", DOCKER_LIKE + ("--bare-dev", "--uid", "1001", "--no-new-privileges"), ("G022", "G021")))
    os.chmod(daemon.socket, 0o600)
    try:
        yield from try_broken(rig, daemon, "a user who may not reach the socket", ("--uid", "1001"), ("G104",))
    finally:
        os.chmod(daemon.socket, 0o666)
    for name, sandbox, wanted in cases:
        yield from try_broken(rig, daemon, name, sandbox, wanted)
    status, findings = rig.doctor(daemon.socket, *DOCKER_LIKE)
    told = f"exits {status}; failures: {' '.join(codes(findings, 'fail')) or 'none'}, warnings: {' '.join(codes(findings, 'warn')) or 'none'}"
    yield "a healthy sandbox: doctor", told, "exits 0", status == 0
    rig.stop(daemon)


def try_broken(rig, daemon, name, sandbox, wanted):
    status, findings = rig.doctor(daemon.socket, *sandbox)
    failed = codes(findings, "fail")
    yield (f"{name}: doctor", f"exits {status}, failures: {' '.join(failed) or 'none'}", f"exits 1 or 3, {' or '.join(wanted)}",
           status in (1, 3) and bool(set(wanted) & set(failed)))


STEPS = [Step("sandboxes", 150, sandboxes), Step("doctor", 90, broken)]
