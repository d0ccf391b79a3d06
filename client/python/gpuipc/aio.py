# SPDX-License-Identifier: Apache-2.0
"""Waiting without holding up an event loop: by descriptors where the library has one, else in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import Any, Callable, TypeVar

from . import errors

T = TypeVar("T")

# Of each loop, who waits for which descriptor: a loop itself has one reader a descriptor.
_waiting: weakref.WeakKeyDictionary[Any, dict[int, set[asyncio.Future[None]]]] = weakref.WeakKeyDictionary()


Sleepers = dict["asyncio.Future[None]", Any]  # of one thing: who waits for it, and in which loop


def _wake(loop: Any, fd: int) -> None:
    """Everyone: whoever finds nothing waits again."""
    loop.remove_reader(fd)
    for future in _waiting[loop].pop(fd, set()):
        if not future.done():
            future.set_result(None)


async def readable(fd: int, sleepers: Sleepers, gone: Callable[[], bool]) -> None:
    """Returns when the descriptor is readable, or rouse() was called. `gone`: whether that was called before."""
    loop = asyncio.get_running_loop()
    table = _waiting.setdefault(loop, {})
    future: asyncio.Future[None] = loop.create_future()
    waiters = table.setdefault(fd, set())
    if not waiters:
        loop.add_reader(fd, _wake, loop, fd)
    waiters.add(future)
    sleepers[future] = loop
    try:
        if not gone():
            await future
    finally:
        sleepers.pop(future, None)
        waiters.discard(future)
        if not waiters and table.get(fd) is waiters:
            del table[fd]
            loop.remove_reader(fd)


def _come(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def rouse(sleepers: Sleepers) -> None:
    """Has all of them try again. Any thread may call it."""
    for future, loop in sleepers.copy().items():  # in one step: a list would be made of it one by one, and others come and go meanwhile
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_come, future)


async def until(fileno: Callable[[], int], attempt: Callable[[], T], sleepers: Sleepers, gone: Callable[[], bool]) -> T:
    """Tries, which must not wait and raises TimedOutError in vain, whenever the descriptor is readable. Cancelled it has taken nothing.
    Who closes what is waited for sees to it that `gone` is true, then calls rouse(); the descriptor must stay until nobody sleeps."""
    while True:
        with contextlib.suppress(errors.TimedOutError):
            return attempt()
        await readable(fileno(), sleepers, gone)


async def in_thread(work: Callable[[Callable[[], bool]], T], undo: Callable[[T], None]) -> T:
    """Runs `work` in a thread of its own. It is given a function that says whether nobody wants it any more, to be asked now and then; a
    result that comes after that is undone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    unwanted = threading.Event()

    def settle(result: Any, error: Any) -> None:
        if future.done():
            if error is None:
                undo(result)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result: Any = None
        error: Any = None
        try:
            result = work(unwanted.is_set)
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is closed
            if error is None:
                undo(result)

    threading.Thread(target=run, name="gpuipc-wait", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        unwanted.set()
        if future.done() and not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise
