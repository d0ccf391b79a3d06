# SPDX-License-Identifier: Apache-2.0
"""A real gpuipcd for a test: the twin of daemon_fixture.h. Standard library only.

    class Something(DaemonTest):
        def test_one(self):
            with self.client() as client: ...
"""

import contextlib
import functools
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import backend
from rawclient import WAIT_S, RawClient

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("GPUIPC_BUILD", f"{ROOT}/build")
GPUIPCD = os.environ.get("GPUIPCD", f"{BUILD}/gpuipcd")
GPUIPCD_FAULT = os.environ.get("GPUIPCD_FAULT", f"{BUILD}/fault/gpuipcd")
GPUIPCCTL = os.environ.get("GPUIPCCTL", f"{BUILD}/gpuipcctl")
EXAMPLES = f"{BUILD}/examples"


def wait_for(condition, what="the condition", seconds=WAIT_S):
    """Asks again until the condition is true; its value is the result."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)
        pause = min(pause * 2, 0.01)


def open_fds(pid="self"):
    """{number: what} of a process's descriptors."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def watched(pid="self"):
    """The pids of the processes that a process has pidfds of, one for each descriptor."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as file:
            found += map(int, re.findall(r"^Pid:\t(\d+)$", file.read(), re.M))
    return found


def script(path, text):
    """A program of the shell's, such as one that the daemon is started by: the path."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


class Daemon:
    """One gpuipcd with a directory and sockets of its own. stop() must find it healthy."""

    def __init__(self, *args, program=None, config="", environment=None, admin=True, wait=True, pass_fds=(),
                 memory=backend.DAEMON, socket_path=None):
        self.directory = tempfile.mkdtemp(prefix="d.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.directory, 0o755)
        self.socket, self.admin_socket = socket_path or f"{self.directory}/s", f"{self.directory}/a"
        self.log_path = f"{self.directory}/log"
        with open(f"{self.directory}/conf", "w", encoding="utf-8") as file:
            file.write(config)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(f"{self.directory}/n")
        os.chmod(f"{self.directory}/n", 0o666)
        self.process, self.pidfd = None, -1
        self.idle_fds = self.own_sockets = None
        command = [program or GPUIPCD, "--config", f"{self.directory}/conf", "--backend", memory, "--log-target", "stderr",
                   "--socket", self.socket, "--admin-socket", self.admin_socket if admin else "", *args]
        try:
            with open(self.log_path, "ab") as log:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds,
                    env={**os.environ, "NOTIFY_SOCKET": f"{self.directory}/n", **(environment or {})})
            self.pid = self.process.pid
            self.pidfd = os.pidfd_open(self.pid)
            if wait:
                self.wait_notified("READY=1")
                self.own_sockets = self.sockets()
                self.idle_fds = self.settled_fds()
        except BaseException:
            self.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()

    def log(self):
        """So far: a thread of its own writes it, so what was just done may not be in it. See wait_log()."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_log(self, *words):
        """A line with all of them."""
        wait_for(lambda: any(all(word in line for word in words) for line in self.log().splitlines()),
                 f"{words} in a line of the log:\n{self.log()[-3000:]}")

    def wait_notified(self, word):
        deadline = time.monotonic() + WAIT_S
        while True:
            ready, _, _ = select.select([self.notify, self.pidfd], [], [], max(0, deadline - time.monotonic()))
            if self.notify in ready:
                text = self.notify.recv(4096).decode(errors="replace")
                if word in text:
                    return text
            elif ready:
                raise AssertionError(f"gpuipcd ended without {word}; it logged:\n{self.log()[-3000:]}")
            else:
                raise AssertionError(f"gpuipcd runs without {word}; it logged:\n{self.log()[-3000:]}")

    def client(self, admin=False):
        return RawClient(self.admin_socket if admin else self.socket)

    def status(self):
        with self.client() as client:
            return client.call("GetStatus")

    def freeze(self):
        """SIGSTOP, and it is seen to have stopped: what is done from now on it learns of after thaw()."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self):
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def sockets(self):
        return {what for what in open_fds(self.pid).values() if what.startswith("socket:")}

    def without_clients(self):
        """No process is watched, and no socket open but those it had when nobody had come yet."""
        if any("pidfd" in what for what in open_fds(self.pid).values()):
            return False
        return self.own_sockets is None or self.sockets() <= self.own_sockets

    def watches(self, pid):
        """Whether that process is connected."""
        return pid in watched(self.pid)

    def settled_fds(self):
        """How many descriptors the daemon has after a first client came and went."""
        self.status()
        wait_for(lambda: self.status()["sessions"] == 1, "one session")
        wait_for(self.without_clients, "nothing of the last client")
        samples = [-1, -2]

        def same():
            samples.append(len(open_fds(self.pid)))
            time.sleep(0.002)
            return samples[-1] == samples[-2] == samples[-3]

        wait_for(same, "a steady number of descriptors")
        return samples[-1]

    def wait_idle(self):
        """Waits until the ledger is empty and the descriptors are those of an idle daemon."""

        def idle():
            status = self.status()
            return (status["leases"], status["buffers"], status["sessions"]) == (0, 0, 1) and all(
                device["brokered_bytes"] == device["draining_bytes"] == device.get("spare_bytes", 0) == 0 for device in status["devices"])

        wait_for(idle, f"an empty ledger; now {self.status()}")
        wait_for(lambda: len(open_fds(self.pid)) - self.idle_fds in driver_fds(),
                 f"{self.idle_fds} descriptors; now {open_fds(self.pid)}")

    def forget(self):
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.notify.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self):
        """SIGTERM; it must end with status 0 in time and take its sockets away. All that it logged."""
        early = self.process.poll()
        if early is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        log, status = self.log(), self.process.returncode
        left = [path for path in (self.socket, self.admin_socket) if os.path.exists(path)]
        self.forget()
        if early is not None:
            raise AssertionError(f"gpuipcd had ended before it was stopped, with {early}; it logged:\n{log[-3000:]}")
        if status != 0:
            raise AssertionError(f"gpuipcd ended on SIGTERM with {status}; it logged:\n{log[-3000:]}")
        if left:
            raise AssertionError(f"gpuipcd left {left} behind")
        return log

    def wait_end(self):
        """Waits for it to end by itself: (status, log)."""
        status = self.process.wait(timeout=WAIT_S)
        log = self.log()
        self.forget()
        return status, log

    def kill(self):
        """Nothing is left of it. One that has ended, whichever way, is let be."""
        if self.process:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
        self.forget()


