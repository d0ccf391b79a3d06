# SPDX-License-Identifier: Apache-2.0
"""PyTorch's storages, dtypes and devices, by whatever names its version has for them."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Iterator
from typing import Any, Optional

import torch

from .. import _copy, _cuda, errors
from ..buffer import Buffer
from ..client import Client
from ..errors import LayoutError
from ..layout import DTYPES, Layout

_digits: dict[int, str] = {}
_uuids: weakref.WeakKeyDictionary[Client, dict[int, str]] = weakref.WeakKeyDictionary()


def version() -> tuple[int, int]:
    """PyTorch's, as two numbers."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found, torch.__version__
    return int(found.group(1)), int(found.group(2))


def storage_of(tensor: torch.Tensor) -> Any:
    """What owns a tensor's bytes."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor._storage()


def storage_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of a tensor's storage."""
    storage = storage_of(tensor)
    return int(storage.data_ptr()), int(storage.nbytes())


def plain(tensor: Any) -> torch.Tensor:
    """The tensor without history, conjugation and negation.

    Raises:
        TypeError: it is none, or has no elements that lie in memory one by one.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor: a torch.Tensor is wanted, not {type(tensor).__name__}")
    found: torch.Tensor = _copy.plain_tensor(tensor.detach(), "tensor")
    return found


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory one by one, and are of a dtype that there is a name for."""
    return _copy.kind_of(tensor) == "strided" and str(tensor.dtype).rpartition(".")[2] in DTYPES


def layout_of(tensor: torch.Tensor, offset: int = 0) -> Layout:
    """How a tensor lies, from its first element on, which is `offset` bytes from where the layout counts from."""
    return Layout.of(str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), offset)


def copy_layout(tensor: torch.Tensor) -> Layout:
    """How a copy lies: as the tensor where that has no gaps, else row-major."""
    layout = layout_of(tensor)
    return layout if layout.is_dense else Layout.of(layout.dtype, layout.shape)


def dtype_of(name: str) -> torch.dtype:
    """Raises LayoutError where this PyTorch has none of that name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise LayoutError(f"dtype: PyTorch {torch.__version__} has no {name}: a newer one has.", subject="dtype")
    return dtype


def tensor_in(raw: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A view of bytes (a tensor of uint8, whose storage it shares) as that layout has them, of any dtype that this PyTorch has."""
    dtype = dtype_of(layout.dtype)
    if layout.size == 0:
        return raw[:0].view(dtype).as_strided(layout.shape, layout.strides, 0)
    typed = raw[:layout.end].view(dtype)
    return typed.as_strided(layout.shape, layout.strides, typed.storage_offset() + layout.offset // layout.itemsize)


def ordinal_of(uuid: str) -> Optional[int]:
    """The number, in this process, of the GPU of that UUID; None: it is hidden."""
    digits = uuid.partition("-")[2].replace("-", "")
    for ordinal in range(torch.cuda.device_count()):
        if ordinal not in _digits:
            _digits[ordinal] = _cuda.uuid(ordinal)
        if _digits[ordinal] == digits:
            return ordinal
    return None


@contextlib.contextmanager
def on_its_gpu(uuid: str) -> Iterator[None]:
    """What is mapped inside is mapped for the GPU that holds it, as PyTorch has tensors on their GPU whichever is current; where that one
    is hidden, for the current one, by peer access."""
    ordinal = ordinal_of(uuid) if uuid != "host" else None
    with torch.cuda.device(ordinal) if ordinal is not None else contextlib.nullcontext():
        yield


def bytes_of(buffer: Buffer) -> torch.Tensor:
    """All bytes of a buffer, as a tensor that holds its lease."""
    with on_its_gpu(buffer.device):
        raw: torch.Tensor = buffer.array((buffer.size,), "uint8").torch()
    return raw


def placed(device: Any) -> torch.device:
    """The device that is named, a GPU with its number; None: the current GPU, or host memory where there is none.

    Raises:
        InvalidParameterError: tensors are not shared there.
    """
    where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if where.type not in ("cpu", "cuda"):
        raise errors.InvalidParameterError(f"device: {str(where)!r} is neither 'cpu' nor 'cuda', where tensors are shared.",
                                           subject="device")
    return torch.device("cuda", torch.cuda.current_device()) if where.type == "cuda" and where.index is None else where


def device_name(client: Client, device: torch.device) -> str:
    """What the daemon calls a device, as tensors have it: a GPU's UUID, or "host".

    Raises:
        NoSuchDeviceError: the daemon does not have that GPU.
    """
    if device.type == "cpu":
        return "host"
    known = _uuids.setdefault(client, {})
    if device.index not in known:
        known[device.index] = client._device_of(device.index)
    return known[device.index]


def settle(tensor: torch.Tensor) -> None:
    """Waits until what this thread gave to the tensor's GPU in its current stream is done."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()
