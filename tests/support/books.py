# SPDX-License-Identifier: Apache-2.0
"""A daemon and its books: what it says it holds, from three places that must agree, its descriptors, and its news."""

import collections
import os
import select
import socket

import backend
from daemon import GPUIPCD_FAULT, Daemon, DaemonTest, driver_fds, open_fds, wait_for
from holder import Zygote
from rawclient import WAIT_S

PAGE = backend.PAGE


class FaultLine:
    """The test's end of the fault build's points: the daemon stands still at each until go()."""

    def __init__(self):
        self.here, self.there = socket.socketpair()
        self.here.settimeout(WAIT_S)
        self.received = b""

    def environment(self, points):
        return {"GPUIPC_FAULT_POINT": ",".join(points), "GPUIPC_FAULT_FD": str(self.there.fileno())}

    def started(self):
        self.there.close()

    def expect(self, point):
        """Waits for the daemon to stand at that point; any other is a fault."""
        while b"\n" not in self.received:
            data = self.here.recv(4096)
            if not data:
                raise AssertionError(f"the daemon ended before {point}")
            self.received += data
        found, _, self.received = self.received.partition(b"\n")
        if found.decode() != point:
            raise AssertionError(f"the daemon stands at {found.decode()}, not at {point}")

    def go(self):
        self.here.send(b".")

    def pass_all(self, *points):
        for point in points:
            self.expect(point)
            self.go()

    def open(self):
        """From here on no point holds the daemon."""
        self.here.shutdown(socket.SHUT_WR)

    def close(self):
        self.here.close()
        self.there.close()


def end_process(process):
    """Of subprocess.Popen: it has ended, and its files are closed. May be called again."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for file in (process.stdin, process.stdout, process.stderr):
        if file:
            file.close()


class HoldersTest(DaemonTest):
    """A case with other processes, that hold leases."""

    @classmethod
    def setUpClass(cls):
        cls.zygote = Zygote()
        cls.addClassCleanup(cls.zygote.close)

    def owned_process(self, process):
        """Killed with the test unless it has ended, and reaped."""
        self.things.callback(end_process, process)
        return process

    def holder(self, **options):
        return self.owned(self.zygote.holder(self.daemon.socket, **options))


class BooksTest(HoldersTest):
    """The books that a daemon without clients shows are all zero; books() and take_events() look at them in between."""

    environment = {}
    program = None

    def make_daemon(self):
        return Daemon(*self.daemon_args, program=self.program, environment=self.environment)

    def setUp(self):
        self.seen, self.markers = 0, set()
        super().setUp()

    def bystander(self, admin=False):
        return self.owned(self.client(admin))

    def leases(self, **filters):
        with self.client(admin=True) as client:
            return [lease for page in client.call_more("List", filters) for lease in page["leases"]]

    def buffers(self, **filters):
        with self.client(admin=True) as client:
            return [buffer for page in client.call_more("ListBuffers", filters) for buffer in page["buffers"]]

    def books(self):
        """What GetStatus, List and ListBuffers say, if they say the same; None when they (still) differ."""
        status = self.daemon.status()
        leases, buffers = self.leases(), self.buffers()
        device = status["devices"][0]
        shown = {
            "leases": len(leases),
            "buffers": len(buffers),
            "draining_leases": sum(lease["state"] == "draining" for lease in leases),
            "sessions": status["sessions"] - 1,
            "brokered": sum(buffer["allocated"] for buffer in buffers),
            "draining": sum(buffer["allocated"] for buffer in buffers if buffer["state"] == "draining"),
            "spare": device.get("spare_bytes", 0),
        }
        said = (status["leases"], status["buffers"], device["brokered_bytes"], device["draining_bytes"])
        agree = said == (shown["leases"], shown["buffers"], shown["brokered"], shown["draining"]) and \
            sum(buffer["leases"] for buffer in buffers) == shown["leases"]
        return shown if agree else None

    def fds(self, sessions=0, buffers=0):
        """What so many sessions and buffers take beside an idle daemon's descriptors."""
        return 2 * sessions + backend.FDS_BUFFER * buffers

    def fds_now(self):
        """Descriptors of the daemon beyond those it has idle."""
        return len(open_fds(self.daemon.pid)) - self.daemon.idle_fds

    def wait_books(self, fds=None, **expected):
        """Waits for exactly these figures, those not named being 0, and for that many descriptors beyond an idle daemon's:
        by default a socket and a pidfd for each session and one for each buffer."""
        wanted = dict.fromkeys(("leases", "buffers", "draining_leases", "sessions", "brokered", "draining", "spare"), 0)
        wanted.update(expected)
        fds = self.fds(wanted["sessions"], wanted["buffers"]) if fds is None else fds
        found = []

        def same():
            found[:] = [self.books()]
            return found == [wanted]

        def same_fds():
            found[1:] = [self.fds_now()]
            return found[1] - fds in driver_fds()

        try:
            wait_for(same, "the books")
            wait_for(same_fds, "the descriptors")
        except AssertionError as error:
            kinds = collections.Counter(what.partition(":")[0] for what in open_fds(self.daemon.pid).values())
            raise AssertionError(f"{error}: books and descriptors are {found}, not {[wanted, fds]}; leases {self.leases()[:9]}; "
                                 f"descriptors {dict(kinds)}") from None

    def take_events(self):
        """[(kind, buffer, lease)] since the last call, up to a marker of our own, which does not show."""
        with self.client() as client:
            reply = client.call("Allocate", {"size": 1})
            client.call("Release", {"lease": reply["lease"]})
        self.markers.add(reply["buffer"]["id"])
        last = max(self.markers, key=lambda name: int(name[1:]))
        events = self.read_events(lambda kind, buffer, _: (kind, buffer) == ("freed", last))
        return [event for event in events if event[1] not in self.markers]

    def read_events(self, is_last):
        """[(kind, buffer, lease)] from the last one read up to the one that is the last."""
        found = []
        with self.client(admin=True) as watch:
            watch.send_call("Watch", {"since": self.seen}, more=True)
            while not found or not is_last(*found[-1]):
                event = watch.result()["event"]
                self.seen = event["sequence"]
                found.append((event["kind"], event.get("buffer", {}).get("id"), event.get("lease", {}).get("id")))
        return found


class FaultTest(BooksTest):
    """With the fault build, which stands still at each of `points`."""

    program = GPUIPCD_FAULT
    points = ()

    def make_daemon(self):
        self.fault = self.owned(FaultLine())
        daemon = Daemon(*self.daemon_args, program=self.program, pass_fds=[self.fault.there.fileno()],
                        environment={**self.environment, **self.fault.environment(self.points)})
        self.fault.started()
        return daemon


def silent(seconds, *files):
    """Whether none of them has anything to read for so long."""
    return not select.select(files, [], [], seconds)[0]


def memory_kb(pid, field="VmRSS"):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
    raise AssertionError(f"no {field} of process {pid}")


def slower(seconds):
    return seconds * int(os.environ.get("GPUIPC_TEST_SLOWER", "1"))