def held_memory(daemon):
    """How many descriptors the daemon has while it holds a buffer of the kind under test."""
    with daemon.client() as client:
        device = client.call("GetStatus")["devices"][0]["uuid"]
        lease = client.call("Allocate", {"size": 1, "device": device})["lease"]
        held = len(open_fds(daemon.pid))
        client.call("Release", {"lease": lease})
    return held


@functools.cache
def driver_fds():
    """How many descriptors a real driver may have opened for itself since the daemon was counted idle, and which may stay."""
    if not backend.REAL:
        return (0,)
    with Daemon() as daemon:
        own = held_memory(daemon) - daemon.idle_fds - 2 - backend.FDS_BUFFER
        stay = daemon.settled_fds() - daemon.idle_fds
    return tuple(range(min(0, own, stay), max(0, own, stay) + 1))


@functools.cache
def device_bytes():
    with Daemon() as daemon:
        return daemon.status()["devices"][0]["total_bytes"]


def memory_of(size):
    """Options for a daemon whose device has so many bytes."""
    return (f"--host-bytes={size}",) if backend.HOST else (f"--keep-free-bytes={device_bytes() - size}",)


class DaemonTest(unittest.TestCase):
    """Each case gets a daemon of its own; afterwards it must be idle, healthy, and this process no fuller. Where setUp() raises there is
    no tearDown(): what setUp() starts is ended by a cleanup, or is owned()."""

    daemon_args = ()

    def make_daemon(self):
        """None: the case makes the one it needs by itself."""
        return Daemon(*self.daemon_args)

    def setUp(self):
        self.fds_before = open_fds()
        self.things, self.daemon = contextlib.ExitStack(), None
        self.addCleanup(self.end_all)
        self.daemon = self.make_daemon()

    def end_all(self):
        """What tearDown() did not come to."""
        try:
            self.things.close()
        finally:
            if self.daemon:
                self.daemon.kill()

    def owned(self, thing):
        """Ended or closed with the test, before the daemon must be idle; the last one first."""
        self.things.callback(thing.end if hasattr(thing, "end") else thing.close)
        return thing

    def tearDown(self):
        self.things.close()
        # A case that already failed shows its own fault, not what follows from it.
        result = self._outcome.result
        if not self.daemon or any(test is self for test, _ in result.failures + result.errors):
            return
        self.daemon.wait_idle()
        self.daemon.stop()
        # The daemon may know that a connection has ended before the thread that ends it has closed the rest.
        after = []

        def same():
            after[:] = [open_fds()]
            return len(after[0]) == len(self.fds_before)

        try:
            wait_for(same, "the descriptors of before")
        except AssertionError as error:
            raise AssertionError(f"{error}: before {self.fds_before}, after {after[0]}") from None

    def client(self, admin=False):
        return self.daemon.client(admin)
