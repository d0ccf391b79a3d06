# SPDX-License-Identifier: Apache-2.0
"""Processes with PyTorch and gpuipc in them, in no time: forked from one that has imported both and not touched a GPU.

    with Zygote(socket) as zygote:
        child = zygote.fork()
        child.run("tensor = gpuipc.torch.get('x')")
        total = child.ask("tensor.sum().item()")
        child.kill()
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback

from rawclient import WAIT_S


class ChildError(Exception):
    """What a child's code raised: the name of the class, and the traceback."""

    def __init__(self, name, text):
        super().__init__(text)
        self.name = name


class Child:
    """A forked process. Code runs in one namespace, in order; it has torch, gpuipc and DEVICE."""

    def __init__(self, connection):
        self.connection = connection
        self.pid = int(connection.recv(64))
        self.pidfd = os.pidfd_open(self.pid)

    def tell(self, code):
        self.connection.sendall(json.dumps({"run": code}).encode())

    def run(self, code, timeout=6 * WAIT_S):
        self.tell(code)
        self.hear(timeout)

    def ask(self, expression, timeout=6 * WAIT_S):
        self.connection.sendall(json.dumps({"ask": expression}).encode())
        return self.hear(timeout)

    def hear(self, timeout=6 * WAIT_S):
        if not select.select([self.connection], [], [], timeout)[0]:
            raise TimeoutError(f"no answer of child {self.pid} within {timeout} s")
        answer = self.connection.recv(1 << 20)
        if not answer:
            raise EOFError(f"child {self.pid} ended")
        answer = json.loads(answer)
        if "error" in answer:
            raise ChildError(answer["error"], answer["text"])
        return answer["value"]

    def ended(self, timeout=2 * WAIT_S):
        """Waits for its end."""
        if not select.select([self.pidfd], [], [], timeout)[0]:
            raise TimeoutError(f"child {self.pid} lives on")
        self.close()

    def clear(self):
        """What its code has named is gone."""
        self.run("import gc\n"
                 "for _name in set(globals()) - {'torch', 'gpuipc', 'DEVICE', 'gc', '__builtins__'}: del globals()[_name]\n"
                 "gc.collect()\nDEVICE == 'cuda' and torch.cuda.is_initialized() and torch.cuda.empty_cache()")

    def kill(self):
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.ended()

    def end(self, timeout=2 * WAIT_S):
        """As a program ends: through interpreter exit."""
        self.connection.sendall(b'{"end": 1}')
        self.ended(timeout)

    def close(self):
        self.connection.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Zygote:
    def __init__(self, daemon_socket, device="cpu", environment=None):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-B", os.path.abspath(__file__), str(theirs.fileno()), device], pass_fds=[theirs.fileno()],
                env={**os.environ, "GPUIPC_SOCKET": daemon_socket, **(environment or {})})
        self.children = []
        self._partner = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def fork(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.connection, [b"f"], [theirs.fileno()])
        child = Child(ours)
        self.children.append(child)
        return child

    def partner(self):
        """A child that goes on from one test to the next: one context of the GPU serves them all."""
        if self._partner is None or self._partner.pidfd < 0:
            self._partner = self.fork()
            self.children.remove(self._partner)
        return self._partner

    def clear_partner(self):
        """One that a failed test left amid something goes."""
        if self._partner is None or self._partner.pidfd < 0:
            return
        try:
            self._partner.clear()
        except (ChildError, TimeoutError, OSError, EOFError):
            self._partner.kill()

    def close(self):
        for child in [*self.children, *([self._partner] if self._partner else [])]:
            if child.pidfd >= 0:
                child.kill()
        self.connection.close()
        self.process.wait(timeout=2 * WAIT_S)


def serve(connection, device):
    """A child's life."""
    import gpuipc
    import gpuipc.torch
    import torch

    namespace = {"torch": torch, "gpuipc": gpuipc, "DEVICE": device}
    connection.sendall(str(os.getpid()).encode())
    while True:
        message = connection.recv(1 << 20)
        if not message:
            os._exit(0)
        order = json.loads(message)
        if "end" in order:
            return
        value = None
        try:
            if "run" in order:
                exec(order["run"], namespace)
            else:
                value = eval(order["ask"], namespace)
        except BaseException as error:  # pylint: disable=broad-except
            connection.sendall(json.dumps({"error": type(error).__name__, "text": traceback.format_exc()[-4000:]}).encode())
            error.__traceback__ = None
            continue
        connection.sendall(json.dumps({"value": value}).encode())


def main():
    import gpuipc.torch  # noqa: F401
    import gpuipc.torch.multiprocessing  # noqa: F401
    import torch  # noqa: F401

    torch.set_num_threads(1)
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(socket.socket(fileno=fds[0]), sys.argv[2])
            return
        os.close(fds[0])


if __name__ == "__main__":
    main()
