# SPDX-License-Identifier: Apache-2.0
"""Fifty processes that use the broker in a machine (load.c), and what must be exact when they stand still. Standard library only.

    with Load(machine) as load:
        load.go()
        machine.signal(signal.SIGKILL)
        load.stand()
        assert_exact(machine, load)
"""

import glob
import json
import os
import select
import shutil
import subprocess
import time

from machine import BUILD, SERVICE, wait_for
from rawclient import RawClient, ReplyError

PROGRAM = "/usr/local/bin/gpuipc-load"
ANSWER_S = 90  # a worker may be waiting for a daemon that is away
SOCKET_PATH = "/run/gpuipcd/gpuipcd.sock"


def install_load(machine):
    os.makedirs(os.path.dirname(f"{machine.root}{PROGRAM}"), exist_ok=True)
    shutil.copy(f"{BUILD}/tests/systemd/load", f"{machine.root}{PROGRAM}")


class Load:
    def __init__(self, machine, workers=50, readers=10, held=2, size=4096):
        self.machine = machine
        self.process = machine.start(PROGRAM, *map(str, (workers, readers, held, size)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.workers = self.read()
        except BaseException:
            machine.end(self.process)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.machine.end(self.process)

    def read(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("["):
            raise AssertionError(f"the load answered {line!r} within {ANSWER_S} s")
        self.workers = json.loads(line)
        failures = [worker["failure"] for worker in self.workers if worker["failure"]]
        if failures:
            raise AssertionError(f"{len(failures)} of {len(self.workers)} workers failed:\n" + "\n".join(failures[:5]))
        return self.workers

    def ask(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.read()

    def go(self):
        return self.ask("go")

    def stand(self):
        """All finish their rounds; what they hold is looked at by holder and neighbour. {buffer: hash}"""
        hashes = {}
        for worker in self.ask("stand"):
            for held in worker["held"]:
                assert held["hash"] == held["seen"], held
                hashes[held["id"]] = held["hash"]
        return hashes

    def end(self):
        self.ask("end")
        status = self.process.wait(ANSWER_S)
        assert status == 0, f"the load ended with {status}"

    def rounds(self):
        return sum(worker["rounds"] for worker in self.ask("report"))

    def wait_rounds(self, n):
        """Until they have gone n rounds more, all together."""
        wanted = self.rounds() + n
        wait_for(lambda: self.rounds() >= wanted, f"{n} rounds more", ANSWER_S)

    def slowest_ms(self, *calls, readers=None):
        return max(worker["slowest_ms"][call] for worker in self.workers for call in calls if readers in (None, worker["reader"]))

    def connections(self):
        """As the workers have them open."""
        pid = self.process.command_pid()
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return sum(open_kinds(worker)["socket"] for worker in file.read().split())

    def held(self):
        return [held for worker in self.workers for held in worker["held"]]


def open_kinds(pid):
    """How many of each kind a process has open."""
    kinds = {"memory": 0, "state": 0, "pidfd": 0, "socket": 0, "other": 0}
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            what = os.readlink(path)
        except FileNotFoundError:
            continue
        kinds["state" if "gpuipc-state" in what else "memory" if what.startswith("/memfd:") else "pidfd" if "pidfd" in what else
              "socket" if what.startswith("socket:") else "other"] += 1
    return kinds


def books(machine):
    """What the daemon says, by its lists and by its status, and the manager beside it."""
    leases = machine.ctl_json("list")["leases"]
    buffers = machine.ctl_json("list", "--buffers")["buffers"]
    status = machine.status()
    return {"leases": {lease["id"]: lease["state"] for lease in leases}, "processes": len({lease["pid"] for lease in leases}),
            "buffers": {buffer["id"]: buffer["allocated"] for buffer in buffers},
            "counts": (status["leases"], status["buffers"]), "bytes": sum(device["brokered_bytes"] for device in status["devices"]),
            "draining": sum(device["draining_bytes"] for device in status["devices"]),
            "stored": int(machine.property(SERVICE, "NFileDescriptorStore"))}


def exact_books(load):
    held = load.held() if load else []
    processes = len(load.workers) if load else 0
    return {"leases": {each["lease"]: "active" for each in held}, "processes": processes,
            "buffers": {each["id"]: each["allocated"] for each in held}, "counts": (len(held), len(held)),
            "bytes": sum(each["allocated"] for each in held), "draining": 0, "stored": 1 + len(held) + processes}


def assert_exact(machine, load=None, seconds=30):
    """Lists, figures, the manager's store and the daemon's descriptors are what the clients hold, and nothing more; without a load,
    nothing at all. The last of it may still be on its way, for the time a lease may wait for its session."""
    wanted, seen = exact_books(load), {}

    def fits():
        seen.update(books(machine))
        return seen == wanted

    try:
        wait_for(fits, "it", seconds)
    except AssertionError:
        raise AssertionError("not exact: " + "; ".join(
            f"{key} is {differing(seen[key], value)}" for key, value in wanted.items() if seen[key] != value)) from None
    assert_descriptors(machine, load)


def assert_descriptors(machine, load):
    """Of the daemon: beside what it has without clients, one for each buffer, each connection and the process at its other end; a process
    that came back after a restart is known from before as well."""
    n_buffers, n_processes = (len(load.held()), len(load.workers)) if load else (0, 0)
    kinds, connections = {}, load.connections() if load else 0

    def fit():
        kinds.update(open_kinds(machine.processes()[0]))
        # Without one of a process there is no connection: this is what the daemon has of its own.
        if not load and kinds["pidfd"] == 0 and not machine.idle_kinds:
            machine.idle_kinds = dict(kinds)
        return (machine.idle_kinds and connections <= kinds["pidfd"] <= connections + n_processes and
                {**kinds, "pidfd": 0} == {**machine.idle_kinds, "memory": n_buffers,
                                          "socket": machine.idle_kinds["socket"] + connections})

    try:
        wait_for(fit, "it")
    except AssertionError:
        raise AssertionError(f"the daemon's descriptors are not of {n_buffers} buffers, {connections} connections and {n_processes} "
                             f"processes: {kinds}; without clients it has {machine.idle_kinds}") from None


def differing(seen, wanted):
    if not isinstance(seen, dict):
        return f"{seen}, not {wanted}"
    more, less = set(seen.items()) - set(wanted.items()), set(wanted.items()) - set(seen.items())
    return f"off by {sorted(more)[:5]} ({len(more)}) instead of {sorted(less)[:5]} ({len(less)})"


def ask_daemon(machine, method="GetStatus"):
    """From outside of the machine, without a process for it: whoever answers is the daemon of now."""
    with RawClient(machine.inside(SOCKET_PATH)) as client:
        client.socket.settimeout(ANSWER_S)
        try:
            return client.call(method)
        except ReplyError as error:
            return error


def time_to_serving(machine, end, seconds=ANSWER_S):
    """`end` brings the daemon's end about. Seconds from the daemon's death until the next one answered, and from the beginning."""
    pid = machine.processes()[0]
    pidfd = os.pidfd_open(pid)
    began = time.monotonic()
    end(pid)
    try:
        if not select.select([pidfd], [], [], seconds)[0]:
            raise AssertionError(f"the daemon was not gone within {seconds} s")
        dead = time.monotonic()
        while isinstance(ask_daemon(machine), ReplyError):
            pass
        serving = time.monotonic()
    finally:
        os.close(pidfd)
    return serving - dead, serving - began
