# SPDX-License-Identifier: Apache-2.0
"""Hands a buffer of the daemon's to a server that takes classic handles (classic_server.py, which it starts).

classic_client.py

The handle's 64 bytes may go to anyone, and what is done with them is outside the daemon's books: the lease is kept until the server is done.
"""

import os
import subprocess
import sys

import gpuipc

server = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "classic_server.py")],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
data = bytes(range(256)) * 16
with gpuipc.Client() as client, client.allocate(len(data), handle="cuda-ipc") as buffer:
    buffer.write(data)
    server.stdin.write(f"{buffer.ipc_handle.hex()} {buffer.offset} {buffer.size}\n")
    server.stdin.flush()
    said = int(server.stdout.readline() or -1)
print(f"the server says {said}, and it is {sum(data)}")
server.stdin.close()
sys.exit(server.wait() or said != sum(data))
