# SPDX-License-Identifier: Apache-2.0
"""Clients that mean harm, or know no better: the daemon refuses in words, stays up, and others hardly notice.
This suite runs alone, since it measures what a bystander's call takes. Runs on any memory. deadline: 240 s"""

import contextlib
import errno
import json
import os
import random
import resource
import select
import socket
import struct
import subprocess
import sys
import time
import unicodedata
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import FLOOR_S, SLOWER, ActorTest, Load, Timing, churn, in_child  # noqa: E402
from daemon import GPUIPCCTL, GPUIPCD_FAULT, ROOT, Daemon, open_fds, wait_for  # noqa: E402
from rawclient import WAIT_S, RawClient, ReplyError  # noqa: E402
from stuckfile import StuckFile  # noqa: E402

MESSAGE_MAX = 65536
INVALID = "org.varlink.service.InvalidParameter"
STATUS = b'{"method":"io.gpuipc.Broker.GetStatus"}'
ALICE, BOB = 2001, 2002
SO_PASSRIGHTS = 83
UCRED_FORMAT = "iII"


def padded(n):
    """A good call of exactly n bytes, without its NUL."""
    return STATUS + b" " * (n - len(STATUS))


def memory_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmRSS:")).split()[1])


def swallow(client, data):
    """Sends as far as the peer lets it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.send(data)


class Messages(ActorTest):
    """One message that is no good."""

    def assert_closed(self, data, said=None):
        with self.client() as client:
            swallow(client, data)
            message = client.read()
            self.assertEqual(message, said)
            if said:
                self.assertIsNone(client.read())

    def test_longest_message(self):
        with self.client() as client:
            client.send(padded(MESSAGE_MAX) + b"\0")
            self.assertIn("version", client.result())

    def test_one_byte_more(self):
        self.assert_closed(padded(MESSAGE_MAX + 1) + b"\0")

    def test_one_byte_more_without_its_end(self):
        self.assert_closed(padded(MESSAGE_MAX + 1))

    def test_message_without_end(self):
        before = memory_kib(self.daemon.pid)
        with self.client() as client:
            with self.assertRaises((BrokenPipeError, ConnectionResetError)):
                for _ in range(1000):
                    client.send(b"x" * MESSAGE_MAX)
        self.assertLess(memory_kib(self.daemon.pid), before + 4096 * SLOWER)

    def test_depth_17(self):
        self.assert_nested(17, False)

    def test_depth_16(self):
        self.assert_nested(16, True)

    def assert_nested(self, depth, good):
        # The message and its parameters are the first two levels.
        meta = b'{"a":' * (depth - 2) + b"1" + b"}" * (depth - 2)
        call = b'{"method":"io.gpuipc.Broker.Allocate","parameters":{"size":4096,"meta":' + meta + b"}}\0"
        if not good:
            self.assert_closed(call, {"error": INVALID, "parameters": {"parameter": "message"}})
            return
        with self.client() as client:
            client.send(call)
            client.call("Release", {"lease": client.result()["lease"]})

    def test_depth_of_a_whole_message(self):
        self.assert_closed(b"[" * MESSAGE_MAX + b"\0", {"error": INVALID, "parameters": {"parameter": "message"}})

    def test_oneway_where_it_is_not_allowed(self):
        for method in ("GetStatus", "Allocate", "Open", "Seal", "Free", "Kick", "List", "ListBuffers", "Watch"):
            with self.subTest(method), self.client() as client:
                client.send_call(method, {"size": 4096}, oneway=True)
                self.assertIsNone(client.read())

    def test_every_vector_in_one_byte_pieces(self):
        # What is refused in one piece is refused in many: the first bad vectors, dribbled.
        folder = f"{ROOT}/proto/vectors"
        for name in sorted(os.listdir(folder))[:40]:
            if not name.startswith("bad_call") or os.path.getsize(f"{folder}/{name}") > 300:
                continue
            with open(f"{folder}/{name}", "rb") as file:
                data = file.read() + b"\0"
            with self.subTest(name), self.client() as client:
                for i in range(len(data)):
                    swallow(client, data[i:i + 1])
                self.assertIn("error", client.read())

    def test_random_garbage(self):
        chance = random.Random(20)
        for _ in range(300):
            with self.client() as client:
                swallow(client, chance.randbytes(chance.randrange(1, 3000)) + b"\0")
                client.socket.shutdown(socket.SHUT_WR)
                client.expect_closed()

    def test_damaged_calls(self):
        """Good calls with bytes changed, lost or doubled: each is answered or closed, and nothing remains."""
        chance = random.Random(21)
        folder = f"{ROOT}/proto/vectors"
        calls = []
        for name in sorted(os.listdir(folder)):
            if name.startswith("ok_call") and "watch" not in name and os.path.getsize(f"{folder}/{name}") < 1000:
                with open(f"{folder}/{name}", "rb") as file:
                    calls.append(file.read())

        def all_of_them():
            for _ in range(1500):
                data = bytearray(chance.choice(calls))
                for _ in range(chance.randrange(1, 4)):
                    at = chance.randrange(len(data))
                    data[at:at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
                with RawClient(self.daemon.socket) as client:
                    swallow(client, bytes(data) + b"\0x\0")
                    client.expect_closed()

        in_child(all_of_them)
        with self.client(admin=True) as admin:
            for buffer in admin.call("ListBuffers")["buffers"]:
                if buffer["state"] == "kept":  # all others are on their way out
                    admin.call("Free", {"buffer": buffer["id"]})


class Fields(ActorTest):
    """Fields with what no honest program writes."""

    def assert_invalid(self, field, method, parameters):
        with self.client() as client:
            told = self.refused(INVALID, client.call, method, parameters)
            self.assertEqual(told, {"parameter": field})
            self.assertIn("version", client.call("GetStatus"))

    def test_names(self):
        for name in ("", "a\n", "\x1b[31mred", "a\x7f", "\x01", "a b", "a" * 129, "naïve", "a\u202eb", "a:b", "a*", "a%n"):
            for method, others in (("Allocate", {"size": 4096}), ("Open", {}), ("Free", {}), ("List", {}), ("ListBuffers", {})):
                with self.subTest(name=name, method=method):
                    self.assert_invalid("name", method, {**others, "name": name})

    def test_name_with_an_escaped_nul(self):
        with self.client() as client:
            client.send(b'{"method":"io.gpuipc.Broker.Allocate","parameters":{"size":4096,"name":"a\\u0000b"}}\0')
            self.assertEqual(client.read(), {"error": INVALID, "parameters": {"parameter": "message"}})
            self.assertIsNone(client.read())

    def test_names_that_are_only_odd(self):
        for name in ("a" * 128, "..", "../../etc/passwd", "-", "/", "."):
            with self.subTest(name), self.client() as client:
                lease = client.call("Allocate", {"size": 4096, "name": name})
                self.assertEqual(lease["buffer"]["name"], name)
                client.call("Release", {"lease": lease["lease"]})

    def test_label_is_carried_but_printed_escaped(self):
        label = "a\x1b[2J\r\nb\x7f\u0085\u202e\"\\"
        with self.client() as client:
            lease = client.call("Allocate", {"size": 4096, "label": label})["lease"]
            client.send_call("List")
            raw = client.read_bytes()
            self.assertEqual(json.loads(raw)["parameters"]["leases"][0]["label"], label)
            self.assertFalse([byte for byte in raw if byte < 32], raw)
            shown = subprocess.run([GPUIPCCTL, "list"], env={**os.environ, "GPUIPC_SOCKET": self.daemon.socket}, check=True,
                                   stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()
            self.assertIn("[2J", shown)
            self.assertFalse([c for c in shown if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"], shown)
            client.call("Release", {"lease": lease})

    def test_label_of_128_and_129_bytes(self):
        with self.client() as client:
            lease = client.call("Allocate", {"size": 4096, "label": "ü" * 64})["lease"]
            client.call("Release", {"lease": lease})
        self.assert_invalid("label", "Allocate", {"size": 4096, "label": "ü" * 64 + "x"})
        self.assert_invalid("label", "Open", {"name": "x", "label": "x" * 129})

    def test_meta_of_4096_and_4097_bytes(self):
        def meta(n):
            return '{"k":"' + "x" * (n - len('{"k":""}')) + '"}'

        def call(text):
            return ('{"method":"io.gpuipc.Broker.Allocate","parameters":{"size":4096,"meta":' + text + "}}\0").encode()

        with self.client() as client:
            client.send(call(meta(4096)))
            granted = client.result()
            self.assertEqual(granted["buffer"]["meta"], json.loads(meta(4096)))
            client.call("Release", {"lease": granted["lease"]})
            client.send(call(meta(4097)))
            self.assertEqual(self.refused(INVALID, client.result), {"parameter": "meta"})

    def test_command_with_control_characters(self):
        """A process may call itself anything; lists and log stay clean."""

        def rename():
            with open("/proc/self/comm", "wb") as file:
                file.write(b"\x1b[31m\n\xff\xfe\"x")

        self.daemon.stop()
        self.daemon = Daemon("--log-level=debug")
        actor = self.actor(enter=rename)
        lease = actor.call("Allocate", {"size": 4096})["lease"]
        with self.client() as client:
            client.send_call("List")
            raw = client.read_bytes()
        listed = json.loads(raw.decode("utf-8"))["parameters"]["leases"]
        self.assertEqual(len(listed), 1)
        self.assertFalse([byte for byte in raw if byte < 32 or byte == 127], raw)
        self.assertIn("[31m", listed[0]["command"])
        actor.call("Release", {"lease": lease})
        self.refused("NoSuchLease", actor.call, "Release", {"lease": "\x1b[31mno\nsuch"})
        with open(self.daemon.log_path, "rb") as file:
            log = file.read()
        self.assertFalse([byte for byte in log if byte < 32 and byte != 10 or byte == 127], log)
        self.assertNotIn(b"\nsuch", log)
        log.decode("utf-8")


class Descriptors(ActorTest):
    """A client that sends descriptors, as the kernel lets it and where it does not."""

    def setUp(self):
        super().setUp()
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            except OSError:
                self.skipTest("this kernel has no SO_PASSRIGHTS")
        self.assertIn("descriptors-refused-by-kernel", self.daemon.status()["features"])

    def test_the_kernel_refuses_at_the_sender(self):
        for n in (1, 253):
            with self.subTest(n), self.client() as client:
                with self.assertRaises(OSError) as caught:
                    client.send(STATUS + b"\0", [0] * n)
                self.assertEqual(caught.exception.errno, errno.EPERM)
                self.assertIn("version", client.call("GetStatus"))

    def test_the_kernel_refuses_on_the_admin_socket_too(self):
        with self.client(admin=True) as client, self.assertRaises(PermissionError):
            client.send(STATUS + b"\0", [0])

    def test_before_the_daemon_accepts(self):
        with self.daemon.frozen(), self.client() as client, self.assertRaises(PermissionError):
            client.send(STATUS + b"\0", [0])


class LingeringSocket:
    """A connected TCP socket whose last close blocks for LINGER_S seconds: data in it cannot be sent."""

    LINGER_S = 2 * SLOWER

    def __init__(self, linger_s=LINGER_S):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        self.socket = socket.socket()
        self.socket.connect(listener.getsockname())
        self.peer, _ = listener.accept()
        listener.close()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger_s))
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.socket.send(b"x" * 65536)



class DescriptorsOnOlderKernels(ActorTest):
    """As above, with SO_PASSRIGHTS taken away."""

    def make_daemon(self):
        return Daemon(program=GPUIPCD_FAULT, environment={"GPUIPC_FAULT_ABSENT": "SO_PASSRIGHTS"})

    def assert_refused(self, client):
        reply = client.read()
        self.assertEqual(reply["error"], "io.gpuipc.Broker.AccessDenied")
        self.assertIn("takes no descriptors", reply["parameters"]["reason"])
        self.assertIsNone(client.read())

    def test_feature_is_not_announced(self):
        self.assertNotIn("descriptors-refused-by-kernel", self.daemon.status()["features"])

    def test_one(self):
        with self.client() as client, self.client() as other:
            client.send(STATUS + b"\0", [0])
            self.assert_refused(client)
            self.assertIn("version", other.call("GetStatus"))

    def test_253(self):
        with self.client() as client, self.client() as other:
            client.send(STATUS + b"\0", [0] * 253)
            self.assert_refused(client)
            self.assertIn("version", other.call("GetStatus"))

    def test_253_with_each_byte(self):
        with self.client() as client:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for byte in STATUS + b"\0":
                    client.send(bytes([byte]), [0] * 253)
            client.expect_closed()
        self.assertIn("version", self.daemon.status())

    def test_253_before_the_end_of_a_message(self):
        """Nobody waits for that end: more would come with each byte until then."""
        with self.client() as client:
            client.send(b" ", [0] * 253)
            self.assert_refused(client)
            wait_for(lambda: len(open_fds(self.daemon.pid)) < 253, "the descriptors' end")

    def test_lingering_socket_holds_nothing_up(self):
        """Whoever closes it would wait for hours: then there would be no end of descriptors behind it."""
        sockets = [LingeringSocket(3600) for _ in range(20)]
        try:
            with self.client() as client:
                with self.daemon.frozen():  # so that ours are not the last to be closed
                    client.send(STATUS + b"\0", [each.socket.fileno() for each in sockets])
                    for each in sockets:
                        each.socket.close()
                self.assert_refused(client)
            with self.client() as client:
                client.send(STATUS + b"\0", [0] * 253)
                self.assert_refused(client)
            self.daemon.wait_idle()
        finally:
            for each in sockets:
                each.peer.close()

    def test_others_end_while_one_cannot_be_closed(self):
        """What a stranger sent keeps whoever closes it, for good. Connections over which nobody sent any do not wait for that."""
        try:
            file = StuckFile()
        except OSError as error:
            self.skipTest(f"no FUSE file system can be mounted: {error}")
        with contextlib.closing(file), self.client() as administrator:
            administrator.call("GetStatus")
            with self.client() as client:
                client.send(STATUS + b"\0", [file.fd])
                self.assertEqual(client.read()["error"], "io.gpuipc.Broker.AccessDenied")
                self.assertTrue(file.wait_stuck())
                self.assertIsNone(client.read())
            before = len(open_fds(self.daemon.pid))
            for _ in range(20):
                with self.client() as client:
                    client.call("GetStatus")
            wait_for(lambda: len(open_fds(self.daemon.pid)) <= before, "the end of 20 connections")
            with self.client() as client:
                administrator.call("Kick", {"session": client.call("GetStatus")["session"]})
                client.expect_closed()
            file.let_go()

    def test_more_than_the_daemon_may_open(self):
        """The kernel drops what there is no room for: some, or all of them."""
        for room in (20, 0):
            with self.subTest(room), self.client() as client, self.client() as other:
                client.call("GetStatus")
                wait_for(lambda: other.call("GetStatus")["sessions"] == 2, "all others to be gone")
                before = resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE)
                used = open_fds(self.daemon.pid)
                limit = next(n for n in range(1 << 10) if sum(each not in used for each in range(n)) == room and n not in used)
                resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
                client.send(STATUS + b"\0", [0] * 253)
                self.assert_refused(client)
                self.assertIn("version", other.call("GetStatus"))
                resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, before)

    def test_with_a_second_message(self):
        with self.client() as client:
            client.send(STATUS + b"\0")
            self.assertIn("version", client.result())
            client.send(STATUS + b"\0" + STATUS + b"\0", [0])
            self.assert_refused(client)

    def test_with_an_inherited_lease(self):
        """The session that sends them ends as any other: its lease drains, others' stay."""
        actor = self.actor()
        actor.call("Allocate", {"size": 4096, "name": "mine"})
        actor.send(STATUS + b"\0", [0])
        with self.assertRaises(ReplyError):
            actor.result()
        wait_for(lambda: self.daemon.status()["sessions"] == 1, "the session's end")
        self.assertEqual(self.daemon.status()["devices"][0]["draining_bytes"], backend.PAGE)

    def bystander_is_fine(self, play):
        """Nobody's call waits for whoever closes the sockets, nor does the daemon keep one. `play` is a generator: it sends
        them; then ours are closed, so that the daemon's are the last; then it goes on and lets the daemon close."""
        with self.client() as other:
            normal = Timing(lambda: other.call("GetStatus"), self.CALLS)
            sockets = [LingeringSocket() for _ in range(2)]
            try:
                acts = play([each.socket.fileno() for each in sockets])
                next(acts)
                for each in sockets:
                    each.socket.close()
                began = time.monotonic()
                next(acts)
                during = Timing(lambda: other.call("GetStatus"), self.CALLS)
                churn(other)
                took = time.monotonic() - began
                next(acts, None)
            finally:
                for each in sockets:
                    each.peer.close()
            told = f"{normal}; {during}; in all {took:.3f} s"
            self.assertLessEqual(during.median, max(10 * normal.median, FLOOR_S), told)
            self.assertLess(took, LingeringSocket.LINGER_S * 0.75, told)
        self.daemon.wait_idle()

    def test_lingering_socket_read(self):
        def play(fds):
            clients = [self.client() for _ in fds]
            with self.daemon.frozen():
                for client, fd in zip(clients, fds):
                    client.send(STATUS + b"\0", [fd])
                yield
            for client in clients:
                self.assertEqual(client.read()["error"], "io.gpuipc.Broker.AccessDenied")
            yield
            for client in clients:
                client.close()

        self.bystander_is_fine(play)

    def test_lingering_socket_unread(self):
        """It lies in the connection's queue behind a call that waits, and the connection is closed."""

        def play(fds):
            clients = [self.client() for _ in fds]
            for client, fd in zip(clients, fds):
                client.send_call("Open", {"name": "never", "wait_ms": 60000})
                self.assertFalse(client.readable(0.02))
                client.send(STATUS + b"\0", [fd])
            yield
            for client in clients:
                client.close()
            yield

        self.bystander_is_fine(play)

    def test_lingering_socket_half_read(self):
        """It came with the first half of a message that never ends."""

        def play(fds):
            clients = [self.client() for _ in fds]
            with self.daemon.frozen():
                for client, fd in zip(clients, fds):
                    client.send(STATUS, [fd])
                yield
            self.assertIn("version", self.daemon.status())
            for client in clients:
                client.close()
            yield

        self.bystander_is_fine(play)

    def test_as_fast_as_one_can(self):
        def load():
            while True:
                with RawClient(self.daemon.socket) as client:
                    client.send(STATUS + b"\0", [0] * 253)
                    client.expect_closed()
                yield

        self.assert_not_slowed(load)


