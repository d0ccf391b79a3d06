# SPDX-License-Identifier: Apache-2.0
"""Fences: eight bytes of a buffer that only grow, by which processes and their streams wait for one another."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from . import _cuda, _native, errors
from ._lifetime import Keeper, Lease, OfThisProcess
from ._waits import Unwanted, in_slices, never
from .aio import in_thread

if TYPE_CHECKING:
    from .buffer import Buffer


_WORD_MAX = (1 << 64) - 1


def stream_handle(stream: Any) -> int:
    """A CUDA stream as a number: an int, or an object with __cuda_stream__, cuda_stream (PyTorch), ptr (CuPy) or handle (Numba).

    Raises:
        TypeError: it is none of them.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return _native.integer(stream, "stream", most=_WORD_MAX)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        value = getattr(value, "value", value)
        if isinstance(value, int):
            return value
    raise TypeError(f"stream: a CUDA stream is wanted (a number, or PyTorch's or CuPy's object), not {type(stream).__name__}")


class _Handle(Keeper):
    what = "fence"

    def __init__(self, lease: Lease, pointer: int) -> None:
        super().__init__(lease.connection, pointer)
        self._lease = lease  # which ends after this, whoever waits when it is closed

    def _end(self, pointer: int, error: _native.Error) -> int:
        _native.library().gpuipc_fence_free(pointer)
        return 0


class Fence(OfThisProcess):
    """A 64-bit word of a buffer, at a multiple of 8 bytes. Made by `Buffer.fence()`; processes that make one of the same word share it.

    Who has done something signals the next value; who needs it waits until the word has come so far. It counts as a view of the buffer.
    May be used from several threads at once.
    """

    def __init__(self, buffer: Buffer, offset: int) -> None:
        lease = buffer._held()
        with lease.used() as pointer:
            handle = _Handle(lease, _native.made("gpuipc_fence_new", pointer, _native.integer(offset, "offset")))
            self._ordinal = int(_native.library().gpuipc_buffer_cuda_device(pointer))
        lease.add_view(self)
        self._lease: Optional[Lease] = lease
        self._handle, self.offset = handle, offset

    def __enter__(self) -> Fence:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()

    def close(self) -> None:
        """Nothing that was given to a stream may use it any more. Ends what waits, in threads and in event loops."""
        self._handle = None  # type: ignore[assignment]
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.drop_view(self)

    def _held(self) -> _Handle:
        handle: Optional[_Handle] = self._handle
        if handle is None:
            raise ValueError("the fence is closed")
        return handle

    @property
    def is_synchronous(self) -> bool:
        """Whether streams cannot wait for it by themselves (host memory, or a GPU without stream memory operations): calls with a stream
        then wait on the processor."""
        with self._held().called() as pointer:
            return bool(_native.library().gpuipc_fence_is_synchronous(pointer))

    @property
    def value(self) -> int:
        """The word as it is now, 0 to 2^64 − 1."""
        value = ctypes.c_uint64()
        with self._held().called() as pointer:
            _native.call("gpuipc_fence_query", pointer, ctypes.byref(value))
        return value.value

    def signal(self, value: int, stream: Any = None) -> None:
        """Writes the value (0 to 2^64 − 1): now, or by a stream when all that was given to it before is done."""
        value = _native.integer(value, "value", most=_WORD_MAX)
        number = stream_handle(stream)
        with self._held().called() as pointer:
            if stream is None:
                _native.call("gpuipc_fence_signal", pointer, value)
            else:
                with _cuda.for_stream(self._ordinal, number):
                    _native.call("gpuipc_fence_signal_stream", pointer, number, value)

    def wait(self, value: int, timeout: Optional[float] = None, stream: Any = None) -> None:
        """Waits until the word has reached the value, at most `timeout` seconds (None: without end). With a stream, that waits and this
        call does not, unless the fence is synchronous.

        Raises:
            TimedOutError.
        """
        handle, value = self._held(), _native.integer(value, "value", most=_WORD_MAX)
        number = stream_handle(stream)
        if stream is not None and not self.is_synchronous:
            with handle.called() as pointer, _cuda.for_stream(self._ordinal, number):
                _native.call("gpuipc_fence_wait_stream", pointer, number, value, -1)
        else:
            self._await(handle, value, timeout, never)

    async def wait_async(self, value: int, timeout: Optional[float] = None) -> None:
        """As wait() without a stream, without holding up the event loop."""
        handle, value = self._held(), _native.integer(value, "value", most=_WORD_MAX)
        await in_thread(lambda unwanted: self._await(handle, value, timeout, unwanted), lambda nothing: None)

    def _await(self, handle: _Handle, value: int, timeout: Optional[float], unwanted: Unwanted) -> None:
        def attempt(ms: int) -> bool:
            if self._handle is not handle:
                raise ValueError("the fence is closed")
            with handle.called() as pointer:
                return _native.tried("gpuipc_fence_wait", pointer, value, ms) or unwanted()

        if not in_slices(timeout, attempt, always=True):  # close() is to be noticed
            raise errors.TimedOutError(f"The fence did not come to {value} within {timeout} s; it is at {self.value}.", subject="fence")
