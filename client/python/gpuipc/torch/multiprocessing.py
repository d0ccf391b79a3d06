# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors to and from torch.multiprocessing's processes by way of the daemon, in place of PyTorch's own handles.

    import gpuipc.torch.multiprocessing
    gpuipc.torch.multiprocessing.register()

and torch.multiprocessing's queues, pipes and arguments carry CUDA tensors as before, with two differences: the process that sent a tensor
may end while it is on its way or in use, and one that received it may be killed without its memory being lost. What travels in the queue is
a pickled id, as queues of Python's have it; the daemon's own protocol knows no pickles.

A tensor that was made in a pool, or by `gpuipc.torch.empty()`, is the same memory on both sides, by the rules of `gpuipc.torch.put()`. Any
other is copied when it is sent, so that writes on one side are not seen on the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Optional, Union

import torch
import torch.multiprocessing.reductions as reductions

from .. import errors
from .._arguments import mode_text
from .._locks import table_lock
from .._waits import milliseconds
from ..client import Client
from ..layout import Layout
from ..share import publish
from . import _compat
from . import _pool as pools
from . import _share as share
from ._clients import client_for
from ._reaper import Reaper

_TYPES = (torch.Tensor, torch.nn.Parameter)


class _Settings:
    def __init__(self, client: Optional[Client], devices: frozenset[str], keep: float, neighbours: bool,
                 mode: Union[int, str, None]) -> None:
        self.client, self.devices, self.keep, self.neighbours, self.mode = client, devices, keep, neighbours, mode
        self.pid = os.getpid()


_settings: Optional[_Settings] = None
_pending: dict[tuple[int, str], Callable[[], None]] = {}
_lock = table_lock(globals(), "_lock")


def register(client: Optional[Client] = None, *, devices: Union[str, Sequence[str]] = ("cuda",), keep: float = 60,
             neighbours: bool = False, mode: Union[int, str, None] = None) -> None:
    """From now on tensors that this process sends go by the daemon. Receivers need nothing but the package. May be called again, with
    other arguments.

    Args:
        client: None: the process's own. A forked child uses its own in any case.
        devices: of which tensors: "cuda", "cpu". Others go PyTorch's own way, and so do those that are not dense, or of a dtype that
            `gpuipc.layout` has no name for.
        keep: seconds that a tensor which nobody has received yet stays after this process has ended. Of a tensor that is not copied, its
            pool's keep counts as well.
        neighbours: as of `gpuipc.torch.put()`.
        mode: who may receive, as a Unix mode; None: "0600", this user's processes.

    What is wrong is said here and now: queues send in a thread of their own, where an error is printed and the tensor is lost.
    """
    global _settings
    if client is not None:
        client_for(client)
    milliseconds(keep, "keep")
    mode_text(mode)
    kinds: tuple[Any, ...] = tuple(devices) if isinstance(devices, (list, tuple, set, frozenset)) else (devices,)
    for each in kinds:
        if each not in ("cuda", "cpu"):
            raise errors.InvalidParameterError(f'devices: {str(each)!r} is neither "cuda" nor "cpu".', subject="devices")
    _settings = _Settings(client, frozenset(kinds), keep, neighbours, mode)
    for kind in _TYPES:
        ForkingPickler.register(kind, _reduce)


def unregister() -> None:
    """Tensors that are sent from now on go PyTorch's own way again. What is on its way arrives."""
    global _settings
    _settings = None
    for kind in _TYPES:
        ForkingPickler.register(kind, reductions.reduce_tensor)


def pending() -> int:
    """How many tensors this process has sent that nobody has received yet. They hold their memory until then, or until it ends."""
    with _lock:
        return sum(pid == os.getpid() for pid, _ in _pending)


def drop_pending() -> int:
    """Gives up what was sent and not received yet, as when the process that was to receive it is gone: how many that were. Who tries to
    receive one of them gets NoSuchBufferError."""
    with _lock:
        mine = [(key, _pending.pop(key)) for key in list(_pending) if key[0] == os.getpid()]
    for _, done in mine:
        done()
    return len(mine)


def _await(client: Client, id: str, done: Callable[[], None]) -> None:
    """Calls `done` when the buffer of that id is opened by somebody else, or given up."""
    key = os.getpid(), id
    reaper = Reaper.of(client)

    def given_up() -> None:
        reaper.forget(id, "opened")
        done()

    with _lock:
        _pending[key] = given_up

    def opened() -> None:
        with _lock:
            found = _pending.pop(key, None)
        if found is not None:
            done()

    try:
        reaper.expect(id, "opened", opened)
    except BaseException:  # it was not sent
        with _lock:
            _pending.pop(key, None)
        raise


def _let_go(client: Client, buffer: Any) -> Callable[[], None]:
    def done() -> None:
        share.give_up(client, buffer.id)
        buffer.close()
    return done


def _send(tensor: torch.Tensor, settings: _Settings) -> tuple[str, str, bool]:
    """The socket's path, the id to be got, and whether it is a card's."""
    client = client_for(settings.client if settings.pid == os.getpid() else None)
    plain = _compat.plain(tensor)
    found, reason, held = pools.survey(plain, settings.neighbours)
    if found is not None and not pools.prepare(plain, found, settings.neighbours):
        reason = pools.GIVEN_UP
    if reason:
        buffer, _, _ = share._copy(client, plain, None, settings.mode, settings.keep, 0, None, hold=True)
        try:
            _compat.settle(plain)
            _await(client, buffer.id, _let_go(client, buffer))
        except BaseException:
            _let_go(client, buffer)()
            raise
        return client.socket, buffer.id, False
    assert found is not None
    _compat.settle(plain)
    layout: Layout = _compat.layout_of(plain, plain.data_ptr() - found.pointer)
    with Reaper.of(client).listening() as reaper:
        card = publish(client, None, found.buffer, layout, device=_compat.device_name(client, plain.device), mode=settings.mode,
                       keep=settings.keep)
        share.pin(reaper, card.id, (plain, held))
        _await(client, card.id, _let_go(client, card))
    return client.socket, card.id, True


def _is_sent(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be shared. What cannot, PyTorch has ways of its own for, or its own words against."""
    return _compat.is_dense(tensor) and not tensor.has_names() and not (tensor.requires_grad and not tensor.is_leaf)


def _reduce(tensor: torch.Tensor) -> Any:
    settings = _settings
    if settings is None or tensor.device.type not in settings.devices or not _is_sent(tensor):
        return reductions.reduce_tensor(tensor)
    return _rebuild, (*_send(tensor, settings), isinstance(tensor, torch.nn.Parameter), tensor.requires_grad)


def _rebuild(socket: str, id: str, is_card: bool, parameter: bool, requires_grad: bool) -> torch.Tensor:
    client = client_for(None, socket)
    try:
        # Once: with that the sender lets go of it.
        buffer = client.open(id=id, access="ro" if is_card else "rw")
        tensor = share.through(client, buffer) if is_card else share.directly(buffer)
        # The sender may have ended, and what it sent be kept for nobody. Another user's is not this one's to give up.
        with contextlib.suppress(errors.Error):
            client.free(id=id)
    except errors.NoSuchBufferError as error:
        raise errors.NoSuchBufferError(
            f"The tensor that was sent is gone ({error.message.rstrip('.')}): it was received before, it was given up, or the process that "
            "sent it ended longer ago than its keep.", name=error.name, subject=id) from error
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
