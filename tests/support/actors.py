# SPDX-License-Identifier: Apache-2.0
"""Other processes for a test: an actor of any user that calls the daemon when told, a load that runs meanwhile, and a
probe that measures what a bystander feels. Standard library only."""

import contextlib
import os
import pickle
import signal
import socket
import statistics
import struct
import sys
import time
import traceback

import backend
from daemon import DaemonTest, wait_for
from rawclient import WAIT_S, RawClient, ReplyError

SLOWER = int(os.environ.get("GPUIPC_TEST_SLOWER", "1"))
FLOOR_S = 0.005 * SLOWER


def become(uid=None, gid=None, groups=()):
    """All three ids of each kind, for good."""
    if gid is None:
        gid = uid
    if uid is not None:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def fork_child(main, keep=()):
    """Runs main() in a child that keeps only the descriptors named; it ends with status 0, or 1 and a traceback."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in keep:
                try:
                    os.close(fd)
                except OSError:
                    pass
        main()
        status = 0
    except BaseException:  # noqa: B902 - nothing may unwind into the parent's frames
        traceback.print_exc()
    finally:
        os._exit(status)


def send_object(sock, value):
    data = pickle.dumps(value)
    sock.sendall(struct.pack("!I", len(data)) + data)


def receive_object(sock):
    def exactly(n):
        data = b""
        while len(data) < n:
            part = sock.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    return pickle.loads(exactly(struct.unpack("!I", exactly(4))[0]))


def outcome_of(function, *args, **kwargs):
    try:
        return "value", function(*args, **kwargs)
    except ReplyError as error:
        return "reply error", (error.name, error.parameters)
    except Exception as error:
        return "exception", error


def unwrap(outcome):
    kind, value = outcome
    if kind == "value":
        return value
    raise ReplyError(*value) if kind == "reply error" else value


def in_child(function, keep=(), **who):
    """The function's result (or exception) from a child process of its own, perhaps of another user."""
    ours, theirs = socket.socketpair()

    def main():
        become(**who)
        send_object(theirs, outcome_of(function))

    pid = fork_child(main, keep=(theirs.fileno(), *keep))
    theirs.close()
    with ours:
        ours.settimeout(WAIT_S * 3)
        try:
            outcome = receive_object(ours)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return unwrap(outcome)


@contextlib.contextmanager
def context_kept(client):
    """With classic handles, the daemon's context comes with the first buffer and goes with the last, which takes its time: here one
    stays."""
    lease = client.call("Allocate", {"size": 1})["lease"] if backend.CLASSIC else None
    yield
    if lease:
        client.call("Release", {"lease": lease})


def churn(client, n=1, size=1):
    """Buffers that come and go."""
    with context_kept(client) if n > 10 else contextlib.nullcontext():
        for _ in range(n):
            client.call("Release", {"lease": client.call("Allocate", {"size": size})["lease"]})
            client.drop_fds()


def status_as(path, **who):
    """GetStatus from a process of another user."""

    def ask():
        with RawClient(path) as client:
            return client.call("GetStatus")

    return in_child(ask, **who)


class RemoteClient:
    """A RawClient inside an actor: the same methods, as far as their results can travel."""

    def __init__(self, actor, key):
        self.actor, self.key = actor, key

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.actor.ask(self.key, name, *args, **kwargs)


