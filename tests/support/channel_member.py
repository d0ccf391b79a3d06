# SPDX-License-Identifier: Apache-2.0
"""A process that is a member of a channel through libgpuipc, for tests that restart the daemon under it.

    member = Member(socket, "producer", create=True); member.ask("count"); member.end("stop")

Run as a program it produces or consumes as long as nothing is said to it. Words on its standard input, each answered by a line:
count; hold: it begins an item, or keeps the one it takes, and does nothing from then on; check: whether its lease stands; stop: it leaves
and ends. Items carry {member, generation, i} as metadata, and at either end of the slot in host memory."""

import ctypes
import os
import select
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import backend  # noqa: E402
from daemon import watched  # noqa: E402
from library import TIMED_OUT, Library, LibraryError  # noqa: E402

NAME, SLOTS, SLOT_BYTES, WAIT_MS, WAIT_S = "restarting", 4, 4096, 30000, 60
PRODUCER, CONSUMER = 0, 1


class CreateOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("policy", ctypes.c_int),
                ("slots", ctypes.c_int64), ("slot_bytes", ctypes.c_int64), ("meta_bytes", ctypes.c_int64), ("device", ctypes.c_char_p),
                ("mode", ctypes.c_char_p), ("keep_ms", ctypes.c_int64), ("wait_ms", ctypes.c_int64), ("label", ctypes.c_char_p),
                ("role", ctypes.c_int)]


class AttachOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("role", ctypes.c_int), ("owner", ctypes.c_int64), ("wait_ms", ctypes.c_int64),
                ("label", ctypes.c_char_p)]


class Item(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_void_p), ("size", ctypes.c_int64), ("ticket", ctypes.c_uint64), ("slot", ctypes.c_int32),
                ("producer", ctypes.c_int32), ("broken", ctypes.c_int32), ("n_meta", ctypes.c_int32), ("meta", ctypes.c_ubyte * 1024),
                ("own", ctypes.c_uint64 * 4)]


class Channel:
    def __init__(self, path, role, create):
        self.library = Library()
        self.client = self.library.connect(path)
        self.pointer, self.item = ctypes.c_void_p(), Item()
        if create:
            options = CreateOptions(ctypes.sizeof(CreateOptions), NAME.encode(), 0, 0, SLOTS, SLOT_BYTES, 16, None, b"0666", 0, 0, None, role)
            self.library.call("gpuipc_channel_create", self.client.pointer, ctypes.byref(options), ctypes.byref(self.pointer))
        else:
            options = AttachOptions(ctypes.sizeof(AttachOptions), role, -2, WAIT_MS, None)
            self.library.call("gpuipc_channel_attach", self.client.pointer, NAME.encode(), ctypes.byref(options),
                              ctypes.byref(self.pointer))
        self.number = self.library.c.gpuipc_channel_number(self.pointer)

    def call(self, what, *arguments):
        self.library.call(f"gpuipc_channel_{what}", self.pointer, *arguments)

    def wait(self, what, ms):
        """Whether there was an item, or a slot for one."""
        try:
            self.call(what, None, ms, ctypes.byref(self.item))
        except LibraryError as error:
            if error.status != TIMED_OUT:
                raise
            return False
        return True

    def publish(self, mark):
        if backend.HOST:
            ctypes.memmove(self.item.pointer, mark, len(mark))
            ctypes.memmove(self.item.pointer + SLOT_BYTES - len(mark), mark, len(mark))
        self.call("publish", ctypes.byref(self.item), ctypes.c_int64(SLOT_BYTES), mark, ctypes.c_size_t(len(mark)), None)

    def mark(self):
        """What the item in hand carries; None: not everywhere the same."""
        mark = bytes(self.item.meta[: self.item.n_meta])
        if backend.HOST and {ctypes.string_at(self.item.pointer, len(mark)),
                             ctypes.string_at(self.item.pointer + SLOT_BYTES - len(mark), len(mark))} != {mark}:
            return None
        return mark

    def leave(self):
        self.library.call("gpuipc_channel_free", self.pointer)
        self.client.free()


class Worker:
    def __init__(self, path, role, create):
        self.role = role
        self.channel = Channel(path, role, create)
        self.n, self.broken, self.bad = 0, 0, 0
        self.last = {}  # by who made it, the last item's number
        self.holds = False

    def step(self):
        """One item, if there is one soon."""
        if not self.channel.wait("begin" if self.role == PRODUCER else "take", 50):
            return
        if self.role == PRODUCER:
            self.n += 1
            self.channel.publish(struct.pack("<QQ", self.channel.number, self.n))
            return
        self.judge()
        self.channel.call("release", ctypes.byref(self.channel.item), None)

    def judge(self):
        if self.channel.item.broken:
            self.broken += 1
            return
        mark = self.channel.mark()
        if mark is None or len(mark) != 16:
            self.bad += 1
            return
        who, i = struct.unpack("<QQ", mark)
        self.bad += who != self.channel.item.producer or i != self.last.get(who, 0) + 1
        self.last[who] = i
        self.n += 1

    def hold(self):
        while not self.channel.wait("begin" if self.role == PRODUCER else "take", WAIT_MS):
            pass
        self.holds = True

    def count(self):
        return f"{self.n} {self.broken} {self.bad}"

    def obey(self, word):
        """Whether to go on."""
        if word == "hold":
            self.hold()
        elif word == "check":
            self.channel.call("check")
        elif word == "stop":
            self.channel.leave()
        print(self.count(), flush=True)
        return word != "stop"

    def run(self):
        print(self.channel.number, flush=True)
        while True:
            if not select.select([sys.stdin], [], [], None if self.holds else 0)[0]:
                self.step()
            elif not self.obey(sys.stdin.readline().strip() or "stop"):
                return


class Member:
    """Such a process, from outside."""

    def __init__(self, path, role, create=False):
        command = [sys.executable, "-B", os.path.abspath(__file__), path, role, "create" if create else "attach"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.number = int(self.line())

    def line(self):
        """One line is all that there ever is."""
        assert select.select([self.process.stdout], [], [], WAIT_S)[0], "a member does not answer"
        line = self.process.stdout.readline()
        assert line, f"a member ended with {self.process.wait()}"
        return line

    def ask(self, word):
        """(items, those told as broken, those that were not the next of their producer's)"""
        self.process.stdin.write(word + "\n")
        return tuple(map(int, self.line().split()))

    def count(self):
        return self.ask("count")[0]

    def knows(self, *others):
        """Whether it would see their deaths by itself."""
        return {other.process.pid for other in others} <= set(watched(self.process.pid))

    def close(self):
        for end in (self.process.stdin, self.process.stdout):
            end.close()

    def stop(self):
        counts = self.ask("stop")
        assert self.process.wait(30) == 0
        self.close()
        return counts

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.close()


if __name__ == "__main__":
    Worker(sys.argv[1], PRODUCER if sys.argv[2] == "producer" else CONSUMER, sys.argv[3] == "create").run()
