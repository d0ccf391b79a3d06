# SPDX-License-Identifier: Apache-2.0
"""The client that serves where none is given: one a process and socket."""

from __future__ import annotations

import os
from typing import Optional

from .._locks import table_lock
from ..client import Client

_clients: dict[tuple[int, Optional[str]], Client] = {}
_lock = table_lock(globals(), "_lock")


def client_for(client: Optional[Client] = None, socket: Optional[str] = None) -> Client:
    """The one that is given; else this process's own for that socket (None: that of $GPUIPC_SOCKET, or the usual one), which is made when
    first needed and lives as long as the process.

    Raises:
        UnreachableError: no daemon answers there.
        TypeError: what is given is no Client.
    """
    if client is not None:
        if not isinstance(client, Client):
            raise TypeError(f"client: a gpuipc.Client is wanted, not {type(client).__name__}; that of a socket is gpuipc.Client(path)")
        return client
    pid, socket = os.getpid(), socket or os.environ.get("GPUIPC_SOCKET") or None
    with _lock:
        made = _clients.get((pid, socket))
        if made is None:
            made = _clients[pid, socket] = Client(socket, label="gpuipc.torch")
            made = _clients.setdefault((pid, made.socket), made)
        return made
