# SPDX-License-Identifier: Apache-2.0
"""What can go wrong: one class for each error of the protocol and of the library, all below `Error`.

Where Python has a builtin for the same kind of thing the class derives from it too: `except FileNotFoundError` catches
`NoSuchBufferError`, `except TimeoutError` catches `TimedOutError`, `except MemoryError` catches `OutOfMemoryError`.
"""

from __future__ import annotations

import re
from typing import Any, Optional

__all__ = [
    "AccessDeniedError", "AlreadySealedError", "BrokenItemError", "ClosedError", "CorruptError", "DeviceDegradedError",
    "DisconnectedError", "Error", "EventsLostError", "ForkedError", "HandleUnsupportedError", "InternalError",
    "InvalidParameterError", "LayoutError", "LeaseLostError", "LibraryError", "MapError", "NameTakenError", "NoMemoryError",
    "NoSuchBufferError", "NoSuchDeviceError", "NoSuchLeaseError", "NoSuchSessionError", "OutOfMemoryError", "ProtocolError",
    "QuotaExceededError", "TimedOutError", "TooManyRequestsError", "UnreachableError", "UnsupportedError",
]


class Error(Exception):
    """The base of all of them.

    Attributes:
        status: the library's number, as `gpuipc_status` of gpuipc.h has it; 0: this package's own.
        name: "io.gpuipc.Broker.NameTaken" for the daemon's words, "gpuipc.Unreachable" for the library's.
        code: "G101" where `gpuipcctl doctor` knows the cure by that code, else None.
        subject: the parameter, device, name or limit that it is about; may be "".
        message: the whole text, which is also what `str()` gives.
        system_errno: the system call's errno, 0 where none is to blame.
        limit, used, asked, free_bytes, oldest: figures (bytes, or counts), None where the error carries no such figure.
    """

    status = 0
    name: Any

    def __init__(self, message: str = "", *, name: str = "", subject: str = "", code: Optional[str] = None, system_errno: int = 0,
                 limit: int = -1, used: int = -1, asked: int = -1, free_bytes: int = -1, oldest: int = -1) -> None:
        super().__init__(message)
        self.message, self.name, self.subject, self.code = message, name, subject, code
        self.system_errno = system_errno
        self.limit, self.used, self.asked, self.free_bytes, self.oldest = (
            None if figure < 0 else figure for figure in (limit, used, asked, free_bytes, oldest))
        if isinstance(self, OSError) and system_errno:
            object.__setattr__(self, "errno", system_errno)

    def _sentences(self) -> list[str]:
        return re.split(r"(?<=\.)\s+(?=[A-Z'\"])", re.sub(r"\s*\[G\d+\]\s*$", "", self.message), maxsplit=1)

    @property
    def cause(self) -> str:
        """The first sentence of the message: what happened."""
        return self._sentences()[0]

    @property
    def remedy(self) -> str:
        """What the message says after that, which is what to do about it; "" where it says nothing."""
        return "".join(self._sentences()[1:])


class NoSuchBufferError(Error, FileNotFoundError):
    """There is no such buffer, or none that the caller may know of."""


class NoSuchLeaseError(Error, LookupError):
    """The caller's session has no such lease."""


class NoSuchSessionError(Error, LookupError):
    """There is no such session."""


class NoSuchDeviceError(Error, LookupError):
    """The daemon has no such device."""


class NameTakenError(Error, FileExistsError):
    """Another buffer of the same owner has that name."""


class AccessDeniedError(Error, PermissionError):
    """The buffer's mode, or the daemon's configuration, does not let the caller in."""


class QuotaExceededError(Error):
    """A limit of the daemon's is reached: `subject` names it, `limit`, `used` and `asked` say how far."""


class OutOfMemoryError(Error, MemoryError):
    """The device has not that much memory left: `free_bytes` and `asked` say how much."""


class HandleUnsupportedError(Error):
    """The device, or this process, cannot do that kind of handle or access."""


class AlreadySealedError(Error):
    """The buffer is sealed: it can no longer be opened for writing."""


