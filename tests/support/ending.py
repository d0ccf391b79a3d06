# SPDX-License-Identifier: Apache-2.0
"""A process that was killed and does not end: one of its threads, not the first, was seized, and stays until it is waited for. It runs no
more, and what it had open is closed, as of one whose driver takes its time. Standard library only.

    held = Held(pid); held.kill(); ...; held.let_go()
"""

import ctypes
import os
import select
import signal

from daemon import wait_for
from rawclient import WAIT_S

PTRACE_SEIZE, WALL = 0x4206, 0x40000000


class Held:
    """Of this thread alone. Whose child it is does not matter."""

    def __init__(self, pid):
        self.pid, self.pidfd = pid, os.pidfd_open(pid)
        self.thread = wait_for(lambda: [thread for thread in self.threads() if thread != pid], "a second thread")[0]
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(PTRACE_SEIZE, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"thread {self.thread} of {pid} cannot be seized")

    def threads(self):
        return [int(name) for name in os.listdir(f"/proc/{self.pid}/task")]

    def runs(self):
        for thread in self.threads():
            try:
                with open(f"/proc/{self.pid}/task/{thread}/statm", encoding="ascii") as file:
                    if not file.read().startswith("0 "):
                        return True
            except (FileNotFoundError, ProcessLookupError):
                continue
        return False

    def has_ended(self):
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def kill(self):
        """It runs no more when this returns, and has not ended."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        wait_for(lambda: not self.runs(), f"{self.pid} to be ending")
        assert not self.has_ended()

    def let_go(self):
        """It has ended when this returns."""
        if self.thread:
            os.waitpid(self.thread, WALL)
            self.thread = 0
        assert select.select([self.pidfd], [], [], WAIT_S)[0], f"{self.pid} does not end"

    def end(self):
        """Whatever became of it. May be called again."""
        if self.pidfd < 0:
            return
        if not self.has_ended():
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.let_go()
        os.close(self.pidfd)
        self.pidfd = -1
