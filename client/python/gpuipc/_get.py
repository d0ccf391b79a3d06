# SPDX-License-Identifier: Apache-2.0
"""Opening what was put: cards are followed, and what is to be sealed is waited for until it is."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Optional

from . import errors, share
from ._arguments import Owner, check_access
from ._waits import Unwanted, in_slices, milliseconds
from .array import Array
from .buffer import Buffer
from .layout import Layout

if TYPE_CHECKING:
    from .client import Client

_LOOK_MS = 50  # between looks at what tells nobody when it changes


class Wanted:
    """What `Client.get()` was asked for."""

    def __init__(self, name: Optional[str], id: Optional[str], owner: Owner, access: str, label: Optional[str], wait: float) -> None:
        check_access(access)
        self.name, self.id, self.owner, self.access, self.label = name, id, owner, access, label
        self._until = time.monotonic() + milliseconds(wait, "wait") / 1000

    def left(self) -> float:
        """Seconds that may still be waited."""
        return max(0.0, self._until - time.monotonic())


def get(client: Client, wanted: Wanted, unwanted: Unwanted) -> Array:
    """As `Client.get()`."""
    while True:
        buffer = _open(client, wanted, unwanted)
        if share.is_card(buffer.meta):
            shared, layout = share.follow(client, buffer, wanted.access, wanted.label)
            with shared:
                return Array(shared._memory(), layout)
        with buffer:
            layout = Layout.from_meta(buffer.meta, buffer.size)
            if buffer.meta["tensor"].get("sealed") is not True or _complete(client, buffer, wanted, unwanted):
                return Array(buffer._memory(), layout)
            # Its producer ended while it was filling it. Another may come.
            if wanted.id is not None or not _gone(client, buffer, wanted, unwanted):
                raise errors.NoSuchBufferError(
                    f"{buffer.name or buffer.id} was never complete: its producer ended while it was filling it, and it is still there, "
                    "held by others or kept. Put it anew, after freeing that one.", subject=buffer.id)


def _open(client: Client, wanted: Wanted, unwanted: Unwanted) -> Buffer:
    """With that access or, of a card, which is not written to, any."""
    def opened(access: str) -> Buffer:
        return client._open_buffer(wanted.name, wanted.id, wanted.owner, access, wanted.left(), wanted.label, unwanted)

    if wanted.access == "ro":
        return opened("ro")
    try:
        first = opened("ro")
    except errors.HandleUnsupportedError:  # memory that cannot be lent read-only
        return opened(wanted.access)
    if share.is_card(first.meta):
        return first
    with first:
        return client._open_buffer(None, first.id, wanted.owner, wanted.access, 0, wanted.label, unwanted)


def _is_sealed(client: Client, buffer: Buffer) -> Optional[bool]:
    """None: it is not, and nobody is left who could."""
    # The leases first: whoever has sealed it may have ended his before the next call.
    leases = [each for each in client.leases(buffer.name) if each.buffer == buffer.id and each.id != buffer.lease]
    if any(each.id == buffer.id and each.sealed for each in client.buffers(buffer.name)):
        return True
    return False if any(each.access == "rw" for each in leases) else None


def _wanted_still(unwanted: Unwanted) -> None:
    if unwanted():
        raise errors.ClosedError("Nobody waits for it any more.")


def _complete(client: Client, buffer: Buffer, wanted: Wanted, unwanted: Unwanted) -> bool:
    """Waits until a buffer that is to be sealed is. False: it never will be."""
    sealed = _is_sealed(client, buffer)
    while sealed is False:
        # More may happen than the daemon remembers: then it is looked at anew.
        with contextlib.suppress(errors.EventsLostError):
            sealed = _news(client, buffer, wanted, unwanted)
    return bool(sealed)


def _news(client: Client, buffer: Buffer, wanted: Wanted, unwanted: Unwanted) -> Optional[bool]:
    """Waits until it is sealed, or nobody is left who could: as _is_sealed()."""
    with client.watch() as watch:
        sealed = _is_sealed(client, buffer)

        def attempt(ms: int) -> bool:
            nonlocal sealed
            _wanted_still(unwanted)
            try:
                event = watch.next(ms / 1000)
            except errors.TimedOutError:
                return False
            if event.buffer is not None and event.buffer.id == buffer.id:
                sealed = True if event.buffer.sealed else _is_sealed(client, buffer)
            return sealed is not False

        if sealed is False and not in_slices(wanted.left(), attempt, always=True):
            raise errors.TimedOutError(f"{buffer.name or buffer.id} was not complete in time: its producer is still filling it. Give a "
                                       "longer wait.", subject="wait", name="gpuipc.TimedOut")
    return sealed


def _gone(client: Client, buffer: Buffer, wanted: Wanted, unwanted: Unwanted) -> bool:
    """Waits until the name of a buffer that will never be complete is free for another. False: it did not come to that."""
    buffer.close()

    def attempt(ms: int) -> bool:
        _wanted_still(unwanted)
        there = any(each.id == buffer.id for each in client.buffers(buffer.name))
        if there:
            time.sleep(min(ms, _LOOK_MS) / 1000)
        return not there

    return in_slices(wanted.left(), attempt, always=True)
