# SPDX-License-Identifier: Apache-2.0
"""Each call that can fail in the daemon fails once, the first, the second and so on, while a client lives its life. The
daemon stays, every client has an answer or a closed connection in time, the next one is served, and books, descriptors and
allocated memory are as before. deadline: 300 s"""

import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, GPUIPCD_FAULT, Daemon, open_fds, wait_for  # noqa: E402
from rawclient import WAIT_S, RawClient, ReplyError  # noqa: E402

SHIM = f"{BUILD}/tests/fault/shim.so"
# In the order of enum function in shim.c.
FUNCTIONS = ("malloc", "calloc", "realloc", "memfd_create", "fallocate", "ftruncate", "fchmod", "accept4", "recvmsg", "sendmsg",
             "open", "fcntl", "epoll_probe", "getsockopt", "pidfd_open")
MOST = 2000  # calls of one function in one life


class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("calls", "fail_at", "failed", "error")]


class Page(ctypes.Structure):
    _fields_ = [("live", ctypes.c_int64), ("functions", Figures * len(FUNCTIONS))]


class Shim:
    """The page that the shim reads and writes."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="shim.")
        self.file.truncate(mmap.PAGESIZE)
        self.memory = mmap.mmap(self.file.fileno(), mmap.PAGESIZE)
        self.page = Page.from_buffer(self.memory)

    def environment(self):
        return {"LD_PRELOAD": SHIM, "GPUIPC_SHIM": self.file.name}

    def arm(self, function, n, error):
        figures = self.page.functions[FUNCTIONS.index(function)]
        figures.fail_at = 0
        figures.calls, figures.failed, figures.error = 0, 0, error
        figures.fail_at = n

    def disarm(self, function):
        """Whether it failed meanwhile."""
        figures = self.page.functions[FUNCTIONS.index(function)]
        figures.fail_at = 0
        return figures.failed > 0

    def close(self):
        del self.page
        self.memory.close()
        self.file.close()


class Life:
    """Everything a client does, whatever of it fails: an error is an answer, and after a closed connection comes another.
    Only silence is none (TimeoutError)."""

    def __init__(self, path):
        self.path = path
        self.client = None
        self.done = []

    def connect(self):
        if self.client:
            self.client.close()
        self.client = RawClient(self.path)

    def step(self, client, method, parameters=None, **members):
        try:
            reply = client.call(method, parameters, **members)
        except ReplyError as error:
            self.done.append(error.name.rpartition(".")[2])
            return None
        except (ConnectionError, BrokenPipeError):
            self.done.append("closed")
            return None
        self.done.append("ok")
        return reply

    def call(self, method, parameters=None):
        if self.client is None or self.done[-1:] == ["closed"]:
            self.connect()
        return self.step(self.client, method, parameters)

    def grant(self, method, parameters):
        reply = self.call(method, parameters)
        if reply is None:
            return None
        descriptor = self.client.take_fd()
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
        if size != reply["buffer"]["size"]:
            raise AssertionError(f"a descriptor of {size} bytes for {reply}")
        return reply

    def begin_watch(self):
        watch = RawClient(self.path)
        try:
            watch.send_call("Watch", {}, more=True)
        except (ConnectionError, BrokenPipeError):
            pass
        return watch

    def end_watch(self, watch):
        """Something has happened since, or it was refused."""
        with watch:
            try:
                watch.result()
                self.done.append("ok")
            except ReplyError as error:
                self.done.append(error.name.rpartition(".")[2])
            except ConnectionError:
                self.done.append("closed")

    def list_pages(self):
        try:
            for _ in self.client.call_more("ListBuffers"):
                pass
            self.done.append("ok")
        except ReplyError as error:
            self.done.append(error.name.rpartition(".")[2])
        except (ConnectionError, BrokenPipeError):
            self.done.append("closed")

    def inherited(self):
        """Another process speaks over the same connection."""
        self.call("GetStatus")
        pid = os.fork()
        if pid == 0:
            try:
                self.client.call("Allocate", {"size": 1})
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        self.connect()

    def part(self, method, parameters):
        part = self.call(method, parameters)
        if part is None:
            return None
        sizes = [os.fstat(self.client.fds[part[which]["fd"]]).st_size for which in ("data", "control")]
        self.client.drop_fds()
        if sizes != [part["channel"]["size"], part["channel"]["control_bytes"]]:
            raise AssertionError(f"descriptors of {sizes} bytes for {part}")
        return part

    def channel(self):
        made = self.part("ChannelCreate", {"slots": 3, "slot_bytes": 5000, "role": "consumer", "name": "channel", "meta_bytes": 9})
        parts = [self.part("ChannelAttach", {"name": "channel", "role": role}) for role in ("producer", "consumer")]
        if made:
            self.call("ChannelParticipants", {"channel": made["channel"]["id"]})
            self.client.drop_fds()
        for part in filter(None, parts):
            self.call("Release", {"lease": part["lease"]})

    def run(self):
        watch = self.begin_watch()
        self.call("GetStatus")
        made = self.grant("Allocate", {"size": 70000, "name": "life", "mode": "0640", "label": "l", "meta": {"shape": [1, "x"]},
                                       "keep_ms": 5})
        leases = [made["lease"]] if made else []
        for access in ("ro", "rw", "ro"):
            opened = self.grant("Open", {"name": "life", "access": access})
            leases += [opened["lease"]] if opened else []
        self.call("Open", {"name": "not-there", "wait_ms": 1})
        self.call("List")
        self.list_pages()
        if made:
            self.call("Seal", {"buffer": made["buffer"]["id"]})
        self.call("Nonsense", {"a": 1})
        for lease in leases:
            self.call("Release", {"lease": lease})
        self.call("Free", {"name": "life"})
        self.channel()
        self.grant("Allocate", {"size": 1, "name": "left"})
        self.inherited()
        self.grant("Allocate", {"size": 1})
        self.end_watch(watch)
        return self.done


def live(path, talk):
    """In a process of its own, which is killed when it has told."""
    life = Life(path)
    try:
        answer = life.run()
    except BaseException as error:  # pylint: disable=broad-except
        answer = repr(error)
    talk.sendall(json.dumps(answer).encode() + b"\n")
    signal.pause()


WITHOUT_SANITIZER = unittest.skipIf(os.environ.get("GPUIPC_SANITIZER"),
                                     "a sanitizer has its own hold on malloc, which a preloaded one would break")


@WITHOUT_SANITIZER
class FailureCase(unittest.TestCase):
    program = None
    environment = {}

    def setUp(self):
        self.shim = Shim()
        self.addCleanup(self.shim.close)
        self.fds_before = open_fds()
        # A ring of events so short that whatever happened before is forgotten after one buffer's life.
        self.daemon = Daemon("--events-max", "4", program=self.program, environment={**self.environment, **self.shim.environment()})
        self.addCleanup(self.daemon.kill)
        self.live_before = None

    def tearDown(self):
        if any(test is self for test, _ in self._outcome.result.failures + self._outcome.result.errors):
            return
        self.daemon.stop()
        self.assertEqual(len(self.fds_before), len(open_fds()))

    def live(self):
        here, there = socket.socketpair()
        with here, there:
            pid = os.fork()
            if pid == 0:
                here.close()
                try:
                    live(self.daemon.socket, there)
                finally:
                    os._exit(1)
            there.close()
            here.settimeout(3 * WAIT_S)
            try:
                with here.makefile("rb") as file:
                    answer = json.loads(file.readline() or b'"died"')
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.assertIsInstance(answer, list, "the client's life did not go on")
        return answer

    def settle(self, what):
        """The untouched client, and everything as it was."""
        self.assertIsNone(self.daemon.process.poll(), f"the daemon ended after {what}: {self.daemon.log()[-2000:]}")
        self.daemon.wait_idle()

        def forgotten():
            with self.daemon.client() as client:
                lease = client.call("Allocate", {"size": 1})["lease"]
                client.call("Release", {"lease": lease})
            self.daemon.wait_idle()
            return self.live_before is None or self.shim.page.live <= self.live_before

        try:
            wait_for(forgotten, "memory given back")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.shim.page.live - self.live_before} allocations more after {what}") from None

    def fail_each(self, function, *errors):
        for _ in range(3):
            self.live()
            self.settle("no failure")
        self.live_before = self.shim.page.live
        for error in errors:
            for n in range(1, MOST):
                self.shim.arm(function, n, error)
                answers = self.live()
                if not self.shim.disarm(function):
                    break
                self.settle(f"{errno.errorcode[error]} of {function} number {n}, answers {answers}")
            else:
                self.fail(f"{MOST} calls of {function} and no end")
            print(f"{function}: {n - 1} calls failed with {errno.errorcode[error]}", flush=True)
            self.assertGreater(n, 1, "it was never called")


class FailureTest(FailureCase):
    def test_malloc(self):
        self.fail_each("malloc", errno.ENOMEM)

    def test_calloc(self):
        self.fail_each("calloc", errno.ENOMEM)

    def test_realloc(self):
        self.fail_each("realloc", errno.ENOMEM)

    def test_memfd_create(self):
        self.fail_each("memfd_create", errno.EMFILE, errno.ENOMEM)

    def test_fallocate(self):
        self.fail_each("fallocate", errno.ENOSPC, errno.EINTR, errno.EIO)

    def test_ftruncate(self):
        self.fail_each("ftruncate", errno.ENOMEM)

    def test_fchmod(self):
        self.fail_each("fchmod", errno.EPERM)

    def test_accept4(self):
        self.fail_each("accept4", errno.EMFILE, errno.ECONNABORTED, errno.ENOMEM)

    def test_recvmsg(self):
        self.fail_each("recvmsg", errno.ENOMEM, errno.EINTR, errno.ECONNRESET)

    def test_sendmsg(self):
        self.fail_each("sendmsg", errno.ENOBUFS, errno.EINTR, errno.EAGAIN, errno.ETOOMANYREFS)

    def test_open(self):
        self.fail_each("open", errno.EMFILE)

    def test_fcntl(self):
        self.fail_each("fcntl", errno.ENOMEM)

    def test_epoll_ctl(self):
        self.fail_each("epoll_probe", errno.ENOSPC)

    def test_getsockopt(self):
        self.fail_each("getsockopt", errno.ENOBUFS, errno.EMFILE)



class OlderKernelFailureTest(FailureCase):
    """Processes are found by their numbers, as before Linux 6.5 and 6.16."""

    program = GPUIPCD_FAULT
    environment = {"GPUIPC_FAULT_ABSENT": "SO_PEERPIDFD,SO_PASSPIDFD"}

    def test_pidfd_open(self):
        self.fail_each("pidfd_open", errno.EMFILE)


@WITHOUT_SANITIZER
class StartTest(unittest.TestCase):
    """What fails while the daemon starts either does not matter or ends it in words."""

    def start_each(self, function, error, step=1):
        shim = Shim()
        try:
            for n in range(1, MOST, step):
                shim.arm(function, n, error)
                ended = self.start(shim, function)
                if not shim.disarm(function):
                    break
                if ended:
                    status, log = ended
                    self.assertGreater(status, 0, f"{function} number {n}: {log}")
                    self.assertRegex(log, r"(?m)^(gpuipcd:|\S+ error) .*\S", f"{function} number {n}")
            else:
                self.fail(f"{MOST} calls of {function} and no end")
            print(f"{function}: {n - 1} calls failed", flush=True)
            self.assertGreater(n, 1, "it was never called")
        finally:
            shim.close()

    def start(self, shim, function):
        """None when it serves, and stops as it should; else (status, log)."""
        daemon = Daemon(environment=shim.environment(), wait=False)
        try:
            daemon.wait_notified("READY=1")
        except AssertionError:
            if daemon.process.poll() is None:
                daemon.kill()
                raise
            return daemon.wait_end()
        shim.disarm(function)
        daemon.status()
        daemon.stop()
        return None

    def test_malloc(self):
        self.start_each("malloc", errno.ENOMEM)

    def test_calloc(self):
        self.start_each("calloc", errno.ENOMEM)

    def test_realloc(self):
        self.start_each("realloc", errno.ENOMEM)

    def test_open(self):
        self.start_each("open", errno.EMFILE)

    def test_epoll_ctl(self):
        self.start_each("epoll_probe", errno.ENOSPC)


if __name__ == "__main__":
    unittest.main()
