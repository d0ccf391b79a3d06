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
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional, Union

import torch

from .. import errors
from .._lifetime import OfThisProcess
from ..array import Array
from ..channel import Channel, ChannelStats, Item
from ..client import Client
from ..layout import Layout
from . import _compat
from ._batch import Plan, grow, key_of, layouts_of, leaves
from ._clients import client_for

_REMEMBERED = 1024  # plans, and views of slots


def _raw(item: Item) -> torch.Tensor:
    # Not item.array(), which would note in a producer's item that it is bytes.
    raw: torch.Tensor = Array(item._memory(), Layout.of("uint8", (item.size,))).torch()
    return raw


class Received(OfThisProcess):
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


class TensorChannel(OfThisProcess):
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
        key = key_of(batch)
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(batch)
            plan.check(self.channel)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
        return key, plan

    @staticmethod
    def _tensors(item: Item, layouts: list[Layout]) -> list[torch.Tensor]:
        raw = _raw(item)
        return [_compat.tensor_in(raw, layout) for layout in layouts]

    def _remember(self, key: Any, views: Any) -> None:
        if len(self._views) >= _REMEMBERED:
            self._views.clear()
        self._views[key] = views
        if self.channel.closed:  # by another thread, after whose close() nothing holds the channel any more
            self._views.clear()

    def _in_slot(self, key: Any, plan: Plan, item: Item) -> list[torch.Tensor]:
        key = item.slot, key
        known: Optional[list[torch.Tensor]] = self._views.get(key)
        if known is None:
            known = self._tensors(item, plan.layouts)
            self._remember(key, known)
        return known

    def batch_of(self, item: Item) -> Any:
        """The tensors of a taken item, in the shape in which they were sent. They are views of its slot.

        Raises:
            BrokenItemError: its producer died before it was whole. LayoutError: its metadata describes no tensors.
        """
        key = item.slot, item.size, item.meta_bytes
        known = self._views.get(key) if not item.broken else None
        if known is None:
            item.pointer  # noqa: B018 - of a broken one this raises
            layouts, tree = layouts_of(item)
            known = self._tensors(item, layouts), tree
            grow(tree, known[0])
            self._remember(key, known)
        tensors, tree = known
        return grow(tree, [tensor.detach() for tensor in tensors])  # what the user does to the objects themselves stays his

    def _publish(self, item: Item, plan: Plan) -> None:
        item._finish("gpuipc_channel_publish", plan.nbytes, plan.text, len(plan.text), stream=self.stream)

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
            yield grow(plan.tree, [tensor.detach() for tensor in self._in_slot(key, plan, item)])
            self._publish(item, plan)
        except BaseException:
            self._give_up(item)
            raise

    def send(self, batch: Any, timeout: Optional[float] = None) -> int:
        """Copies a batch (a tensor, or tensors in tuples, lists and dicts, with numbers and strings) into a slot and publishes it: the
        ticket. Tensors may be on any device. Does not wait for the GPU, but where a tensor of host memory goes to a GPU: until the slot's
        readers are done with it, whatever the timeout.

        Raises:
            TimedOutError: no slot came free within `timeout` seconds. ClosedError: the channel was ended.
            InvalidParameterError: it does not fit. TypeError: there is something else in it.
        """
        key, plan = self._plan(batch)
        item = self.channel.item(timeout, stream=self.stream)
        try:
            with torch.no_grad():
                for into, tensor in zip(self._in_slot(key, plan, item), leaves(batch, [])):
                    if tensor.is_cuda and self._on_gpu and tensor.device != self.device:
                        # Between GPUs PyTorch has the tensor's own copy, which does not reach the slot.
                        tensor = tensor.to(self.device, non_blocking=True)
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
        self._views.clear()  # what another thread has made meanwhile


def _on(device: Optional[torch.device]) -> Any:
    return torch.cuda.device(device) if device and device.type == "cuda" else contextlib.nullcontext()


def create(name: Optional[str] = None, *, like: Any = None, slot_bytes: Optional[int] = None, slots: int = 4, device: Any = None,
           kind: str = "queue", policy: str = "block", role: str = "producer", client: Optional[Client] = None,
           mode: Union[int, str, None] = None, keep: float = 0, wait: float = 0, label: Optional[str] = None) -> TensorChannel:
    """A new channel, and this process its first member.

    Args:
        name: by which others attach.
        like: a batch of the largest size, for slot_bytes and device.
        slot_bytes: the largest batch; each tensor begins at a multiple of 256 bytes. Exactly one of this and `like`.
        slots: batches that can be on their way at once.
        device: a torch device; None: where the first tensor of `like` lies, or where that is "meta" or not given the current GPU, or host
            memory where there is none.
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
    if device is None and plan and plan.device and plan.device.type != "meta":
        device = plan.device
    client, where = client_for(client), _compat.placed(device)
    with _on(where):
        return TensorChannel(client.channel_create(name, slot_bytes=room, slots=slots, kind=kind, policy=policy, role=role,
                                                   device=_compat.device_name(client, where), mode=mode, keep=keep, wait=wait, label=label,
                                                   meta_bytes=1024))


def attach(name: str, *, role: str = "consumer", client: Optional[Client] = None, owner: Union[int, str, None] = None, wait: float = 0,
           device: Any = None, label: Optional[str] = None) -> TensorChannel:
    """Becomes a member of the channel of that name.

    Args:
        name: as of `create()`.
        role: "consumer" or "producer".
        owner: whose is wanted, a uid; None: one's own or root's; "any": anyone's.
        wait: seconds to wait for the name.
        device: the GPU to use it on; None: the current one, or the channel's own where none was used yet.
        client, label: as of `put()`.

    Raises:
        NoSuchBufferError, TimedOutError, AccessDeniedError.
    """
    client = client_for(client)
    where = _compat.placed(device) if device is not None else None
    with _on(where):
        if where and where.type == "cuda":
            torch.cuda.mem_get_info(where)  # where PyTorch takes it for current already and never used it, it has no context yet
        return TensorChannel(client.channel_attach(name, role=role, owner=owner, wait=wait, label=label))
