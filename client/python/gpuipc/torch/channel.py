# SPDX-License-Identifier: Apache-2.0
"""Tensors in channels: batches that go from producers to consumers by way of slots which both have mapped.

An item's metadata says what lies in its slot. One tensor is described as everywhere ({"tensor": {...}}, see `gpuipc.layout`), so that any
program that reads channels can read it. A batch of several is

    {"batch": {"v": 1, "tensors": [["float32", [64, 3, 224, 224], 0], ["int64", [64], 38535168]], "tree": {"u": [{"t": 0}, {"t": 1}]}}}

tensors: dtype, shape, byte in the slot, and strides where they are not row-major. tree: {"t": i} is tensor i, {"u": [...]} a tuple, [...] a
list, {"d": {...}} a dict; numbers, strings, true, false and null are themselves.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Callable, Optional, Union

import torch

from .. import errors
from ..array import Array
from ..channel import Channel, ChannelStats, Item
from ..client import Client
from ..errors import LayoutError
from ..layout import Layout, row_major
from . import _compat
from ._clients import client_for

VERSION = 1
ALIGNMENT = 256
_PLAIN = (str, int, float, bool, type(None))


# ---- batches and how they are written down ----


def _walk(batch: Any, leaf: Callable[[torch.Tensor], Any], where: str = "batch") -> Any:
    """The tree of a batch, `leaf` called for each tensor."""
    if isinstance(batch, torch.Tensor):
        return leaf(batch)
    if isinstance(batch, _PLAIN):
        return batch
    if type(batch) is tuple:
        return {"u": [_walk(each, leaf, f"{where}[{i}]") for i, each in enumerate(batch)]}
    if type(batch) is list:
        return [_walk(each, leaf, f"{where}[{i}]") for i, each in enumerate(batch)]
    if isinstance(batch, dict):
        wrong = next((key for key in batch if not isinstance(key, str)), None)
        if wrong is not None:
            raise TypeError(f"{where}: the key {wrong!r} is no str")
        return {"d": {key: _walk(each, leaf, f"{where}[{key!r}]") for key, each in batch.items()}}
    raise TypeError(f"{where}: tensors in tuples, lists and dicts are sent, with numbers and strings, not {type(batch).__name__}")


def _grow(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """A batch of its tree."""
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, list):
        return [_grow(each, tensors) for each in tree]
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, inside),) = tree.items()
        if kind == "t" and isinstance(inside, int) and 0 <= inside < len(tensors):
            return tensors[inside]
        if kind == "u" and isinstance(inside, list):
            return tuple(_grow(each, tensors) for each in inside)
        if kind == "d" and isinstance(inside, dict):
            return {key: _grow(each, tensors) for key, each in inside.items()}
    raise LayoutError("meta: the tree of a batch makes no sense.", subject="meta")


def cloned(batch: Any) -> Any:
    """The same with tensors of its own."""
    tensors: list[torch.Tensor] = []

    def clone(tensor: torch.Tensor) -> Any:
        tensors.append(tensor.clone())
        return {"t": len(tensors) - 1}

    return _grow(_walk(batch, clone), tensors)


class Plan:
    """Where the tensors of a batch lie in a slot.

    Attributes:
        layouts: of each, row-major or as it lies where that is without gaps.
        meta: the item's metadata.
        nbytes: what a slot must have room for.
    """

    def __init__(self, batch: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        self.layouts: list[Layout] = []
        self.nbytes = 0
        self.tree = tree = _walk(batch, self._add)
        if not self.tensors:
            raise TypeError("batch: there is no tensor in it")
        if len(self.tensors) == 1 and tree == {"t": 0}:
            self.meta = self.layouts[0].to_meta()
        else:
            self.meta = {"batch": {"v": VERSION, "tensors": [self._written(layout) for layout in self.layouts], "tree": tree}}

    def _add(self, tensor: torch.Tensor) -> Any:
        tensor = _compat.plain(tensor)
        like = _compat.copy_layout(tensor)
        start = (self.nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        layout = Layout(like.dtype, like.shape, like.strides, start)
        self.tensors.append(tensor)
        self.layouts.append(layout)
        self.nbytes = max(self.nbytes, layout.end)
        return {"t": len(self.tensors) - 1}

    @staticmethod
    def _written(layout: Layout) -> list[Any]:
        row: list[Any] = [layout.dtype, list(layout.shape), layout.offset]
        return row if layout.strides == row_major(layout.shape) else [*row, list(layout.strides)]

    def check(self, channel: Channel) -> None:
        """Raises InvalidParameterError where a slot, or its metadata, is too small."""
        if self.nbytes > channel.slot_bytes:
            raise errors.InvalidParameterError(f"batch: {self.nbytes} bytes do not fit into a slot of {channel.slot_bytes}. Make the "
                                               "channel with a larger slot_bytes.", subject="batch")
        n = len(json.dumps(self.meta, separators=(",", ":"), ensure_ascii=False).encode())
        if n > channel.meta_bytes:
            raise errors.InvalidParameterError(f"batch: its description takes {n} bytes, and an item of this channel has "
                                               f"{channel.meta_bytes} for that. Send fewer tensors at once, or shorter names.",
                                               subject="batch")


def _layouts_of(item: Item) -> tuple[list[Layout], Any]:
    meta = item.meta
    if "batch" not in meta:
        return [Layout.from_meta(meta, item.size)], {"t": 0}
    batch = meta["batch"]
    if not isinstance(batch, dict) or batch.get("v") != VERSION or not isinstance(batch.get("tensors"), list):
        raise LayoutError(f"meta: a batch that this package, which reads version {VERSION}, does not understand.", subject="meta")
    layouts = []
    for row in batch["tensors"]:
        if not isinstance(row, list) or len(row) not in (3, 4):
            raise LayoutError("meta: a tensor of a batch makes no sense.", subject="meta")
        layout = Layout.of(row[0], row[1], row[3] if len(row) == 4 else None, row[2])
        layout.check(item.size)
        layouts.append(layout)
    return layouts, batch.get("tree")


def _raw(item: Item) -> torch.Tensor:
    # Not item.array(), which would note in a producer's item that it is bytes.
    raw: torch.Tensor = Array(item._memory(), Layout.of("uint8", (item.size,))).torch()
    return raw


def batch_of(item: Item) -> Any:
    """The tensors of a taken item, in the shape in which they were sent. They are views of its slot.

    Raises:
        BrokenItemError: its producer died before it was whole. LayoutError: its metadata describes no tensors.
    """
    raw = _raw(item)
    layouts, tree = _layouts_of(item)
    return _grow(tree, [_compat.tensor_in(raw, layout) for layout in layouts])


# ---- the channel ----


class Received:
    """A batch in hand: `batch` is views of its slot, good until `release()` or the end of `with`."""

    def __init__(self, channel: TensorChannel, item: Item) -> None:
        self._channel, self.item = channel, item
        self.batch = batch_of(item)

    def __enter__(self) -> Any:
        return self.batch

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.release()

    def release(self) -> None:
        """The slot may be written to again once what was given to the current stream before is done. May be called again."""
        self.batch = None
        self.item.release(stream=self._channel.stream)


class TensorChannel:
    """A member of a channel that carries tensors, in the current stream of its GPU. Made by `create()` and `attach()`.

        channel = gpuipc.torch.channel.create("batches", like=batch, slots=4)      # a producer
        channel.send(batch)

        for images, labels in gpuipc.torch.channel.attach("batches"):              # a consumer
            ...

    Attributes:
        channel: the `gpuipc.Channel` itself.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.device = torch.device("cpu") if channel.device == "host" else torch.device("cuda", channel.cuda_device)

    def __repr__(self) -> str:
        return f"<gpuipc.torch.TensorChannel {self.channel.name or self.channel.id} on {self.device} as {self.channel.role}>"

    def __enter__(self) -> TensorChannel:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    @property
    def stream(self) -> Any:
        """The current stream on the channel's GPU; None on the host."""
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    @contextlib.contextmanager
    def slot(self, like: Any, timeout: Optional[float] = None) -> Iterator[Any]:
        """A slot to compute into, with nothing to copy: what lies in it goes to the consumers when the block ends, or to nobody when it
        ends by an exception.

            with channel.slot(like=(images, labels)) as (images, labels):
                torch.mul(source, 2, out=images)

        Args:
            like: a batch that says shapes, dtypes and strides, such as the last one; tensors on "meta" will do.
            timeout: seconds to wait for a slot; None: without end.

        Raises:
            TimedOutError; ClosedError; InvalidParameterError: it does not fit.
        """
        plan = Plan(like)
        plan.check(self.channel)
        item = self.channel.item(timeout, stream=self.stream)
        try:
            raw = _raw(item)
            yield _grow(plan.tree, [_compat.tensor_in(raw, layout) for layout in plan.layouts])
            item.meta = plan.meta
            item.publish(plan.nbytes, stream=self.stream)
        except BaseException:
            if item.in_hand:
                if self.device.type == "cuda":  # what it was given to write must not come later
                    self.stream.synchronize()
                item.cancel()
            raise

    def send(self, batch: Any, timeout: Optional[float] = None) -> int:
        """Copies a batch (a tensor, or tensors in tuples, lists and dicts, with numbers and strings) into a slot and publishes it: the
        ticket. Tensors may be on any device. Does not wait for the GPU.

        Raises:
            TimedOutError: no slot came free within `timeout` seconds. ClosedError: the channel was ended.
            InvalidParameterError: it does not fit. TypeError: there is something else in it.
        """
        plan = Plan(batch)
        plan.check(self.channel)
        item = self.channel.item(timeout, stream=self.stream)
        try:
            raw = _raw(item)
            for tensor, layout in zip(plan.tensors, plan.layouts):
                _compat.tensor_in(raw, layout).copy_(tensor, non_blocking=True)
            item.meta = plan.meta
            item.publish(plan.nbytes, stream=self.stream)
        except BaseException:
            if item.in_hand:
                if self.device.type == "cuda":
                    self.stream.synchronize()
                item.cancel()
            raise
        return item.ticket

    def receive(self, timeout: Optional[float] = None) -> Received:
        """The next batch.

            with channel.receive() as batch:
                ...

        Raises:
            TimedOutError; ClosedError: the channel was ended, and is empty; BrokenItemError: its producer died before it was whole, and
            the next can be received.
        """
        item = self.channel.take(timeout, stream=self.stream)
        try:
            return Received(self, item)
        except BaseException:
            item.release(stream=self.stream)
            raise

    def __iter__(self) -> Iterator[Any]:
        """Batches until the channel was ended and is empty. Each is views of its slot, which goes back when the next is asked for, or
        iterating ends: clone() what is to be kept."""
        while True:
            try:
                received = self.receive()
            except errors.ClosedError:
                return
            try:
                yield received.batch
            finally:
                received.release()

    def stats(self) -> ChannelStats:
        """The channel's figures."""
        return self.channel.stats()

    def end(self) -> None:
        """No more is sent, by anyone; consumers get what is there, then their loops end."""
        self.channel.end()

    def close(self) -> None:
        """Leaves, when the last view of a slot has ended. May be called again."""
        self.channel.close()


