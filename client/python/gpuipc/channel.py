# SPDX-License-Identifier: Apache-2.0
"""Channels: a ring of slots in shared memory, for a steady flow of items between processes."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from . import _copy, _cuda, _dlpack, _native, errors
from ._lifetime import Connection, Keeper
from ._waits import in_slices
from .aio import until
from .array import Array, Memory, byte_view
from .fence import stream_handle
from .layout import Layout, dump_meta, parse_meta

if TYPE_CHECKING:
    from .client import Client

_META_AT: int = _native.Item.meta.offset
ROLES = {"producer": _native.PRODUCER, "consumer": _native.CONSUMER}
KINDS = {"queue": _native.QUEUE, "broadcast": _native.BROADCAST}
POLICIES = {"block": _native.BLOCK, "drop_oldest": _native.DROP_OLDEST}


def choice(table: dict[str, int], value: str, what: str) -> int:
    """The number of a word. InvalidParameterError: names those that there are."""
    if value not in table:
        raise errors.InvalidParameterError(f"{what}: {value!r} is none of {', '.join(table)}.", subject=what)
    return table[value]


class Member(Keeper):
    """A gpuipc_channel. Calls use it from several threads; it is freed when the last reference is gone, of a call or of a view."""

    what = "channel"

    def __init__(self, connection: Connection, pointer: int) -> None:
        super().__init__(connection, pointer)
        library, text = _native.library(), _native.text
        self.id = text(library.gpuipc_channel_id(pointer)) or ""
        self.name = text(library.gpuipc_channel_name(pointer))
        self.device = text(library.gpuipc_channel_device(pointer)) or ""
        self.ordinal = int(library.gpuipc_channel_cuda_device(pointer))
        self.producer = library.gpuipc_channel_get_role(pointer) == _native.PRODUCER
        self.meta_bytes = int(library.gpuipc_channel_meta_bytes(pointer))

    def _end(self, pointer: int, error: _native.Error) -> int:
        status = int(_native.library().gpuipc_channel_free(pointer, ctypes.byref(error)))
        if status == _native.TIMED_OUT:
            self._pointer = pointer  # as it was
        return status


@dataclass(frozen=True)
class MemberStats:
    """What a member has done. `lag`: of a consumer of a broadcast, the items that it has yet to read."""

    number: int
    role: str
    alive: bool
    items: int
    bytes: int
    drops: int
    broken: int
    lag: int
    pid: Optional[int]


@dataclass(frozen=True)
class ChannelStats:
    """A channel's figures, as its members have written them. `begun`: items since it was made; `depth`: of those, not yet taken."""

    begun: int
    depth: int
    closed: bool
    sleeps: int
    wakes: int
    members: tuple[MemberStats, ...]

    @classmethod
    def of(cls, stats: _native.ChannelStats) -> ChannelStats:
        return cls(stats.begun, stats.depth, stats.closed > 0, stats.sleeps, stats.wakes, tuple(
            MemberStats(m.number, "producer" if m.role == _native.PRODUCER else "consumer", m.alive > 0, m.items, m.bytes, m.drops,
                        m.broken, m.lag, m.pid if m.pid >= 0 else None) for m in stats.members[:stats.n_members]))


@functools.lru_cache(maxsize=512)
def _described(meta_bytes: bytes, size: int) -> Optional[Layout]:
    """The layout that an item's metadata describes; None: it describes none. A steady flow has few."""
    meta = _meta_of(meta_bytes)
    return Layout.from_meta(meta, size) if "tensor" in meta else None


def _meta_of(meta_bytes: bytes) -> dict[str, Any]:
    try:
        return parse_meta(meta_bytes.decode())
    except UnicodeDecodeError:
        return {}


