# SPDX-License-Identifier: Apache-2.0
"""The daemon's state as bytes: what daemon/state_file.h lays out. Standard library only."""

import os
import struct

KINDS = ("buffer", "lease", "session", "process")
HEADER, EXTENT, EXTENT_HEAD, HEAD = 4096, 65536, 64, 64
MASK = (1 << 64) - 1
FREE, LIVE = 0, 0x4C495645


def checksum(data):
    total, whole = 0xCBF29CE484222325, len(data) // 8 * 8
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        total = ((total ^ word) * 0x9E3779B97F4A7C15) & MASK
        total ^= total >> 32
    for byte in data[whole:]:
        total = ((total ^ byte) * 0x100000001B3) & MASK
    return total ^ total >> 29


class StateFile:
    """A state read from its descriptor, to be looked at, changed and written to another."""

    def __init__(self, fd):
        size = os.fstat(fd).st_size
        self.data = bytearray(os.pread(fd, size, 0))
        layout = struct.unpack_from("<9I", self.data, 16)
        self.version, self.record_bytes, self.fixed_bytes = layout[0], list(layout[1:5]), list(layout[5:9])
        (self.generation,) = struct.unpack_from("<Q", self.data, 56)
        (self.n_extents,) = struct.unpack_from("<Q", self.data, 72)

    def put_header(self):
        struct.pack_into("<9I", self.data, 16, self.version, *self.record_bytes, *self.fixed_bytes)
        struct.pack_into("<Q", self.data, 64, checksum(bytes(self.data[:64])))

    def records(self):
        """(kind, offset) of each that is not free."""
        for extent in range(self.n_extents):
            start = HEADER + extent * EXTENT
            kind = struct.unpack_from("<2I", self.data, start)[1]
            for place in range((EXTENT - EXTENT_HEAD) // self.record_bytes[kind]):
                at = start + EXTENT_HEAD + place * self.record_bytes[kind]
                if struct.unpack_from("<I", self.data, at)[0] != FREE:
                    yield kind, at

    def body(self, at):
        n = struct.unpack_from("<I", self.data, at + 4)[0]
        return bytes(self.data[at + HEAD:at + HEAD + n])

    def put_body(self, at, body):
        self.data[at + HEAD:at + HEAD + len(body)] = body
        struct.pack_into("<IQ", self.data, at + 4, len(body), checksum(body))

    def shorten(self, cuts):
        """As a daemon wrote it that knew fewer members: {kind: bytes less at the end of the fixed part}."""
        for kind, at in list(self.records()):
            n, body = self.fixed_bytes[kind], self.body(at)
            self.put_body(at, body[:n - cuts.get(KINDS[kind], 0)] + body[n:])
        for kind, name in enumerate(KINDS):
            self.fixed_bytes[kind] -= cuts.get(name, 0)
        self.put_header()

    def used(self):
        """Ranges of bytes that mean something."""
        yield 0, 112
        for extent in range(self.n_extents):
            yield HEADER + extent * EXTENT, 8
        for _, at in self.records():
            yield at, HEAD + len(self.body(at))

    def write(self, fd):
        os.pwrite(fd, self.data, 0)
