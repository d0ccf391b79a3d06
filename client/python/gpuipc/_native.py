# SPDX-License-Identifier: Apache-2.0
"""libgpuipc.so.0 through ctypes: every struct, number and prototype of gpuipc.h, and nothing else. Calls release the interpreter's lock.

The library is looked for when it is first needed: $GPUIPC_LIBRARY, the copy that lies beside this file in a wheel, then wherever the
loader finds libgpuipc.so.0.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from typing import Any, Optional

from . import errors
from ._locks import table_lock
from ._words import in_python

LIBRARY = "libgpuipc.so.0"

# ---- numbers ----

STATUS = {
    "OK": 0, "NO_SUCH_BUFFER": 1, "NO_SUCH_LEASE": 2, "NO_SUCH_SESSION": 3, "NO_SUCH_DEVICE": 4, "NAME_TAKEN": 5, "ACCESS_DENIED": 6,
    "QUOTA_EXCEEDED": 7, "OUT_OF_MEMORY": 8, "HANDLE_UNSUPPORTED": 9, "ALREADY_SEALED": 10, "TIMED_OUT": 11, "DEVICE_DEGRADED": 12,
    "TOO_MANY_REQUESTS": 13, "EVENTS_LOST": 14, "INTERNAL": 15, "INVALID_PARAMETER": 16, "UNSUPPORTED": 17, "UNREACHABLE": 32,
    "DISCONNECTED": 33, "PROTOCOL": 34, "FORKED": 35, "MAP": 36, "NO_MEMORY": 37, "CLOSED": 38, "LEASE_LOST": 39, "CORRUPT": 40,
}
TIMED_OUT = STATUS["TIMED_OUT"]
RW, RO = 0, 1
POOLS = 32
IPC_HANDLE_SIZE = 64
QUEUE, BROADCAST = 0, 1
BLOCK, DROP_OLDEST = 0, 1
PRODUCER, CONSUMER = 0, 1
ITEM_META_MAX = 1024
INTEGER_MAX = (1 << 63) - 1
CHANNEL_MEMBERS = 64

# ---- structs, in the header's order ----


class Error(Structure):
    _fields_ = [("status", c_int), ("system_errno", c_int), ("name", c_char_p), ("subject", c_char * 132), ("message", c_char * 512),
                ("limit", c_int64), ("used", c_int64), ("asked", c_int64), ("free_bytes", c_int64), ("oldest", c_int64),
                ("code", c_char_p)]


class ConnectOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("socket_path", c_char_p), ("timeout_ms", c_int), ("restart_ms", c_int),
                ("no_thread", c_int)]


class AllocateOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("name", c_char_p), ("handle", c_char_p), ("mode", c_char_p),
                ("meta", c_char_p), ("keep_ms", c_int64), ("wait_ms", c_int64), ("label", c_char_p)]


class OpenOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("access", c_int), ("owner", c_int64), ("wait_ms", c_int64), ("label", c_char_p)]


class PoolOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("handle", c_char_p), ("mode", c_char_p), ("keep_ms", c_int64), ("wait_ms", c_int64),
                ("label", c_char_p)]


class PoolBlock(Structure):
    _fields_ = [("struct_size", c_size_t), ("pointer", c_void_p), ("size", c_int64), ("cuda_device", c_int32), ("buffer", c_char * 68)]


class ChannelCreateOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("kind", c_int), ("policy", c_int), ("slots", c_int64),
                ("slot_bytes", c_int64), ("meta_bytes", c_int64), ("device", c_char_p), ("mode", c_char_p), ("keep_ms", c_int64),
                ("wait_ms", c_int64), ("label", c_char_p), ("role", c_int)]


class ChannelAttachOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("role", c_int), ("owner", c_int64), ("wait_ms", c_int64), ("label", c_char_p)]


class Item(Structure):
    _fields_ = [("pointer", c_void_p), ("size", c_int64), ("ticket", c_uint64), ("slot", c_int32), ("producer", c_int32),
                ("broken", c_int32), ("n_meta", c_int32), ("meta", c_ubyte * ITEM_META_MAX), ("own", c_uint64 * 4)]


class ChannelMember(Structure):
    _fields_ = [("number", c_int32), ("role", c_int), ("alive", c_int32), ("items", c_uint64), ("bytes", c_uint64), ("drops", c_uint64),
                ("broken", c_uint64), ("lag", c_uint64), ("pid", c_int64)]


class ChannelStats(Structure):
    _fields_ = [("struct_size", c_size_t), ("begun", c_uint64), ("depth", c_uint64), ("closed", c_int32), ("n_members", c_int32),
                ("sleeps", c_uint64), ("wakes", c_uint64), ("members", ChannelMember * CHANNEL_MEMBERS)]


class ChannelInfo(Structure):
    _fields_ = [("kind", c_int), ("policy", c_int), ("slots", c_int64), ("slot_bytes", c_int64), ("meta_bytes", c_int64),
                ("participants", c_int64), ("control_bytes", c_int64)]


class BufferInfo(Structure):
    _fields_ = [*[(name, c_char_p) for name in ("id", "name", "device", "handle", "mode", "state", "meta")],
                *[(name, c_int64) for name in ("size", "allocated", "owner_uid", "owner_gid", "created_usec", "leases", "charged_uid")],
                ("sealed", c_int), ("ro_enforced", c_int), ("channel", POINTER(ChannelInfo))]


class LeaseInfo(Structure):
    _fields_ = [*[(name, c_char_p) for name in ("id", "buffer", "name", "device", "access", "state", "session", "command", "container",
                                                "label")],
                *[(name, c_int64) for name in ("size", "pid", "uid", "gid", "since_usec")]]


class DeviceInfo(Structure):
    _fields_ = [*[(name, c_char_p) for name in ("uuid", "name", "kind", "zeroed")],
                *[(name, c_int64) for name in ("total_bytes", "free_bytes", "brokered_bytes", "draining_bytes")],
                ("handles", POINTER(c_char_p)), ("degraded", c_int), ("spare_bytes", c_int64)]


class StatusInfo(Structure):
    _fields_ = [*[(name, c_char_p) for name in ("version", "backend", "session")],
                *[(name, c_int64) for name in ("uptime_usec", "buffers", "leases", "sessions")],
                ("features", POINTER(c_char_p)), ("devices", POINTER(DeviceInfo)), ("n_devices", c_size_t), ("limits", c_char_p),
                ("daemon_pid", c_int64), ("shm_device", c_int64)]


class EventInfo(Structure):
    _fields_ = [("sequence", c_int64), ("time_usec", c_int64), ("kind", c_char_p), ("buffer", POINTER(BufferInfo)),
                ("lease", POINTER(LeaseInfo))]


class ListOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("uid", c_int64), ("name", c_char_p)]


class Python(Structure):
    _fields_ = [("struct_size", c_size_t),
                *[(name, c_void_p) for name in ("gil_ensure", "gil_release", "err_fetch", "err_restore", "inc_ref", "dec_ref",
                                                "capsule_new", "capsule_is_valid", "capsule_get")]]


class Tensor(Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("n_dimensions", c_int32), ("device_type", c_int32), ("device_id", c_int32), ("type_code", c_uint8),
                ("type_bits", c_uint8), ("versioned", c_uint16), ("flags", c_uint64)]


STRUCTS = {
    "gpuipc_error": Error, "gpuipc_connect_options": ConnectOptions, "gpuipc_allocate_options": AllocateOptions,
    "gpuipc_open_options": OpenOptions, "gpuipc_pool_options": PoolOptions, "gpuipc_pool_block": PoolBlock,
    "gpuipc_channel_create_options": ChannelCreateOptions,
    "gpuipc_channel_attach_options": ChannelAttachOptions, "gpuipc_item": Item, "gpuipc_channel_member": ChannelMember,
    "gpuipc_channel_stats": ChannelStats, "gpuipc_channel_info": ChannelInfo, "gpuipc_buffer_info": BufferInfo,
    "gpuipc_lease_info": LeaseInfo, "gpuipc_device_info": DeviceInfo, "gpuipc_status_info": StatusInfo,
    "gpuipc_event_info": EventInfo, "gpuipc_list_options": ListOptions, "gpuipc_python": Python, "gpuipc_tensor": Tensor,
}

# ---- prototypes ----

StatusCallback = CFUNCTYPE(None, POINTER(StatusInfo), c_void_p)
LeaseCallback = CFUNCTYPE(c_int, POINTER(LeaseInfo), c_void_p)
BufferCallback = CFUNCTYPE(c_int, POINTER(BufferInfo), c_void_p)
TextCallback = CFUNCTYPE(c_int, c_char_p, c_void_p)

_ERROR = POINTER(Error)
_OUT = POINTER(c_void_p)
_ITEM = POINTER(Item)


def _fact(result: Any) -> tuple[Any, list[Any]]:
    return (result, [c_void_p])


PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "gpuipc_version": (c_char_p, []),
    "gpuipc_status_name": (c_char_p, [c_int]),
    "gpuipc_connect": (c_int, [POINTER(ConnectOptions), _OUT, _ERROR]),
    "gpuipc_client_free": (None, [c_void_p]),
    "gpuipc_client_socket": _fact(c_char_p),
    "gpuipc_client_restarts": _fact(c_int64),
    "gpuipc_client_fd": _fact(c_int),
    "gpuipc_client_dispatch": (c_int, [c_void_p, _ERROR]),
    "gpuipc_allocate": (c_int, [c_void_p, c_int64, POINTER(AllocateOptions), _OUT, _ERROR]),
    "gpuipc_open_name": (c_int, [c_void_p, c_char_p, POINTER(OpenOptions), _OUT, _ERROR]),
    "gpuipc_open_id": (c_int, [c_void_p, c_char_p, POINTER(OpenOptions), _OUT, _ERROR]),
    "gpuipc_buffer_map": (c_int, [c_void_p, _OUT, _ERROR]),
    "gpuipc_buffer_read": (c_int, [c_void_p, c_int64, c_void_p, c_size_t, _ERROR]),
    "gpuipc_buffer_write": (c_int, [c_void_p, c_int64, c_void_p, c_size_t, _ERROR]),
    "gpuipc_release": (c_int, [c_void_p, _ERROR]),
    "gpuipc_buffer_check": (c_int, [c_void_p, _ERROR]),
    "gpuipc_buffer_id": _fact(c_char_p),
    "gpuipc_buffer_name": _fact(c_char_p),
    "gpuipc_buffer_lease": _fact(c_char_p),
    "gpuipc_buffer_device": _fact(c_char_p),
    "gpuipc_buffer_handle": _fact(c_char_p),
    "gpuipc_buffer_meta": _fact(c_char_p),
    "gpuipc_buffer_size": _fact(c_int64),
    "gpuipc_buffer_allocated": _fact(c_int64),
    "gpuipc_buffer_offset": _fact(c_int64),
    "gpuipc_buffer_access": _fact(c_int),
    "gpuipc_buffer_fd": _fact(c_int),
    "gpuipc_buffer_ipc_handle": (c_int, [c_void_p, c_void_p, _ERROR]),
    "gpuipc_buffer_is_peer": _fact(c_int),
    "gpuipc_buffer_cuda_device": _fact(c_int),
    "gpuipc_seal": (c_int, [c_void_p, c_char_p, _ERROR]),
    "gpuipc_free": (c_int, [c_void_p, c_char_p, c_char_p, _ERROR]),
    "gpuipc_kick": (c_int, [c_void_p, c_char_p, _ERROR]),
    "gpuipc_pool_new": (c_int, [c_void_p, POINTER(PoolOptions), _OUT, _ERROR]),
    "gpuipc_pool_free": (None, [c_void_p]),
    "gpuipc_pool_alloc_function": _fact(c_void_p),
    "gpuipc_pool_free_function": _fact(c_void_p),
    "gpuipc_pool_failures": (c_int64, [c_void_p, _ERROR]),
    "gpuipc_pool_bytes": _fact(c_int64),
    "gpuipc_pool_find": (c_int, [c_void_p, POINTER(PoolBlock), _ERROR]),
    "gpuipc_fence_new": (c_int, [c_void_p, c_int64, _OUT, _ERROR]),
    "gpuipc_fence_free": (None, [c_void_p]),
    "gpuipc_fence_is_synchronous": _fact(c_int),
    "gpuipc_fence_signal_stream": (c_int, [c_void_p, c_void_p, c_uint64, _ERROR]),
    "gpuipc_fence_wait_stream": (c_int, [c_void_p, c_void_p, c_uint64, c_int, _ERROR]),
    "gpuipc_fence_signal": (c_int, [c_void_p, c_uint64, _ERROR]),
    "gpuipc_fence_query": (c_int, [c_void_p, POINTER(c_uint64), _ERROR]),
    "gpuipc_fence_wait": (c_int, [c_void_p, c_uint64, c_int, _ERROR]),
    "gpuipc_channel_create": (c_int, [c_void_p, POINTER(ChannelCreateOptions), _OUT, _ERROR]),
    "gpuipc_channel_attach": (c_int, [c_void_p, c_char_p, POINTER(ChannelAttachOptions), _OUT, _ERROR]),
    "gpuipc_channel_free": (c_int, [c_void_p, _ERROR]),
    "gpuipc_channel_close": (c_int, [c_void_p, _ERROR]),
    "gpuipc_channel_check": (c_int, [c_void_p, _ERROR]),
    "gpuipc_channel_begin": (c_int, [c_void_p, c_void_p, c_int, _ITEM, _ERROR]),
    "gpuipc_channel_publish": (c_int, [c_void_p, _ITEM, c_int64, c_void_p, c_size_t, c_void_p, _ERROR]),
    "gpuipc_channel_cancel": (c_int, [c_void_p, _ITEM, _ERROR]),
    "gpuipc_channel_take": (c_int, [c_void_p, c_void_p, c_int, _ITEM, _ERROR]),
    "gpuipc_channel_release": (c_int, [c_void_p, _ITEM, c_void_p, _ERROR]),
    "gpuipc_item_is_broken": (c_int, [c_void_p, _ITEM]),
    "gpuipc_channel_fd": _fact(c_int),
    "gpuipc_channel_is_synchronous": _fact(c_int),
    "gpuipc_channel_id": _fact(c_char_p),
    "gpuipc_channel_name": _fact(c_char_p),
    "gpuipc_channel_device": _fact(c_char_p),
    "gpuipc_channel_get_kind": _fact(c_int),
    "gpuipc_channel_get_policy": _fact(c_int),
    "gpuipc_channel_get_role": _fact(c_int),
    "gpuipc_channel_number": _fact(c_int),
    "gpuipc_channel_slots": _fact(c_int64),
    "gpuipc_channel_slot_bytes": _fact(c_int64),
    "gpuipc_channel_meta_bytes": _fact(c_int64),
    "gpuipc_channel_is_peer": _fact(c_int),
    "gpuipc_channel_cuda_device": _fact(c_int),
    "gpuipc_channel_get_stats": (c_int, [c_void_p, POINTER(ChannelStats), _ERROR]),
    "gpuipc_channel_look": (c_int, [c_void_p, c_char_p, POINTER(ChannelStats), _ERROR]),
    "gpuipc_get_status": (c_int, [c_void_p, StatusCallback, c_void_p, _ERROR]),
    "gpuipc_list": (c_int, [c_void_p, POINTER(ListOptions), LeaseCallback, c_void_p, _ERROR]),
    "gpuipc_list_buffers": (c_int, [c_void_p, POINTER(ListOptions), BufferCallback, c_void_p, _ERROR]),
    "gpuipc_watch_new": (c_int, [c_void_p, c_int64, _OUT, _ERROR]),
    "gpuipc_watch_fd": _fact(c_int),
    "gpuipc_watch_next": (c_int, [c_void_p, c_int, POINTER(POINTER(EventInfo)), _ERROR]),
    "gpuipc_watch_stop": (None, [c_void_p]),
    "gpuipc_watch_free": (None, [c_void_p]),
    "gpuipc_python_begin": (c_int, [POINTER(Python), _ERROR]),
    "gpuipc_python_end": (None, []),
    "gpuipc_call_json": (c_int, [c_void_p, c_char_p, c_char_p, c_int, TextCallback, c_void_p, _ERROR]),
}

# Called with the interpreter's lock held, which it needs: of the same library by another door.
LOCKED_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "gpuipc_python_capsule": (c_int, [POINTER(Tensor), c_void_p, _OUT, _ERROR]),
}

# ---- the library ----


class Library:
    """The loaded library: its functions as attributes, with their prototypes set."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._free, self._locked = ctypes.CDLL(path), ctypes.PyDLL(path)
        try:
            for door, prototypes in ((self._free, PROTOTYPES), (self._locked, LOCKED_PROTOTYPES)):
                for name, (result, arguments) in prototypes.items():
                    function = getattr(door, name)
                    function.restype, function.argtypes = result, arguments
                    setattr(self, name, function)
        except AttributeError as error:
            raise errors.LibraryError(f"{path} is of another version than this package: {error}. Install a newer libgpuipc0, or the "
                                      "package's own wheel, which has one with it.") from None

    def __getattr__(self, name: str) -> Any:  # for type checkers: what was not set is not there
        raise AttributeError(name)


