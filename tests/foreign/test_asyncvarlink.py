# SPDX-License-Identifier: Apache-2.0
"""asyncvarlink, a client from PyPI, against the daemon: the interface is written down here once more as its own
typed Python, and everything goes through its public calls. deadline: 180 s"""

import asyncio
import collections.abc
import contextlib
import dataclasses
import hashlib
import mmap
import os
import sys
import typing
import unittest

from asyncvarlink import (FileDescriptor, TypedVarlinkErrorReply, VarlinkClientProtocol, VarlinkInterface,
                          connect_unix_varlink, varlinkmethod)
from asyncvarlink.serviceinterface import (ExpectedMore, InterfaceNotFound, InvalidParameter, MethodNotFound,
                                           VarlinkServiceInterface)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import varlink_idl  # noqa: E402
from daemon import EXAMPLES, GPUIPCCTL, ROOT, DaemonTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

NAME = "io.gpuipc.Broker"


@dataclasses.dataclass
class Device:
    uuid: str
    name: str
    kind: typing.Literal["cuda", "host"]
    total_bytes: int | None
    free_bytes: int | None
    brokered_bytes: int
    draining_bytes: int
    handles: list[str]
    zeroed: typing.Literal["driver", "wiped", "unknown"]
    degraded: bool
    spare_bytes: int | None


@dataclasses.dataclass
class Handle:
    kind: str
    fd: FileDescriptor | None
    ipc: str | None
    offset: int
    size: int
    device: str


@dataclasses.dataclass
class Channel:
    id: str
    name: str | None
    kind: typing.Literal["queue", "broadcast"]
    policy: typing.Literal["block", "drop_oldest"]
    slots: int
    slot_bytes: int
    meta_bytes: int
    size: int
    allocated: int
    control_bytes: int
    device: str
    handle: str
    owner_uid: int
    owner_gid: int
    mode: str
    participants: int
    created_usec: int


@dataclasses.dataclass
class Participant:
    number: int
    generation: int
    role: typing.Literal["producer", "consumer"]
    fd: FileDescriptor | None
    pid: int
    uid: int
    state: typing.Literal["attached", "left"]


@dataclasses.dataclass
class Buffer:
    id: str
    name: str | None
    size: int
    allocated: int
    device: str
    handle: str
    owner_uid: int
    owner_gid: int
    mode: str
    sealed: bool
    ro_enforced: bool
    state: typing.Literal["live", "kept", "draining"]
    created_usec: int
    leases: int
    charged_uid: int
    meta: dict[str, typing.Any] | None
    channel: Channel | None


@dataclasses.dataclass
class Lease:
    id: str
    buffer: str
    name: str | None
    size: int
    device: str
    access: typing.Literal["rw", "ro"]
    state: typing.Literal["active", "detached", "draining"]
    session: str
    pid: int
    uid: int
    gid: int
    command: str | None
    container: str | None
    label: str | None
    since_usec: int


@dataclasses.dataclass
class Event:
    sequence: int
    time_usec: int
    kind: str
    buffer: Buffer | None
    lease: Lease | None


class Status(typing.TypedDict):
    version: str
    backend: str
    uptime_usec: int
    session: str
    resume_token: str | None
    features: list[str]
    devices: list[Device]
    buffers: int
    leases: int
    sessions: int
    limits: dict[str, int]
    daemon_pid: int | None
    shm_device: int | None
    uid: int | None


class Resumed(typing.TypedDict):
    session: str
    resume_token: str | None
    leases: list[Lease]


class Grant(typing.TypedDict):
    buffer: Buffer
    lease: str
    handle: Handle


class Attached(typing.TypedDict):
    channel: Channel
    lease: str
    number: int
    generation: int
    data: Handle
    fences: Handle | None
    control: Handle
    participants: list[Participant]


class Participants(typing.TypedDict):
    participants: list[Participant]
    control: Handle | None


