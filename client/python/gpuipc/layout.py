# SPDX-License-Identifier: Apache-2.0
"""How elements lie in memory, and how that is written down in a buffer's or an item's metadata.

Metadata is a JSON object. What describes a tensor is its member "tensor", version 1 of which is

    {"tensor": {"v": 1, "dtype": "bfloat16", "shape": [64, 3, 224, 224], "strides": [150528, 1, 672, 3], "offset": 0}}

- dtype: the name that NumPy and PyTorch have for it: bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64,
  complex64, complex128, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu.
- shape: a number of elements for each dimension, 0 to 64 of them; [] is one element.
- strides: elements, not bytes, from one to the next along each dimension, none negative; left out where they are row-major.
- offset: bytes from the buffer's or item's first to the tensor's first element, a multiple of the dtype's size; left out where 0.

Whoever reads it ignores members that it does not know. A version that cannot be read as this one has another "v". Other members beside
"tensor" are the program's own.
"""

from __future__ import annotations

import functools
import json
import numbers
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from .errors import InvalidParameterError, LayoutError

VERSION = 1
DIMENSIONS_MAX = 64
ELEMENTS_MAX = 1 << 53

# name: (DLPack's code, bits, NumPy's letter; "" where NumPy itself has no such dtype)
DTYPES: dict[str, tuple[int, int, str]] = {
    "bool": (6, 8, "|b1"),
    "int8": (0, 8, "|i1"), "int16": (0, 16, "<i2"), "int32": (0, 32, "<i4"), "int64": (0, 64, "<i8"),
    "uint8": (1, 8, "|u1"), "uint16": (1, 16, "<u2"), "uint32": (1, 32, "<u4"), "uint64": (1, 64, "<u8"),
    "float16": (2, 16, "<f2"), "float32": (2, 32, "<f4"), "float64": (2, 64, "<f8"),
    "complex64": (5, 64, "<c8"), "complex128": (5, 128, "<c16"),
    "bfloat16": (4, 16, ""),
    "float8_e4m3fn": (10, 8, ""), "float8_e4m3fnuz": (11, 8, ""), "float8_e5m2": (12, 8, ""), "float8_e5m2fnuz": (13, 8, ""),
    "float8_e8m0fnu": (14, 8, ""),
}
BY_DLPACK = {(code, bits): name for name, (code, bits, _) in DTYPES.items()}
BY_TYPESTR = {typestr: name for name, (_, _, typestr) in DTYPES.items() if typestr}


