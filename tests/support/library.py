# SPDX-License-Identifier: Apache-2.0
"""libgpuipc from Python, for tests of the library itself: every call releases the interpreter's lock, so threads are real.

    library = Library(); client = library.connect(path); buffer = client.allocate(4096); buffer.bytes()[:] = ...
"""

import ctypes
import os

from daemon import BUILD

OK, DISCONNECTED, UNREACHABLE, TIMED_OUT, LEASE_LOST, EVENTS_LOST = 0, 33, 32, 11, 39, 14
SANITIZED = "/san-" in BUILD  # such a library cannot be loaded into a plain interpreter


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("system_errno", ctypes.c_int), ("name", ctypes.c_char_p), ("subject", ctypes.c_char * 132),
                ("message", ctypes.c_char * 512), *[(name, ctypes.c_int64) for name in ("limit", "used", "asked", "free", "oldest")],
                ("code", ctypes.c_char_p)]


class ConnectOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("socket_path", ctypes.c_char_p), ("timeout_ms", ctypes.c_int),
                ("restart_ms", ctypes.c_int), ("no_thread", ctypes.c_int)]


class AllocateOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t),
                *[(name, ctypes.c_char_p) for name in ("device", "name", "handle", "mode", "meta")],
                ("keep_ms", ctypes.c_int64), ("wait_ms", ctypes.c_int64), ("label", ctypes.c_char_p)]


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("access", ctypes.c_int), ("owner", ctypes.c_int64), ("wait_ms", ctypes.c_int64),
                ("label", ctypes.c_char_p)]


class EventInfo(ctypes.Structure):
    _fields_ = [("sequence", ctypes.c_int64), ("time_usec", ctypes.c_int64), ("kind", ctypes.c_char_p)]


class LibraryError(Exception):
    def __init__(self, error):
        super().__init__(f"{error.name.decode()}: {error.message.decode()}")
        self.status, self.oldest, self.code = error.status, error.oldest, error.code and error.code.decode()


STRINGS = ("gpuipc_buffer_id", "gpuipc_buffer_lease", "gpuipc_buffer_handle")


class Library:
    def __init__(self, build=BUILD):
        self.c = ctypes.CDLL(os.path.join(build, "libgpuipc.so.0"))
        for name in STRINGS:
            getattr(self.c, name).restype = ctypes.c_char_p
        for name in ("gpuipc_buffer_size", "gpuipc_client_restarts"):
            getattr(self.c, name).restype = ctypes.c_int64

    def call(self, name, *arguments):
        error = Error()
        if getattr(self.c, name)(*arguments, ctypes.byref(error)) != OK:
            raise LibraryError(error)

    def connect(self, path, timeout_ms=60000, restart_ms=0):
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), path.encode(), timeout_ms, restart_ms, 0)
        client = ctypes.c_void_p()
        self.call("gpuipc_connect", ctypes.byref(options), ctypes.byref(client))
        return Client(self, client)


class Client:
    def __init__(self, library, pointer):
        self.library, self.pointer = library, pointer

    def allocate(self, size, name=None, keep_ms=0, wait_ms=0, handle=None):
        options = AllocateOptions(ctypes.sizeof(AllocateOptions), None, name and name.encode(), handle and handle.encode(), None, None,
                                  keep_ms, wait_ms, None)
        buffer = ctypes.c_void_p()
        self.library.call("gpuipc_allocate", self.pointer, ctypes.c_int64(size), ctypes.byref(options), ctypes.byref(buffer))
        return Buffer(self.library, buffer)

    def open(self, name=None, id=None, wait_ms=0, read_only=False):  # pylint: disable=redefined-builtin
        options = OpenOptions(ctypes.sizeof(OpenOptions), int(read_only), -1, wait_ms, None)
        buffer = ctypes.c_void_p()
        what = "gpuipc_open_name" if name else "gpuipc_open_id"
        self.library.call(what, self.pointer, (name or id).encode(), ctypes.byref(options), ctypes.byref(buffer))
        return Buffer(self.library, buffer)

    def seal(self, id):  # pylint: disable=redefined-builtin
        self.library.call("gpuipc_seal", self.pointer, id.encode())

    def free_name(self, name):
        self.library.call("gpuipc_free", self.pointer, None, name.encode())

    def status(self):
        self.library.call("gpuipc_get_status", self.pointer, None, None)

    def list(self):
        leases = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p)
        take = kind(lambda info, _: leases.append(info[0].decode()) or 0)  # its first member is the id
        self.library.call("gpuipc_list", self.pointer, None, take, None)
        return leases

    def watch(self, since=-1):
        watch = ctypes.c_void_p()
        self.library.call("gpuipc_watch_new", self.pointer, ctypes.c_int64(since), ctypes.byref(watch))
        return Watch(self.library, watch)

    def restarts(self):
        return self.library.c.gpuipc_client_restarts(self.pointer)

    def free(self):
        self.library.c.gpuipc_client_free(self.pointer)


class Watch:
    def __init__(self, library, pointer):
        self.library, self.pointer = library, pointer

    def next(self, timeout_ms):
        event = ctypes.POINTER(EventInfo)()
        self.library.call("gpuipc_watch_next", self.pointer, timeout_ms, ctypes.byref(event))
        return event[0].sequence, event[0].kind.decode()

    def free(self):
        self.library.c.gpuipc_watch_free(self.pointer)


class Buffer:
    def __init__(self, library, pointer):
        self.library, self.pointer = library, pointer
        self.id, self.lease, self.handle = (getattr(library.c, name)(pointer).decode() for name in STRINGS)
        self.size = library.c.gpuipc_buffer_size(pointer)

    def bytes(self):
        """What it maps, to be read and written in place."""
        address = ctypes.c_void_p()
        self.library.call("gpuipc_buffer_map", self.pointer, ctypes.byref(address))
        return memoryview((ctypes.c_char * self.size).from_address(address.value)).cast("B")

    def check(self):
        self.library.call("gpuipc_buffer_check", self.pointer)

    def release(self):
        self.library.call("gpuipc_release", self.pointer)
