# SPDX-License-Identifier: Apache-2.0
"""A channel's control page as bytes: what proto/ring_page.h lays out, as far as the daemon writes it. Standard library only."""

import mmap
import os
import re
import struct

MEMBERS, HEAD_BYTES = 64, 384 + 64 * 128
HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../proto/ring_page.h")
CLOSED, JOINED, ITEMS, ROOM, MEMBER = 192, 208, 256, 320, 384
with open(HEADER, encoding="utf-8") as header:
    TEXT = header.read()
LIVES = re.search(r"enum ring_life \{([^}]*)\}", TEXT).group(1).replace(" = 0", "").replace(" ", "").split(",")
RING_VERSION = int(re.search(r"#define RING_VERSION (\d+)", TEXT).group(1))
VACANT, ALIVE, LEFT, ENDING, DEAD, REAPED = (LIVES.index(f"RING_{name}") for name in ("VACANT", "ALIVE", "LEFT", "ENDING", "DEAD", "REAPED"))
PRODUCER, CONSUMER = 1, 2


class RingPage:
    """Takes the descriptor."""

    def __init__(self, fd):
        self.size = os.fstat(fd).st_size
        self.map = mmap.mmap(fd, self.size)
        os.close(fd)

    def close(self):
        self.map.close()

    def word(self, at):
        return struct.unpack_from("<Q", self.map, at)[0]

    def member(self, number):
        """(generation, role, life)"""
        word = self.word(MEMBER + 128 * number)
        return word >> 16, word >> 8 & 0xFF, word & 0xFF

    def set_member(self, number, generation, role, life):
        struct.pack_into("<Q", self.map, MEMBER + 128 * number, generation << 16 | role << 8 | life)

    def set_version(self, version):
        struct.pack_into("<I", self.map, 8, version)

    def join(self, number):
        """As ring_attach(): it may have something in hand from now on."""
        struct.pack_into("<Q", self.map, JOINED, self.word(JOINED) | 1 << number)

    def leave(self, number):
        """As ring_leave(): the number is given back."""
        generation, role, _ = self.member(number)
        self.set_member(number, generation, role, REAPED)

    reap = leave

    def life(self, number):
        return self.member(number)[2]

    def closed(self):
        return bool(self.word(CLOSED))

    def changes(self):
        """How often those who wait were told to look: for items, for room."""
        return tuple(struct.unpack_from("<I", self.map, at + 8)[0] for at in (ITEMS, ROOM))

    def geometry(self):
        """(mode, policy, slots, meta_bytes, slot_bytes)"""
        return struct.unpack_from("<4I4xQ", self.map, 12)
