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
_REMEMBERED = 1024  # plans, and views of slots


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


def _key(batch: Any) -> Any:
    """Equal for batches that lie alike in a slot and have equal numbers and strings; to be hashed."""
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided:
            _compat.plain(batch)
        return batch.dtype, batch.shape, batch.stride()
    if isinstance(batch, (tuple, list)):
        return type(batch), tuple([_key(each) for each in batch])
    if isinstance(batch, dict):
        return dict, tuple([(key, _key(each)) for key, each in batch.items()])
    return type(batch), batch if isinstance(batch, _PLAIN) else id(batch)


def _leaves(batch: Any, into: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a batch, in the order of its tree."""
    if isinstance(batch, torch.Tensor):
        into.append(batch)
    elif isinstance(batch, (tuple, list)):
        for each in batch:
            _leaves(each, into)
    elif isinstance(batch, dict):
        for each in batch.values():
            _leaves(each, into)
    return into


class Plan:
    """Where the tensors of a batch lie in a slot.

    Attributes:
        layouts: of each, row-major or as it lies where that is without gaps.
        tree: the batch with {"t": i} in place of tensor i.
        meta: the item's metadata, and `text`, the same as JSON.
        device: the first tensor's.
        nbytes: what a slot must have room for.
    """

    def __init__(self, batch: Any) -> None:
        self.layouts: list[Layout] = []
        self.device: Optional[torch.device] = None
        self.nbytes = 0
        self.tree = _walk(batch, self._add)
        if not self.layouts:
            raise TypeError("batch: there is no tensor in it")
        if self.tree == {"t": 0}:
            self.meta = self.layouts[0].to_meta()
        else:
            self.meta = {"batch": {"v": VERSION, "tensors": [self._written(layout) for layout in self.layouts], "tree": self.tree}}
        self.text = json.dumps(self.meta, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def _add(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "meta":
            tensor = _compat.plain(tensor)
        like = _compat.copy_layout(tensor)
        start = (self.nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.layouts.append(Layout(like.dtype, like.shape, like.strides, start))
        self.device = self.device or tensor.device
        self.nbytes = max(self.nbytes, self.layouts[-1].end)
        return {"t": len(self.layouts) - 1}

    @staticmethod
    def _written(layout: Layout) -> list[Any]:
        row: list[Any] = [layout.dtype, list(layout.shape), layout.offset]
        return row if layout.strides == row_major(layout.shape) else [*row, list(layout.strides)]

    def check(self, channel: Channel) -> None:
        """Raises InvalidParameterError where a slot, or its metadata, is too small."""
        if self.nbytes > channel.slot_bytes:
            raise errors.InvalidParameterError(f"batch: {self.nbytes} bytes do not fit into a slot of {channel.slot_bytes}. Make the "
                                               "channel with a larger slot_bytes.", subject="batch")
        if len(self.text) > channel.meta_bytes:
            raise errors.InvalidParameterError(f"batch: its description takes {len(self.text)} bytes, and an item of this channel has "
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


# ---- the channel ----


class Received:
    """A batch in hand: `batch` is views of its slot, good until `release()` or the end of `with`."""

    def __init__(self, channel: TensorChannel, item: Item) -> None:
        self._channel, self.item = channel, item
        self.batch = channel.batch_of(item)

    def __enter__(self) -> Any:
        return self.batch

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.release()

    def release(self) -> None:
        """The slot may be written to again once what was given to the current stream before is done. May be called again."""
        self.batch = None
        self.item.release(self._channel.stream)


class TensorChannel:
    """A member of a channel that carries tensors, in the current stream of its GPU. Made by `create()` and `attach()`.

        channel = gpuipc.torch.channel.create("batches", like=batch, slots=4)      # a producer
        channel.send(batch)

        for images, labels in gpuipc.torch.channel.attach("batches"):              # a consumer
            ...

    Attributes:
        channel: the `gpuipc.Channel` itself.
        device: where its slots lie, a torch.device.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.device = torch.device("cpu") if channel.device == "host" else torch.device("cuda", channel.cuda_device)
        self._on_gpu = self.device.type == "cuda"
        # A slot's address never changes, so the tensors in it are made once for each slot and layout.
        self._plans: dict[Any, Plan] = {}
        self._views: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<gpuipc.torch.TensorChannel {self.channel.name or self.channel.id} on {self.device} as {self.channel.role}>"

    def __enter__(self) -> TensorChannel:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    @property
    def stream(self) -> int:
        """The handle of the current stream on the channel's GPU; 0 on the host."""
        return int(torch.cuda.current_stream(self.device).cuda_stream) if self._on_gpu else 0

    def _plan(self, batch: Any) -> tuple[Any, Plan]:
        key = _key(batch)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(batch)
            plan.check(self.channel)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
        return key, plan

    def _tensors(self, key: Any, item: Item, layouts: list[Layout]) -> list[torch.Tensor]:
        raw = _raw(item)
        if len(self._views) >= _REMEMBERED:
            self._views.clear()
        tensors = self._views[key] = [_compat.tensor_in(raw, layout) for layout in layouts]
        return tensors

    def _in_slot(self, key: Any, plan: Plan, item: Item) -> list[torch.Tensor]:
        key = item.slot, key
        known: Optional[list[torch.Tensor]] = self._views.get(key)
        return known if known is not None else self._tensors(key, item, plan.layouts)

    def batch_of(self, item: Item) -> Any:
        """The tensors of a taken item, in the shape in which they were sent. They are views of its slot.

        Raises:
            BrokenItemError: its producer died before it was whole. LayoutError: its metadata describes no tensors.
        """
        key = item.slot, item.size, item.meta_bytes
        known = self._views.get(key) if not item.broken else None
        if known is None:
            item.pointer  # noqa: B018 - of a broken one this raises
            layouts, tree = _layouts_of(item)
            known = self._tensors(key, item, layouts), tree
            _grow(tree, known[0])
            self._views[key] = known
        tensors, tree = known
        return _grow(tree, [tensor.detach() for tensor in tensors])  # what the user does to the objects themselves stays his

    def _publish(self, item: Item, plan: Plan) -> None:
        item._finish("gpuipc_channel_publish", plan.nbytes, plan.text, len(plan.text), self.stream)

    def _give_up(self, item: Item) -> None:
        if item.in_hand:
            if self._on_gpu:  # what it was given to write must not come later
                torch.cuda.current_stream(self.device).synchronize()
            item.cancel()

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
        key, plan = self._plan(like)
        item = self.channel.item(timeout, stream=self.stream)
        try:
            yield _grow(plan.tree, [tensor.detach() for tensor in self._in_slot(key, plan, item)])
            self._publish(item, plan)
        except BaseException:
            self._give_up(item)
            raise

    def send(self, batch: Any, timeout: Optional[float] = None) -> int:
        """Copies a batch (a tensor, or tensors in tuples, lists and dicts, with numbers and strings) into a slot and publishes it: the
        ticket. Tensors may be on any device. Does not wait for the GPU.

        Raises:
            TimedOutError: no slot came free within `timeout` seconds. ClosedError: the channel was ended.
            InvalidParameterError: it does not fit. TypeError: there is something else in it.
        """
        key, plan = self._plan(batch)
        item = self.channel.item(timeout, stream=self.stream)
        try:
            with torch.no_grad():
                for into, tensor in zip(self._in_slot(key, plan, item), _leaves(batch, [])):
                    into.copy_(tensor, non_blocking=tensor.is_cuda)  # of host memory the caller may make the next
            self._publish(item, plan)
        except BaseException:
            self._give_up(item)
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
            item.release(self.stream)
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
        self._views.clear()
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
        device = plan.device if plan else "cuda" if torch.cuda.is_available() else "cpu"
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
