# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the service manager: hands over the two sockets, keeps a descriptor store, and starts gpuipcd again with all of it.

    with Manager() as manager:
        with manager.client() as client: ...
        manager.restart(signal.SIGKILL)
"""

import array
import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import tempfile
import threading
import time

import backend
from daemon import GPUIPCD, WAIT_S, Daemon, wait_for

STORE_MAX = 2048


class Store:
    """What FDSTORE, FDSTOREREMOVE and BARRIER do; one thread reads, as PID 1 would."""

    def __init__(self, path, maximum):
        self.maximum = maximum
        self.held = []  # (name, descriptor)
        self.told = []  # every message that was none of the store's
        self.dropped, self.barriers, self.unknown = 0, 0, 0
        self.changed = threading.Condition()
        self.reading, self.ended = True, False
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        os.chmod(path, 0o666)
        self.wake, self.waker = socket.socketpair()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while not self.ended:
            watched = [self.wake] + ([self.socket] if self.reading else [])
            ready, _, _ = select.select(watched, [], [])
            if self.wake in ready:
                self.wake.recv(64)
            elif self.socket in ready:
                self.take_message()

    def take_message(self):
        with self.changed:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(8192, socket.CMSG_SPACE(253 * 4),
                                                            socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            fds = array.array("i")
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            self.do(dict(line.partition("=")[::2] for line in data.decode().splitlines()), list(fds))
            self.changed.notify_all()
            return True

    def take_all(self):
        """What a daemon that has ended wrote before counts, as it does with systemd."""
        while self.take_message():
            pass

    def do(self, lines, fds):
        if lines.get("FDSTORE") == "1":
            assert lines["FDPOLL"] == "0", lines
            for fd in fds:
                if len(self.held) >= self.maximum:
                    self.dropped += 1
                    os.close(fd)
                else:
                    self.held.append((lines["FDNAME"], fd))
            return
        for fd in fds:
            os.close(fd)
        if lines.get("FDSTOREREMOVE") == "1":
            gone = [item for item in self.held if item[0] == lines["FDNAME"]]
            self.held = [item for item in self.held if item[0] != lines["FDNAME"]]
            self.unknown += not gone
            for _, fd in gone:
                os.close(fd)
        elif lines.get("BARRIER") == "1":
            self.barriers += 1
        else:
            self.told.append(lines)

    def poke(self):
        self.waker.send(b"x")

    def pause(self):
        """As PID 1 stopped: nothing is read."""
        self.reading = False
        self.poke()

    def resume(self):
        self.reading = True
        self.poke()

    def names(self):
        with self.changed:
            return sorted(name for name, _ in self.held)

    def wait_told(self, word, seconds=WAIT_S):
        with self.changed:
            deadline = time.monotonic() + seconds
            while True:
                for lines in self.told:
                    if word in lines:
                        return lines
                if not self.changed.wait(max(0, deadline - time.monotonic())):
                    return None

    def empty(self):
        with self.changed:
            for _, fd in self.held:
                os.close(fd)
            self.held = []

    def close(self):
        if self.ended:
            return
        self.ended = True
        self.poke()
        self.thread.join()
        self.empty()
        for end in (self.socket, self.wake, self.waker):
            end.close()


def listen_at(path, mode):
    """A socket as a .socket unit makes it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    os.chmod(path, mode)
    made.listen(4096)
    return made