class TimedOutError(Error, TimeoutError):
    """It was waited for, and did not come in time."""


class DeviceDegradedError(Error):
    """The device does not answer the daemon any more."""


class TooManyRequestsError(Error):
    """Too many calls of the caller's wait already."""


class EventsLostError(Error):
    """Events were forgotten before they were read; `oldest` is the first that is still there."""


class InternalError(Error, RuntimeError):
    """A fault of the daemon's; `subject` finds it in its log."""


class InvalidParameterError(Error, ValueError):
    """A parameter cannot be what it was given as; `subject` names it."""


class UnsupportedError(Error, NotImplementedError):
    """The daemon does not know this method or way of calling."""


class UnreachableError(Error, ConnectionError):
    """No daemon answers at the socket."""


class DisconnectedError(Error, ConnectionResetError):
    """The connection ended, and the call could not be made again."""


class ProtocolError(Error):
    """The daemon's answer makes no sense."""


class ForkedError(Error, RuntimeError):
    """The object was made before fork() and is the parent's; connect anew."""


class MapError(Error, OSError):
    """The memory could not be mapped or copied; the message has the driver's own words."""


class NoMemoryError(Error, MemoryError):
    """This process is out of memory."""


class ClosedError(Error):
    """The channel is closed (and, for a consumer, empty), or the watch was ended."""


class LeaseLostError(Error, ConnectionError):
    """The lease ended with its connection and could not be taken up again."""


class CorruptError(Error):
    """A channel's control page was written over by a process that shares it."""


class LibraryError(Error, ImportError):
    """libgpuipc is not there, or of another version than this package."""


class BrokenItemError(Error):
    """A channel's item is broken: its producer died before it was whole."""


class LayoutError(Error, ValueError):
    """A shape, dtype or stride that cannot be, or metadata that describes none."""


BY_STATUS: dict[int, type[Error]] = {
    1: NoSuchBufferError, 2: NoSuchLeaseError, 3: NoSuchSessionError, 4: NoSuchDeviceError, 5: NameTakenError, 6: AccessDeniedError,
    7: QuotaExceededError, 8: OutOfMemoryError, 9: HandleUnsupportedError, 10: AlreadySealedError, 11: TimedOutError,
    12: DeviceDegradedError, 13: TooManyRequestsError, 14: EventsLostError, 15: InternalError, 16: InvalidParameterError,
    17: UnsupportedError, 32: UnreachableError, 33: DisconnectedError, 34: ProtocolError, 35: ForkedError, 36: MapError,
    37: NoMemoryError, 38: ClosedError, 39: LeaseLostError, 40: CorruptError,
}
for _status, _class in BY_STATUS.items():
    _class.status = _status


def say(error: Error, message: str) -> None:
    """Puts an error in other words."""
    error.message = message
    error.args = (message,)


def missing(error: Error, what: str, wait: Optional[float]) -> None:
    """What was to be opened is not there, or not for this user, in terms of this package: which it was, and the argument that helps.
    `wait`: how long it was waited for; None: it cannot be waited for."""
    if isinstance(error, AlreadySealedError):
        say(error, f'{what} is sealed: it can be opened read-only, nothing else. Ask with access="ro".')
    if not isinstance(error, (NoSuchBufferError, TimedOutError)):
        return
    look = "'gpuipcctl list --buffers' shows what there is; its owner and mode decide who may open it"
    if wait is not None:
        look += ', and another user\'s is asked for with owner="any"'
    if isinstance(error, TimedOutError):
        say(error, f"{what} did not come within {round(float(wait or 0), 3):g} s. Give a longer wait=, in seconds, or look whether it is "
                   f"there: {look}.")
        return
    patience = "" if wait is None or wait > 0 else "Give wait= if its producer may still be on its way. "
    say(error, f"No such buffer as {what}, or none that this user may open. {patience}{look[:1].upper()}{look[1:]}.")


def make(status: int, message: str, **about: Any) -> Error:
    """The error for a status of the library's; one that this package does not know yet is a plain Error."""
    error = BY_STATUS.get(status, Error)(message, **about)
    error.status = status
    return error
