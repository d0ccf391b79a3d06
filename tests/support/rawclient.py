# SPDX-License-Identifier: Apache-2.0
"""A varlink client by hand: bytes, descriptors, whole calls. Standard library only."""

import array
import json
import os
import select
import socket

import backend

BROKER = "io.gpuipc.Broker."
WAIT_S = 10 * int(os.environ.get("GPUIPC_TEST_SLOWER", "1"))


class ReplyError(Exception):
    """An error reply: its full name and its parameters."""

    def __init__(self, name, parameters):
        super().__init__(f"{name} {json.dumps(parameters)}")
        self.name, self.parameters = name, parameters


class RawClient:
    """One connection. Received descriptors gather in `fds`, oldest first, and are closed with the client."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(WAIT_S)
        self.received = b""
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()
        self.drop_fds()

    def fileno(self):
        return self.socket.fileno()

    def send(self, data, fds=()):
        """All bytes; `fds` travel with the first of them."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.socket.sendmsg([data], ancillary)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def send_call(self, method, parameters=None, **members):
        method = method if "." in method else BROKER + method
        if backend.CLASSIC and method == BROKER + "Allocate" and parameters and "handle" not in parameters:
            parameters = {**parameters, "handle": backend.HANDLE}
        call = {"method": method, **({} if parameters is None else {"parameters": parameters}), **members}
        self.send(json.dumps(call).encode() + b"\0")

    def receive(self):
        """One recvmsg(); b"" when the peer closed."""
        data, ancillary, flags, _ = self.socket.recvmsg(1 << 18, socket.CMSG_SPACE(253 * 4), socket.MSG_CMSG_CLOEXEC)
        assert not flags & socket.MSG_CTRUNC, "descriptors were cut off"
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self.fds += numbers
        return data

    def read_bytes(self):
        """The next message without its NUL, or None when the peer closed."""
        while b"\0" not in self.received:
            try:
                data = self.receive()
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.received += data
        message, _, self.received = self.received.partition(b"\0")
        return message

    def read(self):
        message = self.read_bytes()
        return None if message is None else json.loads(message)

    def call(self, method, parameters=None, **members):
        """The reply's parameters; ReplyError for an error, ConnectionError when the peer closed."""
        self.send_call(method, parameters, **members)
        return self.result()

    def result(self):
        reply = self.read()
        if reply is None:
            raise ConnectionError("the peer closed")
        if "error" in reply:
            raise ReplyError(reply["error"], reply.get("parameters", {}))
        return reply.get("parameters", {})

    def call_more(self, method, parameters=None):
        """The parameters of each reply until the last."""
        self.send_call(method, parameters, more=True)
        while True:
            reply = self.read()
            if reply is None:
                raise ConnectionError("the peer closed")
            if "error" in reply:
                raise ReplyError(reply["error"], reply.get("parameters", {}))
            yield reply.get("parameters", {})
            if not reply.get("continues"):
                return

    def drop_fds(self):
        while self.fds:
            os.close(self.fds.pop())

    def take_fd(self):
        return self.fds.pop(0)

    def readable(self, seconds=0):
        return bool(self.received) or bool(select.select([self.socket], [], [], seconds)[0])

    def expect_closed(self):
        """Waits until the peer closes; drops what it still sends."""
        try:
            while self.receive():
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
