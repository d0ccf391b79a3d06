# SPDX-License-Identifier: Apache-2.0
"""News of buffers and leases, as they happen."""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Optional

from . import _native, errors
from ._lifetime import Keeper, OfThisProcess, _process
from ._waits import in_slices
from .aio import rouse, until
from .info import Event

if TYPE_CHECKING:
    from .client import Client


class _Handle(Keeper):
    what = "watch"

    def _end(self, pointer: int, error: _native.Error) -> int:
        _native.library().gpuipc_watch_free(pointer)
        return 0


class Watch(OfThisProcess):
    """An iterator over `Event`s, and an asynchronous one. Made by `Client.watch()`. One thread at a time takes events.

    It ends when it is closed. Iterating raises EventsLostError when the reader was too slow: make a new one with since=error.oldest − 1.
    """

    def __init__(self, client: Client, since: Optional[int]) -> None:
        connection = client._open()
        with connection.used() as pointer:
            made = _native.made("gpuipc_watch_new", pointer, -1 if since is None else _native.integer(since, "since"))
            self._handle: Optional[_Handle] = _Handle(connection, made)
        self._left_over: collections.deque[Event] = collections.deque()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, also for a thread that waits in it."""
        handle, self._handle = self._handle, None
        if handle is not None and handle.pid == _process.pid:
            _native.library().gpuipc_watch_stop(handle.pointer)
            rouse(handle.sleepers)

    def fileno(self) -> int:
        """A descriptor that is readable while next(timeout=0) may have something. Only to be polled."""
        handle = self._handle
        if handle is None:
            raise ValueError("the watch is closed")
        handle.not_forked()
        return int(_native.library().gpuipc_watch_fd(handle.pointer))

    def next(self, timeout: Optional[float] = None) -> Event:
        """The next event, waited for at most `timeout` seconds (None: without end).

        Raises:
            TimedOutError, EventsLostError; ClosedError: it was closed, or the daemon ended it.
        """
        handle = self._handle
        if handle is None:
            raise errors.ClosedError("The watch is closed.", name="gpuipc.Closed")
        info = ctypes.POINTER(_native.EventInfo)()
        found: list[Event] = []

        def attempt(ms: int) -> bool:
            with handle.used() as pointer:
                if self._left_over:
                    found.append(self._left_over.popleft())
                    return True
                try:
                    if _native.tried("gpuipc_watch_next", pointer, ms, ctypes.byref(info)):
                        found.append(Event.of(info.contents))
                except BaseException:  # of a signal's handler, too, when the library has returned with an event, which is the next call's
                    if info:
                        self._left_over.append(Event.of(info.contents))
                    raise
            return bool(found)

        if not in_slices(timeout, attempt):
            raise errors.TimedOutError(f"No event came within {timeout} s.", subject="watch")
        return found[0]

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return self.next()
        except errors.ClosedError:
            raise StopIteration from None

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self.next_async()
        except errors.ClosedError:
            raise StopAsyncIteration from None

    async def next_async(self) -> Event:
        """The next event; cancelling takes none."""
        handle = self._handle  # whose descriptor stays as long as this waits for it
        if handle is None:
            raise errors.ClosedError("The watch is closed.", name="gpuipc.Closed")
        with handle.called() as pointer:
            fd = int(_native.library().gpuipc_watch_fd(pointer))
            return await until(lambda: fd, lambda: self.next(0), handle.sleepers, lambda: self._handle is None)