def _shown(value: Any) -> str:
    """Of another process's metadata, in an error's text: not all of what may be much."""
    return reprlib.repr(value)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as a name, a numpy.dtype, a torch.dtype, or a scalar type such as numpy.float32.

    Raises:
        LayoutError: there is none of that name here, or it is one of another machine's byte order.
    """
    if getattr(dtype, "isnative", True) is False:
        raise LayoutError(f"dtype: {dtype!r} is not in this machine's byte order, which is what arrays here are in. Give "
                          "dtype.newbyteorder('=') and swap the bytes of what is read.", subject="dtype")
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    if name == "bool_":
        name = "bool"
    if name not in DTYPES:
        raise LayoutError(f"dtype: {_shown(name)} is none of {', '.join(DTYPES)}.", subject="dtype")
    return str(name)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major (C-contiguous) tensor of that shape."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def _integers(values: Any, what: str, least: int = 0) -> tuple[int, ...]:
    if isinstance(values, numbers.Integral) and not isinstance(values, bool):
        values = (values,)
    if isinstance(values, (str, bytes)):
        raise LayoutError(f"{what}: a sequence of integers is wanted, not {type(values).__name__}.", subject=what)
    try:
        found = tuple(value.__index__() for value in values if not isinstance(value, bool) or _refuse_bool(what))
    except (TypeError, AttributeError):
        raise LayoutError(f"{what}: a sequence of integers is wanted, not {_shown(values)}.", subject=what) from None
    if len(found) > DIMENSIONS_MAX:
        raise LayoutError(f"{what}: {len(found)} dimensions; at most {DIMENSIONS_MAX}.", subject=what)
    for value in found:
        if not least <= value <= ELEMENTS_MAX:
            raise LayoutError(f"{what}: {value} is not between {least} and 2^53.", subject=what)
    return found


def _refuse_bool(what: str) -> bool:
    raise LayoutError(f"{what}: true and false are no integers.", subject=what)


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie. Checked, however it is made.

    Attributes:
        dtype: a name of `DTYPES`.
        shape: elements along each dimension.
        strides: elements, not bytes, between neighbours along each dimension.
        offset: bytes from the memory's start to the first element.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        name, shape, steps = dtype_name(self.dtype), _integers(self.shape, "shape"), _integers(self.strides, "strides")
        (where,) = _integers((self.offset,), "offset")
        for member, value in (("dtype", name), ("shape", shape), ("strides", steps), ("offset", where)):
            object.__setattr__(self, member, value)
        if len(steps) != len(shape):
            raise LayoutError(f"strides: {len(steps)} of them for {len(shape)} dimensions.", subject="strides")
        if where % self.itemsize:
            raise LayoutError(f"offset: {where} is not a multiple of {self.itemsize}, the size of a {name}.", subject="offset")
        if self.end > ELEMENTS_MAX:
            raise LayoutError(f"shape: {list(shape)} reaches beyond 2^53 bytes.", subject="shape")

    @classmethod
    def of(cls, dtype: Any, shape: Any, strides: Any = None, offset: int = 0) -> Layout:
        """Checked. `strides` None: row-major.

        Raises:
            LayoutError: says which of them cannot be.
        """
        # 2.0 and True are found where 2 and 1 were put.
        if type(dtype) is str and type(shape) is tuple and type(offset) is int and all(type(extent) is int for extent in shape) and (
                strides is None or (type(strides) is tuple and all(type(step) is int for step in strides))):
            return _known(dtype, shape, strides, offset)
        return cls._checked(dtype, shape, strides, offset)

    @classmethod
    def within(cls, size: int, dtype: Any, shape: Any, strides: Any, offset: Any) -> Layout:
        """Of `size` bytes: checked. `shape` None: one dimension, of as many elements as fit behind the offset.

        Raises:
            LayoutError: says which of them cannot be.
        """
        (start,) = _integers((offset,), "offset")
        if shape is None:
            if strides is not None:
                raise LayoutError("strides: give the shape that they belong to.", subject="strides")
            if start > size:
                raise LayoutError(f"offset: {start} is beyond the {size} bytes that there are.", subject="offset")
            shape = ((size - start) // (DTYPES[dtype_name(dtype)][1] // 8),)
        return cls.of(dtype, shape, strides, start)

    @classmethod
    def _checked(cls, dtype: Any, shape: Any, strides: Any, offset: Any) -> Layout:
        extents = _integers(shape, "shape")
        if strides is None:
            strides = row_major(extents)
            if max(strides, default=0) > ELEMENTS_MAX:
                raise LayoutError(f"shape: {list(extents)} reaches beyond 2^53 bytes.", subject="shape")
        return cls(dtype, extents, strides, offset)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype][1] // 8

    @property
    def size(self) -> int:
        """How many elements there are."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps between them."""
        return self.size * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last, with gaps; 0 where there is none."""
        if self.size == 0:
            return 0
        return (1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.strides))) * self.itemsize

    @property
    def end(self) -> int:
        """Bytes from the memory's start to the end of the last element."""
        return self.offset + self.span

    @property
    def is_row_major(self) -> bool:
        """Whether the elements lie one after the other, the last dimension's closest (C-contiguous)."""
        return self.size == 0 or all(extent == 1 or step == plain
                                     for extent, step, plain in zip(self.shape, self.strides, row_major(self.shape)))

    @property
    def is_dense(self) -> bool:
        """Whether each element lies in a place of its own with no gap between them, in whatever order of dimensions."""
        step = 1
        for stride, extent in sorted((stride, extent) for stride, extent in zip(self.strides, self.shape) if extent != 1):
            if stride != step:
                return self.size == 0
            step *= extent
        return True

    def to_meta(self) -> dict[str, Any]:
        """The metadata that describes it: {"tensor": {...}}."""
        tensor: dict[str, Any] = {"v": VERSION, "dtype": self.dtype, "shape": list(self.shape)}
        if self.strides != row_major(self.shape):
            tensor["strides"] = list(self.strides)
        if self.offset:
            tensor["offset"] = self.offset
        return {"tensor": tensor}

    @classmethod
    def from_meta(cls, meta: Any, size: Optional[int] = None) -> Layout:
        """Of metadata, which another process wrote: checked, and to lie inside `size` bytes where that is given.

        Raises:
            LayoutError: says what is wrong with it.
        """
        tensor = meta.get("tensor") if isinstance(meta, dict) else None
        if not isinstance(tensor, dict):
            raise LayoutError('meta: it describes no tensor (it has no member "tensor"). Give shape and dtype.', subject="meta")
        if tensor.get("v", VERSION) != VERSION:
            raise LayoutError(f"meta: a tensor described by version {_shown(tensor['v'])}, and this package reads {VERSION}. Install a "
                              "newer one.", subject="meta")
        if not isinstance(tensor.get("dtype"), str):
            raise LayoutError("meta: a tensor without a dtype.", subject="dtype")
        if not isinstance(tensor.get("shape"), list) or not isinstance(tensor.get("strides", []), list):
            raise LayoutError("meta: shape and strides of a tensor are lists.", subject="shape")
        layout = cls._checked(tensor["dtype"], tensor["shape"], tensor.get("strides"), tensor.get("offset", 0))
        if size is not None:
            layout.check_foreign(size)
        return layout

    def check_foreign(self, size: int) -> None:
        """check() of what another process wrote: nor may there be more elements than there are bytes for, since who copies them would need
        memory for all."""
        self.check(size)
        if self.nbytes > size:
            raise LayoutError(f"meta: {self.nbytes} bytes of elements in {size}: they overlap.", subject="strides")

    def check(self, size: int) -> None:
        """Raises LayoutError unless all of it lies within `size` bytes."""
        if self.end > size:
            raise LayoutError(f"shape: {list(self.shape)} of {self.dtype} with strides {list(self.strides)} at byte {self.offset} ends at "
                              f"byte {self.end}, and there are {size}.", subject="shape")


