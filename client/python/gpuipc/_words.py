# SPDX-License-Identifier: Apache-2.0
"""The library's messages in this package's words: it speaks of C's functions and of milliseconds."""

from __future__ import annotations

import re

_FOREIGN = re.compile(r"gpuipc_\w|_ms\b|no_thread|GPUIPC_[A-Z]+_|GetStatus")

# The longer before what is part of them.
_WORDS = (
    ("wait_ms, on the command line --wait", "wait=, in seconds"),
    ("timeout_ms of gpuipc_connect()", "timeout= of gpuipc.Client()"),
    ("the option restart_ms is -1", "its Client was made with restart=0"),
    ("within restart_ms", "within its Client's restart= seconds"),
    ("set no_thread, or do without (restart_ms -1)", "or do without (restart=0)"),
    ("Release buffers before gpuipc_client_free()", "Close what was made with a Client before it"),
    ("gpuipc_connect() in the child", "gpuipc.Client() in the child"),
    ("gpuipc_allocate() or gpuipc_open_…()", "Client.allocate() or Client.open()"),
    ("gpuipc_channel_create() or gpuipc_channel_attach()", "Client.channel_create() or Client.channel_attach()"),
    ("gpuipc_channel_begin() filled", "Channel.item() gave"),
    ("gpuipc_channel_take() filled", "Channel.take() gave"),
    ("ChannelAttach (gpuipc_channel_attach)", "Client.channel_attach() or gpuipc.torch.channel.attach()"),
    ("gpuipc_buffer_size()", "Buffer.size"),
    ("gpuipc_buffer_offset()", "Buffer.offset"),
    ("gpuipc_channel_slot_bytes()", "Channel.slot_bytes"),
    ("gpuipc_channel_meta_bytes()", "Channel.meta_bytes"),
    ("gpuipc_fence_new()", "Buffer.fence()"),
    ("gpuipc_watch_new()", "Client.watch()"),
    ("gpuipc_watch_stop()", "Watch.close()"),
    ("gpuipc_connect()", "gpuipc.Client()"),
    ("gpuipc_list()", "Client.leases()"),
    ("GetStatus", "Client.status()"),
)


def in_python(message: str) -> str:
    """The same message, with the names that things have here."""
    if _FOREIGN.search(message):
        for theirs, ours in _WORDS:
            message = message.replace(theirs, ours)
    return message
