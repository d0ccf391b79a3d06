# SPDX-License-Identifier: Apache-2.0
"""Memory with a shape and a dtype, for whoever reads arrays: NumPy, PyTorch, CuPy, JAX, memoryview."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Optional

from . import _copy, _cuda, _dlpack
from ._lifetime import Facts, Keeper, OfThisProcess
from .layout import DTYPES, Layout, parse_meta

# What memoryview.cast() knows of them.
_FORMATS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
            "float32": "f", "float64": "d"}


_View = memoryview  # which classes here have a method of the same name as


class Memory:
    """Where an array lies: what keeps it, and on which device. `stream`: what it is ready on, None where it is ready."""

    def __init__(self, keeper: Keeper, pointer: int, size: int, device: str, ordinal: int, read_only: bool, facts: Optional[Facts] = None,
                 stream: Optional[int] = None) -> None:
        self.keeper, self.pointer, self.size, self.device, self.ordinal = keeper, pointer, size, device, ordinal
        self.read_only, self.facts, self.stream = read_only, facts, stream

    @property
    def on_host(self) -> bool:
        return self.device == "host"


class _Copy:
    """Bytes of this process's own, which a DLPack tensor of a copy refers to."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class Array(OfThisProcess):
    """A view of shared memory as a tensor: `numpy.asarray(a)`, `torch.from_dlpack(a)`, `cupy.asarray(a)`, `memoryview(a)`.

    It copies nothing. The lease on the memory ends with the last view of it, which is this object or what was made from it. Made by
    `Buffer.array()`, `Client.get()` and a channel's items.

    Attributes:
        layout: dtype, shape, strides and offset.
        readonly: writing is refused, or faults.
        device: the UUID of the GPU, or "host".
    """

    __slots__ = ("__weakref__", "_memory", "layout", "readonly")

    def __init__(self, memory: Memory, layout: Layout) -> None:
        layout.check(memory.size)
        self.layout, self.readonly = layout, memory.read_only
        memory.keeper.add_view(self)
        self._memory = memory

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and hasattr(self, "_memory"):
            self._memory.keeper.drop_view(self)

    def __repr__(self) -> str:
        kind = " read-only" if self.readonly else ""
        return f"<gpuipc.Array {self.dtype}{list(self.shape)} on {self.device}{kind}>"

    @property
    def dtype(self) -> str:
        """The dtype's name, "float32"."""
        return self.layout.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self.layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one to the next along each dimension."""
        return self.layout.strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.layout.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.layout.nbytes

    @property
    def pointer(self) -> int:
        """The address of the first element, in this process: a host pointer or a device pointer."""
        return self._memory.pointer + self.layout.offset

    @property
    def device(self) -> str:
        """The UUID of the GPU that holds it, or "host"."""
        return self._memory.device

    @property
    def cuda_device(self) -> int:
        """The number, in this process, of the GPU that it is mapped for; −1 for host memory."""
        return self._memory.ordinal

    @property
    def buffer_id(self) -> Optional[str]:
        """The id of the buffer that it lies in; None for a channel's item."""
        return self._memory.facts.id if self._memory.facts else None

    @property
    def meta(self) -> dict[str, Any]:
        """The buffer's metadata; {} where it has none, and of a channel's item, which has its own (`Item.meta`)."""
        return parse_meta(self._memory.facts.meta if self._memory.facts else None)

    # ---- DLPack ----

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0) for host memory, (2, n) for the GPU with number n in this process."""
        return (_dlpack.CPU, 0) if self._memory.on_host else (_dlpack.CUDA, self._memory.ordinal)

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[tuple[int, int]] = None,
                   dl_device: Optional[tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule, as the Python array API standard has it.

        Args:
            stream: of a GPU, the consumer's: −1 does not order, None or 1 is the legacy default stream, 2 the per-thread one, above
                that a handle. What the memory is ready on (a channel's item taken with a stream) is waited for by it, not by this call.
            max_version: (1, 0) or above gives a versioned capsule, which can be read-only.
            dl_device: (1, 0) asks for a copy in host memory; else the array's own.
            copy: True for a copy in host memory; False to refuse one.

        Raises:
            BufferError: a read-only array as an unversioned capsule; another device; a copy that was refused, or on a GPU.
        """
        own = self.__dlpack_device__()
        wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        versioned = max_version is not None and max_version[0] >= 1
        if wanted != own and (wanted[0] != _dlpack.CPU or copy is False):
            refused = " without a copy" if copy is False else ""
            raise BufferError(f"the array is on device {own}, and cannot be given on {wanted}{refused}")
        if wanted[0] == _dlpack.CPU and (copy or wanted != own):
            return self._copied(versioned)
        if copy:
            raise BufferError("a copy within a GPU's memory is the consumer's to make: ask without copy=True")
        if self.readonly and not versioned:
            raise BufferError("the array is read-only, which a DLPack capsule of before version 1.0 cannot say: ask with "
                              "max_version=(1, 0), or use Array.torch() or Array.jax()")
        self._order(stream)
        return self._capsule(versioned)

    def _capsule(self, versioned: bool) -> Any:
        return _dlpack.capsule(self, self._memory.pointer, self.layout, self.__dlpack_device__(), versioned,
                               _dlpack.READ_ONLY if self.readonly else 0)

    def _order(self, stream: Optional[int]) -> None:
        """Has the consumer's stream wait for the memory."""
        if self._memory.on_host:
            if stream is not None:
                raise ValueError(f"stream: {stream} for host memory, which has none: give None")
            return
        if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < -1):
            raise ValueError(f"stream: {stream!r} is none of −1, None, 1, 2 and a handle (0 could be either default stream)")
        if stream != -1 and self._memory.stream is not None:
            _cuda.order(self._memory.ordinal, self._memory.stream, stream or 1)

    def tobytes(self) -> bytes:
        """The elements, row-major, copied to this process's memory, whatever they lie on.

        Raises:
            MapError: with the driver's own words.
        """
        if self._memory.on_host and self.layout.is_row_major:
            return ctypes.string_at(self.pointer, self.nbytes)
        return bytes(self._gather())

    def _gather(self) -> Any:
        """A ctypes array of the elements, row-major."""
        if self._memory.on_host:
            return _copy.gather(_dlpack.Source(self, self.pointer, self.dtype, self.shape, self.strides, (_dlpack.CPU, 0)),
                                self.layout.itemsize)
        memory = (ctypes.c_ubyte * self.nbytes)()
        if self.size:
            if self._memory.stream is not None:
                _cuda.order(self._memory.ordinal, self._memory.stream, 1)
            runs = _copy.pieces(self.shape, self.strides, self.layout.itemsize)
            _cuda.copy(self._memory.ordinal, ctypes.addressof(memory), True, ((place, self.pointer + start, n) for place, start, n in runs))
        return memory

    def _copied(self, versioned: bool) -> Any:
        memory = self._gather()
        layout = Layout.of(self.dtype, self.shape)
        return _dlpack.capsule(_Copy(memory), ctypes.addressof(memory), layout, (_dlpack.CPU, 0), versioned, _dlpack.IS_COPIED)

    # ---- the older interfaces ----

    def _interface(self) -> dict[str, Any]:
        typestr = DTYPES[self.dtype][2]
        if not typestr:
            raise AttributeError(f"{self.dtype} has no name in NumPy's interfaces: use DLPack")
        strides = None if self.layout.is_row_major else tuple(step * self.layout.itemsize for step in self.strides)
        return {"shape": self.shape, "typestr": typestr, "data": (self.pointer, self.readonly), "strides": strides, "version": 3}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's, version 3. AttributeError where the memory is on a GPU, or NumPy has no such dtype."""
        if not self._memory.on_host:
            raise AttributeError("the array is on a GPU: use __cuda_array_interface__ or DLPack")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. AttributeError where it is host memory, or NumPy has no such dtype."""
        if self._memory.on_host:
            raise AttributeError("the array is in host memory: use __array_interface__ or DLPack")
        interface = self._interface()
        if self.size == 0:
            interface["data"] = (0, self.readonly)
        return {**interface, "stream": self._memory.stream or None}

    def memoryview(self) -> _View:
        """A memoryview with shape and format; on Python 3.12 and later also by `memoryview(array)`.

        Raises:
            BufferError: the memory is on a GPU, not row-major, empty in more than one dimension, or of a dtype that memoryview has not
                (bytes of those are to be had by `tobytes()`).
        """
        if not self._memory.on_host:
            raise BufferError("the array is on a GPU, where a memoryview cannot reach: use DLPack, or tobytes() for a copy")
        if not self.layout.is_row_major:
            raise BufferError("the array is not row-major, and only such can be a memoryview here: use numpy.asarray()")
        if self.dtype not in _FORMATS:
            raise BufferError(f"a memoryview has no {self.dtype}: use DLPack")
        flat: Any = _byte_view(self, self.pointer, self.nbytes, self.readonly)
        if self.size == 0 and self.ndim != 1:
            raise BufferError("a memoryview cannot be empty in more than one dimension: use numpy.asarray()")
        view: _View = flat.cast(_FORMATS[self.dtype], list(self.shape)) if self.size else flat.cast(_FORMATS[self.dtype])
        return view

    def __buffer__(self, flags: int) -> _View:
        if flags & 1 and self.readonly:
            raise BufferError("the array is read-only")
        return self.memoryview()

    # ---- by name ----

    def numpy(self) -> Any:
        """A numpy.ndarray of the same memory. bfloat16 and float8 need the package ml_dtypes.

        Raises:
            BufferError: the memory is on a GPU.
            TypeError: NumPy has no such dtype.
        """
        import numpy

        if not self._memory.on_host:
            raise BufferError("the array is on a GPU, where NumPy cannot reach: numpy.from_dlpack(array, device='cpu') copies it")
        if DTYPES[self.dtype][2]:
            return numpy.asarray(self)
        try:
            import ml_dtypes
            dtype = numpy.dtype(getattr(ml_dtypes, self.dtype))
        except (ImportError, AttributeError):
            raise TypeError(f"NumPy has no {self.dtype} without the package ml_dtypes: install it, or use DLPack") from None
        return numpy.asarray(self._as(f"uint{8 * self.layout.itemsize}")).view(dtype)

    def torch(self) -> Any:
        """A torch.Tensor of the same memory. PyTorch knows no read-only tensors: writing to a read-only one ends the process with SIGSEGV
        on host memory, and is a fault of the context's on a GPU.

        Raises:
            TypeError: this PyTorch has no such dtype.
        """
        import torch.utils.dlpack

        dtype = getattr(torch, self.dtype, None)
        if dtype is None:
            raise TypeError(f"this PyTorch ({torch.__version__}) has no {self.dtype}: view the bytes as another dtype, or use a newer one")
        if not self._memory.on_host:
            with torch.cuda.device(self._memory.ordinal):
                stream = torch.cuda.current_stream().cuda_stream
            self._order(stream or 1)
        if DTYPES[self.dtype][0] in _dlpack.SINCE_NOT_LONG:
            return torch.utils.dlpack.from_dlpack(self._as("uint8")._capsule(False)).view(dtype)
        return torch.utils.dlpack.from_dlpack(self._capsule(False))

    def _as(self, dtype: str) -> Array:
        """Another dtype of the same size."""
        return Array(self._memory, Layout(dtype, self.shape, self.strides, self.layout.offset))

    def cupy(self) -> Any:
        """A cupy.ndarray of the same memory, on a GPU.

        Raises:
            BufferError: it is host memory.
        """
        if self._memory.on_host:
            raise BufferError("the array is in host memory, where CuPy cannot reach: cupy.asarray(array.numpy()) copies it to a GPU")
        import cupy

        return cupy.asarray(self) if DTYPES[self.dtype][2] else cupy.from_dlpack(self)

    def jax(self) -> Any:
        """A jax.Array of the same memory, of a read-only array too: JAX writes to none. It copies what is 64 bits wide unless
        jax_enable_x64 is set, and what is not aligned as it wants it. What is not sealed may change under it."""
        import jax.dlpack

        return jax.dlpack.from_dlpack(_ForReaders(self))


class _ForReaders:
    """An array for one who writes to none, and has no DLPack that could say that it must not."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: Optional[int] = None, **_: Any) -> Any:
        self.array._order(stream)
        return self.array._capsule(False)


def _byte_view(owner: object, pointer: int, n: int, read_only: bool) -> _View:
    """Bytes at an address, which `owner` keeps there."""
    memory = (ctypes.c_ubyte * n).from_address(pointer) if n else (ctypes.c_ubyte * 0)()
    memory._owner = owner  # type: ignore[attr-defined]
    view = memoryview(memory).cast("B")
    return view.toreadonly() if read_only else view
