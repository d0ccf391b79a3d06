# SPDX-License-Identifier: Apache-2.0
"""Channels: a ring of slots in shared memory, for a steady flow of items between processes."""

from __future__ import annotations

import collections
import contextlib
import ctypes
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from . import _cuda, _native, errors
from ._lifetime import OfThisProcess
from ._waits import in_slices
from .aio import rouse, until
from .fence import stream_handle
from .item import Item as Item
from .item import Member

if TYPE_CHECKING:
    from .client import Client

_NONE = -1  # as a slot: nothing was taken
ROLES = {"producer": _native.PRODUCER, "consumer": _native.CONSUMER}
KINDS = {"queue": _native.QUEUE, "broadcast": _native.BROADCAST}
POLICIES = {"block": _native.BLOCK, "drop_oldest": _native.DROP_OLDEST}


def choice(table: dict[str, int], value: str, what: str) -> int:
    """The number of a word. InvalidParameterError: names those that there are."""
    if not isinstance(value, str) or value not in table:
        raise errors.InvalidParameterError(f"{what}: {value!r} is none of {', '.join(table)}.", subject=what)
    return table[value]


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


class Channel(OfThisProcess):
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
        self._left_over: collections.deque[tuple[_native.Item, int]] = collections.deque()

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
        self._held().not_forked()
        fd = self._fact("gpuipc_channel_fd")
        if fd < 0:
            raise errors.NoMemoryError("The channel's descriptor cannot be had: no memory, threads or descriptors are left.")
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
        handle, item = stream_handle(stream), _native.Item(slot=_NONE)
        found: list[Item] = []

        def attempt(ms: int) -> bool:
            nonlocal item
            member = self._held()
            pointer = member.begin_call()
            try:
                came = False
                if self._left_over:
                    with contextlib.suppress(IndexError):
                        item, came = self._left_over_item(handle), True
                if not came:
                    with _cuda.for_stream(member.ordinal, handle):
                        came = _native.tried(function, pointer, handle, ms, ctypes.byref(item))
                if came:
                    if member.producer:
                        self._held()  # nothing is begun once it was closed
                    found.append(Item(member, item, handle))
                    if self._member is not member and found[0].in_hand:  # what was taken meanwhile is its thread's, or it would be lost
                        member.add_view(found[0])
                return came
            except BaseException:  # of a signal's handler, too, when the library has returned with an item
                if item.slot != _NONE:
                    self._leave_over(member, pointer, item, handle)
                raise
            finally:
                member.end_call()

        member = self._held()
        if not in_slices(timeout, attempt, always=True):  # close() is to be noticed
            what = "slot" if member.producer else "item"
            waited = "is there." if not timeout else f"came within {timeout} s. {self._why(member)}"
            raise errors.TimedOutError(f"No {what} {waited}", subject="channel", name="gpuipc.TimedOut")
        return found[0]

    def _why(self, member: Member) -> str:
        """What was waited for in vain: whether there is anybody who could have given it."""
        other = "consumer" if member.producer else "producer"
        try:
            n = sum(each.role == other and each.alive for each in self.stats().members)
        except (errors.Error, ValueError):  # it was closed, or lost
            return "Give a longer timeout."
        if n == 0:
            return f"It has no {other}: those that it had have left or died, or none has attached yet."
        return (f"It has {n} {other}{'s' if n > 1 else ''}, " + ("who must take and release items: leave `with`, or call release()."
                                                               if member.producer else "who put none. Give a longer timeout."))

    def _leave_over(self, member: Member, pointer: int, item: _native.Item, stream: int) -> None:
        """What was begun is given up, what was taken is the next call's."""
        if member.producer:
            with contextlib.suppress(errors.Error):
                _native.call("gpuipc_channel_cancel", pointer, ctypes.byref(item))
        else:
            self._left_over.append((item, stream))

    def _left_over_item(self, stream: int) -> _native.Item:
        member = self._held()
        item, taken_with = self._left_over.popleft()
        try:
            if member.device != "host":
                _cuda.order(member.ordinal, taken_with or 1, stream or 1)
        except BaseException:
            self._left_over.appendleft((item, taken_with))
            raise
        return item

    def item(self, timeout: Optional[float] = None, *, stream: Any = None) -> Item:
        """A producer's slot to write to, as a context manager: leaving it publishes, an exception cancels.

        Args:
            timeout: seconds to wait for a slot; None: without end; 0: one look.
            stream: waits until the slot's readers are done with it, and is what the item is published by. On a GPU None is its legacy
                default stream, whichever GPU is current; on host memory it is no stream at all.

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
        member = self._held()
        with member.called():  # its descriptor stays as long as this waits for it
            return await until(self.fileno, lambda: self._next(function, 0, stream), member.sleepers, lambda: self.closed)

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
        """Leaves: gives back what is in hand, now or when the last view of an item has ended, and ends what waits, in threads and in event
        loops; an item that comes meanwhile is its taker's until that releases it. Let work that uses the slots finish before. May be called
        again.

        Raises:
            TimedOutError: a stream has not come to what it was to publish or release; the channel is as it was.
        """
        member, self._member = self._member, None
        if member is not None:
            rouse(member.sleepers)
            try:
                member.leave()
            except errors.TimedOutError:
                self._member = member
                raise
            except errors.Error:  # a lease that was lost before, or a daemon that is away: nothing is held any more
                pass