_library: Optional[Library] = None
_lock = table_lock(globals(), "_lock")


def _load() -> Library:
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY)
    wanted = os.environ.get("GPUIPC_LIBRARY")
    path = wanted or (bundled if os.path.exists(bundled) else LIBRARY)
    try:
        return Library(path)
    except OSError as error:
        where = "as $GPUIPC_LIBRARY says" if wanted else "which this package needs"
        raise errors.LibraryError(f"{path} cannot be loaded, {where}: {error}. Install the package's wheel, which has the library with "
                                  f"it, or libgpuipc0, or set GPUIPC_LIBRARY to the path of {LIBRARY}.") from None


def library() -> Library:
    """The library, loaded when first asked for. LibraryError: it is not there, or is too old."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def text(value: Optional[bytes]) -> Optional[str]:
    return None if value is None else value.decode("utf-8", "replace")


def encode(value: Optional[str], what: str) -> Optional[bytes]:
    """For the library; what a C string cannot carry is refused here."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what}: a str is wanted, not {type(value).__name__}")
    if "\0" in value:
        raise errors.InvalidParameterError(f"{what}: a NUL character cannot be part of it.", subject=what)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise errors.InvalidParameterError(f"{what}: {value!r} has half of a surrogate pair in it, and is no text.",
                                           subject=what) from None


