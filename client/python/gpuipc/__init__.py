# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs and of the host, shared between processes by lease from gpuipcd.

    import gpuipc, numpy

    with gpuipc.Client() as client:
        buffer = client.put("demo", numpy.arange(6.0).reshape(2, 3))   # one process
        print(numpy.asarray(client.get("demo")))                       # any other

Nothing is imported but the standard library; NumPy, PyTorch, CuPy and JAX are found when they are used.
"""

from __future__ import annotations

from . import errors
from .array import Array
from .buffer import Buffer
from .channel import Channel, ChannelStats, MemberStats
from .client import Client
from .errors import *  # noqa: F403
from .fence import Fence
from .info import BufferInfo, ChannelInfo, DeviceInfo, Event, LeaseInfo, Status
from .item import Item
from .layout import Layout
from .watch import Watch

__all__ = ["Array", "Buffer", "BufferInfo", "Channel", "ChannelInfo", "ChannelStats", "Client", "DeviceInfo", "Event", "Fence",
           "Item", "Layout", "LeaseInfo", "MemberStats", "Status", "Watch"]
__all__ += errors.__all__
