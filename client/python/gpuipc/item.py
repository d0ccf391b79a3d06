# SPDX-License-Identifier: Apache-2.0
"""Items of channels: slots in hand, to be written or to be read."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from types import TracebackType
from typing import Any, Optional

from . import _copy, _cuda, _dlpack, _native, errors
from ._lifetime import Connection, Keeper, OfThisProcess
from .array import Array, Memory
from .fence import stream_handle
from .layout import Layout, dump_meta, parse_meta

_META_AT: int = _native.Item.meta.offset


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
            self._pointer, self.leaving = pointer, False  # as it was
        return status

    def drop_view(self, view: object) -> None:
        super().drop_view(view)
        self.end_if_left(wait=False)  # items refer to this, too, for longer than they are of use; and a finalizer may come here


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


class Item(OfThisProcess):
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
        self._in_hand = item.pointer is not None  # one may be broken and in hand
        self._lock = threading.RLock()
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
            BrokenItemError. ValueError: the channel is closed.
        """
        if self.broken:
            raise errors.BrokenItemError(f"Item {self.ticket} is broken: its producer (member {self.producer}) died before it was whole. "
                                         "Go on with the next.", subject="item")
        self._member.pointer  # noqa: B018
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
        dump_meta(value)
        self._own_meta = value

    def is_broken(self) -> bool:
        """Of a GPU's item, asked when the stream is past the take: whether its producer died before its stream had written it. What was
        read counts if not. Asked before that, False means that it is not known yet, and True that there is nothing to wait for."""
        with self._member.called() as pointer:
            return bool(_native.library().gpuipc_item_is_broken(pointer, ctypes.byref(self._item)))

    # ---- contents ----

    def _memory(self) -> Memory:
        ready_on = None if self._member.device == "host" else self._stream or 1
        return Memory(self._member, self.pointer, self.size, self._member.device, self._member.ordinal, not self._mine, stream=ready_on)

    def array(self, shape: Any = None, dtype: Any = None, strides: Any = None, offset: Optional[int] = None) -> Array:
        """A view of the slot. A consumer's without arguments: as the metadata says. A producer's: shape and dtype are put into the item's
        metadata, so that consumers find them. Arguments are as of `Buffer.array()`; without a dtype it is uint8.

        Raises:
            LayoutError: it cannot be, or does not fit. BrokenItemError.
        """
        memory = self._memory()
        if shape is None and dtype is None and strides is None and offset is None:
            layout = None if self._mine else _described(self.meta_bytes, self.size)
            layout = layout or Layout.of("uint8", (self.size,))
        else:
            layout = Layout.within(self.size, dtype if dtype is not None else "uint8", shape, strides, 0 if offset is None else offset)
        array = Array(memory, layout)
        if self._mine:
            self._layout, self._written = layout, max(self._written, layout.end)
        return array

    def memoryview(self) -> memoryview:
        """The slot's bytes, of host memory."""
        return Array(self._memory(), Layout.of("uint8", (self.size,))).memoryview()

    def read(self) -> bytes:
        """A copy of the item's bytes, whatever they lie on. BrokenItemError, MapError."""
        return Array(self._memory(), Layout.of("uint8", (self.size,))).tobytes()

    def write(self, data: Any, offset: int = 0) -> int:
        """Copies bytes of the buffer protocol into the slot; how many.

        Raises:
            InvalidParameterError: they do not fit.
        """
        source = _copy.bytes_of(data)
        (n,) = source.shape
        self._begin_writing(offset, n, "data")
        try:
            self._copy_in(offset, source.pointer, n)
        finally:
            self._member.end_call()
        self._written = max(self._written, offset + n)
        return n

    def _copy_in(self, offset: int, source: int, n: int) -> None:
        """From this process's memory."""
        if n and self._member.device == "host":
            ctypes.memmove(self.pointer + offset, source, n)
        elif n:
            _cuda.write(self._member.ordinal, self._stream, self.pointer + offset, source, n)

    def put(self, array: Any) -> None:
        """Copies an array (as of `Client.put()`) into the slot, with its shape and dtype in the metadata."""
        source = _copy.source_of(array)
        layout = _copy.layout_for(source)
        self._begin_writing(0, layout.nbytes, "array")
        try:
            if layout.nbytes and source.device[0] in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
                if self._member.device != "host":
                    _cuda.order(self._member.ordinal, self._stream or 1, 1)
                _copy.from_gpu(source, layout, self.pointer, self._member.ordinal)
            else:
                address, kept = _copy.gathered(source, layout)
                self._copy_in(0, address, layout.nbytes)
                del kept
        finally:
            self._member.end_call()
        self._layout, self._written = layout, max(self._written, layout.end)

    def _begin_writing(self, offset: int, n: int, what: str) -> None:
        """Before a copy to these bytes of the slot, which stays mapped until the member's end_call()."""
        if not self._mine or not self._in_hand:
            raise ValueError("only a producer writes, before it publishes")
        if _native.integer(offset, "offset") + n > self.size:
            raise errors.InvalidParameterError(f"{what}: {n} bytes at {offset} do not fit into a slot of {self.size}. Make the channel "
                                               "with larger slot_bytes.", subject=what)
        self._member.not_forked()
        self._member.begin_call()

    # ---- the end ----

    def __enter__(self) -> Item:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        if not self._in_hand:
            return
        if not self._mine:
            self.release()
        elif kind is not None:
            self.cancel()
        else:
            try:
                self.publish()
            except BaseException:
                with contextlib.suppress(errors.Error, ValueError):
                    self.cancel()
                raise

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
        n = _native.integer(size, "size") if size is not None else self._written if self._written or self._layout else self.size
        self._finish("gpuipc_channel_publish", n, text or None, len(text), stream=self._stream if stream is None else stream_handle(stream))

    def cancel(self) -> None:
        """Gives up what was begun. Nothing may still write to it, so have a stream finish first."""
        self._finish("gpuipc_channel_cancel")

    def release(self, stream: Any = None) -> None:
        """Gives the slot back, which may be written to once what was given to the stream before is done (None: the one that it was taken
        with). Does nothing where it was done already."""
        if self._in_hand:
            self._member.not_forked()
        with self._lock:
            if self._in_hand and self._member.ended:
                self._in_hand = False
            if self._in_hand:
                self._finish("gpuipc_channel_release", stream=self._stream if stream is None else stream_handle(stream))

    def _finish(self, function: str, *arguments: Any, stream: Optional[int] = None) -> None:
        self._member.not_forked()  # a lock may be somebody's who is not there
        with self._lock:  # the library takes an item back once, from one thread
            if not self._in_hand:
                raise ValueError("the item is no longer in hand")
            if self._mine == (function == "gpuipc_channel_release"):
                raise ValueError("a producer publishes or cancels, a consumer releases")
            with self._member.called() as pointer, _cuda.for_stream(self._member.ordinal, stream):
                _native.call(function, pointer, ctypes.byref(self._item), *arguments, *(() if stream is None else (stream,)))
                self._member.drop_view(self)  # which it was if it was taken while the channel was closed
            self._in_hand = False