def integer(value: Any, what: str, least: int = 0, most: int = INTEGER_MAX) -> int:
    """A whole number for the library: ctypes would cut what is too large to its size, and say nothing.

    Raises:
        TypeError: it is none (NumPy's are).
        InvalidParameterError: it is not between `least` and `most`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: a whole number is wanted, not {value!r}") from None
    if not least <= number <= most:
        raise errors.InvalidParameterError(f"{what}: {number} is not between {least} and {most}.", subject=what)
    return number


def raise_error(error: Error) -> None:
    subject, message = error.subject.decode("utf-8", "replace"), error.message.decode("utf-8", "replace")
    about = {"limit": error.limit, "used": error.used, "asked": error.asked}
    if error.status == STATUS["QUOTA_EXCEEDED"] and subject.endswith("_ms"):
        subject, about = subject[:-3], {name: figure // 1000 for name, figure in about.items()}
        message = (f"{subject}: {about['asked']} seconds were asked for, and the daemon allows {about['limit']}. Ask for less, or have the "
                   "administrator raise it.")
    raise errors.make(error.status, in_python(message), name=text(error.name) or "", subject=subject, code=text(error.code),
                      system_errno=error.system_errno, free_bytes=error.free_bytes, oldest=error.oldest, **about)


def call(function: str, *arguments: Any) -> None:
    """Calls a function that fills an error; raises that."""
    error = Error()
    if getattr(library(), function)(*arguments, ctypes.byref(error)) != 0:
        raise_error(error)


def tried(function: str, *arguments: Any) -> bool:
    """The same, but False where it took too long."""
    error = Error()
    status = getattr(library(), function)(*arguments, ctypes.byref(error))
    if status not in (0, TIMED_OUT):
        raise_error(error)
    return bool(status == 0)


# What ends what they made.
_ENDS = {
    "gpuipc_connect": "gpuipc_client_free", "gpuipc_allocate": "gpuipc_release", "gpuipc_open_name": "gpuipc_release",
    "gpuipc_open_id": "gpuipc_release", "gpuipc_channel_create": "gpuipc_channel_free", "gpuipc_channel_attach": "gpuipc_channel_free",
    "gpuipc_fence_new": "gpuipc_fence_free", "gpuipc_watch_new": "gpuipc_watch_free",
    "gpuipc_pool_new": "gpuipc_pool_free",
}


def made(function: str, *arguments: Any) -> int:
    """Calls a function that makes an object, with where it goes as the last argument: the object's address. An exception of a signal's
    handler comes when the call has returned: nobody will have the object then, and it is ended."""
    result = c_void_p()
    try:
        call(function, *arguments, ctypes.byref(result))
        assert result.value is not None
        return result.value
    except BaseException:
        if result.value is not None and function in _ENDS:
            end = getattr(library(), _ENDS[function])
            with contextlib.suppress(errors.Error):
                end(result, *[None] * (len(end.argtypes) - 1))
        raise
