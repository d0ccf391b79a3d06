# SPDX-License-Identifier: Apache-2.0
"""Processes that hold leases, and die. Each is a real one that does what the test tells it; standard library only.

    zygote = Zygote()                      # once: a clean process that the others are forked from
    holder = zygote.holder(daemon.socket)
    holder.call("Allocate", {"size": 1})   # any method of Agent, done over there
    holder.kill()

A holder has none of the test's descriptors. Its zombie is reaped at once, unless it was forked by keep_zombies().
"""

import array
import contextlib
import ctypes
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading

import backend
from gpumap import Driver, GpuMap
from rawclient import WAIT_S, RawClient, ReplyError

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4


def send_fd(channel, fd):
    channel.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive_fd(channel):
    data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise ConnectionError("the other process is gone")
    return array.array("i", ancillary[0][2])[0]


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class HostMap:
    """As GpuMap."""

    def __init__(self, fd, size, writable):
        self.map = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))

    def write(self, data):
        self.map[: len(data)] = data

    def read(self, n):
        return self.map[:n]


class Agent:
    """What a holder can do. Runs in its process."""

    def __init__(self, talk, path):
        self.talk, self.path = talk, path
        self.client = self.driver = self.handle = None
        self.maps = {}

    def visit(self, path):
        self.path = path

    def become(self, uid):
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        prctl(PR_SET_DUMPABLE, 1)

    def connect(self):
        self.client = RawClient(self.path)

    def call(self, method, parameters=None):
        self.send_call(method, parameters)
        return self.result()

    def send_call(self, method, parameters=None, **members):
        self.client.send_call(method, parameters, **members)

    def send(self, data):
        self.client.send(data)

    def read(self):
        return self.client.read()

    def result(self):
        result = self.client.result()
        self.handle = result.get("handle", self.handle)
        return result

    def flood(self, method, n, parameters=None):
        """n calls, none of whose replies is read."""
        self.client.socket.settimeout(None)
        for _ in range(n):
            self.client.send_call(method, parameters, more=True)

    def fill(self, method):
        """As many calls as there is room for on the way to a daemon whose replies are not read."""
        self.client.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                self.client.send_call(method, more=True)

    def drain_replies(self, n):
        """Reads whole answers, of pages perhaps, until n are there: how many pages there were."""
        pages = 0
        while n:
            reply = self.client.read()
            if reply is None or "error" in reply:
                raise ConnectionError(f"{n} answers missing: {reply}")
            pages += 1
            n -= not reply.get("continues")
        return pages

    def map_next(self, name, size, writable=True):
        """Maps the oldest descriptor received, and closes it; a classic handle: that of the last result."""
        fd = -1 if backend.CLASSIC else self.client.take_fd()
        if backend.HOST:
            self.maps[name] = HostMap(fd, size, writable)
        else:
            self.driver = self.driver or Driver()
            self.maps[name] = GpuMap(self.driver, self.handle, size, fd, writable)
        if fd >= 0:
            os.close(fd)

    def drop_fds(self):
        while self.client.fds:
            os.close(self.client.take_fd())

    def write(self, name, data):
        self.maps[name].write(data)

    def peek(self, name, n):
        return self.maps[name].read(n)

    def shutdown(self):
        self.client.socket.shutdown(socket.SHUT_WR)

    def hang_up(self):
        """Closes the connection and nothing else."""
        self.client.socket.close()

    def begin_thread(self):
        """One that does nothing."""
        threading.Thread(target=signal.pause, daemon=True).start()

    def keep_zombies(self):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def fork(self):
        """Another holder with copies of all this one has. Its end of the talk follows the answer."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self.talk.close()
            here.close()
            serve(there, self)
        there.close()
        self.passing = here
        return pid

    def pass_on(self):
        send_fd(self.talk, self.passing.fileno())
        self.passing.close()


def serve(talk, agent):
    """Does what it is told until nobody is left to tell. Does not return."""
    agent.talk = talk
    status = 1
    try:
        while True:
            data = talk.recv(1 << 20)
            if not data:
                break
            name, arguments, keywords = pickle.loads(data)
            try:
                answer = ("value", getattr(agent, name)(*arguments, **keywords))
            except ReplyError as error:
                answer = ("refused", (error.name, error.parameters))
            except Exception as error:  # pylint: disable=broad-except
                answer = ("failed", repr(error))
            talk.send(pickle.dumps(answer))
            if name == "fork":
                agent.pass_on()
        status = 0
    finally:
        os._exit(status)


class Holder:
    """The test's end of a holder: its methods are Agent's, and what the test does to it from outside."""

    def __init__(self, pid, talk):
        self.pid, self.talk = pid, talk
        self.talk.settimeout(WAIT_S)
        self.pidfd = os.pidfd_open(pid)

    def tell(self, name, *arguments, **keywords):
        """Without waiting for the answer, which answer() takes later."""
        self.talk.send(pickle.dumps((name, arguments, keywords)))

    def answer(self):
        data = self.talk.recv(1 << 20)
        if not data:
            raise ConnectionError(f"holder {self.pid} is gone")
        kind, value = pickle.loads(data)
        if kind == "refused":
            raise ReplyError(*value)
        if kind == "failed":
            raise AssertionError(f"holder {self.pid}: {value}")
        return value

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(Agent, name):
            raise AttributeError(name)

        def ask(*arguments, **keywords):
            self.tell(name, *arguments, **keywords)
            return self.answer()

        return ask

    def fork(self):
        self.tell("fork")
        pid = self.answer()
        return Holder(pid, socket.socket(fileno=receive_fd(self.talk)))

    def signal(self, number):
        signal.pidfd_send_signal(self.pidfd, number)

    def stop(self):
        """SIGSTOP, and waits until it has stopped."""
        self.signal(signal.SIGSTOP)
        while self.state() not in "Tt":
            select.select([], [], [], 0.001)

    def state(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]

    def wait_death(self):
        if not select.select([self.pidfd], [], [], WAIT_S)[0]:
            raise AssertionError(f"holder {self.pid} does not end")

    def kill(self):
        """SIGKILL, and waits until it is dead."""
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait_death()

    def end(self):
        """Whatever became of it, it is gone afterwards and so are the test's descriptors."""
        if self.pidfd < 0:
            return
        self.kill()
        os.close(self.pidfd)
        self.talk.close()
        self.pidfd = -1


class Zygote:
    """A process without a past, from which holders are forked."""

    def __init__(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-B", os.path.abspath(__file__), str(there.fileno())], stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()], env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))})
        self.holder_of_all = Holder(self.process.pid, here)

    def holder(self, path, uid=None, connect=True):
        holder = self.holder_of_all.fork()
        holder.visit(path)
        if uid is not None:
            holder.become(uid)
        if connect:
            holder.connect()
        return holder

    def close(self):
        self.holder_of_all.end()
        self.process.wait()


def main():
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    talk = socket.socket(fileno=int(sys.argv[1]))
    talk.set_inheritable(False)
    serve(talk, Agent(talk, ""))


if __name__ == "__main__":
    main()
