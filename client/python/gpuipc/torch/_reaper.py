# SPDX-License-Identifier: Apache-2.0
"""Who hears what became of buffers: one thread a client, asleep in a watch, which is there while something is waited for.

It is told of buffers before anybody else can know of them, so no news of them is missed. When the daemon's memory of events does not
reach back far enough, the list of buffers is asked instead. What a daemon that was restarted without its buffers can no longer tell is
never taken for news: memory that others may still read is then kept until this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Any, Callable, Optional

from .. import errors
from .._locks import table_lock
from ..client import Client

_LINGER_S = 5.0
_all: weakref.WeakKeyDictionary[Client, Reaper] = weakref.WeakKeyDictionary()
_all_lock = table_lock(globals(), "_all_lock")


class Reaper:
    """Calls back, in its own thread, when a buffer is freed, or opened by another."""

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._awaited: dict[str, dict[str, Callable[[], None]]] = {}
        self._holds = 0
        self._looks: set[str] = set()  # leases of its own, of which the news is no news
        self._watch: Optional[Any] = None
        self._thread: Optional[threading.Thread] = None

    @classmethod
    def of(cls, client: Client) -> Reaper:
        """The client's own."""
        with _all_lock:
            reaper = _all.get(client)
            if reaper is None or reaper._pid != os.getpid():
                reaper = _all[client] = cls(client)
            return reaper

    @contextlib.contextmanager
    def listening(self) -> Any:
        """Around the making of a buffer and the first expect() of it: what happens in between is heard."""
        with self._lock:
            self._holds += 1
        try:
            with self._lock:
                self._begin()
            yield self
        finally:
            with self._lock:
                self._holds -= 1

    def expect(self, buffer: str, kind: str, callback: Callable[[], None]) -> None:
        """Once: `kind` is "freed", or "opened", which counts when another lease than the maker's is there."""
        with self._lock:
            self._awaited.setdefault(buffer, {})[kind] = callback
            self._begin()

    def forget(self, buffer: str, kind: str) -> bool:
        """Whether it was still awaited."""
        with self._lock:
            kinds = self._awaited.get(buffer, {})
            found = kinds.pop(kind, None) is not None
            if not kinds:
                self._awaited.pop(buffer, None)
            return found

    @property
    def awaited(self) -> int:
        """Buffers of which news is awaited."""
        return len(self._awaited)

    # ---- the thread ----

    def _begin(self) -> None:
        """Under the lock."""
        if self._thread is not None:
            return
        client = self._client()
        if client is None:
            return
        self._watch = client.watch()
        self._thread = threading.Thread(target=self._run, args=(self._watch,), name="gpuipc-torch", daemon=True)
        self._thread.start()

    def _run(self, watch: Any) -> None:
        restarts = self._restarts()
        try:
            while True:
                try:
                    event = watch.next(timeout=_LINGER_S)
                except errors.TimedOutError:
                    event = None
                except errors.EventsLostError as error:
                    watch = self._anew(watch, error.oldest, restarts)
                    continue
                if event is not None:
                    self._hear(event)
                elif self._may_end(watch):
                    return
        except (errors.Error, ValueError):  # closed, or the daemon is gone for good: nothing more will be heard
            with self._lock:
                if self._watch is watch:
                    self._thread = self._watch = None
        finally:
            watch.close()

    def _may_end(self, watch: Any) -> bool:
        with self._lock:
            if self._awaited or self._holds:
                return False
            if self._watch is watch:
                self._thread = self._watch = None
            return True

    def _restarts(self) -> int:
        client = self._client()
        return client.restarts if client is not None else -1

    def _hear(self, event: Any) -> None:
        buffer = event.buffer
        if buffer is None or buffer.id not in self._awaited:
            return
        if event.kind == "freed":
            self._call(buffer.id, "freed")
        elif event.kind == "opened" and event.lease is not None and event.lease.id in self._looks:
            self._looks.discard(event.lease.id)
        elif event.kind == "opened" and (buffer.leases or 0) > 1:
            self._call(buffer.id, "opened")

    def _call(self, buffer: str, kind: str) -> None:
        with self._lock:
            callback = self._awaited.get(buffer, {}).pop(kind, None)
            if not self._awaited.get(buffer, {"": None}):
                del self._awaited[buffer]
        if callback is not None:
            callback()

    def _anew(self, watch: Any, oldest: Optional[int], restarts: int) -> Any:
        """Another watch, and the list asked for what the old one did not see."""
        client = self._client()
        if client is None:
            raise errors.ClosedError("the client is gone")
        fresh = client.watch(since=(oldest or 1) - 1)
        watch.close()
        with self._lock:
            self._watch = fresh
        awaited = list(self._awaited)  # before the list of buffers: what is made after it is not in there
        if client.restarts == restarts:
            there = {buffer.id: buffer.leases or 0 for buffer in client.buffers()}
            for buffer in awaited:
                if buffer not in there:
                    self._call(buffer, "freed")
                elif there[buffer] > 1 or self._is_given_up(client, buffer):
                    self._call(buffer, "opened")
        return fresh

    def _is_given_up(self, client: Client, buffer: str) -> bool:
        """Whoever receives a tensor gives it up, for a sender that may have ended; so one that nobody can open any more was opened."""
        if "opened" not in self._awaited.get(buffer, {}):
            return False
        try:
            with client.open(id=buffer, access="ro") as look:
                self._looks.add(look.lease)
        except errors.NoSuchBufferError:
            return True
        return False

    def stop(self) -> None:
        """Ends the thread; what is awaited stays unheard."""
        with self._lock:
            watch, thread = self._watch, self._thread
        if watch is not None and self._pid == os.getpid():
            watch.close()
        if thread is not None and thread is not threading.current_thread() and self._pid == os.getpid():
            thread.join(2)


def _at_exit() -> None:
    for reaper in list(_all.values()):
        with contextlib.suppress(errors.Error, ValueError):
            reaper.stop()


atexit.register(_at_exit)