class Actor:
    """A process of its own. Its calls go over its first connection unless another is made with client()."""

    def __init__(self, path, uid=None, gid=None, groups=(), inherit=None, enter=None):
        self.path, self.first, self.n_clients = path, None, 0
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(WAIT_S * 2)
        clients = {} if inherit is None else {0: inherit}

        def connect(key, where):
            clients[key] = RawClient(where)

        def main():
            if enter:
                enter()
            become(uid, gid, groups)
            while True:
                try:
                    key, name, args, kwargs = receive_object(theirs)
                except EOFError:
                    return
                function = connect if name == "connect" else getattr(clients[key], name)
                send_object(theirs, outcome_of(function, *args, **kwargs))

        keep = [theirs.fileno()] + ([inherit.fileno()] if inherit else [])
        self.pid = fork_child(main, keep)
        theirs.close()
        if inherit is not None:
            self.first = RemoteClient(self, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def ask(self, key, name, *args, **kwargs):
        send_object(self.socket, (key, name, args, kwargs))
        return unwrap(receive_object(self.socket))

    def client(self, path=None):
        self.n_clients += 1
        self.ask(None, "connect", self.n_clients, path or self.path)
        return RemoteClient(self, self.n_clients)

    def __getattr__(self, name):
        if self.first is None:
            self.first = self.client()
        return getattr(self.first, name)

    def signal(self, number):
        os.kill(self.pid, number)

    def freeze(self):
        """SIGSTOP, and it is seen to have stopped."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def kill(self):
        if self.pid:
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self.socket.close()

    def end(self):
        """It lets go of everything by exiting."""
        self.kill()


class Load:
    """A child that runs a generator: each yield ends a round. It must still run, and have got on, when it is stopped."""

    def __init__(self, generate, **who):
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(writer, False)
        self.n_rounds = 0

        def main():
            become(**who)
            for _ in generate():
                try:
                    os.write(writer, b".")
                except BlockingIOError:
                    pass

        self.pid = fork_child(main, keep=(writer,))
        os.close(writer)

    def __enter__(self):
        self.wait_round()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.wait_round()
        finally:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.reader)

    def rounds(self):
        try:
            self.n_rounds += len(os.read(self.reader, 1 << 16))
        except BlockingIOError:
            pass
        return self.n_rounds

    def wait_round(self):
        """Waits for one more round to end."""
        before = self.rounds()
        wait_for(lambda: self.rounds() > before or self.ended(), "a round of the load", WAIT_S * 2)
        if self.ended():
            raise AssertionError("the load ended by itself")

    def ended(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Timing:
    """Seconds of calls made one after the other."""

    def __init__(self, call, n):
        self.seconds = []
        for _ in range(n):
            began = time.monotonic()
            call()
            self.seconds.append(time.monotonic() - began)
        self.median, self.worst = statistics.median(self.seconds), max(self.seconds)

    def __str__(self):
        return f"median {self.median * 1e6:.0f} us, worst {self.worst * 1e6:.0f} us of {len(self.seconds)}"


class ActorTest(DaemonTest):
    """A case with actors, which end before the daemon must be idle."""

    CALLS = 200

    def actor(self, uid=None, admin=False, **options):
        path = self.daemon.admin_socket if admin else self.daemon.socket
        return self.owned(Actor(path, uid, **options))

    def device(self):
        """The one that buffers are made on."""
        return self.daemon.status()["devices"][0]["uuid"]

    def refused(self, error, call, *args, **kwargs):
        """The parameters of the error that the call must end with."""
        with self.assertRaises(ReplyError) as caught:
            call(*args, **kwargs)
        full = error if "." in error else "io.gpuipc.Broker." + error
        self.assertEqual(caught.exception.name, full, caught.exception)
        return caught.exception.parameters

    def assert_not_slowed(self, load, *, worst_s=1.0, calls=None, **who):
        """While the load runs, a bystander's GetStatus has a median of at most ten times the normal one."""
        with self.client() as bystander:
            normal = Timing(lambda: bystander.call("GetStatus"), self.CALLS)
            with Load(load, **who) as running:
                during = Timing(lambda: bystander.call("GetStatus"), calls or self.CALLS)
                n_rounds = running.rounds()
        told = f"normally {normal}; during the load {during}; {n_rounds} rounds"
        if os.environ.get("GPUIPC_TEST_TELL"):
            print(f"{self.id()}: {told}", file=sys.stderr)
        self.assertLessEqual(during.median, max(10 * normal.median, FLOOR_S), told)
        self.assertLessEqual(during.worst, worst_s * SLOWER, told)


