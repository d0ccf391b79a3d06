# SPDX-License-Identifier: Apache-2.0
"""DLPack's capsules: those that are handed out, which the library makes and ends, and those that are looked into."""

from __future__ import annotations

import ctypes
from ctypes import PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, Optional

from . import _native, errors
from ._locks import table_lock
from .layout import BY_DLPACK, DTYPES, Layout, row_major

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY, IS_COPIED = 1, 2
# Codes of one byte's types that consumers and producers in use do not know: bool, and the float8 ones.
SINCE_NOT_LONG = (6, 10, 11, 12, 13, 14)


class _Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("n_dimensions", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)),
                ("offset", c_uint64)]


class _Versioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
                ("tensor", _Tensor)]


_is_valid = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

_dec_ref = PYFUNCTYPE(None, py_object)(("Py_DecRef", ctypes.pythonapi))

_PYTHON = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_Fetch", "PyErr_Restore", "Py_IncRef", "Py_DecRef", "PyCapsule_New",
           "PyCapsule_IsValid", "PyCapsule_GetPointer")
_begun = False
_lock = table_lock(globals(), "_lock")


def _begin() -> None:
    global _begun
    with _lock:
        if not _begun:
            calls = [ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in _PYTHON]
            table = _native.Python(ctypes.sizeof(_native.Python), *calls)
            _native.call("gpuipc_python_begin", ctypes.byref(table))
            _begun = True


def capsule(owner: object, pointer: int, layout: Layout, device: tuple[int, int], versioned: bool, flags: int = 0) -> Any:
    """A new capsule of a tensor at that address (of the layout's offset, not of its first element), which refers to `owner` until it is
    ended, and so does whoever consumes it."""
    if not _begun:
        _begin()
    n = len(layout.shape)
    code, bits, _ = DTYPES[layout.dtype]
    numbers = (c_int64 * n)(*layout.shape), (c_int64 * n)(*layout.strides)
    tensor = _native.Tensor(ctypes.sizeof(_native.Tensor), pointer + layout.offset, *numbers, n, *device, code, bits, int(versioned),
                            flags)
    result = c_void_p()
    error = _native.Error()
    if _native.library().gpuipc_python_capsule(ctypes.byref(tensor), id(owner), ctypes.byref(result), ctypes.byref(error)) != 0:
        _native.raise_error(error)
    made = ctypes.cast(result, py_object).value
    _dec_ref(made)  # the reference that it was made with; `made` has one of its own
    return made


class Source:
    """A tensor of somebody else's, as it lies in memory; what keeps it there is `owner`."""

    def __init__(self, owner: Any, pointer: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...],
                 device: tuple[int, int]) -> None:
        self.owner, self.pointer, self.dtype, self.shape, self.strides, self.device = owner, pointer, dtype, shape, strides, device


def look(holder: Any) -> Source:
    """What a capsule holds, without consuming it.

    Raises:
        BufferError: it holds none, or memory that cannot be reached.
        LayoutError: elements of a kind that there is no name for.
    """
    if _is_valid(holder, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(holder, b"dltensor_versioned"))
        if versioned.major != 1:
            raise BufferError(f"a DLPack tensor of version {versioned.major}.{versioned.minor}, and 1 is what is read here")
        tensor = versioned.tensor
    elif _is_valid(holder, b"dltensor"):
        tensor = _Tensor.from_address(_get_pointer(holder, b"dltensor"))
    else:
        raise BufferError("no DLPack capsule, or one that was consumed")
    if tensor.device_type not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise BufferError(f"the array is on a device of DLPack's type {tensor.device_type}, and what can be read here is host memory and a "
                          "CUDA GPU's: copy it there first")
    dtype: Optional[str] = BY_DLPACK.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise errors.LayoutError(f"dtype: DLPack's type {tensor.code} of {tensor.bits} bits in {tensor.lanes} lanes has no name here.",
                                 subject="dtype")
    shape = tuple(tensor.shape[i] for i in range(tensor.n_dimensions))
    strides = tuple(tensor.strides[i] for i in range(tensor.n_dimensions)) if tensor.strides else row_major(shape)
    return Source(holder, (tensor.data or 0) + tensor.offset, dtype, shape, strides, (tensor.device_type, tensor.device_id))