@functools.lru_cache(maxsize=512)
def _known(dtype: str, shape: tuple[int, ...], strides: Optional[tuple[int, ...]], offset: int) -> Layout:
    """As Layout.of(): a steady flow has few layouts."""
    return Layout._checked(dtype, shape, strides, offset)


@functools.lru_cache(maxsize=512)
def layout_meta(layout: Layout) -> str:
    """dump_meta() of a layout alone."""
    return json.dumps(layout.to_meta(), separators=(",", ":"))


def parse_meta(text: Optional[str]) -> dict[str, Any]:
    """Metadata as an object; {} where there is none, or none that is an object."""
    try:
        meta = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def dump_meta(meta: Optional[dict[str, Any]], layout: Optional[Layout] = None) -> Optional[str]:
    """JSON text of the program's own metadata and a layout; None where both are None.

    Raises:
        TypeError, InvalidParameterError: it cannot be written as JSON.
    """
    if meta is None and layout is None:
        return None
    if not own_meta(meta) and layout is not None:
        return layout_meta(layout)
    whole = {**own_meta(meta), **(layout.to_meta() if layout else {})}
    try:
        text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except TypeError as error:
        raise TypeError(f"meta: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"meta: it cannot be written as JSON: {error}.", subject="meta") from None
    return text


def own_meta(meta: Optional[dict[str, Any]]) -> dict[str, Any]:
    """A program's own metadata. TypeError: it is no dict."""
    if meta is not None and not isinstance(meta, dict):
        raise TypeError(f"meta: a dict is wanted, not {type(meta).__name__}")
    return meta or {}
