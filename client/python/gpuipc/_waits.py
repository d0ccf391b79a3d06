# SPDX-License-Identifier: Apache-2.0
"""Waiting so that Python's signals (Ctrl-C) are handled meanwhile, and so that who no longer wants a thing need not have it."""

from __future__ import annotations

import math
import numbers
import threading
import time
from typing import Any, Callable, Optional, TypeVar

from . import errors

T = TypeVar("T")
Unwanted = Callable[[], bool]  # whether nobody waits any more

_CALL_SLICE_MS = 500  # of a wait at the daemon
_LOOK_SLICE_MS = 100  # of a wait in this process
_INT_MAX = (1 << 31) - 1


def never() -> bool:
    """Somebody waits until the end."""
    return False


def milliseconds(seconds: Optional[float], what: str) -> int:
    """Of seconds, rounded up; 0 for None.

    Raises:
        InvalidParameterError: negative, or not a number.
        TypeError: something else.
    """
    if seconds is None:
        return 0
    if type(seconds) is not float and (isinstance(seconds, bool) or not isinstance(seconds, numbers.Real)):
        raise TypeError(f"{what}: seconds are wanted, not {seconds!r}")
    if math.isnan(seconds) or seconds < 0:
        raise errors.InvalidParameterError(f"{what}: {seconds} is no duration. Give seconds, 0 or more.", subject=what)
    return 1 << 52 if math.isinf(seconds) else min(1 << 52, math.ceil(seconds * 1000))


def short_milliseconds(seconds: float, what: str) -> int:
    """The same for where the library has an int: 24 days at most, and 1 at least unless it is 0."""
    return min(_INT_MAX, milliseconds(seconds, what))


def patiently(attempt: Callable[[int], T], wait: float, unwanted: Unwanted) -> T:
    """Calls with slices of the time to wait, in milliseconds; raises what the last of them raised. Only for what waits in the call: what
    fails at once would be called again at once."""
    wait_ms = milliseconds(wait, "wait")
    if wait_ms == 0:
        return attempt(0)
    until = time.monotonic() + wait_ms / 1000
    while True:
        left = until - time.monotonic()
        try:
            return attempt(max(1, min(_CALL_SLICE_MS, math.ceil(left * 1000))))
        except errors.TimedOutError:
            if until - time.monotonic() <= 0 or unwanted():
                raise


def in_slices(timeout: Optional[float], attempt: Callable[[int], bool], always: bool = False) -> bool:
    """Waits by calls of `attempt(ms)` (−1: without end), which says whether it came. In the main thread, and where `always`, they are
    short. False: it did not come within `timeout` seconds (None: without end)."""
    milliseconds(timeout, "timeout")
    until = math.inf if timeout is None else time.monotonic() + timeout
    short = always or threading.current_thread() is threading.main_thread()
    most = _LOOK_SLICE_MS if short else _INT_MAX
    while True:
        left_ms = max(0.0, until - time.monotonic()) * 1000
        if attempt(-1 if not short and left_ms == math.inf else math.ceil(min(most, left_ms))):
            return True
        if time.monotonic() >= until:
            return False


def interruptible(call: Callable[[], T], undo: Callable[[T], Any]) -> T:
    """Makes a call that waits in one piece. In the main thread it is made by another one, so that an exception of a signal's handler ends
    the wait; the result, when it comes, is undone then."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    done, lock = threading.Event(), threading.Lock()
    results: list[T] = []
    failures: list[BaseException] = []
    left = False

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            failures.append(error)
        else:
            with lock:
                wanted = not left
                if wanted:
                    results.append(result)
            if not wanted:
                undo(result)
        done.set()

    threading.Thread(target=run, name="gpuipc-wait", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        with lock:
            left = True
        for result in results:
            undo(result)
        raise
    if failures:
        raise failures[0]
    return results[0]
