# SPDX-License-Identifier: Apache-2.0
"""A producer that was killed, and takes its time to end: what its consumer is told before it has, and what only then. Runs on memory that
has descriptors."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import GPUIPCCTL, wait_for, watched  # noqa: E402
from ending import Held  # noqa: E402
from package import PackageTest, gpuipc  # noqa: E402
from rawclient import WAIT_S, ReplyError  # noqa: E402
from ringpage import ALIVE, ENDING, LEFT, REAPED, RingPage  # noqa: E402

SLOTS, SLOT = 3, 4096
WHOLE = b"\7" * SLOT

# Publishes two items, which its stream does not write before the gate is open, and begins a third.
PRODUCER = f"""
import ctypes, sys, gpuipc
client = gpuipc.Client()
channel, gate = client.channel_attach("ch", role="producer"), client.open("gate")
if channel.device != "host":
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
    gate.fence(0).wait(1, stream=0)
for _ in range(2):
    item = channel.item({WAIT_S})
    if channel.device == "host":
        item.write({WHOLE!r})
    else:
        assert cuda.cuMemsetD8Async(ctypes.c_uint64(item.pointer), ctypes.c_ubyte(7), ctypes.c_size_t({SLOT}), None) == 0
    item.publish({SLOT})
begun = channel.item({WAIT_S})
print(channel.number, flush=True)
sys.stdin.readline()
"""


class EndingTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.ours = self.connect(restart=0)
        device = self.device_of(self.ours)
        self.gate = self.closed_later(self.closed_later(self.ours.allocate(64, name="gate", device=device)).fence(0))
        self.consumer = self.closed_later(
            self.ours.channel_create("ch", slots=SLOTS, slot_bytes=SLOT, device=device, role="consumer"))
        self.other = self.closed_later(self.ours.channel_attach("ch", role="producer"))
        self.stream = self.begin_stream()
        self.raw, self.page = self.look_on()
        program = self.owned_process(self.start(PRODUCER))
        said = program.stdout.readline()
        self.assertTrue(said, "the producer has ended")
        self.number = int(said)
        self.producer = self.owned(Held(program.pid))
        self.first = self.consumer.take(WAIT_S, stream=self.stream)
        self.assertFalse(self.first.is_broken())
        self.assert_held_up()

    def begin_stream(self):
        """One of the consumer's, and None on host memory."""
        if backend.HOST:
            return None
        self.cuda, context, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
        self.assertEqual((self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                          self.cuda.cuCtxPushCurrent_v2(context), self.cuda.cuStreamCreate(ctypes.byref(stream), 1)), (0, 0, 0, 0))
        self.addCleanup(self.cuda.cuDevicePrimaryCtxRelease_v2, 0)
        self.addCleanup(self.cuda.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))
        self.addCleanup(self.cuda.cuStreamDestroy_v2, stream)
        return stream.value

    def look_on(self):
        """A member that never comes, and the channel's control page."""
        raw = self.bystander()
        reply = raw.call("ChannelAttach", {"name": "ch", "role": "consumer"})
        page = RingPage(os.dup(raw.fds[reply["control"]["fd"]]))
        raw.drop_fds()
        self.closed_later(page)

        def release():
            with contextlib.suppress(ReplyError, OSError):
                raw.call("Release", {"lease": reply["lease"]})

        self.owned(types.SimpleNamespace(close=release))
        return raw, page

    def life(self):
        return self.page.life(self.number)

    # ---- what is as it was, and what is not ----

    def assert_held_up(self):
        """Whose stream waits still does, and the producer's slots are nobody else's."""
        if self.stream:
            self.assertEqual(self.cuda.cuStreamQuery(ctypes.c_void_p(self.stream)), 600)
        with self.assertRaises(gpuipc.TimedOutError):
            self.other.item(0)

    def assert_told_as_left(self):
        """Everywhere where members are told of."""
        (member,) = [member for member in self.ours.channel_look(self.consumer.id).members if member.number == self.number]
        self.assertFalse(member.alive)
        told = subprocess.run([GPUIPCCTL, "--socket", self.daemon.socket, "top", "--json", "--count", "1"], stdout=subprocess.PIPE,
                              check=True, timeout=2 * WAIT_S).stdout
        (figures,) = [channel["figures"] for channel in json.loads(told)["channels"]]
        self.assertEqual([each["alive"] for each in figures["members"] if each["number"] == self.number], [False])
        found = self.raw.call("ChannelParticipants", {"channel": self.consumer.id})["participants"]
        self.raw.drop_fds()
        self.assertEqual([each["state"] for each in found if each["number"] == self.number], ["left"])

    def settle(self):
        if self.stream:
            self.assertEqual(self.cuda.cuStreamSynchronize(ctypes.c_void_p(self.stream)), 0)

    def assert_published(self, second, broken):
        """Both of them, for good."""
        self.settle()
        for item in (self.first, second):
            self.assertEqual(item.is_broken(), broken)
            if not broken:
                self.assertEqual(item.read(), WHOLE)
            item.release()

    def assert_all_slots_come_back(self):
        """The item that was begun is told of, and nothing of the producer's is in the way any more."""
        third = self.consumer.take(WAIT_S, stream=self.stream)
        self.assertTrue(third.broken)
        for item in [self.other.item(WAIT_S) for _ in range(SLOTS)]:
            item.cancel()

    def numbers_given(self):
        """{number: generation} of all who can yet attach."""
        given = {}
        with self.client() as client:
            with contextlib.suppress(ReplyError):
                while True:
                    reply = client.call("ChannelAttach", {"name": "ch", "role": "consumer"})
                    given[reply["number"]] = reply["generation"]
                    client.drop_fds()
            for lease in client.call("List")["leases"]:
                if lease["pid"] == os.getpid() and lease.get("session") == client.call("GetStatus")["session"]:
                    client.call("Release", {"lease": lease["id"]})
        return given

    # ---- cases ----

    def test_killed(self):
        told = not backend.HOST  # there each published item is whole
        self.producer.kill()
        wait_for(lambda: self.life() == ENDING, "the mark")
        wait_for(lambda: self.first.is_broken() == told, "the news")
        second = self.consumer.take(0, stream=self.stream)
        self.assertEqual((second.broken, second.is_broken()), (False, told))
        with self.assertRaises(gpuipc.TimedOutError):
            self.consumer.take(0, stream=self.stream)
        self.assert_told_as_left()
        self.assert_held_up()
        self.assertNotIn(self.number, self.numbers_given())
        self.assertEqual((self.producer.has_ended(), self.life()), (False, ENDING))
        self.producer.let_go()
        self.assert_published(second, broken=told)
        self.assert_all_slots_come_back()
        wait_for(lambda: self.life() == REAPED, "all to be done")
        self.assertEqual(self.numbers_given()[self.number], 2)

    def test_left(self):
        """Its connection alone has ended: it may do what it has begun."""
        (session,) = [lease.session for lease in self.ours.leases("ch") if lease.pid == self.producer.pid]
        self.ours.kick(session)
        wait_for(lambda: self.life() == LEFT, "the mark")
        self.assert_told_as_left()
        second = self.consumer.take(0, stream=self.stream)
        self.assertEqual((self.first.is_broken(), second.is_broken()), (False, False))
        self.assert_held_up()
        self.gate.signal(1)
        self.assert_published(second, broken=False)
        self.producer.kill()
        with self.assertRaises(gpuipc.TimedOutError):
            self.consumer.take(0, stream=self.stream)
        self.assertEqual(self.life(), LEFT)
        self.producer.let_go()
        self.assert_all_slots_come_back()

    def test_without_a_daemon(self):
        """Nobody says that it is ending, and its end is seen."""
        wait_for(lambda: watched().count(self.producer.pid) > 1, "it to be known to others than this test")
        self.daemon.kill()
        self.producer.kill()
        second = self.consumer.take(0, stream=self.stream)
        self.assertEqual((self.first.is_broken(), second.is_broken(), self.life()), (False, False, ALIVE))
        with self.assertRaises(gpuipc.TimedOutError):
            self.consumer.take(0, stream=self.stream)
        self.assert_held_up()
        self.producer.let_go()
        self.assert_published(second, broken=not backend.HOST)
        self.assert_all_slots_come_back()
        for member in (self.consumer, self.other):
            with contextlib.suppress(gpuipc.Error):
                member.close()
        self.gate.close()
        self.daemon = self.make_daemon()


if __name__ == "__main__":
    unittest.main()