class Item:
    """A slot in hand: of a producer to be written and published, of a consumer to be read and released.

    Attributes:
        ticket: items of a channel are numbered from 0.
        slot: which of the channel's slots.
        producer: the number of the member that made it.
        size: bytes: of a producer what there is room for, of a consumer the item's.

    Views of it (array(), memoryview()) stay mapped after it was published or released, but others may write there then: copy what is to
    be kept.
    """

    def __init__(self, member: Member, item: _native.Item, stream: int) -> None:
        self._member, self._item, self._stream = member, item, stream
        self._in_hand = not item.broken
        self._mine = member.producer
        self._layout: Optional[Layout] = None
        self._own_meta: Optional[dict[str, Any]] = None
        self._written = 0
        self.ticket, self.slot, self.producer, self.size = int(item.ticket), int(item.slot), int(item.producer), int(item.size)

    def __repr__(self) -> str:
        return f"<gpuipc.Item {self.ticket} in slot {self.slot}, {self.size} bytes{', broken' if self.broken else ''}>"

    # ---- facts ----

    @property
    def broken(self) -> bool:
        """Whether it was known when it was taken that its producer died before it was whole: there is nothing in it."""
        return bool(self._item.broken)

    @property
    def in_hand(self) -> bool:
        """Whether it is still to be published or cancelled, or released."""
        return self._in_hand

    @property
    def pointer(self) -> int:
        """The slot's address in this process: a host pointer or a device pointer.

        Raises:
            BrokenItemError.
        """
        if self._item.pointer is None:
            raise errors.BrokenItemError(f"Item {self.ticket} is broken: its producer (member {self.producer}) died before it was whole. "
                                         "Go on with the next.", subject="item")
        return int(self._item.pointer)

    @property
    def meta_bytes(self) -> bytes:
        """The metadata as it came, which may be anything that the producer gave."""
        return ctypes.string_at(ctypes.addressof(self._item) + _META_AT, self._item.n_meta)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata as an object; {} where there is none or where it is none. A producer sets it before publishing."""
        if self._mine:
            return dict(self._own_meta or {})
        return _meta_of(self.meta_bytes)

    @meta.setter
    def meta(self, value: dict[str, Any]) -> None:
        if not self._mine:
            raise AttributeError("a consumer cannot change an item's metadata")
        json.dumps(value)
        self._own_meta = value

    def is_broken(self) -> bool:
        """Of a GPU's item, asked when the stream is past the take: whether its producer died before its stream had written it. What was
        read counts if not."""
        with self._member.called() as pointer:
            return bool(_native.library().gpuipc_item_is_broken(pointer, ctypes.byref(self._item)))

    # ---- contents ----

    def _memory(self) -> Memory:
        ready_on = None if self._member.device == "host" else self._stream or 1
        return Memory(self._member, self.pointer, self.size, self._member.device, self._member.ordinal, not self._mine, stream=ready_on)

    def array(self, shape: Any = None, dtype: Any = None, strides: Any = None, offset: int = 0) -> Array:
        """A view of the slot. A consumer's without arguments: as the metadata says. A producer's: shape and dtype are put into the item's
        metadata, so that consumers find them.

        Raises:
            LayoutError: it cannot be, or does not fit. BrokenItemError.
        """
        memory = self._memory()
        if shape is None and dtype is None:
            layout = None if self._mine else _described(self.meta_bytes, self.size)
            layout = layout or Layout.of("uint8", (self.size,))
        else:
            layout = Layout.of(dtype if dtype is not None else "uint8", self.size if shape is None else shape, strides, offset)
        array = Array(memory, layout)
        if self._mine:
            self._layout, self._written = layout, max(self._written, layout.end)
        return array

    def memoryview(self) -> memoryview:
        """The slot's bytes, of host memory."""
        array = Array(self._memory(), Layout.of("uint8", (self.size,)))
        array.memoryview()
        return byte_view(array, array.pointer, self.size, array.readonly)

    def read(self) -> bytes:
        """A copy of the item's bytes, whatever they lie on. BrokenItemError, MapError."""
        return Array(self._memory(), Layout.of("uint8", (self.size,))).tobytes()

    def write(self, data: Any, offset: int = 0) -> int:
        """Copies bytes of the buffer protocol into the slot; how many.

        Raises:
            InvalidParameterError: they do not fit.
        """
        view = memoryview(data).cast("B") if memoryview(data).c_contiguous else memoryview(memoryview(data).tobytes())
        self._writable(offset, view.nbytes, "data")
        source = _copy.source_of(view)
        if view.nbytes and self._member.device == "host":
            ctypes.memmove(self.pointer + offset, source.pointer, view.nbytes)
        elif view.nbytes:
            _cuda.write(self._member.ordinal, self._stream, self.pointer + offset, source.pointer, view.nbytes)
        self._written = max(self._written, offset + view.nbytes)
        return view.nbytes

    def put(self, array: Any) -> None:
        """Copies an array (as of `Client.put()`) into the slot, with its shape and dtype in the metadata."""
        source = _copy.source_of(array)
        layout = _copy.layout_for(source)
        self._writable(0, layout.nbytes, "array")
        if layout.nbytes and source.device[0] in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
            if self._member.device != "host":
                _cuda.order(self._member.ordinal, self._stream or 1, 1)
            _copy.from_gpu(source, layout, self.pointer, self._member.device == "host")
        elif layout.nbytes:
            address, kept = _copy.gathered(source, layout)
            if self._member.device == "host":
                ctypes.memmove(self.pointer, address, layout.nbytes)
            else:
                _cuda.write(self._member.ordinal, self._stream, self.pointer, address, layout.nbytes)
            del kept
        self._layout, self._written = layout, max(self._written, layout.end)

    def _writable(self, offset: int, n: int, what: str) -> None:
        if not self._mine or not self._in_hand:
            raise ValueError("only a producer writes, before it publishes")
        if offset < 0 or offset + n > self.size:
            raise errors.InvalidParameterError(f"{what}: {n} bytes at {offset} do not fit into a slot of {self.size}. Make the channel "
                                               "with larger slot_bytes.", subject=what)

    # ---- the end ----

    def __enter__(self) -> Item:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        if not self._in_hand:
            return
        if not self._mine:
            self.release()
        elif kind is None:
            self.publish()
        else:
            self.cancel()

    def publish(self, size: Optional[int] = None, *, stream: Any = None) -> None:
        """Gives it to the consumers, who see it whole once what was given to the stream before is done.

        Args:
            size: bytes; None: as far as write(), put() and array() went, or the whole slot where none was called.
            stream: None: the one that it was begun with.

        Raises:
            InvalidParameterError: the metadata is larger than the channel's meta_bytes. The item is still in hand.
        """
        text = (dump_meta(self._own_meta, self._layout) or "").encode()
        if len(text) > self._member.meta_bytes:
            raise errors.InvalidParameterError(f"meta: {len(text)} bytes, and an item of this channel has at most "
                                               f"{self._member.meta_bytes}. Make the channel with larger meta_bytes (at most 1024), or say "
                                               "less.", subject="meta")
        n = size if size is not None else self._written if self._written or self._layout else self.size
        self._finish("gpuipc_channel_publish", n, text or None, len(text), self._stream if stream is None else stream_handle(stream))

    def cancel(self) -> None:
        """Gives up what was begun. Nothing may still write to it, so have a stream finish first."""
        self._finish("gpuipc_channel_cancel")

    def release(self, stream: Any = None) -> None:
        """Gives the slot back, which may be written to once what was given to the stream before is done (None: the one that it was taken
        with). Does nothing where it was done already."""
        if self._in_hand and self._member.ended:
            self._in_hand = False
        if self._in_hand:
            self._finish("gpuipc_channel_release", self._stream if stream is None else stream_handle(stream))

    def _finish(self, function: str, *arguments: Any) -> None:
        if not self._in_hand:
            raise ValueError("the item is no longer in hand")
        if self._mine == (function == "gpuipc_channel_release"):
            raise ValueError("a producer publishes or cancels, a consumer releases")
        pointer = self._member.begin_call()
        try:
            _native.call(function, pointer, ctypes.byref(self._item), *arguments)
        finally:
            self._member.end_call()
        self._in_hand = False


