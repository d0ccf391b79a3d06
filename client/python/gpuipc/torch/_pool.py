# SPDX-License-Identifier: Apache-2.0
"""Memory pools: tensors made inside `with pool():` lie in buffers of the daemon's, and can be shared where they lie.

PyTorch's caching allocator takes blocks from a pool, cuts them into pieces for tensors, and gives the pieces of tensors that are gone to
new ones. What that means for sharing is decided here: a tensor is shared where it lies only if its piece is all of its block, so that no
other tensor is, or can come to be, in what the other side maps; and its memory is not given out again before the other side is done.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional, Union

import torch

from .. import _native, errors
from .._arguments import mode_text
from .._lifetime import OfThisProcess
from .._locks import table_lock
from .._waits import milliseconds
from ..buffer import Buffer
from ..client import Client
from . import _compat
from ._clients import client_for
from ._expandable import without_expandable_segments


@dataclass(frozen=True)
class Block:
    """A block of a pool: its first byte's address, its bytes, the buffer's id."""

    pointer: int
    size: int
    buffer: str
    own: bool = False  # one tensor's alone


_TRIES = 8
GIVEN_UP = "the share that its memory was made for was closed meanwhile"

# Buffers that are one tensor's alone: by address, as long as the storage lives.
_own: weakref.WeakValueDictionary[int, _Own] = weakref.WeakValueDictionary()
_own_lock = table_lock(globals(), "_own_lock")  # of who gives a buffer up, and who passes it on


class _Own:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.passed_on = False  # other shares than the one that it was made for name it


def remember(raw: torch.Tensor, buffer: Buffer) -> None:
    """`raw` is all of a buffer that this process made: tensors in it are shared where they lie."""
    if raw.numel() == 0:
        return
    own = _Own(Block(raw.data_ptr(), buffer.size, buffer.id, True))
    buffer._held().own = own  # which is given up before the memory is unmapped
    _own[own.block.pointer] = own


def forget(tensor: torch.Tensor) -> bool:
    """What remember() knows of a tensor's buffer, which is to be given up. False: it is not to be, since another share names it."""
    start, _ = _compat.storage_range(tensor)
    with _own_lock:
        own = _own.get(start)
        if own is not None and own.passed_on:
            return False
        _own.pop(start, None)
    return True


def find(address: int) -> Optional[Block]:
    """The block of this process's pools that an address lies in; None: it is of none."""
    own = _own.get(address)
    if own is not None:
        return own.block
    block = _native.PoolBlock(struct_size=ctypes.sizeof(_native.PoolBlock))
    if _native.library().gpuipc_pool_find(address, ctypes.byref(block), None) != 0:
        return None
    return Block(block.pointer or 0, block.size, block.buffer.decode())


def _segment(block: Block) -> Any:
    """What PyTorch knows of a block; None: nothing."""
    return next((segment for segment in torch.cuda.memory_snapshot() if segment["address"] == block.pointer), None)


def _alone(block: Block, tensor: torch.Tensor) -> Optional[list[torch.Tensor]]:
    """Whether a tensor at the beginning of a block has it to itself, for as long as what is returned lives with it: []; or all that is
    left of the block, which PyTorch would give to others. None: it has not."""
    segment = _segment(block)
    if segment is None:
        return None
    pieces = segment["blocks"]
    if len(pieces) == 1:
        return []
    rest = pieces[1]["size"]
    known = _of_segment.get(tuple(segment.get("segment_pool_id", ())))
    if len(pieces) > 2 or pieces[1]["state"] != "inactive" or rest > pieces[0]["size"] or known is None:
        return None
    # PyTorch gives the smallest piece that fits, of which there may be several.
    taken: list[torch.Tensor] = []
    wanted = block.pointer + pieces[0]["size"]
    with known[0].using(known[1]) as there, torch.cuda.device(tensor.device):
        for _ in range(_TRIES if there else 0):
            taken.append(torch.empty(rest, dtype=torch.uint8, device=tensor.device))
            if taken[-1].data_ptr() == wanted:
                return taken[-1:]
    return None


def whereabouts(tensor: torch.Tensor, neighbours: bool) -> tuple[Optional[Block], str]:
    """The block that a tensor can be shared in, or why it must be copied."""
    block, reason, _ = survey(tensor, neighbours)
    return block, reason


