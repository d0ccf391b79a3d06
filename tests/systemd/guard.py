# SPDX-License-Identifier: Apache-2.0
"""Takes a machine down when the test that made it is gone, however it went: it reads what there is to take down, a word and its
object a line, until the other end of its standard input is closed.

    pid N       a process to kill; waited for until it is gone
    mount PATH  to unmount, after what was mounted later
    cgroup PATH to remove, with what is below
    remove PATH a directory to remove with what is in it
"""

import ctypes
import os
import select
import shutil
import signal
import sys
import time

MNT_DETACH = 2
GONE_S = 10
LIBC = ctypes.CDLL(None, use_errno=True)


def end_process(pid):
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [], GONE_S)
    os.close(pidfd)


def remove_cgroup(path):
    """Its last processes may still be on their way out."""
    deadline = time.monotonic() + GONE_S
    while os.path.exists(path) and time.monotonic() < deadline:
        for directory, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                time.sleep(0.005)


def unmount(path):
    if LIBC.umount2(path.encode(), 0) < 0:
        LIBC.umount2(path.encode(), MNT_DETACH)


def main():
    # Of what a terminal sends the test, nothing ends this one; it ends with the test.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = [line.rstrip("\n").split(" ", 1) for line in sys.stdin]
    for word, thing in reversed(told):
        if word == "pid":
            end_process(int(thing))
        elif word == "mount":
            unmount(thing)
        elif word == "cgroup":
            remove_cgroup(thing)
        elif word == "remove":
            shutil.rmtree(thing, ignore_errors=True)


if __name__ == "__main__":
    main()