def _on(device: Any) -> Any:
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else contextlib.nullcontext()


def create(name: Optional[str] = None, *, like: Any = None, slot_bytes: Optional[int] = None, slots: int = 4, device: Any = None,
           kind: str = "queue", policy: str = "block", role: str = "producer", client: Optional[Client] = None,
           mode: Union[int, str, None] = None, keep: float = 0, wait: float = 0, label: Optional[str] = None) -> TensorChannel:
    """A new channel, and this process its first member.

    Args:
        name: by which others attach.
        like: a batch of the largest size, for slot_bytes and device.
        slot_bytes: the largest batch; each tensor begins at a multiple of 256 bytes. Exactly one of this and `like`.
        slots: batches that can be on their way at once.
        device: a torch device; None: where the first tensor of `like` lies, or else the current GPU, or host memory where there is none.
        kind: "queue" (each batch to one consumer) or "broadcast" (each to every one).
        policy: "block" or "drop_oldest".
        role: "producer" or "consumer".
        client, mode, keep, wait, label: as of `put()`.

    Raises:
        NameTakenError, OutOfMemoryError, QuotaExceededError, InvalidParameterError.
    """
    if (like is None) == (slot_bytes is None):
        raise TypeError("give exactly one of like and slot_bytes")
    plan = Plan(like) if like is not None else None
    room = max(1, plan.nbytes) if plan else slot_bytes
    assert room is not None
    if device is None:
        device = plan.tensors[0].device if plan else "cuda" if torch.cuda.is_available() else "cpu"
    client = client_for(client)
    with _on(device):
        where = _compat.device_name(client, torch.empty(0, device=device))
        return TensorChannel(client.channel_create(name, slot_bytes=room, slots=slots, kind=kind, policy=policy, role=role, device=where,
                                                   mode=mode, keep=keep, wait=wait, label=label, meta_bytes=1024))


def attach(name: str, *, role: str = "consumer", client: Optional[Client] = None, owner: Union[int, str, None] = None, wait: float = 0,
           device: Any = None, label: Optional[str] = None) -> TensorChannel:
    """Becomes a member of the channel of that name.

    Args:
        name: as of `create()`.
        role: "consumer" or "producer".
        owner: whose is wanted, a uid; None: one's own or root's; "any": anyone's.
        wait: seconds to wait for the name.
        device: the GPU to use it on; None: the current one.
        client, label: as of `put()`.

    Raises:
        NoSuchBufferError, TimedOutError, AccessDeniedError.
    """
    client = client_for(client)
    with _on(device) if device is not None else contextlib.nullcontext():
        return TensorChannel(client.channel_attach(name, role=role, owner=owner, wait=wait, label=label))