class Strangers(ActorTest):
    """A connection that others than its maker speak over."""

    def test_inherited_by_another_user(self):
        with self.client() as client:
            child = self.actor(ALICE, inherit=client)
            told = self.refused("AccessDenied", child.call, "GetStatus")
            self.assertIn("uid 0", told["reason"])
            self.assertIn(f"uid {ALICE}", told["reason"])
            self.assertIsNone(child.read())

    def test_inherited_by_another_user_after_use(self):
        with self.client() as client:
            client.call("Allocate", {"size": 4096, "name": "mine"})
            child = self.actor(ALICE, inherit=client)
            self.refused("AccessDenied", child.call, "Open", {"name": "mine"})
            self.assertIsNone(client.read())
        # The lease of this process, which lives, drains; only its end would free it.
        wait_for(lambda: self.daemon.status()["devices"][0]["draining_bytes"] == backend.PAGE, "the lease to drain")
        self.daemon.kill()
        self.daemon = Daemon()

    def test_inherited_by_root_from_a_user(self):
        """Root is another user like any."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            path = self.daemon.socket

            def main():
                with RawClient(path) as client:
                    client.call("GetStatus")
                    socket.send_fds(theirs, [b"x"], [client.fileno()])

            in_child(main, keep=(theirs.fileno(),), uid=ALICE)
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
            client = RawClient.__new__(RawClient)
            client.socket, client.received, client.fds = socket.socket(fileno=fds[0]), b"", []
            client.socket.settimeout(WAIT_S)
            with client:
                told = self.refused("AccessDenied", client.call, "GetStatus")
                self.assertIn("uid 0", told["reason"])
                self.assertIsNone(client.read())

    def test_inherited_by_the_same_user(self):
        with self.client() as client:
            mine = client.call("Allocate", {"size": 4096, "name": "mine"})["lease"]
            child = self.actor(inherit=client)
            lease = child.call("Open", {"name": "mine"})["lease"]
            pids = {each["id"]: each["pid"] for each in client.call("List")["leases"]}
            self.assertEqual(pids, {mine: os.getpid(), lease: child.pid})
            child.kill()
            wait_for(lambda: len(client.call("List")["leases"]) == 1, "the child's lease to end with the child")
            client.call("Release", {"lease": mine})

    def test_message_in_pieces_of_two_processes(self):
        with self.client() as client:
            child = self.actor(inherit=client)
            client.send(STATUS[:20])
            child.send(STATUS[20:] + b"\0")
            self.assertIsNone(client.read())

    def test_message_in_pieces_of_two_processes_after_a_whole_one(self):
        with self.client() as client:
            child = self.actor(inherit=client)
            child.send(STATUS + b"\0" + STATUS[:10])
            self.assertIn("version", client.result())
            swallow(client, STATUS[10:] + b"\0")
            self.assertIsNone(client.read())

    def test_whole_messages_of_two_processes_in_turn(self):
        with self.client() as client:
            child = self.actor(inherit=client)
            for _ in range(20):
                client.send(STATUS + b"\0")
                child.send(STATUS + b"\0")
            for _ in range(40):
                self.assertIn("version", client.result())


class Crowds(ActorTest):
    def test_children_that_spoke_and_died(self):
        """One connection, many processes one after the other: those that are gone are let go of."""
        with self.client() as client:
            client.call("GetStatus")
            before = len(open_fds(self.daemon.pid))
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    client.call("GetStatus")
                    os._exit(0)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
            client.call("GetStatus")
            wait_for(lambda: len(open_fds(self.daemon.pid)) <= before + 3, "those that are gone to be let go of")

    def cpu_s(self):
        with open(f"/proc/{self.daemon.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_out_of_band_byte(self):
        """It is announced for as long as it lies there, so that who sends one while a call waits is cut off."""
        with self.client() as client, self.client() as other:
            client.send_call("Open", {"name": "never", "wait_ms": 600000})
            other.call("GetStatus")
            before = self.cpu_s()
            client.socket.send(b"x", socket.MSG_OOB)
            wait_for(lambda: other.call("GetStatus")["sessions"] == 1, "its session to end")
            self.assertLess(self.cpu_s() - before, 1)


class Forgers(ActorTest):
    """Root may write any SCM_CREDENTIALS; rights follow the connection all the same."""

    def setUp(self):
        super().setUp()
        self.alice = self.actor(ALICE)
        self.private = self.alice.call("Allocate", {"size": 4096, "name": "private"})

    def forge(self, client, pid, uid, method, parameters=None):
        call = {"method": "io.gpuipc.Broker." + method, "parameters": parameters or {}}
        client.socket.sendmsg([json.dumps(call).encode() + b"\0"],
                              [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack(UCRED_FORMAT, pid, uid, uid))])
        return client.result()

    def test_another_users_uid(self):
        with self.client() as client:
            self.refused("NoSuchBuffer", self.forge, client, os.getpid(), ALICE, "Open", {"name": "private"})
            granted = self.forge(client, os.getpid(), ALICE, "Allocate", {"size": 4096})
            self.assertEqual(granted["buffer"]["owner_uid"], 0)
            client.call("Release", {"lease": granted["lease"]})

    def test_another_users_process(self):
        with self.client() as client:
            self.refused("AccessDenied", self.forge, client, self.alice.pid, ALICE, "Open", {"name": "private"})
            self.assertIsNone(client.read())

    def test_another_users_process_under_ones_own_uid(self):
        with self.client() as client:
            self.refused("NoSuchBuffer", self.forge, client, self.alice.pid, 0, "Open", {"name": "private"})
            self.refused("NoSuchLease", self.forge, client, self.alice.pid, 0, "Release", {"lease": self.private["lease"]})
            granted = self.forge(client, self.alice.pid, 0, "Allocate", {"size": 4096})
            self.assertEqual(granted["buffer"]["owner_uid"], 0)
            client.call("Release", {"lease": granted["lease"]})

    def test_the_daemons_own_process(self):
        with self.client() as client:
            granted = self.forge(client, self.daemon.pid, 0, "Allocate", {"size": 4096})
            client.call("Release", {"lease": granted["lease"]})

    def test_a_user_cannot(self):
        path, pid = self.daemon.socket, self.daemon.pid

        def try_it():
            with RawClient(path) as client:
                self.forge(client, pid, 0, "GetStatus")

        with self.assertRaises(PermissionError):
            in_child(try_it, uid=BOB)


class Loads(ActorTest):
    """Floods. Each is measured from a bystander's seat."""

    def test_10000_pipelined_requests(self):
        n = 10000
        calls = b"".join(b'{"method":"org.varlink.service.GetInterfaceDescription","parameters":'
                         b'{"interface":"com.example.n%d"}}\0' % i for i in range(n))

        def load():
            while True:
                with RawClient(self.daemon.socket) as client:
                    client.socket.setblocking(False)
                    sent, got = 0, b""
                    while got.count(b"\0") < n:
                        readable, writable, _ = select.select([client], [client] if sent < len(calls) else [], [], WAIT_S)
                        assert readable or writable, "neither reads nor writes"
                        if writable:
                            with contextlib.suppress(BlockingIOError):
                                sent += client.socket.send(calls[sent:sent + (1 << 16)])
                        if readable:
                            got += client.socket.recv(1 << 20)
                    replies = [json.loads(each)["parameters"]["interface"] for each in got.split(b"\0")[:-1]]
                    assert replies == [f"com.example.n{i}" for i in range(n)], "out of order"
                yield

        self.assert_not_slowed(load, calls=2000)

    def test_500_connections_of_one_user(self):
        """Each has its turn, but all together no more of the time than another user's one."""

        def load():
            clients = {}
            poll = select.epoll()
            for _ in range(500):
                client = RawClient(self.daemon.socket)
                client.socket.setblocking(False)
                clients[client.fileno()] = client.socket
                poll.register(client.fileno(), select.EPOLLIN | select.EPOLLOUT)
            while True:
                for fd, events in poll.poll():
                    with contextlib.suppress(BlockingIOError):
                        if events & select.EPOLLIN:
                            assert clients[fd].recv(1 << 18)
                        if events & select.EPOLLOUT:
                            clients[fd].send((STATUS + b"\0") * 64)
                yield

        self.assert_not_slowed(load, calls=200, uid=ALICE)

    def test_lists_that_find_nothing(self):
        """Pages or not, whoever looks through all leases again and again takes others' time."""
        with self.client() as holder:
            leases = [holder.call("Allocate", {"size": 1, "name": "listed"})["lease"]]
            leases += [holder.call("Open", {"name": "listed"})["lease"] for _ in range(8000)]

            def load(more):
                call = json.dumps({"method": "io.gpuipc.Broker.List", "parameters": {"name": "nothing"}, "more": more})
                with RawClient(self.daemon.socket) as client:
                    client.send(call.encode() + b"\0")
                    while True:
                        client.send((call.encode() + b"\0") * 64)
                        n = 64
                        while n > 0:
                            n -= not client.read().get("continues")
                        yield

            for more in (False, True):
                with self.subTest(more=more):
                    self.assert_not_slowed(lambda: load(more), calls=200, uid=ALICE)
            for lease in leases:
                holder.call("Release", {"lease": lease})

    def test_reader_that_never_reads(self):
        """It is paused once its output is full, whatever it goes on asking."""
        before = memory_kib(self.daemon.pid)

        def load():
            clients = []
            while True:
                client = RawClient(self.daemon.socket)
                client.socket.settimeout(0.05)
                clients.append(client)
                with contextlib.suppress(TimeoutError):
                    while True:
                        client.send((STATUS + b"\0") * 100)
                yield
                if len(clients) >= 30:
                    for _ in range(1000):
                        time.sleep(1)
                        yield

        with self.client() as bystander:
            normal = Timing(lambda: bystander.call("GetStatus"), self.CALLS)
            with Load(load) as running:
                during = Timing(lambda: bystander.call("GetStatus"), self.CALLS)
                wait_for(lambda: running.rounds() >= 10, "ten such readers", WAIT_S * 2)
                after = Timing(lambda: bystander.call("GetStatus"), self.CALLS)
                grown = memory_kib(self.daemon.pid) - before
        self.assertLessEqual(max(during.median, after.median), max(10 * normal.median, FLOOR_S),
                             f"{normal}; {during}; {after}")
        # Ten to thirty clients, each with at most 1 MiB of output and what was read ahead.
        self.assertLess(grown, 30 * 1400 * SLOWER)

    def test_watcher_that_never_reads(self):
        self.daemon.stop()
        self.daemon = Daemon("--unread-sec", "1s", "--unread-bytes-max", "128K")
        with self.client() as watcher, self.client() as other:
            watcher.send_call("Watch", {}, more=True)
            wait_for(lambda: self.daemon.status()["sessions"] == 3, "both sessions")

            def load():
                with RawClient(self.daemon.socket) as client:
                    while True:
                        churn(client, 100)
                        yield

            with Load(load):
                wait_for(lambda: other.call("GetStatus")["sessions"] == 2, "the watcher to be dropped", WAIT_S * 2)
            self.daemon.wait_log("does not read")
            watcher.expect_closed()

    def test_slow_loris(self):
        def load():
            clients = [RawClient(self.daemon.socket) for _ in range(500)]
            while True:
                for i in range(len(STATUS)):
                    for client in clients:
                        client.send(STATUS[i:i + 1])
                    yield
                for client in clients:
                    client.send(b"\0")
                for client in clients:
                    client.result()

        self.assert_not_slowed(load, calls=1000)

    def test_half_messages_left_behind(self):
        def load():
            while True:
                for _ in range(50):
                    with RawClient(self.daemon.socket) as client:
                        client.send(padded(MESSAGE_MAX - 1))
                yield

        self.assert_not_slowed(load)

    def test_connection_flood(self):
        def load():
            while True:
                for _ in range(100):
                    RawClient(self.daemon.socket).close()
                yield

        self.assert_not_slowed(load, uid=ALICE)

    def test_connections_up_to_the_limit(self):
        """One user's connections are all taken; others still get in."""

        def load():
            clients = []
            while True:
                for _ in range(100):
                    clients.append(RawClient(self.daemon.socket))
                if len(clients) > 1500:
                    for client in clients:
                        client.close()
                    clients.clear()
                yield

        self.assert_not_slowed(load, uid=ALICE)
        self.assertIn("version", self.daemon.status())

    def test_garbage_flood(self):
        def load():
            chance = random.Random(22)
            garbage = [chance.randbytes(1000) + b"\0" for _ in range(100)]
            while True:
                for each in garbage:
                    with RawClient(self.daemon.socket) as client:
                        swallow(client, each)
                yield

        self.assert_not_slowed(load)

    def test_long_messages_flood(self):
        """The dearest thing to parse: a whole message of one key after the other."""
        keys = ",".join(f'"k{i}":{i}' for i in range(4300))
        message = ('{"method":"io.gpuipc.Broker.GetStatus","parameters":{' + keys + "}}").encode()
        self.assertLess(len(message), MESSAGE_MAX)

        def load():
            with RawClient(self.daemon.socket) as client:
                while True:
                    client.send((message + b"\0") * 3)
                    for _ in range(3):
                        assert client.read()["error"] == INVALID
                    yield

        self.assert_not_slowed(load)

    def test_lists_of_many_leases(self):
        with self.client() as holder:
            name = {"name": "listed"}
            leases = [holder.call("Allocate", {"size": 1, **name})["lease"]]
            leases += [holder.call("Open", name)["lease"] for _ in range(3000)]

            def load():
                with RawClient(self.daemon.socket) as client:
                    while True:
                        assert sum(len(page["leases"]) for page in client.call_more("List")) == len(leases)
                        yield

            self.assert_not_slowed(load)
            for lease in leases:
                holder.call("Release", {"lease": lease})

    def test_allocations_and_deaths(self):
        def one_life():
            client = RawClient(self.daemon.socket)
            for _ in range(20):
                client.call("Allocate", {"size": 4096})
            os._exit(0)

        def load():
            while True:
                pid = os.fork()
                if pid == 0:
                    one_life()
                os.waitpid(pid, 0)
                yield

        self.assert_not_slowed(load, uid=ALICE)


if __name__ == "__main__":
    unittest.main()
