# SPDX-License-Identifier: Apache-2.0
"""A DataLoader whose batches another process makes: `feed()` there, `ChannelLoader` here."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Optional, Union

from .. import errors
from .._lifetime import OfThisProcess
from ..client import Client
from ..layout import ELEMENTS_MAX
from ._batch import cloned
from .channel import TensorChannel, attach

_EPOCH = "epoch"


def _tensors_in(channel: Any) -> TensorChannel:
    """TypeError: it is another kind of channel, or none."""
    if not isinstance(channel, TensorChannel):
        raise TypeError(f"channel: a gpuipc.torch.TensorChannel is wanted, not {type(channel).__name__}: gpuipc.torch.channel.create() and "
                        "attach() make them")
    return channel


def feed(channel: TensorChannel, batches: Iterable[Any], *, timeout: Optional[float] = None, last: bool = False) -> int:
    """Sends what an iterable gives (such as a torch.utils.data.DataLoader), then the end of the epoch: how many batches that were.

        for epoch in range(3):
            gpuipc.torch.data.feed(channel, loader)
        channel.end()

    Args:
        timeout: seconds to wait for a slot, for each batch; None: without end.
        last: ends the channel too.

    Raises:
        ValueError: the channel is a queue with several consumers, of whom but one would hear that the epoch is over: have a channel each,
            or a broadcast.
        TimedOutError, ClosedError, InvalidParameterError: as of `TensorChannel.send()`.
    """
    n = 0
    _tensors_in(channel)
    for batch in batches:
        channel.send(batch, timeout)
        n += 1
    end_epoch(channel, n, timeout)
    if last:
        channel.end()
    return n


def end_epoch(channel: TensorChannel, batches: int = 0, timeout: Optional[float] = None) -> None:
    """Tells consumers that an epoch, of so many batches, is over. Errors as of `feed()`."""
    stats = _tensors_in(channel).stats()
    consumers = sum(member.role == "consumer" and member.alive for member in stats.members)
    if channel.channel.kind == "queue" and consumers > 1:
        raise ValueError(f"the channel is a queue with {consumers} consumers, and the end of an epoch would reach one of them: have a "
                         "channel for each, or a broadcast")
    with channel.channel.item(timeout, stream=channel.stream) as item:
        item.meta = {_EPOCH: batches}
        item.publish(0, stream=channel.stream)


def _batches_of(meta: dict[str, Any]) -> Optional[int]:
    """Of an item that ends an epoch, how many batches that had; None: it is a batch, whose metadata may say of what epoch.

    Raises:
        LayoutError: it makes no sense.
    """
    if _EPOCH not in meta or "tensor" in meta or "batch" in meta:
        return None
    n = meta[_EPOCH]
    if type(n) is not int or not 0 <= n <= ELEMENTS_MAX:
        raise errors.LayoutError(f"meta: an epoch of {reprlib.repr(n)} batches makes no sense.", subject="meta")
    return n


class ChannelLoader(OfThisProcess):
    """Iterates over the batches that another process feeds, an epoch a loop, as one does over a torch.utils.data.DataLoader.

        loader = gpuipc.torch.data.ChannelLoader("batches", wait=30)
        for epoch in range(3):
            for images, labels in loader:
                ...

    A loop ends with the epoch, or when the channel was ended. It does not when all producers have died or left, since others may come:
    `timeout` ends the wait for those.

    Args:
        channel: a name to attach to, or a `TensorChannel`.
        copy: False: batches are views of their slots, good until the next is asked for. True: clones, which may be kept and written to, and
            the slot goes back at once.
        broken: of a batch whose producer died: "raise" BrokenItemError, after which one may iterate on; or "skip" it.
        timeout: seconds to wait for each batch; None: without end. TimedOutError says whether there is a producer.
        length: what len() says; None: as many as the last complete epoch had.
        client, owner, wait, device: as of `attach()`.

    Attributes:
        epoch: epochs that have ended.
        skipped: broken batches that were skipped.
    """

    def __init__(self, channel: Union[str, TensorChannel], *, copy: bool = False, broken: str = "raise", timeout: Optional[float] = None,
                 length: Optional[int] = None, client: Optional[Client] = None, owner: Union[int, str, None] = None, wait: float = 0,
                 device: Any = None) -> None:
        if broken not in ("raise", "skip"):
            raise errors.InvalidParameterError(f'broken: {broken!r} is neither "raise" nor "skip".', subject="broken")
        self.channel = attach(channel, client=client, owner=owner, wait=wait, device=device) if isinstance(channel, str) else (
            _tensors_in(channel))
        self._copy, self._skip, self._timeout, self._length = copy, broken == "skip", timeout, length
        self._over = False
        self.epoch = self.skipped = 0

    def __enter__(self) -> ChannelLoader:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("how many batches there are is not known before an epoch was seen whole: give length=")
        return self._length

    @property
    def over(self) -> bool:
        """Whether the channel was ended and all was read: there is no further epoch."""
        return self._over

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                item = self.channel.channel.take(self._timeout, stream=self.channel.stream)
            except errors.ClosedError:
                self._over = True
                return
            try:
                if item.broken and self._skip:
                    self.skipped += 1
                    continue
                batches = None if item.broken else _batches_of(item.meta)
                if batches is not None:
                    self.epoch += 1
                    self._length = batches
                    return
                batch = self.channel.batch_of(item)
                if self._copy:
                    batch = cloned(batch)
                else:
                    yield batch
            finally:
                item.release(self.channel.stream)
            if self._copy:
                yield batch
            del batch

    def close(self) -> None:
        """Leaves the channel."""
        self.channel.close()