class Manager(Daemon):
    """Not the daemon itself, but who starts it; `pid` is the present one's."""

    def __init__(self, *args, program=None, config="", environment=None, store_max=STORE_MAX, memory=backend.DAEMON, pass_fds=(),
                 wait=True):
        self.directory = tempfile.mkdtemp(prefix="m.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.directory, 0o755)
        self.socket, self.admin_socket = f"{self.directory}/s", f"{self.directory}/a"
        self.log_path = f"{self.directory}/log"
        with open(f"{self.directory}/conf", "w", encoding="utf-8") as file:
            file.write(config)
        self.program = program or GPUIPCD
        self.arguments = ["--config", f"{self.directory}/conf", "--backend", memory, "--log-target", "stderr", *args]
        self.environment = {**os.environ, "NOTIFY_SOCKET": f"{self.directory}/n", "FDSTORE": str(store_max), **(environment or {})}
        self.pass_fds = pass_fds
        self.store = Store(f"{self.directory}/n", store_max)
        self.listening = [("shared", listen_at(self.socket, 0o666)), ("admin", listen_at(self.admin_socket, 0o660))]
        self.pid = self.pidfd = self.idle_fds = None
        self.n_starts = 0
        try:
            self.start(wait)
        except BaseException:
            self.kill()
            raise

    def start(self, wait=True):
        self.store.take_all()
        with self.store.changed:
            handed = [(name, made.fileno()) for name, made in self.listening] + list(self.store.held)
            self.store.told = []
        self.n_starts += 1
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.become_daemon(handed)
            finally:
                os._exit(127)
        self.pidfd = os.pidfd_open(self.pid)
        if wait:
            self.wait_ready()

    def become_daemon(self, handed):
        log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        null = os.open("/dev/null", os.O_RDONLY)
        top = 3 + len(handed)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top + 64) for _, fd in handed]
        kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top + 64) for fd in self.pass_fds]
        log, null = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, top + 64) for fd in (log, null))
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for place, fd in enumerate(moved, 3):
            os.dup2(fd, place)
        for place, fd in enumerate(kept, top):
            os.dup2(fd, place)
        os.closerange(top + len(kept), 1 << 20)
        environment = {**self.environment, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(handed)),
                       "LISTEN_FDNAMES": ":".join(name for name, _ in handed)}
        environment = {key: value for key, value in environment.items() if value is not None}
        if environment.get("SYSTEMD_EXEC_PID") == "self":
            environment["SYSTEMD_EXEC_PID"] = str(os.getpid())
        if kept:
            environment["GPUIPC_FAULT_FD"] = str(top)
        os.execve(self.program, [self.program, *self.arguments], environment)

    def wait_ready(self):
        deadline = time.monotonic() + WAIT_S
        while not self.store.wait_told("READY", 0.05):
            if select.select([self.pidfd], [], [], 0)[0]:
                raise AssertionError(f"gpuipcd ended without READY; it logged:\n{self.log()[-3000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"gpuipcd runs without READY; it logged:\n{self.log()[-3000:]}")

    def wait_notified(self, word):
        name, _, value = word.partition("=")
        lines = self.store.wait_told(name)
        assert lines and lines[name] == value, f"{word}: {lines}"
        return lines

    def status_word(self):
        """How the present one ended, as waitpid() tells; None before. What it wrote is in the store then."""
        if self.pid is None:
            return None
        if not select.select([self.pidfd], [], [], 0)[0]:
            return None
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.pid = self.pidfd = None
        self.store.take_all()
        return status

    def end(self, number=signal.SIGKILL):
        """Sends a signal and waits for the end: the status as waitpid() tells."""
        os.kill(self.pid, number)
        if not select.select([self.pidfd], [], [], WAIT_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
            self.status_word()
            raise AssertionError(f"gpuipcd did not end on {number}; it logged:\n{self.log()[-3000:]}")
        return self.status_word()

    def restart(self, number=signal.SIGKILL):
        """Ends it and starts the next: seconds until that served."""
        status = self.end(number)
        if number == signal.SIGTERM and status != 0:
            raise AssertionError(f"gpuipcd ended on SIGTERM with {status}; it logged:\n{self.log()[-3000:]}")
        began = time.monotonic()
        self.start()
        return time.monotonic() - began

    def settled(self):
        """Waits until nothing is on its way to the store or out of it, as far as can be seen."""
        wait_for(lambda: not self.status()["devices"][0]["draining_bytes"], "nothing to drain")

    def forget(self):
        self.store.close()
        for _, made in self.listening:
            made.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self):
        """SIGTERM; it must end with status 0 in time."""
        if self.pid is None:
            self.forget()
            return
        early = self.status_word()
        status = self.end(signal.SIGTERM) if early is None else early
        log = self.log()
        self.forget()
        if early is not None or status != 0:
            raise AssertionError(f"gpuipcd ended with {status}; it logged:\n{log[-3000:]}")

    def kill(self):
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.pidfd)
            self.pid = self.pidfd = None
        self.forget()
