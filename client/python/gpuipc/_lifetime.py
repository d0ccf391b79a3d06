# SPDX-License-Identifier: Apache-2.0
"""Who ends what, and when: connections, leases, and what still looks at their memory.

A lease ends when nobody refers to it any more: neither its Buffer nor a view of its memory (an Array, and through it a NumPy array, a
memoryview or a DLPack tensor). A connection ends when its Client is closed or gone and its last lease, channel and watch has ended.
In a forked child nothing is ended, since nothing there is the child's. Finalizers may run in any thread and amid any call, so what they
touch is a dict's item or a lock that the same thread may take again.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Callable, Optional

from . import _cuda, _native, errors


class _Process:
    """Which process this is: asked at each call, so not of the kernel."""

    def __init__(self) -> None:
        self.pid = 0
        self.look()

    def look(self) -> None:
        self.pid = os.getpid()


_process = _Process()
os.register_at_fork(after_in_child=_process.look)

_connections: dict[int, weakref.ref[Connection]] = {}
_keepers: dict[int, weakref.ref[Keeper]] = {}


class OfThisProcess:
    """What is neither pickled nor copied: a second object would think that it has what the first may give back."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: it is this process's own, and cannot be pickled or copied: another process makes its own "
                        "gpuipc.Client(), and asks for the same name or id")


# ---- callbacks: the library must not be called from within one ----

_inside = threading.local()
_put_off: collections.deque[Callable[[], None]] = collections.deque()


@contextlib.contextmanager
def with_callbacks() -> Iterator[None]:
    """Around a call that calls back: what finalizers would tell the library meanwhile is told after it."""
    _inside.callback = True
    try:
        yield
    finally:
        _inside.callback = False
        while _put_off:
            with contextlib.suppress(IndexError):
                _put_off.popleft()()


def _quietly(function: Callable[..., Any], *arguments: Any) -> None:
    """Now or, within a callback, right after."""
    if getattr(_inside, "callback", False):
        _put_off.append(lambda: function(*arguments))
    else:
        function(*arguments)


# ---- connections ----

class Connection:
    """A gpuipc_client. `join` and `leave` say who needs it."""

    def __init__(self, pointer: int) -> None:
        self.pointer, self.pid = pointer, _process.pid
        self._users: dict[int, None] = {}
        self._open = True
        self._lock = threading.RLock()
        _connections[id(self)] = weakref.ref(self)

    def join(self, user: object) -> None:
        """Raises ValueError when it has ended."""
        if self.pid != _process.pid:
            return
        with self._lock:
            if not self._open:
                raise ValueError("the client is closed")
            self._users[id(user)] = None

    def leave(self, user: object) -> None:
        if self.pid != _process.pid:
            return
        with self._lock:
            self._users.pop(id(user), None)
            last = self._open and not self._users
            if last:
                self._open = False
        if last:
            _connections.pop(id(self), None)
            _quietly(_native.library().gpuipc_client_free, self.pointer)

    @contextlib.contextmanager
    def used(self) -> Iterator[int]:
        """The pointer for a call, during which it stays. In a forked child the library's own error follows."""
        token = object()
        self.join(token)
        try:
            yield self.pointer
        finally:
            self.leave(token)

    def without_users(self) -> bool:
        return len(self._users) <= 1


# ---- what keeps memory ----

_late: collections.deque[Callable[[], None]] = collections.deque()  # ends that were put off