class NoSuchBuffer(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        pass


class NoSuchLease(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        pass


class NoSuchSession(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        pass


class NoSuchDevice(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        device: str


class NameTaken(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        name: str


class AccessDenied(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        reason: str


class QuotaExceeded(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        scope: str
        limit: int
        used: int
        asked: int


class OutOfMemory(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        device: str
        free: int
        asked: int


class HandleUnsupported(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        kind: str
        reason: str


class AlreadySealed(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        pass


class TimedOut(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        pass


class DeviceDegraded(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        device: str


class TooManyRequests(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        reason: str


class EventsLost(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        oldest: int


class Internal(TypedVarlinkErrorReply, interface=NAME):
    class Parameters:
        reference: str


ERRORS = (NoSuchBuffer, NoSuchLease, NoSuchSession, NoSuchDevice, NameTaken, AccessDenied, QuotaExceeded, OutOfMemory,
          HandleUnsupported, AlreadySealed, TimedOut, DeviceDegraded, TooManyRequests, EventsLost, Internal)


# The methods are never run: a proxy needs their types.
class Broker(VarlinkInterface, name=NAME):
    errors = ERRORS + VarlinkServiceInterface.errors

    @varlinkmethod(allow_foreign=True)
    def GetStatus(self) -> Status: ...

    @varlinkmethod(allow_foreign=True)
    def Allocate(self, *, size: int, device: str | None = None, name: str | None = None, handle: str | None = None,
                 mode: str | None = None, meta: dict[str, typing.Any] | None = None, keep_ms: int | None = None,
                 wait_ms: int | None = None, label: str | None = None) -> Grant: ...

    @varlinkmethod(allow_foreign=True)
    def Open(self, *, buffer: str | None = None, name: str | None = None, owner: int | None = None,
             access: str | None = None, wait_ms: int | None = None, label: str | None = None) -> Grant: ...

    @varlinkmethod(allow_foreign=True)
    def ChannelCreate(self, *, slots: int, slot_bytes: int, role: str, kind: str | None = None, policy: str | None = None,
                      meta_bytes: int | None = None, device: str | None = None, name: str | None = None, mode: str | None = None,
                      keep_ms: int | None = None, wait_ms: int | None = None, label: str | None = None) -> Attached: ...

    @varlinkmethod(allow_foreign=True)
    def ChannelAttach(self, *, channel: str | None = None, name: str | None = None, owner: int | None = None, role: str,
                      wait_ms: int | None = None, label: str | None = None) -> Attached: ...

    @varlinkmethod(allow_foreign=True)
    def ChannelParticipants(self, *, channel: str) -> Participants: ...

    @varlinkmethod
    def Release(self, *, lease: str) -> None: ...

    @varlinkmethod
    def Seal(self, *, buffer: str) -> None: ...

    @varlinkmethod
    def Free(self, *, buffer: str | None = None, name: str | None = None) -> None: ...

    @varlinkmethod
    def Kick(self, *, session: str) -> None: ...

    @varlinkmethod(return_parameter="leases")
    def List(self, *, uid: int | None = None, name: str | None = None) -> collections.abc.Iterator[list[Lease]]: ...

    @varlinkmethod(return_parameter="buffers", allow_foreign=True)
    def ListBuffers(self, *, uid: int | None = None,
                    name: str | None = None) -> collections.abc.Iterator[list[Buffer]]: ...

    @varlinkmethod(return_parameter="event", allow_foreign=True)
    def Watch(self, *, since: int | None = None) -> collections.abc.Iterator[Event]: ...

    @varlinkmethod(allow_foreign=True)
    def Resume(self, *, token: str, leases: list[str], follow: int | None = None) -> Resumed: ...


class BrokerWithoutMore(VarlinkInterface, name=NAME):
    """The same, called without "more", and with a method the daemon has not."""

    errors = Broker.errors

    @varlinkmethod(return_parameter="leases")
    def List(self, *, uid: int | None = None, name: str | None = None) -> list[Lease]: ...

    @varlinkmethod(return_parameter="event", allow_foreign=True)
    def Watch(self, *, since: int | None = None) -> Event: ...

    @varlinkmethod
    def Explode(self) -> None: ...


class Elsewhere(VarlinkInterface, name="org.example.Elsewhere"):
    errors = Broker.errors

    @varlinkmethod
    def Explode(self) -> None: ...


def normal(parsed):
    """What is an object in the interface is a map here: asyncvarlink has no optional object. Errors are apart."""
    def plain(text):
        return text.replace("[string]object", "object").replace("[string]int", "object")

    return {"interface": parsed["interface"],
            "type": {name: plain(text) for name, text in parsed["type"].items()},
            "method": {name: tuple(map(plain, sides)) for name, sides in parsed["method"].items()}}


class AsyncVarlinkTest(DaemonTest, unittest.IsolatedAsyncioTestCase):

    @contextlib.asynccontextmanager
    async def connected(self, release=True):
        """A connection of asyncvarlink's. Its leases are released at the end, since this process lives on."""
        transport, protocol = await connect_unix_varlink(VarlinkClientProtocol, self.daemon.socket)
        try:
            yield protocol
            if not release:
                # What a stream still waits for when it is left is of no interest.
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            else:
                broker = protocol.make_proxy(Broker)
                session = (await broker.GetStatus())["session"]
                for lease in [lease async for page in broker.List() for lease in page["leases"]]:
                    if lease.session == session:
                        await broker.Release(lease=lease.id)
        finally:
            transport.close()
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def broker(self, release=True):
        async with self.connected(release) as protocol:
            yield protocol.make_proxy(Broker)

    async def run_c_client(self, *command, talk=b""):
        """Runs a program of the C library to its end; its output."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GPUIPC_SOCKET": self.daemon.socket})
        output, _ = await asyncio.wait_for(process.communicate(talk), WAIT_S)
        self.assertEqual(process.returncode, 0, output.decode())
        return output.decode()

    async def assert_error(self, error, call, **parameters):
        with self.assertRaises(error) as caught:
            await call
        for name, expected in parameters.items():
            self.assertEqual(getattr(caught.exception, f"p_{name}"), expected)
        self.assertEqual(caught.exception.parameters, {**caught.exception.parameters, **parameters})
        return caught.exception.parameters

    @staticmethod
    async def description(protocol, interface):
        service = protocol.make_proxy(VarlinkServiceInterface)
        return (await service.GetInterfaceDescription(interface=interface))["description"]

    @staticmethod
    async def next_event(stream):
        return (await asyncio.wait_for(anext(stream), WAIT_S))["event"]


class BrokerTest(AsyncVarlinkTest):
    daemon_args = ("--leases-per-session", "1000", "--reserved-names", "reserved/:12345", "--bytes-per-user", "1G")

    async def test_info(self):
        async with self.connected() as protocol:
            info = await protocol.make_proxy(VarlinkServiceInterface).GetInfo()
        self.assertEqual(set(info["interfaces"]), {NAME, "org.varlink.service"})
        self.assertTrue(info["vendor"] and info["product"] and info["url"])
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")

    async def test_description_parses_and_equals_the_file(self):
        for interface in (NAME, "org.varlink.service"):
            async with self.connected() as protocol:
                text = await self.description(protocol, interface)
            with open(f"{ROOT}/proto/{interface}.varlink", encoding="utf-8") as file:
                self.assertEqual(text, file.read())
            self.assertEqual(varlink_idl.parse(text)["interface"], interface)

    async def test_description_says_what_is_written_here(self):
        async with self.connected() as protocol:
            text = await self.description(protocol, NAME)
        theirs, ours = varlink_idl.parse(text), varlink_idl.parse(Broker.render_interface_description())
        self.assertEqual(normal(theirs), normal(ours))
        for error in ERRORS:
            self.assertEqual(theirs["error"][error.__name__], error.paramtype.as_varlink)
        self.assertEqual(set(theirs["error"]), {error.__name__ for error in ERRORS})

    async def test_c_client_sees_mapped_bytes(self):
        content = os.urandom(100_001)
        async with self.broker() as broker:
            with await broker.Allocate(size=len(content), name="foreign/bytes", mode="0600",
                                       meta={"shape": [1, 2]}) as grant:
                handle, buffer = grant["handle"], grant["buffer"]
                self.assertEqual((handle.kind, handle.device, handle.size), ("memfd", "host", len(content)))
                self.assertEqual((buffer.size, buffer.state, buffer.meta), (len(content), "live", {"shape": [1, 2]}))
                with mmap.mmap(handle.fd.fileno(), buffer.size, offset=handle.offset) as memory:
                    self.assertEqual(memory[:], bytes(buffer.size))
                    memory[:] = content
                output = await self.run_c_client(f"{EXAMPLES}/demo_verify", "foreign/bytes")
            self.assertIn(f"first foreign/bytes {hashlib.sha256(content).hexdigest()}\n", output)

    async def test_sees_bytes_of_a_c_client(self):
        content = os.urandom(70_001)
        path = f"{self.daemon.directory}/content"
        with open(path, "wb") as file:
            file.write(content)
        async with self.broker() as broker:
            put = asyncio.create_task(self.run_c_client(GPUIPCCTL, "put", "--keep", "60s", "--detach", "foreign/put", path))
            with await broker.Open(name="foreign/put", access="ro", wait_ms=1000 * WAIT_S) as grant:
                await put
                with mmap.mmap(grant["handle"].fd.fileno(), len(content), prot=mmap.PROT_READ) as memory:
                    self.assertEqual(memory[:], content)
            await broker.Free(name="foreign/put")

    async def test_errors_and_their_parameters(self):
        async with self.broker() as broker:
            await self.assert_error(NoSuchBuffer, broker.Open(name="nowhere"))
            await self.assert_error(NoSuchBuffer, broker.Seal(buffer="nowhere"))
            await self.assert_error(NoSuchLease, broker.Release(lease="nowhere"))
            await self.assert_error(NoSuchSession, broker.Kick(session="nowhere"))
            await self.assert_error(NoSuchDevice, broker.Allocate(size=1, device="GPU-0"), device="GPU-0")
            await self.assert_error(TimedOut, broker.Open(name="nowhere", wait_ms=10))
            refused = await self.assert_error(HandleUnsupported, broker.Allocate(size=1, handle="cuda-fd"), kind="cuda-fd")
            self.assertTrue(refused["reason"])
            await self.assert_error(InvalidParameter, broker.Allocate(size=0), parameter="size")
            await self.assert_error(InvalidParameter, broker.Allocate(size=2**53), parameter="size")
            await self.assert_error(InvalidParameter, broker.Allocate(size=1, name="no spaces"), parameter="name")
            await self.assert_error(InvalidParameter, broker.Allocate(size=1, mode="0777"), parameter="mode")
            with await broker.Allocate(size=1, name="taken") as grant:
                await self.assert_error(NameTaken, broker.Allocate(size=1, name="taken"), name="taken")
                await broker.Seal(buffer=grant["buffer"].id)
                await self.assert_error(AlreadySealed, broker.Seal(buffer=grant["buffer"].id))
                await self.assert_error(AlreadySealed, broker.Open(name="taken"))
            denied = await self.assert_error(AccessDenied, broker.Allocate(size=1, name="reserved/one"))
            self.assertTrue(denied["reason"])
            status = await broker.GetStatus()
            too_much = await self.assert_error(QuotaExceeded, broker.Allocate(size=1 << 31), scope="bytes_per_uid",
                                               limit=1 << 30, used=4096, asked=1 << 31)
            self.assertEqual(too_much["limit"], status["limits"]["bytes_per_uid"])

    async def test_errors_of_the_service(self):
        async with self.connected() as protocol:
            service = protocol.make_proxy(VarlinkServiceInterface)
            await self.assert_error(InterfaceNotFound, service.GetInterfaceDescription(interface="org.example.No"),
                                    interface="org.example.No")
            await self.assert_error(InterfaceNotFound, protocol.make_proxy(Elsewhere).Explode(),
                                    interface="org.example.Elsewhere")
            broker = protocol.make_proxy(BrokerWithoutMore)
            await self.assert_error(MethodNotFound, broker.Explode(), method=f"{NAME}.Explode")
            await self.assert_error(ExpectedMore, broker.Watch())

    async def test_list_pages_over_500_leases(self):
        async with self.connected() as protocol:
            broker = protocol.make_proxy(Broker)
            mine = []
            with await broker.Allocate(size=1, name="many", label="lease 0") as grant:
                mine.append(grant["lease"])
            for number in range(1, 520):
                with await broker.Open(name="many", access="ro", label=f"lease {number}") as grant:
                    mine.append(grant["lease"])
            await self.assert_error(ExpectedMore, protocol.make_proxy(BrokerWithoutMore).List())
            pages = [page async for page in broker.List()]
            listed = [lease for page in pages for lease in page["leases"]]
            self.assertGreater(len(pages), 1)
            self.assertEqual([lease.id for lease in listed], mine)
            self.assertEqual([lease.label for lease in listed], [f"lease {number}" for number in range(520)])
            self.assertEqual({lease.pid for lease in listed}, {os.getpid()})
            buffers = [buffer async for page in broker.ListBuffers(name="many") for buffer in page["buffers"]]
            self.assertEqual([buffer.leases for buffer in buffers], [520])

    async def test_oneway_release(self):
        async with self.broker() as broker:
            with await broker.Allocate(size=1) as grant:
                lease = grant["lease"]
            await broker.Release.oneway(lease=lease)
            self.assertEqual((await broker.GetStatus())["leases"], 0)

    async def watch(self, since, kinds):
        """Events until those of `kinds` have come, in order, over a connection of its own."""
        events = []
        async with self.broker(release=False) as broker:
            stream = broker.Watch(**({} if since is None else {"since": since}))
            for kind in kinds:
                event = await self.next_event(stream)
                self.assertEqual(event.kind, kind, events)
                events.append(event)
        return events

    async def test_watch_sees_another_client_and_resumes(self):
        async with self.broker() as broker, self.broker(release=False) as watcher:
            stream = watcher.Watch(since=0)
            with await broker.Allocate(size=4096, name="watched", label="the watched one") as grant:
                lease = grant["lease"]
                created = await self.next_event(stream)
                opened = await self.next_event(stream)
                self.assertEqual([created.kind, opened.kind], ["created", "opened"])
                self.assertEqual(created.buffer.name, "watched")
                self.assertEqual((opened.lease.id, opened.lease.label), (lease, "the watched one"))
                await self.run_c_client(f"{EXAMPLES}/demo_verify", "watched")
                theirs = [await self.next_event(stream) for _ in range(2)]
                self.assertEqual([event.kind for event in theirs], ["opened", "released"])
                self.assertEqual([event.lease.access for event in theirs], ["ro", "ro"])
                self.assertNotEqual(theirs[0].lease.pid, os.getpid())
            last = theirs[-1].sequence
            # Nobody watches while this happens; resuming tells of it.
            await self.run_c_client(f"{EXAMPLES}/demo_verify", "watched")
            await broker.Release(lease=lease)
            missed = await self.watch(last, ["opened", "released", "released", "unnamed", "freed"])
            self.assertEqual([event.sequence for event in missed], list(range(last + 1, last + 6)))
            again = await self.watch(created.sequence - 1, ["created", "opened", "opened", "released", "opened"])
            self.assertEqual(again[0], created)


class SmallDeviceTest(AsyncVarlinkTest):
    daemon_args = ("--host-bytes", "1M")

    async def test_more_than_the_device_has(self):
        async with self.broker() as broker:
            asked = 1 << 30
            failure = await self.assert_error(OutOfMemory, broker.Allocate(size=asked), device="host", asked=asked)
            self.assertEqual(failure["free"], 1 << 20)


if __name__ == "__main__":
    unittest.main()
