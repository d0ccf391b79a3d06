# SPDX-License-Identifier: Apache-2.0
"""The connection to gpuipcd: buffers made and opened, lists, news."""

from __future__ import annotations

import contextlib
import ctypes
import os
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union

from . import _copy, _cuda, _dlpack, _native, errors
from ._arguments import UID_MAX, Owner, check_access, mode_text, owner_number, socket_path
from ._lifetime import Connection, Lease, OfThisProcess, with_callbacks
from ._waits import Unwanted, interruptible, milliseconds, never, patiently, short_milliseconds
from .aio import in_thread
from .array import Array
from .buffer import Buffer
from .channel import KINDS, POLICIES, ROLES, Channel, ChannelStats, choice
from .info import BufferInfo, LeaseInfo, Status
from .item import Member
from .layout import dump_meta, own_meta
from .watch import Watch

_T = TypeVar("_T")


class Client(OfThisProcess):
    """A connection to gpuipcd. May be used from several threads at once.

        with gpuipc.Client() as client:
            client.put("weights", array, keep=60)

    Args:
        socket: the path of the daemon's socket; None: $GPUIPC_SOCKET, else /run/gpuipcd/gpuipcd.sock.
        label: shown in lists beside this client's leases.
        timeout: seconds for each call, beyond its own wait; None: 30.
        restart: seconds that the daemon may be away before leases are given up; None: 30; 0: any end of the connection ends them.

    `close()`, which leaving `with` does, ends the connection once the last lease, channel and watch made by it has ended; until then
    they stay good. After fork() the child's calls raise ForkedError.

    Raises:
        UnreachableError: no daemon answers.
        LibraryError: libgpuipc is not there.
    """

    def __init__(self, socket: Union[str, os.PathLike[str], None] = None, *, label: Optional[str] = None, timeout: Optional[float] = None,
                 restart: Optional[float] = None) -> None:
        options = _native.ConnectOptions(ctypes.sizeof(_native.ConnectOptions), socket_path(socket),
                                         0 if timeout is None else max(1, short_milliseconds(timeout, "timeout")),
                                         0 if restart is None else short_milliseconds(restart, "restart") or -1, 0)
        self._label = _native.encode(label, "label")
        self._connection = Connection(_native.made("gpuipc_connect", ctypes.byref(options)))
        self._connection.join(self)
        self._closed = False

    def __repr__(self) -> str:
        return f"<gpuipc.Client{' closed' if self._closed else ''}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) is False:
            self.close()

    def close(self) -> None:
        """No more calls by this object. May be called again."""
        self._closed = True
        self._connection.leave(self)

    def _open(self) -> Connection:
        if self._closed:
            raise ValueError("the client is closed")
        return self._connection

    def _call(self, function: str, *arguments: Any) -> None:
        with self._open().used() as pointer:
            _native.call(function, pointer, *arguments)

    def _made(self, function: str, *arguments: Any) -> int:
        with self._open().used() as pointer:
            return _native.made(function, pointer, *arguments)

    def _lease(self, function: str, *arguments: Any) -> Buffer:
        connection = self._open()
        with connection.used() as pointer:
            return Buffer(self, Lease(connection, _native.made(function, pointer, *arguments)))

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        with self._open().used() as pointer:
            return _native.text(_native.library().gpuipc_client_socket(pointer)) or ""

    @property
    def restarts(self) -> int:
        """How often a connection ended, other than by this program's doing, and was made anew. When it has grown, a lease may have been
        lost: `Buffer.check()` tells."""
        with self._open().used() as pointer:
            return int(_native.library().gpuipc_client_restarts(pointer))

    # ---- buffers ----

    def allocate(self, size: int, *, device: Optional[str] = None, name: Optional[str] = None, handle: Optional[str] = None,
                 mode: Union[int, str, None] = None, meta: Optional[dict[str, Any]] = None, keep: float = 0, wait: float = 0,
                 label: Optional[str] = None) -> Buffer:
        """A new buffer, zero at first sight, and a lease on it for reading and writing.

        Args:
            size: bytes.
            device: a GPU's UUID, or "host"; None: the daemon's default.
            name: by which others open it, letters, digits and ._/- ; None: none.
            handle: "memfd", "cuda-fd" or "cuda-ipc"; None: the device's best.
            mode: who else may open it, 0o640: r for reading, w for writing. None: 0o600.
            meta: a JSON object of at most 4 KiB, for whoever opens it.
            keep: seconds that it stays, once, after the last lease has ended.
            wait: seconds to wait for quota or memory.
            label: shown in lists; None: the client's.

        Raises:
            OutOfMemoryError, QuotaExceededError, NameTakenError, NoSuchDeviceError, HandleUnsupportedError, InvalidParameterError.
        """
        bytes_ = _native.integer(size, "size")
        options = _native.AllocateOptions(
            ctypes.sizeof(_native.AllocateOptions), _native.encode(device, "device"), _native.encode(name, "name"),
            _native.encode(handle, "handle"), mode_text(mode), _native.encode(dump_meta(meta), "meta"), milliseconds(keep, "keep"),
            0, _native.encode(label, "label") or self._label)

        def attempt(wait_ms: int) -> Buffer:
            options.wait_ms = wait_ms
            return self._lease("gpuipc_allocate", bytes_, ctypes.byref(options))

        return self._queue(attempt, wait, Buffer.close)

    @staticmethod
    def _queue(attempt: Callable[[int], _T], wait: float, undo: Callable[[_T], None]) -> _T:
        """Waits for quota or memory in one call, since who calls again is last in the queue again."""
        wait_ms = milliseconds(wait, "wait")
        try:
            return attempt(0)
        except (errors.QuotaExceededError, errors.OutOfMemoryError):
            if wait_ms == 0:
                raise
        return interruptible(lambda: attempt(wait_ms), undo)

    def open(self, name: Optional[str] = None, *, id: Optional[str] = None, owner: Owner = None, access: str = "rw", wait: float = 0,
             label: Optional[str] = None) -> Buffer:
        """A lease on a buffer that is there, by name or by id.

        Args:
            name: exactly one of name and id.
            id: `Buffer.id`.
            owner: by name: whose buffer is wanted, a uid. None: the caller's own or root's. "any": anyone's, which trusts every user of the
                daemon not to take the name first.
            access: "rw" or "ro". "ro" is mapped read-only: this guards against mistakes.
            wait: by name: seconds to wait for it.
            label: shown in lists; None: the client's.

        Raises:
            NoSuchBufferError, AccessDeniedError, AlreadySealedError ("rw" of a sealed one), HandleUnsupportedError, TimedOutError.
        """
        return self._open_buffer(name, id, owner, access, wait, label, never)

    async def open_async(self, name: Optional[str] = None, *, id: Optional[str] = None, owner: Owner = None, access: str = "rw",
                         wait: float = 0, label: Optional[str] = None) -> Buffer:
        """As open(), without holding up the event loop. Cancelling takes nothing."""
        return await in_thread(lambda unwanted: self._open_buffer(name, id, owner, access, wait, label, unwanted), Buffer.close)

    def _open_buffer(self, name: Optional[str], id: Optional[str], owner: Owner, access: str, wait: float, label: Optional[str],
                     unwanted: Unwanted) -> Buffer:
        if (name is None) == (id is None):
            raise TypeError("give exactly one of name and id")
        check_access(access)
        options = _native.OpenOptions(ctypes.sizeof(_native.OpenOptions), _native.RO if access == "ro" else _native.RW,
                                      owner_number(owner), 0, _native.encode(label, "label") or self._label)
        if id is not None:
            try:
                return self._lease("gpuipc_open_id", _native.encode(id, "id"), ctypes.byref(options))
            except errors.Error as error:
                errors.missing(error, repr(id), None)
                raise
        known = _native.encode(name, "name")

        def attempt(wait_ms: int) -> Buffer:
            options.wait_ms = wait_ms
            return self._lease("gpuipc_open_name", known, ctypes.byref(options))

        try:
            return patiently(attempt, wait, unwanted)
        except errors.Error as error:
            errors.missing(error, repr(name), wait or 0)
            raise

    def put(self, name: Optional[str], array: Any, *, seal: bool = True, device: Optional[str] = None, handle: Optional[str] = None,
            mode: Union[int, str, None] = None, meta: Optional[dict[str, Any]] = None, keep: float = 0, wait: float = 0,
            label: Optional[str] = None) -> Buffer:
        """A new buffer with a copy of an array, which `get()` gives back with its shape and dtype.

        Args:
            name: as of allocate(); None: none, and get() is by id.
            array: NumPy's, PyTorch's, CuPy's, JAX's, bytes: anything with DLPack, __array_interface__ or the buffer protocol.
            seal: nobody may write to it any more but this lease.
            device: None: where the array lies, a GPU or "host".
            meta: members beside "tensor".
            handle, mode, keep, wait, label: as of allocate().

        Returns:
            The buffer. It lives while this or another lease does, and `keep` seconds longer.
        """
        source = _copy.source_of(array)
        layout = _copy.layout_for(source)
        on_gpu = source.device[0] in (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
        where = device or (self._device_of(source.device[1]) if on_gpu else "host")
        described = layout.to_meta()
        if seal:
            described["tensor"]["sealed"] = True
        whole = {**own_meta(meta), **described}
        buffer = self.allocate(max(1, layout.nbytes), device=where, name=name, handle=handle, mode=mode, meta=whole, keep=keep, wait=wait,
                               label=label)
        try:
            if layout.nbytes and on_gpu:
                with _cuda.on_device(source.device[1]):  # which copies, so for which it is to be mapped
                    pointer = buffer.pointer
                _copy.from_gpu(source, layout, pointer, buffer.cuda_device)
            elif layout.nbytes:
                address, kept = _copy.gathered(source, layout)
                with buffer._held().used() as pointer:
                    _native.call("gpuipc_buffer_write", pointer, 0, address, layout.nbytes)
                del kept
            if seal:
                buffer.seal()
        except BaseException:
            if keep:
                with contextlib.suppress(errors.Error):
                    self.free(id=buffer.id)
            buffer.close()
            raise
        return buffer

    def _device_of(self, ordinal: int) -> str:
        digits = _cuda.uuid(ordinal)
        for device in self.status().devices:
            if device.uuid.replace("-", "").endswith(digits):
                return device.uuid
        raise errors.NoSuchDeviceError(f"The daemon does not have this process's GPU {ordinal} ({digits}). Give device=\"host\", or start "
                                       "the daemon where it sees that GPU.", subject=digits)

    def get(self, name: Optional[str] = None, *, id: Optional[str] = None, owner: Owner = None, access: str = "ro", wait: float = 0,
            label: Optional[str] = None) -> Array:
        """What put() put: a view of the same memory, with shape and dtype, and nothing copied. The lease ends with the last view.

        Args: as of open(); access "rw" gives an array that can be written to, which a sealed buffer refuses.

        Raises:
            NoSuchBufferError, TimedOutError: it is not there, or not complete, within `wait` seconds.
            LayoutError: the buffer's metadata describes no tensor.
        """
        from ._get import Wanted, get

        return get(self, Wanted(name, id, owner, access, label, wait), never)

    async def get_async(self, name: Optional[str] = None, *, id: Optional[str] = None, owner: Owner = None, access: str = "ro",
                        wait: float = 0, label: Optional[str] = None) -> Array:
        """As get(), without holding up the event loop. Cancelling takes nothing."""
        from ._get import Wanted, get

        wanted = Wanted(name, id, owner, access, label, wait)
        return await in_thread(lambda unwanted: get(self, wanted, unwanted), lambda array: None)

    # ---- channels ----

    def channel_create(self, name: Optional[str] = None, *, slots: int, slot_bytes: int, meta_bytes: int = 256, kind: str = "queue",
                       policy: str = "block", device: Optional[str] = None, mode: Union[int, str, None] = None, keep: float = 0,
                       wait: float = 0, label: Optional[str] = None, role: str = "producer") -> Channel:
        """A new channel, and this process's membership of it.

        Args:
            name: by which others attach.
            slots: 1 to 65536, how many items there are at once.
            slot_bytes: the largest item.
            meta_bytes: the most metadata of an item, 0 to 1024; a tensor's shape and dtype take 50 to 200.
            kind: "queue" (each item to one consumer) or "broadcast" (each to every one that was attached when it was begun).
            policy: "block" (a full channel lets producers wait) or "drop_oldest" (it gives up its oldest item that nobody has in hand).
            mode: r lets attach consumers, w producers; None: 0o600.
            role: this process's, "producer" or "consumer".
            device, keep, wait, label: as of allocate().

        Raises:
            as allocate().
        """
        options = _native.ChannelCreateOptions(
            ctypes.sizeof(_native.ChannelCreateOptions), _native.encode(name, "name"), choice(KINDS, kind, "kind"),
            choice(POLICIES, policy, "policy"), _native.integer(slots, "slots"), _native.integer(slot_bytes, "slot_bytes"),
            _native.integer(meta_bytes, "meta_bytes"), _native.encode(device, "device"), mode_text(mode),
            milliseconds(keep, "keep"), 0, _native.encode(label, "label") or self._label, choice(ROLES, role, "role"))

        def attempt(wait_ms: int) -> Channel:
            options.wait_ms = wait_ms
            return self._member("gpuipc_channel_create", ctypes.byref(options))

        return self._queue(attempt, wait, Channel.close)

    def channel_attach(self, name: str, *, role: str = "consumer", owner: Owner = None, wait: float = 0,
                       label: Optional[str] = None) -> Channel:
        """A membership of the channel of that name.

        Args:
            role: "producer" or "consumer".
            owner, wait, label: as of open().

        Raises:
            NoSuchBufferError, AccessDeniedError, TimedOutError; QuotaExceededError: it has 64 members.
        """
        return self._attach(name, role, owner, wait, label, never)

    async def channel_attach_async(self, name: str, *, role: str = "consumer", owner: Owner = None, wait: float = 0,
                                   label: Optional[str] = None) -> Channel:
        """As channel_attach(), without holding up the event loop. Cancelling takes nothing. On a GPU the memory is mapped for the GPU that
        holds it, whichever is current."""
        return await in_thread(lambda unwanted: self._attach(name, role, owner, wait, label, unwanted), Channel.close)

    def _attach(self, name: str, role: str, owner: Owner, wait: float, label: Optional[str], unwanted: Unwanted) -> Channel:
        options = _native.ChannelAttachOptions(ctypes.sizeof(_native.ChannelAttachOptions), choice(ROLES, role, "role"),
                                               owner_number(owner), 0, _native.encode(label, "label") or self._label)
        known = _native.encode(name, "name")

        def attempt(wait_ms: int) -> Channel:
            options.wait_ms = wait_ms
            return self._member("gpuipc_channel_attach", known, ctypes.byref(options))

        try:
            return patiently(attempt, wait, unwanted)
        except (errors.NoSuchBufferError, errors.TimedOutError) as error:
            found = self.buffers(name)
            if found and all(each.channel is None for each in found):
                errors.say(error, f"{name!r} is no channel but a buffer. get() and open() are for buffers; a channel is made by "
                                  "channel_create() or gpuipc.torch.channel.create().")
            else:
                errors.missing(error, repr(name), wait or 0)
            raise

    def _member(self, function: str, *arguments: Any) -> Channel:
        connection = self._open()
        with connection.used() as pointer:
            return Channel(self, Member(connection, _native.made(function, pointer, *arguments)))

    def channel_look(self, id: str) -> ChannelStats:
        """A channel's figures by its id, without being a member: for its owner, who may attach to it, and administrators."""
        stats = _native.ChannelStats(ctypes.sizeof(_native.ChannelStats))
        self._call("gpuipc_channel_look", _native.encode(id, "id"), ctypes.byref(stats))
        return ChannelStats.of(stats)

    def seal(self, id: str) -> None:
        """Refuses further leases for writing on a buffer; the owner only."""
        self._call("gpuipc_seal", _native.encode(id, "id"))

    def free(self, name: Optional[str] = None, *, id: Optional[str] = None) -> None:
        """Takes a buffer's name away, ends any keep and refuses new opens; who has a lease keeps it. The owner only.

        Raises:
            NoSuchBufferError, AccessDeniedError.
        """
        if (name is None) == (id is None):
            raise TypeError("give exactly one of name and id")
        self._call("gpuipc_free", _native.encode(id, "id"), _native.encode(name, "name"))

    def kick(self, session: str) -> None:
        """Closes another session of the caller's own uid (an administrator: any)."""
        self._call("gpuipc_kick", _native.encode(session, "session"))

    # ---- looking ----

    def status(self) -> Status:
        """The daemon: its version, devices, limits, and how much it holds."""
        found: list[Any] = []
        self._enumerate("gpuipc_get_status", _native.StatusCallback, found, Status.of)
        result: Status = found[0]
        return result

    def leases(self, name: Optional[str] = None, *, uid: Optional[int] = None) -> list[LeaseInfo]:
        """All leases that the caller may see; of a name, of an owner."""
        found: list[LeaseInfo] = []
        self._enumerate("gpuipc_list", _native.LeaseCallback, found, LeaseInfo.of, self._filter(name, uid))
        return found

    def buffers(self, name: Optional[str] = None, *, uid: Optional[int] = None) -> list[BufferInfo]:
        """All buffers that the caller may see; of a name, of an owner."""
        found: list[BufferInfo] = []
        self._enumerate("gpuipc_list_buffers", _native.BufferCallback, found, BufferInfo.of, self._filter(name, uid))
        return found

    def watch(self, since: Optional[int] = None) -> Watch:
        """News from now on, or after the event numbered `since`: an iterator, and an asynchronous one."""
        return Watch(self, since)

    def _filter(self, name: Optional[str], uid: Optional[int]) -> Any:
        owner = -1 if uid is None else _native.integer(uid, "uid", most=UID_MAX)
        return ctypes.byref(_native.ListOptions(ctypes.sizeof(_native.ListOptions), owner, _native.encode(name, "name")))

    def _enumerate(self, function: str, kind: Any, into: list[Any], read: Callable[[Any], Any], *arguments: Any) -> None:
        """An exception within a callback ends the enumeration and is raised after it."""
        failure: list[BaseException] = []

        def each(info: Any, _: Any) -> int:
            try:
                into.append(read(info.contents))
                return 0
            except BaseException as error:
                failure.append(error)
                return 1

        with with_callbacks():
            self._call(function, *arguments, kind(each), None)
        if failure:
            raise failure[0]
