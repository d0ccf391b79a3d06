# SPDX-License-Identifier: Apache-2.0
"""put() and get(): a tensor by name or id, from one process to any number of others."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Optional, Union

import torch

from .. import errors
from .._arguments import check_access
from .._lifetime import OfThisProcess
from ..array import Array
from ..buffer import Buffer
from ..client import Client
from ..layout import Layout
from ..share import follow, is_card, open_as, publish
from . import _compat
from . import _pool as pools
from ._clients import client_for
from ._reaper import Reaper

# What has a name stays until it is closed, or this process ends; what has none ends with its Share.
_named: set[Share] = set()
# Tensors of shares that are over, until the last of the other side's leases is. By the card's id.
_pinned: dict[tuple[int, str], Any] = {}


def pin(reaper: Reaper, card: str, what: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
    """A tensor's memory is not given out again before the card, and with it the last lease on the share, is gone."""
    key = os.getpid(), card
    _pinned[key] = what
    reaper.expect(card, "freed", lambda: _pinned.pop(key, None))


def give_up(client: Client, id: str) -> None:
    """Nobody opens that buffer any more, nor is it kept: it ends with the last lease."""
    # A client that was closed, or a daemon that is away: the end of the lease is the end of it.
    with contextlib.suppress(errors.Error, ValueError):
        client.free(id=id)


def pinned() -> int:
    """How many tensors' memory is kept for those who have them."""
    return sum(pid == os.getpid() for pid, _ in list(_pinned))


class Share(OfThisProcess):
    """A tensor that others can get, by `name` or by `id`. Made by `put()`.

    While it is open, others may get it. `close()`, leaving `with`, or for one without a name the end of this object, takes name and id
    away; who has the tensor keeps it.

    Attributes:
        tensor: the shared memory as a tensor: what is written to it is what others see.
        copied: whether it is a copy of what was given to put().
        reason: why it was copied; "" where it was not.
        name: as it was given; None: none.
        id: for get(id=).
        buffer: the id of the buffer that it lies in.
    """

    def __init__(self, client: Client, tensor: torch.Tensor, reason: str, name: Optional[str], buffer: str) -> None:
        self.tensor, self.copied, self.reason = tensor, bool(reason), reason
        self.name, self.buffer = name, buffer
        self.id = ""
        self._client, self._pid = client, os.getpid()
        self._card: Optional[Buffer] = None
        self._held: list[torch.Tensor] = []
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        how = "copied" if self.copied else "not copied"
        closed = ", closed" if self._card is None else ""
        return f"<gpuipc.torch.Share {self.name or self.id} in {self.buffer}, {how}{closed}>"

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def _publish(self, layout: Layout, device: str, mode: Union[int, str, None], keep: float, label: Optional[str]) -> None:
        if self.copied:
            card = publish(self._client, self.name, self.buffer, layout, device=device, mode=mode, keep=keep, label=label)
        else:
            with Reaper.of(self._client).listening() as reaper:
                card = publish(self._client, self.name, self.buffer, layout, device=device, mode=mode, keep=keep, label=label)
                pin(reaper, card.id, (self.tensor, self._held))
        self._card, self.id = card, card.id
        if self.name is not None:
            _named.add(self)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._card is None

    def close(self) -> None:
        """Nobody gets it any more. Memory that was not copied stays untouched until the last who had got it is done with it. May be called
        again."""
        if self._pid != os.getpid():  # whose lock somebody may have who is not there
            self._card = None
            return
        with self._lock:
            card, self._card = self._card, None
        if card is None:
            return
        _named.discard(self)
        give_up(self._client, card.id)
        if self.copied and pools.forget(self.tensor):  # made for this share alone, and kept for who might have got it
            give_up(self._client, self.buffer)
        card.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and getattr(self, "_card", None) is not None:
            self.close()


