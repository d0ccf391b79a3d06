# SPDX-License-Identifier: Apache-2.0
"""The daemon outside, a client in each kind of sandbox: which handles it can use, and whether the doctor says why when not."""

import collections
import ctypes
import os
import subprocess

from rig import DOCKER_LIKE, HANDLES, AgentError, codes
from step import Step

# event: whether a classic event handle of the daemon's user can be opened; code: the doctor's, where something fails.
Row = collections.namedtuple("Row", "name sandbox event code fails")
SHARED = DOCKER_LIKE[:-1] + ("shared",)
WITHOUT_PID = ("--mount", "--ipc", "--net", "--uts", "--shm", "own")
PRIVATE, ONE_USER, SAME_PID = "G311", "G310", "G009"
ROWS = (
    Row("same namespaces", (), True, None, False),
    Row("another uid, same namespaces", ("--uid", "1001"), False, ONE_USER, False),
    Row("Docker-like", DOCKER_LIKE, False, PRIVATE, False),
    Row("Docker-like, another uid", DOCKER_LIKE + ("--uid", "1001"), False, PRIVATE, False),
    Row("Docker-like with --ipc=host", SHARED, True, None, False),
    Row("… --ipc=host, another uid", SHARED + ("--uid", "1001"), False, ONE_USER, False),
    Row("only --pid=host", WITHOUT_PID, False, PRIVATE, False),
    Row("user namespace and all others", DOCKER_LIKE + ("--user",), False, PRIVATE, False),
    Row("Docker-like, the daemon's pid number", DOCKER_LIKE, False, SAME_PID, True),
    Row("… --ipc=host, the daemon's pid number", SHARED, True, SAME_PID, True),
)


def try_handle(agent, handle):
    """"ok", or the error's code: 205, G009."""
    try:
        agent.ask("open", handle, f"sandbox-{handle}", "rw")
        agent.ask("map", handle)
        bad = agent.count("differ", handle, 21)
        agent.ask("release", handle)
        return "ok" if bad == 0 else f"{bad} words differ"
    except AgentError as error:
        return error.code if error.code != "-" else error.name


def try_event(agent, event):
    if not event:
        return None
    try:
        agent.ask("event", event)
        return "ok"
    except AgentError as error:
        return error.name.removeprefix("cuda.")


def try_row(rig, daemon, row, event):
    sandbox = row.sandbox + (("--pid-number", str(daemon.pid)) if row.fails else ())
    agent = rig.agent(daemon.socket, sandbox=sandbox)
    found = {handle: try_handle(agent, handle) for handle in HANDLES}
    found["event"] = try_event(agent, event)
    agent.end()
    status, findings = rig.doctor(daemon.socket, *sandbox)
    wanted = {"cuda-fd": "ok", "cuda-ipc": SAME_PID if row.fails else "ok"}
    good = all(found[handle] == wanted[handle] for handle in HANDLES)
    yield (f"{row.name}: cuda-fd, cuda-ipc", f"{found['cuda-fd']}, {found['cuda-ipc']}",
           f"ok, {wanted['cuda-ipc']}", good)
    if event:
        expected = "ok" if row.event else "205"
        yield f"{row.name}: classic event handle", found["event"], expected, found["event"] == expected
    said = codes(findings)
    told = [code for code in said if code in (PRIVATE, ONE_USER, SAME_PID)]
    healthy = status == (1 if row.fails else 0) and (row.code is None or row.code in said) and \
        (row.fails or SAME_PID not in said)
    yield (f"{row.name}: doctor", f"exits {status}, {' '.join(told)}; failures: {' '.join(codes(findings, 'fail')) or 'none'}",
           f"exits {1 if row.fails else 0}" + (f", {row.code}" if row.code else ""), healthy)


def sandboxes(rig):
    daemon = rig.daemon(memory="auto")
    owner = rig.agent(daemon.socket)
    for handle in HANDLES:
        owner.make(handle, 4 << 20, handle, name=f"sandbox-{handle}", mode="0666", seed=21)
    try:
        event = owner.ask("event", "make")[0]
    except AgentError as error:
        event = None
        yield "classic event handles", f"not to be had here: {error.text}", "", None if rig.dry else False
    for row in ROWS:
        try:
            yield from try_row(rig, daemon, row, event)
        except (AssertionError, AgentError, EOFError, OSError) as error:
            yield row.name, f"{type(error).__name__}: {str(error)[:200]}", "", False
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
