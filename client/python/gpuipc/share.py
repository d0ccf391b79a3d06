# SPDX-License-Identifier: Apache-2.0
"""Shares: names and ids for a tensor that lies anywhere in a buffer which is there already.

A buffer's name, mode and metadata are given when it is made, before anything was written to it, and it may hold more than one tensor. So
what is handed out is a card: a buffer of one page in host memory, made when the tensor is whole, whose metadata says

    {"share": {"v": 1, "buffer": "b12", "tensor": {"v": 1, "dtype": "float32", "shape": [2, 3], "offset": 4096}}}

"tensor" is as `gpuipc.layout` has it; the offset counts from the buffer's first byte. Who wants the tensor opens the card, then the buffer,
and keeps a lease on both: the leases on a card are those on its share.
"""

from __future__ import annotations

import reprlib
from typing import Any, Optional, Union

from .buffer import Buffer
from .client import Client
from .errors import AccessDeniedError, Error, LayoutError, NoSuchBufferError, NoSuchDeviceError
from .layout import Layout

VERSION = 1


def is_card(meta: dict[str, Any]) -> bool:
    """Whether a buffer's metadata is a card's."""
    return isinstance(meta.get("share"), dict)


def publish(client: Client, name: Optional[str], buffer: str, layout: Layout, *, device: Optional[str] = None,
            mode: Union[int, str, None] = None, keep: float = 0, label: Optional[str] = None) -> Buffer:
    """A new card for a tensor that is complete, in the buffer of that id. It lies in host memory, or on `device` where the daemon has none.

    Raises:
        NameTakenError, QuotaExceededError, InvalidParameterError: as of `Client.allocate()`.
    """
    meta = {"share": {"v": VERSION, "buffer": buffer, **layout.to_meta()}}
    try:
        return client.allocate(1, device="host", name=name, mode=mode, meta=meta, keep=keep, label=label)
    except NoSuchDeviceError:  # it serves GPUs alone (--backend cuda)
        return client.allocate(1, device=device, name=name, mode=mode, meta=meta, keep=keep, label=label)


def read(card: Buffer) -> tuple[str, Layout]:
    """The id of the buffer that a card names, and the tensor's layout there.

    Raises:
        LayoutError: the card makes no sense.
    """
    share = card.meta["share"]
    if share.get("v") != VERSION:
        raise LayoutError(f"meta: a share described by version {reprlib.repr(share.get('v'))}, and this package reads {VERSION}. Install a "
                          "newer one.", subject="meta")
    if not isinstance(share.get("buffer"), str) or not share["buffer"]:
        raise LayoutError("meta: a share without a buffer.", subject="meta")
    return share["buffer"], Layout.from_meta(share)


def open_as(client: Client, id: str, access: str, label: Optional[str] = None) -> Buffer:
    """Opens a buffer by its id. One that may be read and not written to is, for who wants to write, as if it were not there; here that is
    AccessDeniedError."""
    try:
        return client.open(id=id, access=access, label=label)
    except NoSuchBufferError as error:
        if access != "rw":
            raise
        try:
            client.open(id=id, access="ro", label=label).close()
        except Error:
            raise error from None
        raise AccessDeniedError(f"The buffer {id} is another user's, and its mode lets this one read it, not write. Ask with "
                                'access="ro".', name="io.gpuipc.Broker.AccessDenied", subject=id) from error


def follow(client: Client, card: Buffer, access: str = "rw", label: Optional[str] = None) -> tuple[Buffer, Layout]:
    """The buffer that a card names, with a lease of its own, and the tensor's layout in it. The card's lease ends after that lease.

    Raises:
        NoSuchBufferError: the memory is gone: it was a pool's, whose process ended.
        LayoutError: the card makes no sense, or its tensor does not lie inside the buffer.
        AccessDeniedError, AlreadySealedError: as of `Client.open()`.
    """
    id, layout = read(card)
    try:
        buffer = open_as(client, id, access, label)
    except NoSuchBufferError as error:
        raise NoSuchBufferError(f"The share {card.name or card.id} is there, but its memory is not: the process that it was made in has "
                                "ended, or gives it up just now. What a pool() or empty() with keep= has made outlives its process.",
                                name=error.name, subject=id) from error
    try:
        layout.check_foreign(buffer.size)
        lease: Any = buffer._held()
        lease.card = card
    except BaseException:
        buffer.close()
        raise
    return buffer, layout
