# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and a daemon and alters the handles that pass. Standard library only."""

import array
import json
import os
import socket
import threading

from rawclient import RawClient


class Proxy:
    """Each connection gets a thread; a call goes through and its reply comes back with `change` over its handle and buffer."""

    def __init__(self, daemon, change):
        self.daemon, self.change = daemon, change
        self.path = f"{daemon.directory}/proxy"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.sockets.append(peer)
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        received = b""
        with peer, RawClient(self.daemon.socket) as client:
            while True:
                try:
                    data = peer.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                received += data
                while b"\0" in received:
                    call, _, received = received.partition(b"\0")
                    client.send(call + b"\0")
                    self.pass_reply(client, peer)

    def pass_reply(self, client, peer):
        reply = client.read()
        parameters = reply.get("parameters", {})
        if "handle" in parameters:
            parameters["handle"].update(self.change)
            parameters["buffer"]["size"] = self.change["size"]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", client.fds))] if client.fds else []
        peer.sendmsg([json.dumps(reply).encode() + b"\0"], rights)
        client.drop_fds()

    def end(self, _seconds=0):
        self.listener.close()
        for peer in self.sockets:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if os.path.exists(self.path):
            os.unlink(self.path)