def _copy(client: Client, tensor: torch.Tensor, handle: Optional[str], mode: Union[int, str, None], keep: float, wait: float,
          label: Optional[str], hold: bool = False) -> tuple[Buffer, torch.Tensor, Layout]:
    """A new buffer, the tensor in it, and how that lies. `hold`: the Buffer is left open."""
    layout = _compat.copy_layout(tensor)
    buffer = client.allocate(max(1, layout.nbytes), device=_compat.device_name(client, tensor.device), handle=handle, mode=mode, keep=keep,
                             wait=wait, meta=layout.to_meta(), label=label)
    try:
        raw = _compat.bytes_of(buffer)
        if not hold:  # what is held is on its way to one receiver, and cannot be shared once more
            pools.remember(raw, buffer)
        shared = _compat.tensor_in(raw, layout)
        shared.copy_(tensor)
    except BaseException:
        hold = False
        give_up(client, buffer.id)
        raise
    finally:
        if not hold:
            buffer.close()
    return buffer, shared, layout


def put(tensor: torch.Tensor, name: Optional[str] = None, *, client: Optional[Client] = None, copy: Optional[bool] = None,
        neighbours: bool = False, seal: bool = False, handle: Optional[str] = None, mode: Union[int, str, None] = None, keep: float = 0,
        wait: float = 0, label: Optional[str] = None) -> Share:
    """Shares a tensor, so that any process of this host can `get()` it.

        share = gpuipc.torch.put(tensor, "weights")

    A tensor that was made in a `pool()` is shared where it lies, if no other tensor lies or may come to lie beside it in its block: whoever
    gets it could read and write those too. Any other tensor is copied, once and within its device, to a buffer of its own; `Share.copied`
    and `Share.reason` tell.

    Args:
        tensor: on a GPU or in host memory, of any dtype with a name in `gpuipc.layout`, dense (not sparse, not quantized).
        name: letters, digits and "._/-", at most 128 of them. What has a name stays shared until `Share.close()`, or until this
            process ends, even when the Share is dropped. None: it is got by `Share.id` and ends with the Share.
        client: None: the process's own, to the socket of $GPUIPC_SOCKET or else the usual one.
        copy: True: always. False: never; BufferError where it would have to be.
        neighbours: what lies beside it in its block may be seen, and is given away with it.
        seal: nobody else may write to it: get() with access="ro". Of a copy only.
        handle: of a copy; None: "cuda-fd" on a GPU. "cuda-ipc" for programs that know only classic handles.
        mode: who may get it, as a Unix mode; None: "0600", this user's processes. Where it is not copied, its pool's mode counts as well.
        keep: seconds that it stays after this process has ended, once. Where it is not copied, its pool's keep counts as well.
        wait: seconds to wait for memory or quota for a copy.
        label: shown in lists.

    What this thread gave to the tensor's GPU before, in its current stream, is done when it returns, so whoever gets it sees it whole.

    Raises:
        NameTakenError: close the other share first.
        BufferError: copy=False of a tensor that cannot be shared where it lies; says why.
        OutOfMemoryError, QuotaExceededError, NoSuchDeviceError, UnreachableError.
    """
    client = client_for(client)
    tensor = _compat.plain(tensor)
    found, reason, held = (None, "copy=True was given", []) if copy else pools.survey(tensor, neighbours)
    if seal and not reason:
        raise ValueError("seal: this tensor is shared where it lies, in a block that later tensors will use. Give copy=True.")
    if found is not None and not pools.prepare(tensor, found, neighbours):
        found, reason = None, pools.GIVEN_UP
    if reason and copy is False:
        raise BufferError(f"the tensor cannot be shared where it lies: {reason}")
    if reason:
        buffer, shared, layout = _copy(client, tensor, handle, mode, keep, wait, label)
        where = buffer.id
    else:
        assert found is not None
        where, shared = found.buffer, tensor
        layout = _compat.layout_of(tensor, tensor.data_ptr() - found.pointer if tensor.numel() else 0)
    try:
        _compat.settle(tensor)
        if seal:
            client.seal(where)
        share = Share(client, shared, reason, name, where)
        share._held = held
        share._publish(layout, _compat.device_name(client, tensor.device), mode, keep, label)
    except BaseException:
        if reason:
            give_up(client, where)
        raise
    return share


