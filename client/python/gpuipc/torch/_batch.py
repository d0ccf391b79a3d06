# SPDX-License-Identifier: Apache-2.0
"""Batches: where their tensors lie in a slot, and how an item's metadata describes them, as told in `channel`."""

from __future__ import annotations

import json
from typing import Any, Callable, Optional

import torch

from .. import errors
from ..channel import Channel, Item
from ..errors import LayoutError
from ..layout import Layout, row_major
from . import _compat

VERSION = 1
ALIGNMENT = 256
_PLAIN = (str, int, float, bool, type(None))


def _walk(batch: Any, leaf: Callable[[torch.Tensor], Any], where: str = "batch") -> Any:
    """The tree of a batch, `leaf` called for each tensor."""
    if isinstance(batch, torch.Tensor):
        return leaf(batch)
    if isinstance(batch, _PLAIN):
        return batch
    if type(batch) is tuple:
        return {"u": [_walk(each, leaf, f"{where}[{i}]") for i, each in enumerate(batch)]}
    if type(batch) is list:
        return [_walk(each, leaf, f"{where}[{i}]") for i, each in enumerate(batch)]
    if isinstance(batch, dict):
        wrong = next((key for key in batch if not isinstance(key, str)), None)
        if wrong is not None:
            raise TypeError(f"{where}: the key {wrong!r} is no str")
        return {"d": {key: _walk(each, leaf, f"{where}[{key!r}]") for key, each in batch.items()}}
    raise TypeError(f"{where}: tensors in tuples, lists and dicts are sent, with numbers and strings, not {type(batch).__name__}")


def grow(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """A batch of its tree."""
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, list):
        return [grow(each, tensors) for each in tree]
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, inside),) = tree.items()
        if kind == "t" and isinstance(inside, int) and 0 <= inside < len(tensors):
            return tensors[inside]
        if kind == "u" and isinstance(inside, list):
            return tuple(grow(each, tensors) for each in inside)
        if kind == "d" and isinstance(inside, dict):
            return {key: grow(each, tensors) for key, each in inside.items()}
    raise LayoutError("meta: the tree of a batch makes no sense.", subject="meta")


def cloned(batch: Any) -> Any:
    """The same with tensors of its own."""
    tensors: list[torch.Tensor] = []

    def clone(tensor: torch.Tensor) -> Any:
        tensors.append(tensor.clone())
        return {"t": len(tensors) - 1}

    return grow(_walk(batch, clone), tensors)


def key_of(batch: Any) -> Any:
    """Equal for batches that lie alike in a slot and have equal numbers and strings; to be hashed."""
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.strided or getattr(batch, "is_nested", False):
            _compat.plain(batch)
        return batch.dtype, batch.shape, batch.stride()
    if isinstance(batch, (tuple, list)):
        return type(batch), tuple([key_of(each) for each in batch])
    if isinstance(batch, dict):
        return dict, tuple([(key, key_of(each)) for key, each in batch.items()])
    # 0.0 and -0.0 are equal.
    return type(batch), repr(batch) if isinstance(batch, float) else batch if isinstance(batch, _PLAIN) else id(batch)


def leaves(batch: Any, into: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a batch, in the order of its tree."""
    if isinstance(batch, torch.Tensor):
        into.append(batch)
    elif isinstance(batch, (tuple, list)):
        for each in batch:
            leaves(each, into)
    elif isinstance(batch, dict):
        for each in batch.values():
            leaves(each, into)
    return into


class Plan:
    """Where the tensors of a batch lie in a slot.

    Attributes:
        layouts: of each, row-major or as it lies where that is without gaps.
        tree: the batch with {"t": i} in place of tensor i.
        meta: the item's metadata, and `text`, the same as JSON.
        device: the first tensor's.
        nbytes: what a slot must have room for.
    """

    def __init__(self, batch: Any) -> None:
        self.layouts: list[Layout] = []
        self.device: Optional[torch.device] = None
        self.nbytes = 0
        self.tree = _walk(batch, self._add)
        if not self.layouts:
            raise TypeError("batch: there is no tensor in it")
        if self.tree == {"t": 0}:
            self.meta = self.layouts[0].to_meta()
        else:
            self.meta = {"batch": {"v": VERSION, "tensors": [self._written(layout) for layout in self.layouts], "tree": self.tree}}
        try:
            self.text = json.dumps(self.meta, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # as of nan, and of half a surrogate pair
            raise errors.InvalidParameterError(f"batch: its numbers and strings cannot be written as JSON: {error}. Send a number "
                                               "like that as a tensor.", subject="batch") from None

    def _add(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "meta":
            tensor = _compat.plain(tensor)
        like = _compat.copy_layout(tensor)
        start = (self.nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.layouts.append(Layout(like.dtype, like.shape, like.strides, start))
        self.device = self.device or tensor.device
        self.nbytes = max(self.nbytes, self.layouts[-1].end)
        return {"t": len(self.layouts) - 1}

    @staticmethod
    def _written(layout: Layout) -> list[Any]:
        row: list[Any] = [layout.dtype, list(layout.shape), layout.offset]
        return row if layout.strides == row_major(layout.shape) else [*row, list(layout.strides)]

    def check(self, channel: Channel) -> None:
        """Raises InvalidParameterError where a slot, or its metadata, is too small."""
        if self.nbytes > channel.slot_bytes:
            raise errors.InvalidParameterError(f"batch: {self.nbytes} bytes do not fit into a slot of {channel.slot_bytes}. Make the "
                                               "channel with a larger slot_bytes.", subject="batch")
        if len(self.text) > channel.meta_bytes:
            raise errors.InvalidParameterError(f"batch: its description takes {len(self.text)} bytes, and an item of this channel has "
                                               f"{channel.meta_bytes} for that. Send fewer tensors at once, or shorter names.",
                                               subject="batch")


def layouts_of(item: Item) -> tuple[list[Layout], Any]:
    meta = item.meta
    if "batch" not in meta:
        return [Layout.from_meta(meta, item.size)], {"t": 0}
    batch = meta["batch"]
    if not isinstance(batch, dict) or batch.get("v") != VERSION or not isinstance(batch.get("tensors"), list):
        raise LayoutError(f"meta: a batch that this package, which reads version {VERSION}, does not understand.", subject="meta")
    layouts = []
    for row in batch["tensors"]:
        if not isinstance(row, list) or len(row) not in (3, 4):
            raise LayoutError("meta: a tensor of a batch makes no sense.", subject="meta")
        layout = Layout.of(row[0], row[1], row[3] if len(row) == 4 else None, row[2])
        layout.check_foreign(item.size)
        layouts.append(layout)
    return layouts, batch.get("tree")