class Keeper:
    """Memory of this process that ends with the last reference to this: `_end` says how."""

    def __init__(self, connection: Connection, pointer: int) -> None:
        self.connection, self.pid = connection, _process.pid
        self.lock = threading.RLock()
        self.views: dict[int, None] = {}
        self.calls: list[None] = []
        self.leaving = False
        self.sleepers: dict[Any, Any] = {}  # of aio
        self._pointer: Optional[int] = pointer
        connection.join(self)
        _keepers[id(self)] = weakref.ref(self)

    what = "buffer"

    def _end(self, pointer: int, error: _native.Error) -> int:
        raise NotImplementedError

    @property
    def pointer(self) -> int:
        pointer = self._pointer
        if pointer is None:
            raise ValueError(f"the {self.what} is closed")
        return pointer

    @property
    def ended(self) -> bool:
        """Whether it has, and not only may: an end that is under way may fail."""
        if self.pid != _process.pid:
            return self._pointer is None
        with self.lock:
            return self._pointer is None

    @contextlib.contextmanager
    def used(self) -> Iterator[int]:
        """The pointer for a call of which there can be one at a time. In a forked child the library's own error follows."""
        if self.pid != _process.pid:  # a lock may be somebody's who is not there
            yield self.pointer
            return
        with self.lock:
            yield self.pointer

    def add_view(self, view: object) -> None:
        if self.pid == _process.pid:
            with self.lock:
                self.views[id(view)] = None  # before the look: a finalizer amid this finds it in use
                try:
                    self.pointer  # noqa: B018
                except ValueError:
                    del self.views[id(view)]
                    raise

    def drop_view(self, view: object) -> None:
        self.views.pop(id(view), None)

    def end(self, in_earnest: bool = False) -> None:
        """Ends it, once; `in_earnest`: raises what the library says of it, and BufferError where something looks at it."""
        if self.pid != _process.pid:
            if in_earnest:
                self.forked()
            return
        # In earnest under the lock: another thread that does the same returns when it has ended, too.
        with self.lock if in_earnest else contextlib.nullcontext():
            self._end_once(in_earnest)

    def _end_once(self, in_earnest: bool) -> None:
        with self.lock:
            if in_earnest and self.views:
                n = len(self.views)
                raise BufferError(f"the {self.what} has {n} live view{'s' if n > 1 else ''}: delete what was made of its memory first, or "
                                  "close() it, and the lease ends with the last of them")
            pointer, self._pointer = self._pointer, None
        if pointer is None:
            return
        error = _native.Error()
        status = 0

        def ending() -> None:
            nonlocal status
            status = self._end(pointer, error)
            if self._pointer is None:
                _keepers.pop(id(self), None)
                self.connection.leave(self)

        if not self._ready():
            _late.append(ending)
            return
        _quietly(ending)
        while _late:
            with contextlib.suppress(IndexError):
                _quietly(_late.popleft())
        if in_earnest and status != 0:
            _native.raise_error(error)

    def _ready(self) -> bool:
        """Whether nothing is under way with the memory any more. False: it is not the time to wait for that."""
        return True

    def begin_call(self) -> int:
        """The pointer for a call of which there can be several at a time, up to end_call()."""
        if self.pid != _process.pid:
            return self.pointer
        with self.lock:
            self.calls.append(None)  # before the look, as of add_view()
            try:
                return self.pointer
            except ValueError:
                self.calls.pop()
                raise

    def end_call(self) -> None:
        if self.pid == _process.pid:
            self.calls.pop()
            self.end_if_left()

    @contextlib.contextmanager
    def called(self) -> Iterator[int]:
        """begin_call() and end_call()."""
        pointer = self.begin_call()
        try:
            yield pointer
        finally:
            self.end_call()

    def leave(self) -> None:
        """Ends it in earnest unless a call or a view has it: whoever is the last of those ends it then."""
        if self.pid != _process.pid:
            return
        with self.lock:
            self.leaving = True
            busy = bool(self.calls or self.views)
            if not busy and self._pointer is not None:
                self.end(in_earnest=True)

    def end_if_left(self, wait: bool = True) -> None:
        """What leave() had to leave to whoever is the last. Without `wait` nobody is waited for: who has the lock looks after this, or it
        ends with the last reference."""
        if self.leaving and self.pid == _process.pid and self.lock.acquire(blocking=wait):
            try:
                if not self.calls and not self.views:
                    self.end()
            finally:
                self.lock.release()

    def not_forked(self) -> None:
        """Raises ForkedError in a forked child, for what the library is not asked for."""
        if self.pid != _process.pid:
            self.forked()

    def forked(self) -> None:
        """Raises what the library says in a forked child."""
        raise errors.ForkedError(f"This {self.what} was made before fork() and belongs to the parent process. Connect anew in the child.",
                                 name="gpuipc.Forked")

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and getattr(self, "_pointer", None) is not None:
            self.end()


class Facts:
    """What is known of a buffer from when the lease was made."""

    def __init__(self, pointer: int) -> None:
        library, text = _native.library(), _native.text
        self.id = text(library.gpuipc_buffer_id(pointer)) or ""
        self.lease = text(library.gpuipc_buffer_lease(pointer)) or ""
        self.name = text(library.gpuipc_buffer_name(pointer))
        self.device = text(library.gpuipc_buffer_device(pointer)) or ""
        self.handle = text(library.gpuipc_buffer_handle(pointer)) or ""
        self.meta = text(library.gpuipc_buffer_meta(pointer))
        self.size: int = library.gpuipc_buffer_size(pointer)
        self.allocated: int = library.gpuipc_buffer_allocated(pointer)
        self.offset: int = library.gpuipc_buffer_offset(pointer)
        self.read_only: bool = library.gpuipc_buffer_access(pointer) == _native.RO


class Lease(Keeper):
    """A gpuipc_buffer."""

    def __init__(self, connection: Connection, pointer: int) -> None:
        super().__init__(connection, pointer)
        self.facts = Facts(pointer)

    ordinal = -1  # of the GPU that it is mapped for
    own: Any = None  # what is known by the address of its memory, which is another's as soon as that is unmapped

    def _end(self, pointer: int, error: _native.Error) -> int:
        self.own = None
        return int(_native.library().gpuipc_release(pointer, ctypes.byref(error)))

    def _ready(self) -> bool:
        # A view that is gone may have been given to a stream that has yet to come to it.
        return self.ordinal < 0 or _cuda.settle(self.ordinal)

    def map(self) -> int:
        with self.used() as pointer:
            mapped = _native.made("gpuipc_buffer_map", pointer)
            self.ordinal = int(_native.library().gpuipc_buffer_cuda_device(pointer))
            return mapped


# ---- the end of the process ----

def _living(table: dict[int, Any]) -> list[Any]:
    return [thing for thing in (reference() for reference in list(table.values())) if thing is not None]


def _at_exit() -> None:
    """Ends what nothing looks at. What has views, and all where threads still run, which may be about to use anything, stays as it is: the
    process's end ends those leases."""
    if _native._library is None:
        return
    _native.library().gpuipc_python_end()
    if threading.active_count() > 1:
        return
    for keeper in _living(_keepers):
        if keeper.pid == _process.pid and keeper.lock.acquire(blocking=False):
            try:
                if not keeper.views and not keeper.calls:
                    keeper.end()
            finally:
                keeper.lock.release()
    for connection in _living(_connections):
        if connection.pid == _process.pid and connection.without_users():
            for user in list(connection._users):
                connection._users.pop(user, None)
            connection.leave(None)


atexit.register(_at_exit)
