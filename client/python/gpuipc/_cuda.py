# SPDX-License-Identifier: Apache-2.0
"""The few things of the CUDA driver's that are not the library's to do: order between streams, and copies within a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Optional

from . import errors

_NAMES = {
    "cuInit": [c_uint], "cuDeviceGetCount": [POINTER(c_int)], "cuDeviceGet": [POINTER(c_int), c_int],
    "cuCtxGetDevice": [POINTER(c_int)], "cuDeviceGetUuid_v2": [c_char * 16, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int], "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p], "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuMemcpyDtoD_v2": [c_uint64, c_uint64, c_size_t], "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t], "cuStreamSynchronize": [c_void_p],
    "cuCtxSynchronize": [],
    "cuEventCreate": [POINTER(c_void_p), c_uint], "cuEventRecord": [c_void_p, c_void_p], "cuEventDestroy_v2": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint], "cuGetErrorName": [c_int, POINTER(ctypes.c_char_p)],
}
_DISABLE_TIMING = 2
_DEFAULT_STREAMS = 2  # 0, 1 and 2 are handles of the current context's
_AS_IT_IS = contextlib.nullcontext()


@functools.lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise errors.MapError(f"The CUDA driver's library cannot be loaded: {error}.") from None
    for name, arguments in _NAMES.items():
        getattr(driver, name).argtypes = arguments
    return driver


def call(name: str, *arguments: Any) -> None:
    """Raises MapError with the driver's name for what went wrong."""
    driver = _driver()
    result = getattr(driver, name)(*arguments)
    if result != 0:
        word = ctypes.c_char_p()
        driver.cuGetErrorName(result, byref(word))
        raise errors.MapError(f"{name}() of the CUDA driver failed: {(word.value or b'unknown').decode()} ({result}).")


@contextlib.contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """With the primary context of that GPU current."""
    device, context = c_int(), c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), ordinal)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent_v2", byref(c_void_p()))
    finally:
        call("cuDevicePrimaryCtxRelease_v2", device)


@functools.lru_cache(maxsize=1)
def _are_several() -> bool:
    n = c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", byref(n))
    return n.value > 1


def for_stream(ordinal: int, stream: Optional[int]) -> contextlib.AbstractContextManager[None]:
    """Within, the handle means a stream of that GPU's: the default streams have the same handles on each, and are the current one's. A
    negative ordinal stands for host memory; None for no stream."""
    if ordinal < 0 or stream is None or stream > _DEFAULT_STREAMS or not _are_several():
        return _AS_IT_IS
    current = c_int()
    if _driver().cuCtxGetDevice(byref(current)) == 0 and current.value == ordinal:
        return _AS_IT_IS
    return on_device(ordinal)


def settle(ordinal: int) -> bool:
    """Waits until that GPU has done what this process gave it, as cudaFree() does: what is unmapped under a kernel ends its context. False:
    PyTorch captures a graph in this thread, which waiting would spoil."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    # A context that is lost has nothing left to wait for.
    with contextlib.suppress(errors.MapError), on_device(ordinal):
        call("cuCtxSynchronize")
    return True


def uuid(ordinal: int) -> str:
    """The 32 hexadecimal digits of a GPU's UUID, by its number in this process."""
    device, raw = c_int(), (c_char * 16)()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), ordinal)
    call("cuDeviceGetUuid_v2", raw, device)
    return raw.raw.hex()


def order(ordinal: int, first: int, then: int) -> None:
    """Has the stream `then` wait for what was given to the stream `first`. Does not wait itself."""
    if first == then:
        return
    with on_device(ordinal):
        event = c_void_p()
        call("cuEventCreate", byref(event), _DISABLE_TIMING)
        try:
            call("cuEventRecord", event, first)
            call("cuStreamWaitEvent", then, event, 0)
        finally:
            call("cuEventDestroy_v2", event)


def copy(ordinal: int, to: int, to_host: bool, pieces: Any) -> None:
    """Copies from a GPU in its legacy default stream; done when it returns. `pieces`: (offset there, address here, bytes)."""
    with on_device(ordinal):
        for offset, address, n in pieces:
            call("cuMemcpyDtoH_v2" if to_host else "cuMemcpyDtoD_v2", to + offset, address, n)
        call("cuStreamSynchronize", None)


def write(ordinal: int, stream: int, to: int, source: int, n: int) -> None:
    """Copies host memory to a GPU once the stream has come here; done when it returns."""
    with on_device(ordinal):
        call("cuStreamSynchronize", stream or None)
        call("cuMemcpyHtoD_v2", to, source, n)
        call("cuStreamSynchronize", None)
