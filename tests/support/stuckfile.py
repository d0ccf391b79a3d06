# SPDX-License-Identifier: Apache-2.0
"""A file whose close() waits for as long as one likes: of a FUSE file system whose server does not answer."""

import contextlib
import ctypes
import errno
import os
import signal
import struct
import tempfile

FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT = 2, 3, 14, 18, 25, 26
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


def answer(opcode):
    """(error, body)"""
    if opcode == INIT:
        return 0, struct.pack("=IIIIHHII36x", 7, 31, 0, 0, 8, 8, 4096, 1)
    if opcode == OPEN:
        return 0, struct.pack("=QII", 1, 0, 0)
    if opcode == GETATTR:
        return 0, struct.pack("=QII6Q10I", 60, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0, 4096, 0)
    return (0, b"") if opcode == RELEASE else (-errno.ENOSYS, b"")


def serve(device, told):
    while True:
        opcode, unique = struct.unpack_from("=4xIQ", os.read(device, 1 << 17))
        if opcode == FLUSH:
            os.write(told, b"f")
        elif opcode != FORGET:
            error, body = answer(opcode)
            os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


class StuckFile:
    """The root of the file system is the file itself. OSError where such a thing cannot be mounted. Whoever closes a descriptor of it
    waits until let_go(): its own maker too."""

    def __init__(self):
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        handle, self.path = tempfile.mkstemp(prefix="gpuipc-stuck-")
        os.close(handle)
        options = f"fd={device},rootmode=100600,user_id=0,group_id=0"
        if libc.mount(b"gpuipc-test", self.path.encode(), b"fuse", 0, options.encode()) < 0:
            error = ctypes.get_errno()
            os.close(device)
            os.unlink(self.path)
            raise OSError(error, os.strerror(error))
        self.told, told = os.pipe()
        self.server = os.fork()
        if self.server == 0:
            with contextlib.suppress(BaseException):
                serve(device, told)
            os._exit(1)
        os.close(device)
        os.close(told)
        self.fd = os.open(self.path, os.O_RDONLY)

    def wait_stuck(self):
        """Until somebody waits."""
        return os.read(self.told, 1) == b"f"

    def let_go(self):
        """Whoever waits hears that the server is gone."""
        if self.server:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
            self.server = None

    def close(self):
        self.let_go()
        with contextlib.suppress(OSError):
            os.close(self.fd)
        os.close(self.told)
        libc.umount2(self.path.encode(), MNT_DETACH)
        os.unlink(self.path)