class Channel:
    """A member of a channel. Made by `Client.channel_create()` and `Client.channel_attach()`; may be used from several threads at once.

        with channel.item() as item:          # a producer
            item.put(batch)

        for item in channel:                  # a consumer: each item is released when the next is taken
            use(item.array())

    `close()`, which leaving `with` does, leaves the channel once the last view of an item has ended. `end()` lets nobody begin more.
    """

    def __init__(self, client: Client, member: Member) -> None:
        self._client = client
        self._member: Optional[Member] = member
        self._facts = member.id, member.name, member.device, member.producer

    def __repr__(self) -> str:
        return f"<gpuipc.Channel {self.id} {self.name or ''} as {self.role}{', closed' if self.closed else ''}>"

    def __enter__(self) -> Channel:
        self._held()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def _held(self) -> Member:
        member = self._member
        if member is None:
            raise ValueError("the channel is closed")
        return member

    def _fact(self, name: str) -> int:
        with self._held().called() as pointer:
            return int(getattr(_native.library(), name)(pointer))

    # ---- facts ----

    @property
    def id(self) -> str:
        """The id of the buffer that it lies in."""
        return self._facts[0]

    @property
    def name(self) -> Optional[str]:
        """The name it was given; None: none."""
        return self._facts[1]

    @property
    def device(self) -> str:
        """The UUID of the GPU that its slots lie on, or "host"."""
        return self._facts[2]

    @property
    def role(self) -> str:
        """"producer" or "consumer"."""
        return "producer" if self._facts[3] else "consumer"

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._member is None

    @property
    def kind(self) -> str:
        """"queue" (each item to one consumer) or "broadcast" (each to every one)."""
        return "broadcast" if self._fact("gpuipc_channel_get_kind") == _native.BROADCAST else "queue"

    @property
    def policy(self) -> str:
        """"block" or "drop_oldest"."""
        return "drop_oldest" if self._fact("gpuipc_channel_get_policy") == _native.DROP_OLDEST else "block"

    @property
    def number(self) -> int:
        """This member's, 0 to 63."""
        return self._fact("gpuipc_channel_number")

    @property
    def slots(self) -> int:
        """How many items there are at once."""
        return self._fact("gpuipc_channel_slots")

    @property
    def slot_bytes(self) -> int:
        """The largest item."""
        return self._fact("gpuipc_channel_slot_bytes")

    @property
    def meta_bytes(self) -> int:
        """The most metadata of an item."""
        return self._fact("gpuipc_channel_meta_bytes")

    @property
    def is_synchronous(self) -> bool:
        """Whether the memory is on a GPU whose streams cannot wait by themselves: calls then wait on the processor."""
        return bool(self._fact("gpuipc_channel_is_synchronous"))

    @property
    def is_peer(self) -> bool:
        """As `Buffer.is_peer`."""
        return bool(self._fact("gpuipc_channel_is_peer"))

    @property
    def cuda_device(self) -> int:
        """As `Buffer.cuda_device`."""
        return self._fact("gpuipc_channel_cuda_device")

    def fileno(self) -> int:
        """A descriptor for event loops, readable while the next take or begin need not wait; a call with timeout 0 that raises
        TimedOutError makes it unreadable. Only to be polled."""
        fd = self._fact("gpuipc_channel_fd")
        if fd < 0:
            raise errors.NoMemoryError("The channel's descriptor cannot be had: no memory, threads or descriptors are left, or the channel "
                                       "is another process's.")
        return fd

    def stats(self) -> ChannelStats:
        """The channel's figures. Calls nobody."""
        stats = _native.ChannelStats(ctypes.sizeof(_native.ChannelStats))
        with self._held().called() as pointer:
            _native.call("gpuipc_channel_get_stats", pointer, ctypes.byref(stats))
        return ChannelStats.of(stats)

    def check(self) -> None:
        """Raises LeaseLostError or CorruptError when this is no member any more."""
        with self._held().called() as pointer:
            _native.call("gpuipc_channel_check", pointer)

    # ---- the flow ----

    def _next(self, function: str, timeout: Optional[float], stream: Any) -> Item:
        handle, item = stream_handle(stream), _native.Item()
        where = ctypes.byref(item)

        def attempt(ms: int) -> bool:
            member = self._held()
            pointer = member.begin_call()
            try:
                return _native.tried(function, pointer, handle, ms, where)
            finally:
                member.end_call()

        member = self._held()
        if not in_slices(timeout, attempt, always=True):  # close() is to be noticed
            waited = "is there" if not timeout else f"came within {timeout} s"
            raise errors.TimedOutError(f"No {'slot' if member.producer else 'item'} {waited}.", subject="channel", name="gpuipc.TimedOut")
        return Item(member, item, handle)

    def item(self, timeout: Optional[float] = None, *, stream: Any = None) -> Item:
        """A producer's slot to write to, as a context manager: leaving it publishes, an exception cancels.

        Args:
            timeout: seconds to wait for a slot; None: without end; 0: one look.
            stream: waits until the slot's readers are done with it, and is what the item is published by. On a GPU None is the legacy
                default stream; on host memory it is no stream at all.

        Raises:
            TimedOutError; ClosedError: the channel was ended; LeaseLostError: this is no member any more.
        """
        return self._next("gpuipc_channel_begin", timeout, stream)

    def put(self, array: Any, *, meta: Optional[dict[str, Any]] = None, timeout: Optional[float] = None, stream: Any = None) -> int:
        """Copies an array into an item of its own and publishes it: the ticket. Errors as of item()."""
        with self.item(timeout, stream=stream) as item:
            item.put(array)
            if meta is not None:
                item.meta = meta
        return item.ticket

    def take(self, timeout: Optional[float] = None, *, stream: Any = None) -> Item:
        """The next item, to be released by the consumer: a context manager, too. One that is known to be broken comes with `broken` set,
        nothing in it, and nothing to release.

        Args:
            timeout: seconds to wait; None: without end; 0: one look.
            stream: waits until the item is written. None as of item().

        Raises:
            TimedOutError; ClosedError: the channel was ended, and is empty; LeaseLostError: this is no member any more.
        """
        return self._next("gpuipc_channel_take", timeout, stream)

    def __iter__(self) -> Iterator[Item]:
        """Items until the channel was ended and is empty. Each is released when the next is taken, and when iterating ends."""
        return self.items()

    def items(self, *, stream: Any = None) -> Iterator[Item]:
        """The same, with a stream as of take()."""
        while True:
            try:
                item = self.take(stream=stream)
            except errors.ClosedError:
                return
            try:
                yield item
            finally:
                item.release()

    async def _next_async(self, function: str, stream: Any) -> Item:
        return await until(self.fileno, lambda: self._next(function, 0, stream))

    async def item_async(self, *, stream: Any = None) -> Item:
        """As item(), without holding up the event loop. Cancelling takes nothing."""
        return await self._next_async("gpuipc_channel_begin", stream)

    async def take_async(self, *, stream: Any = None) -> Item:
        """As take(), without holding up the event loop. Cancelling takes nothing."""
        return await self._next_async("gpuipc_channel_take", stream)

    async def put_async(self, array: Any, *, meta: Optional[dict[str, Any]] = None, stream: Any = None) -> int:
        """As put(), without holding up the event loop while there is no slot."""
        with await self.item_async(stream=stream) as item:
            item.put(array)
            if meta is not None:
                item.meta = meta
        return item.ticket

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            try:
                item = await self.take_async()
            except errors.ClosedError:
                return
            try:
                yield item
            finally:
                item.release()

    # ---- the end ----

    def end(self) -> None:
        """No more is begun, by anyone; consumers get what is there, then their loops end."""
        with self._held().called() as pointer:
            _native.call("gpuipc_channel_close", pointer)

    def close(self) -> None:
        """Leaves: gives back what is in hand, now or when the last view of an item has ended. Let work that uses the slots finish before.
        May be called again.

        Raises:
            TimedOutError: a stream has not come to what it was to publish or release; the channel is as it was.
        """
        member, self._member = self._member, None
        if member is not None:
            try:
                member.leave()
            except errors.TimedOutError:
                self._member = member
                raise
