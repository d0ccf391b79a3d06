# SPDX-License-Identifier: Apache-2.0
"""What others have as arrays, looked at and copied into shared memory."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from . import _cuda, _dlpack, errors
from ._dlpack import Source
from .layout import BY_TYPESTR, DTYPES, Layout, dtype_name, row_major

_SMALL = 4096  # bytes, below which NumPy is not worth while
_KINDS = {"?": "bool", "b": "int", "h": "int", "i": "int", "l": "int", "q": "int", "n": "int", "c": "uint", "B": "uint", "H": "uint",
          "I": "uint", "L": "uint", "Q": "uint", "N": "uint", "e": "float", "f": "float", "d": "float"}


def pieces(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[tuple[int, int, int]]:
    """(byte in the row-major copy, byte from the first element, bytes) of each run that lies in one piece."""
    run, inner = itemsize, len(shape)
    while inner > 0 and (shape[inner - 1] == 1 or strides[inner - 1] * itemsize == run):
        inner -= 1
        run *= shape[inner]
    if 0 in shape:
        return
    at = [0] * inner
    place = 0
    while True:
        yield place, sum(i * step for i, step in zip(at, strides)) * itemsize, run
        place += run
        for axis in reversed(range(inner)):
            at[axis] += 1
            if at[axis] < shape[axis]:
                break
            at[axis] = 0
        else:
            return


def _of_interface(thing: Any, interface: dict[str, Any]) -> Source:
    typestr = interface["typestr"]
    dtype: Optional[str] = BY_TYPESTR.get(typestr)
    if dtype is None:  # of ml_dtypes, whose typestr says but how large it is
        name = str(getattr(thing, "dtype", typestr))
        if name not in DTYPES or DTYPES[name][2] or int(typestr[2:]) * 8 != DTYPES[name][1]:
            raise errors.LayoutError(f"dtype: {name} ({typestr}) is none of {', '.join(DTYPES)} in this machine's byte order.",
                                     subject="dtype")
        dtype = name
    shape = tuple(interface["shape"])
    itemsize = DTYPES[dtype][1] // 8
    steps = interface.get("strides")
    strides = row_major(shape) if steps is None else tuple(step // itemsize for step in steps)
    if steps is not None and any(step % itemsize for step in steps):
        raise errors.LayoutError(f"strides: {list(steps)} bytes are not whole elements of {dtype}. Copy the array first.",
                                 subject="strides")
    data = interface["data"]
    if isinstance(data, tuple):  # the interface itself may be what keeps the memory there
        return Source((thing, interface), data[0], dtype, shape, strides, (_dlpack.CPU, 0))
    view = memoryview(data)
    address, kept = _pinned(view)
    layout = Layout.of(dtype, shape, None if steps is None else strides, interface.get("offset", 0))
    layout.check(view.nbytes)
    return Source(kept, address + layout.offset, dtype, shape, strides, (_dlpack.CPU, 0))


def _pinned(view: memoryview) -> tuple[int, Any]:
    """The address of the elements, row-major, and what keeps them there. What is read-only is copied, but bytes."""
    whole = view.obj
    if isinstance(whole, bytes) and view.c_contiguous and view.nbytes == len(whole):
        return ctypes.cast(ctypes.c_char_p(whole), ctypes.c_void_p).value or 0, whole
    if view.nbytes == 0:
        return 0, view
    flat = view.cast("B") if view.c_contiguous and not view.readonly else memoryview(bytearray(view))
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(flat)), flat


def _of_buffer(thing: Any) -> Source:
    view = memoryview(thing)
    kind = _KINDS.get(view.format[-1:])
    if kind is None or view.format[:-1] not in ("", "@", "=", "<"):
        raise errors.LayoutError(f"dtype: elements of the format {view.format!r} have no name here.", subject="dtype")
    dtype = kind if kind == "bool" else f"{kind}{8 * view.itemsize}"
    shape = tuple(view.shape or ())
    address, kept = _pinned(view)
    return Source(kept, address, dtype, shape, row_major(shape), (_dlpack.CPU, 0))


def view_of(thing: Any, what: str) -> memoryview:
    """TypeError: it has no buffer protocol; names `what`."""
    try:
        return memoryview(thing)
    except TypeError:
        raise TypeError(f"{what}: bytes or another object of the buffer protocol are wanted, not {type(thing).__name__}: of a tensor give "
                        "what its numpy() is") from None


def bytes_of(data: Any) -> Source:
    """The bytes of an object of the buffer protocol, whatever its elements are."""
    view = view_of(data, "data")
    address, kept = _pinned(view)
    return Source(kept, address, "uint8", (view.nbytes,), (1,), (_dlpack.CPU, 0))


def _of_dlpack(thing: Any) -> Source:
    kind, ordinal = thing.__dlpack_device__()
    on_gpu = kind in (_dlpack.CUDA, _dlpack.CUDA_MANAGED)
    how = {"stream": 1} if on_gpu else {}
    with _cuda.for_stream(ordinal if on_gpu else -1, 1):
        try:
            capsule = thing.__dlpack__(max_version=(1, 0), **how)  # which can be had of what is read-only
        except TypeError:  # of before version 1.0
            capsule = thing.__dlpack__(**how)
    return _dlpack.look(capsule)


def kind_of(tensor: Any) -> str:
    """How the elements of a torch.Tensor lie: "strided" in memory one by one; else "quantized", "nested", "sparse_coo", ..."""
    if tensor.is_quantized:
        return "quantized"
    return "nested" if getattr(tensor, "is_nested", False) else str(tensor.layout).rpartition(".")[2]


def plain_tensor(tensor: Any, what: str) -> Any:
    """A torch.Tensor without conjugation and negation, which its memory knows nothing of.

    Raises:
        TypeError: it has no elements that lie in memory one by one; names `what`.
    """
    kind = kind_of(tensor)
    if kind != "strided":
        raise TypeError(f"{what}: it is {kind}, and only dense tensors are shared: share its parts")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{what}: it is on {tensor.device.type!r}, and only tensors on 'cpu' and 'cuda' are shared")
    for name in ("resolve_conj", "resolve_neg"):
        if hasattr(tensor, name):
            tensor = getattr(tensor, name)()
    return tensor


def source_of(thing: Any) -> Source:
    """An array of NumPy, PyTorch, CuPy, JAX or anything else with DLPack, __array_interface__ or the buffer protocol, as it lies in
    memory. A GPU's is ready in the legacy default stream.

    Raises:
        TypeError: it is none of them.
        LayoutError: its elements are of a kind that there is no name for.
    """
    interface = getattr(thing, "__array_interface__", None)
    if isinstance(interface, dict) and interface.get("data") is not None:
        return _of_interface(thing, interface)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        thing = plain_tensor(thing, "array")
        dtype = dtype_name(thing.dtype)
        raw = DTYPES[dtype][0] in _dlpack.SINCE_NOT_LONG
        source = _of_dlpack(thing.view(torch.uint8) if raw else thing)
        source.dtype = dtype
        return source
    if hasattr(thing, "__dlpack__"):
        return _of_dlpack(thing)
    try:
        memoryview(thing).release()
    except TypeError:
        raise TypeError(f"array: one is wanted (DLPack, __array_interface__ or the buffer protocol), not {type(thing).__name__}") from None
    return _of_buffer(thing)


def layout_for(source: Source) -> Layout:
    """How the copy lies: as the source does where that is without gaps, else row-major."""
    if all(step >= 0 for step in source.strides):
        layout = Layout.of(source.dtype, source.shape, source.strides)
        if layout.is_dense:
            return layout
    return Layout.of(source.dtype, source.shape)


def runs(source: Source, layout: Layout) -> list[tuple[int, int, int]]:
    """(byte in the copy, address in the source, bytes) of each piece."""
    if layout.strides == source.strides and layout.is_dense:
        return [(0, source.pointer, layout.nbytes)] if layout.nbytes else []
    found = pieces(source.shape, source.strides, layout.itemsize)
    return [(place, source.pointer + start, n) for place, start, n in found]


class _Words:
    """Elements as words of their size, for NumPy, which moves them faster than Python can."""

    def __init__(self, source: Source, itemsize: int) -> None:
        self.source = source
        self.__array_interface__ = {"shape": source.shape, "typestr": f"|V{itemsize}", "data": (source.pointer, True),
                                    "strides": tuple(step * itemsize for step in source.strides), "version": 3}


def gather(source: Source, itemsize: int) -> Any:
    """A ctypes array with the elements of host memory, row-major."""
    n = itemsize * math.prod(source.shape)
    memory = (ctypes.c_ubyte * n)()
    if n > _SMALL and "numpy" in sys.modules:
        import numpy

        numpy.frombuffer(memory, f"V{itemsize}").reshape(source.shape)[...] = numpy.asarray(_Words(source, itemsize))
        return memory
    for place, start, length in pieces(source.shape, source.strides, itemsize):
        ctypes.memmove(ctypes.addressof(memory) + place, source.pointer + start, length)
    return memory


def gathered(source: Source, layout: Layout) -> tuple[int, Any]:
    """Host memory with the copy's bytes in one piece: its address, and what keeps it."""
    if layout.strides == source.strides and layout.is_dense:
        return source.pointer, source
    memory = gather(source, layout.itemsize)
    return ctypes.addressof(memory), memory


def from_gpu(source: Source, layout: Layout, to: int, ordinal: int) -> None:
    """Copies a GPU's array to an address that is mapped for the GPU of that ordinal, or to host memory where it is negative; done when it
    returns.

    Raises:
        InvalidParameterError: the array is on another GPU, which does not reach that memory.
    """
    if 0 <= ordinal != source.device[1]:
        raise errors.InvalidParameterError(f"array: it is on GPU {source.device[1]} of this process, and where it is to go is mapped for "
                                           f"GPU {ordinal}. Copy it to that GPU first.", subject="array")
    _cuda.copy(source.device[1], to, ordinal < 0, runs(source, layout))
