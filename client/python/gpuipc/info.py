# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells of itself and of what it holds. Sizes are bytes, times seconds since 1970."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional

from . import _native
from .layout import parse_meta


def _text(value: Optional[bytes]) -> str:
    return _native.text(value) or ""


def _known(value: int) -> Optional[int]:
    return None if value < 0 else value


@dataclass(frozen=True)
class ChannelInfo:
    """What a buffer that is a channel's has beside."""

    kind: str
    policy: str
    slots: int
    slot_bytes: int
    meta_bytes: int
    participants: int

    @classmethod
    def of(cls, info: Any) -> ChannelInfo:
        return cls("broadcast" if info.kind == _native.BROADCAST else "queue",
                   "drop_oldest" if info.policy == _native.DROP_OLDEST else "block", info.slots, info.slot_bytes, info.meta_bytes,
                   info.participants)


@dataclass(frozen=True)
class BufferInfo:
    """A buffer. What the caller may not know is None, or ""."""

    id: str
    name: Optional[str]
    device: str
    handle: str
    mode: str
    state: str
    meta: dict[str, Any]
    size: int
    allocated: int
    owner_uid: Optional[int]
    owner_gid: Optional[int]
    created: Optional[float]
    leases: Optional[int]
    sealed: bool
    read_only_enforced: bool
    channel: Optional[ChannelInfo]

    @classmethod
    def of(cls, info: Any) -> BufferInfo:
        return cls(_text(info.id), _native.text(info.name), _text(info.device), _text(info.handle), _text(info.mode), _text(info.state),
                   parse_meta(_native.text(info.meta)), info.size, info.allocated, _known(info.owner_uid), _known(info.owner_gid),
                   info.created_usec / 1e6 if info.created_usec >= 0 else None, _known(info.leases), info.sealed > 0, info.ro_enforced > 0,
                   ChannelInfo.of(info.channel.contents) if info.channel else None)


@dataclass(frozen=True)
class LeaseInfo:
    """A lease, and who has it."""

    id: str
    buffer: str
    name: Optional[str]
    device: str
    access: str
    state: str
    session: Optional[str]
    command: Optional[str]
    container: Optional[str]
    label: Optional[str]
    size: int
    pid: Optional[int]
    uid: Optional[int]
    gid: Optional[int]
    since: Optional[float]

    @classmethod
    def of(cls, info: Any) -> LeaseInfo:
        text = _native.text
        return cls(_text(info.id), _text(info.buffer), text(info.name), _text(info.device), _text(info.access), _text(info.state),
                   text(info.session), text(info.command), text(info.container), text(info.label), info.size, _known(info.pid),
                   _known(info.uid), _known(info.gid), info.since_usec / 1e6 if info.since_usec >= 0 else None)


def _texts(array: Any) -> tuple[str, ...]:
    found: list[str] = []
    while array and array[len(found)] is not None:
        found.append(_text(array[len(found)]))
    return tuple(found)


@dataclass(frozen=True)
class DeviceInfo:
    """A device of the daemon's: a GPU, or host memory."""

    uuid: str
    name: str
    kind: str
    zeroed: str
    total_bytes: Optional[int]
    free_bytes: Optional[int]
    brokered_bytes: int
    draining_bytes: int
    handles: tuple[str, ...]
    degraded: bool
    spare_bytes: Optional[int]

    @classmethod
    def of(cls, info: Any) -> DeviceInfo:
        return cls(_text(info.uuid), _text(info.name), _text(info.kind), _text(info.zeroed), _known(info.total_bytes),
                   _known(info.free_bytes), info.brokered_bytes, info.draining_bytes, _texts(info.handles), info.degraded > 0,
                   _known(info.spare_bytes))


@dataclass(frozen=True)
class Status:
    """The daemon. `uptime`: seconds. `limits`: name to number."""

    version: str
    backend: str
    session: str
    uptime: float
    buffers: int
    leases: int
    sessions: int
    features: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]
    limits: dict[str, Any]

    @classmethod
    def of(cls, info: Any) -> Status:
        return cls(_text(info.version), _text(info.backend), _text(info.session), info.uptime_usec / 1e6, info.buffers, info.leases,
                   info.sessions, _texts(info.features), tuple(DeviceInfo.of(info.devices[i]) for i in range(info.n_devices)),
                   json.loads(info.limits) if info.limits else {})


@dataclass(frozen=True)
class Event:
    """One piece of news: `kind` is "created", "opened", "released", "freed" and so on."""

    sequence: int
    time: float
    kind: str
    buffer: Optional[BufferInfo]
    lease: Optional[LeaseInfo]

    @classmethod
    def of(cls, info: Any) -> Event:
        return cls(info.sequence, info.time_usec / 1e6, _text(info.kind), BufferInfo.of(info.buffer.contents) if info.buffer else None,
                   LeaseInfo.of(info.lease.contents) if info.lease else None)
