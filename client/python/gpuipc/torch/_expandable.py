# SPDX-License-Identifier: Apache-2.0
"""PyTorch's expandable segments, which are no buffers of the daemon's and do not go together with pools."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator

import torch

_lock = threading.Lock()
_users = 0
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*True", re.I)


def _configure(settings: str) -> None:
    for place, name in ((torch._C, "_accelerator_setAllocatorSettings"), (torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings")):
        if hasattr(place, name):
            getattr(place, name)(settings)
            return
    torch.cuda.memory._set_allocator_settings(settings)


@contextlib.contextmanager
def without_expandable_segments() -> Iterator[None]:
    """PyTorch cannot have a pool with an allocator and expandable segments at once, so those are off while a pool is in use: tensors that
    other threads make meanwhile are not in such segments."""
    global _users
    settings = next((os.environ[name] for name in _VARIABLES if _EXPANDABLE.search(os.environ.get(name, ""))), None)
    if settings is None:
        yield
        return
    with _lock:
        if _users == 0:
            _configure(_EXPANDABLE.sub("expandable_segments:False", settings))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _configure(settings)