def survey(tensor: torch.Tensor, neighbours: bool) -> tuple[Optional[Block], str, list[torch.Tensor]]:
    """The same, and what must live as long as the share."""
    start, n = _compat.storage_range(tensor)
    block = find(start) if n else None
    held: Optional[list[torch.Tensor]] = []
    if block is None:
        how = "in a gpuipc.torch.pool() or by gpuipc.torch.empty()" if tensor.device.type == "cuda" else "by gpuipc.torch.empty()"
        return None, f"it was not made {how}", []
    if neighbours:
        return block, "", []
    layout = _compat.layout_of(tensor)
    if tensor.data_ptr() != start or layout.span != n or not layout.is_dense:
        return None, ("it is a part of its storage, and whoever gets it would see all of that: give neighbours=True if they may, or "
                      "share the whole"), []
    if start != block.pointer:
        held = None
    elif n != block.size:
        held = _alone(block, tensor) if tensor.device.type == "cuda" else None
    if held is None:
        return None, ("other tensors lie, or may come to lie, beside it in its block, and whoever gets it would see them: give "
                      "neighbours=True if they may, or make it with gpuipc.torch.empty(), or in a pool(split=False) where PyTorch has "
                      "that"), []
    return block, "", held


class _Bytes:
    """Bytes of a GPU for torch.as_tensor()."""

    def __init__(self, pointer: int, n: int) -> None:
        self.__cuda_array_interface__ = {"shape": (n,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def prepare(tensor: torch.Tensor, block: Block, neighbours: bool) -> bool:
    """What earlier tensors left behind this one in its block is not given away with it. False: the block is not to be shared, since the
    share that it was made for was closed after it was found."""
    start, n = _compat.storage_range(tensor)
    with _own_lock:
        own = _own.get(block.pointer)
        if own is not None:
            own.passed_on = True
        elif block.own:
            return False
    rest = block.pointer + block.size - (start + n)
    if not neighbours and rest > 0 and tensor.device.type == "cuda":
        torch.as_tensor(_Bytes(start + n, rest), device=tensor.device).zero_()
    return True


# ---- the pool itself ----


class _Core:
    """A gpuipc_pool; its blocks outlive it."""

    def __init__(self, client: Client, options: Any) -> None:
        self.connection, self.pid = client._connection, os.getpid()
        # Blocks keep the connection, and nobody says when the last of them has gone: so it stays.
        self.connection.join(self)
        with self.connection.used() as pointer:
            self.pointer = _native.made("gpuipc_pool_new", pointer, ctypes.byref(options))
        library = _native.library()
        self.functions = library.gpuipc_pool_alloc_function(self.pointer), library.gpuipc_pool_free_function(self.pointer)


def _ordinal_of(device: Any) -> Optional[int]:
    """The number of a GPU, of the current one where none is named; None: PyTorch has none that it can use.

    Raises:
        InvalidParameterError: what is named is none.
    """
    if not torch.cuda.is_available():
        return None
    where = _compat.placed(torch.device("cuda", device) if isinstance(device, int) else device)
    if where.type != "cuda":
        raise errors.InvalidParameterError(f"device: a pool is for a GPU, and {str(device)!r} is none.", subject="device")
    return int(where.index)


class Pool(OfThisProcess):
    """A memory pool of PyTorch's whose blocks are buffers of the daemon's. `with` makes it the one that this thread's new tensors on the
    device come from; again and again, and in several threads at once. Not within another pool's: PyTorch goes by the outermost.

    Args: as of `pool()`.

    PyTorch keeps its memory for the next tensors made in it; `empty_cache()` gives back what none is in. A process can make 32 pools.
    """

    def __init__(self, client: Optional[Client] = None, *, device: Any = None, split: bool = True, mode: Union[int, str, None] = None,
                 keep: float = 0, wait: float = 0, handle: Optional[str] = None, label: Optional[str] = None) -> None:
        client = client_for(client)
        self.split = split
        self._ordinal = _ordinal_of(device)
        self._core = _Core(client, _native.PoolOptions(
            ctypes.sizeof(_native.PoolOptions), _native.encode(handle, "handle"), mode_text(mode), milliseconds(keep, "keep"),
            milliseconds(wait, "wait"), _native.encode(label, "label")))
        self._mem_pools: list[Any] = []
        self._busy: set[Any] = set()  # ids of those that a thread is in
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<gpuipc.torch.Pool, {self.bytes} bytes in use or cached>"

    @property
    def bytes(self) -> int:
        """Bytes of its blocks, in use or cached by PyTorch."""
        return int(_native.library().gpuipc_pool_bytes(self._core.pointer))

    @property
    def failures(self) -> int:
        """How many blocks could not be had."""
        return int(_native.library().gpuipc_pool_failures(self._core.pointer, None))

    @property
    def error(self) -> Optional[errors.Error]:
        """Why a block could not be had, the last time; None: that never was."""
        error = _native.Error()
        if _native.library().gpuipc_pool_failures(self._core.pointer, ctypes.byref(error)) == 0:
            return None
        try:
            _native.raise_error(error)
        except errors.Error as raised:
            return raised
        return None

    @property
    def mem_pool(self) -> Any:
        """The torch.cuda.MemPool, as for torch.cuda.graph(pool=pool.mem_pool.id); threads that are in the pool at once have one each,
        and this is the first. RuntimeError: this PyTorch has none, or no GPU."""
        with self._lock:
            return self._mem_pools[0] if self._mem_pools else self._another()

    def _another(self) -> Any:
        """Under the lock."""
        made = self._make()
        self._mem_pools.append(made)
        _of_segment[tuple(made.id)] = self, made
        return made

    def _take(self, wanted: Any = None) -> Any:
        """One that nobody is in: PyTorch bears but one `with` of each at a time. `wanted`: that one; None where it is not to be had."""
        with self._lock:
            known = self._mem_pools if wanted is None else [wanted]
            free = next((each for each in known if tuple(each.id) not in self._busy), None)
            if free is None and wanted is not None:
                return None
            taken = free if free is not None else self._another()
            self._busy.add(tuple(taken.id))
            return taken

    def _give(self, mem_pool: Any) -> None:
        with self._lock:
            self._busy.discard(tuple(mem_pool.id))

    @contextlib.contextmanager
    def _within(self, taken: Any) -> Iterator[None]:
        """This thread's new tensors come from a torch.cuda.MemPool that was taken, and is given back."""
        try:
            with without_expandable_segments(), torch.cuda.use_mem_pool(taken, self._ordinal):
                yield
        finally:
            self._give(taken)

    @contextlib.contextmanager
    def using(self, wanted: Any) -> Iterator[bool]:
        """This thread's new tensors come from that torch.cuda.MemPool of the pool's: whether they do."""
        here = _entered()
        if here and here[-1].mem_pool is wanted:
            yield True
            return
        taken = self._take(wanted)
        if taken is None:
            yield False
            return
        with self._within(taken):
            yield True

    def empty_cache(self) -> bool:
        """Gives back the memory that no tensor is in, which torch.cuda.empty_cache() leaves in a pool: by ending PyTorch's pool, after
        which the next tensor begins another. What still has tensors in it goes by torch.cuda.empty_cache() once they are gone. False:
        not now, or not all, since it is in use, by `with` or by a CUDA graph."""
        with self._lock:
            # PyTorch ends the process if a pool of its ends while that is in use.
            ending = [each for each in self._mem_pools
                      if tuple(each.id) not in self._busy and hasattr(each, "use_count") and each.use_count() == 1]
            for each in ending:
                del _of_segment[tuple(each.id)]
            self._mem_pools = [each for each in self._mem_pools if not any(each is other for other in ending)]
            all_of_them = not self._mem_pools
        each = None
        if ending:
            ending.clear()
            torch.cuda.empty_cache()
        return all_of_them

    def _make(self) -> Any:
        make = getattr(torch.cuda, "MemPool", None)
        if make is None:
            raise RuntimeError(f"PyTorch {torch.__version__} has no torch.cuda.MemPool, which a pool needs: 2.6 and later have. "
                               "gpuipc.torch.put() copies, and gpuipc.torch.empty() makes single tensors, with this one too.")
        if not torch.cuda.is_available():
            raise RuntimeError("there is no GPU that PyTorch can use, and pools are for GPUs. gpuipc.torch.empty() makes tensors in "
                               "host memory.")
        torch.cuda.init()
        # torch.cuda.memory.CUDAPluggableAllocator does the same with functions that it finds by name; each pool has its own.
        allocator = torch._C._cuda_customAllocator(*self._core.functions)
        _kept.append(allocator)
        try:
            # PyTorch has a pool's allocator for the GPU alone that is current when the pool is made.
            with torch.cuda.device(self._ordinal):
                return make(allocator) if self.split else make(allocator, no_split=True)
        except TypeError:
            if self.split:
                raise
            raise RuntimeError(f"split: PyTorch {torch.__version__} cuts blocks into pieces and cannot be told not to (its "
                               "torch.cuda.MemPool has no no_split). Give split=True, and share with neighbours=True or from "
                               "gpuipc.torch.empty().") from None

    def __enter__(self) -> Pool:
        here = _entered()
        if here and here[-1].pool is self:  # this thread's new tensors come from it already
            here.append(_Entry(self, here[-1].mem_pool, contextlib.ExitStack(), self.failures))
            return self
        mem_pool = self._take()
        stack = contextlib.ExitStack()
        stack.enter_context(self._within(mem_pool))
        here.append(_Entry(self, mem_pool, stack, self.failures))
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        entry = _entered().pop()
        entry.stack.close()
        # PyTorch says that memory ran out, whatever it was.
        if isinstance(error, torch.cuda.OutOfMemoryError) and error.__cause__ is None and self.failures > entry.failures:
            error.__cause__ = self.error


@dataclass
class _Entry:
    """A `with` that a thread is in."""

    pool: Pool
    mem_pool: Any
    stack: contextlib.ExitStack
    failures: int


_thread = threading.local()


def _entered() -> list[_Entry]:
    """Those of this thread, the innermost last."""
    here: Optional[list[_Entry]] = getattr(_thread, "entered", None)
    if here is None:
        here = _thread.entered = []
    return here


# PyTorch refers to allocators by their address for as long as blocks of theirs live.
_kept: list[Any] = []
_of_segment: dict[Any, tuple[Pool, Any]] = {}  # by the id of PyTorch's pool, which is the second
_pools: weakref.WeakKeyDictionary[Client, dict[Any, Pool]] = weakref.WeakKeyDictionary()
_pools_lock = table_lock(globals(), "_pools_lock")


def pool(client: Optional[Client] = None, *, device: Any = None, split: bool = True, mode: Union[int, str, None] = None, keep: float = 0,
         wait: float = 0, handle: Optional[str] = None, label: Optional[str] = None) -> Pool:
    """Tensors made inside can be shared where they lie, with no copy:

        with gpuipc.torch.pool():
            batch = torch.empty(64, 3, 224, 224, device="cuda")
        share = gpuipc.torch.put(batch, "batch")

    The same arguments give the same pool again, so that its memory is used again. It is for this thread's new tensors alone: autograd
    makes gradients in threads of its own, and those lie elsewhere.

    Args:
        client: None: the process's own.
        device: the GPU, as PyTorch names them; None: the one that is current now, for which PyTorch begins with CUDA in this process:
            name it where the process is yet to fork().
        split: False: PyTorch gives each tensor a block of its own, of 2 MiB or a multiple, so that each can be shared where it lies. With
            True small tensors (below 10 MiB) share blocks, and are copied by put() unless neighbours=True; what is left of a block beside a
            larger one is kept free while it is shared.
        mode: who may get what is shared, as a Unix mode; None: "0600".
        keep: seconds that its blocks stay after this process has ended, so that shares can outlive it.
        wait: seconds to wait for memory or quota, for each block.
        handle: None: "cuda-fd".
        label: shown in lists.

    Raises:
        RuntimeError: this PyTorch has no torch.cuda.MemPool (2.6 has), there is no GPU, or split=False with one that cannot.
        QuotaExceededError: the process has 32 pools.
    """
    client = client_for(client)
    key = os.getpid(), _ordinal_of(device), split, mode_text(mode), keep, wait, handle, label
    with _pools_lock:
        known = _pools.setdefault(client, {})
        if key not in known:
            known[key] = Pool(client, device=device, split=split, mode=mode, keep=keep, wait=wait, handle=handle, label=label)
        return known[key]


# ---- the end of the process ----


def _at_exit() -> None:
    """PyTorch ends the process if a pool of its ends while a graph has it, and at exit objects end in any order: so none does."""
    for _, mem_pool in list(_of_segment.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mem_pool))


atexit.register(_at_exit)
