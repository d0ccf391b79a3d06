# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors, shared between processes by lease from gpuipcd.

    import gpuipc.torch

    share = gpuipc.torch.put(tensor, "batch")             # one process
    tensor = gpuipc.torch.get("batch", wait=30)           # any other

- `put()` and `get()`: a tensor by name or id. The lease ends with the last view of it.
- `empty()`: a tensor in a buffer of its own; `pool()`: all tensors made inside `with` can be shared with no copy.
- `channel`: a steady flow of batches; `data`: the same as a DataLoader.
- `multiprocessing`: CUDA tensors in torch.multiprocessing's queues by way of the daemon.
"""

from __future__ import annotations

import sys

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError(f"gpuipc.torch needs PyTorch, and {sys.executable} has none. Install it there, or use the Python that has it "
                              "(of a virtual environment: python3 -m venv --system-site-packages).", name="torch") from None

from . import channel, data
from ._pool import Pool, pool
from ._share import Share, empty, get, put
from .channel import TensorChannel
from .data import ChannelLoader

__all__ = ["ChannelLoader", "Pool", "Share", "TensorChannel", "channel", "data", "empty", "get", "pool", "put"]