def get(name: Optional[str] = None, *, id: Optional[str] = None, client: Optional[Client] = None, owner: Union[int, str, None] = None,
        access: str = "rw", wait: float = 0, label: Optional[str] = None) -> torch.Tensor:
    """The tensor that another process has put: the same memory, nothing copied.

        tensor = gpuipc.torch.get("weights", wait=30)

    The tensor holds a lease, which ends with the last view of its memory; nothing else needs to be kept or closed. It is on the GPU that
    holds it, whichever is current, or on the current one, by peer access, where that GPU is hidden from this process. It is mapped for that
    GPU alone, and PyTorch has the source's GPU copy between two: `tensor.copy_(other.to(tensor.device))`, and that outside of pools, whose
    memory is mapped likewise. What `Client.put()` has put can be got too.

    Args:
        name: exactly one of name and id.
        id: `Share.id`.
        client: None: the process's own, as of put().
        owner: by name: whose is wanted, a uid. None: one's own or root's. "any": anyone's.
        access: "rw", or "ro" for what is sealed or not one's own to write. PyTorch knows no read-only tensors: writing to one that was got
            "ro" ends this process (SIGSEGV) in host memory, and its CUDA context on a GPU.
        wait: seconds to wait for the name.
        label: shown in lists.

    Raises:
        NoSuchBufferError, TimedOutError: there is none of that name, or none that one may know of.
        AccessDeniedError, AlreadySealedError: ask with access="ro".
        LayoutError: the buffer holds no tensor, or one of a dtype that this PyTorch does not have.
    """
    client = client_for(client)
    check_access(access)
    # A card is only read, whoever's it is.
    first = client.open(name, id=id, owner=owner, access="ro", wait=wait, label=label)
    if is_card(first.meta):
        return through(client, first, access, label)
    with first:
        if access == "rw":
            open_as(client, first.id, access, label).close()  # or it says why not
        with _compat.on_its_gpu(first.device):
            array = client.get(id=first.id, access=access, wait=wait, label=label)  # waits for what is still being filled
        return _compat.tensor_in(Array(array._memory, Layout.of("uint8", (array._memory.size,))).torch(), array.layout)


def through(client: Client, card: Buffer, access: str = "rw", label: Optional[str] = None) -> torch.Tensor:
    """The tensor that a card names."""
    buffer, layout = follow(client, card, access, label)
    with buffer:
        return _compat.tensor_in(_compat.bytes_of(buffer), layout)


def directly(buffer: Buffer) -> torch.Tensor:
    """The tensor that is a buffer's own; the Buffer is closed."""
    with buffer:
        layout = Layout.from_meta(buffer.meta, buffer.size)
        return _compat.tensor_in(_compat.bytes_of(buffer), layout)


def empty(*size: Any, dtype: Optional[torch.dtype] = None, device: Any = None, client: Optional[Client] = None,
          mode: Union[int, str, None] = None, keep: float = 0, wait: float = 0, handle: Optional[str] = None) -> torch.Tensor:
    """A new tensor of zeros in a buffer of its own, which put() shares where it lies, whatever its size, with no pool.

    Args:
        size: as of torch.empty().
        dtype, device: None: PyTorch's default dtype; the current GPU, or where there is none host memory.
        mode, keep, wait, handle: as of put(). The mode and keep of the buffer; put() gives its own to the share.

    The lease ends with the last view of it.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if isinstance(dtype, type):  # int, float and bool, as PyTorch takes them
        dtype = torch.empty(0, dtype=dtype).dtype
    client = client_for(client)
    where = _compat.device_name(client, _compat.placed(device))
    layout = Layout.of(str(dtype or torch.get_default_dtype()), shape)
    buffer = client.allocate(max(1, layout.nbytes), device=where, handle=handle, mode=mode, keep=keep,
                             wait=wait, meta=layout.to_meta())
    try:
        with buffer:
            raw = _compat.bytes_of(buffer)
            pools.remember(raw, buffer)
            return _compat.tensor_in(raw, layout)
    except BaseException:
        give_up(client, buffer.id)
        raise
