# SPDX-License-Identifier: Apache-2.0
"""Channels as the daemon keeps them: what is made and charged, who may take part, numbers, deaths, and pages that somebody scribbled
over. By a raw client. Runs on memory that has descriptors. deadline: 120 s"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import select
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from books import HoldersTest  # noqa: E402
from daemon import Daemon, open_fds, wait_for  # noqa: E402
from rawclient import ReplyError  # noqa: E402
from ringpage import ALIVE, CONSUMER, DEAD, LEFT, PRODUCER, REAPED, RingPage  # noqa: E402

MEMORY = "host" if backend.HOST else "auto"
ALICE, BOB = 2001, 2002
NEW = {"slots": 4, "slot_bytes": 1000, "role": "producer"}
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALED = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
PUNCH_HOLE = 0x01 | 0x02


class Part:
    """What ChannelCreate or ChannelAttach gave: the reply, the descriptors, the page."""

    def __init__(self, client, reply, watch=False):
        self.client, self.reply, self.fds = client, reply, client.fds
        client.fds = []
        for each in reply["participants"]:
            if not watch:
                os.close(self.fds[each["fd"]])
                self.fds[each["fd"]] = -1
        self.channel, self.lease = reply["channel"], reply["lease"]
        self.number, self.generation = reply["number"], reply["generation"]
        self.page = RingPage(self.take("control"))
        self.page.join(self.number)

    def take(self, what):
        at = self.reply[what]["fd"]
        fd, self.fds[at] = self.fds[at], -1
        return fd

    def pidfds(self):
        return [self.fds[each["fd"]] for each in self.reply["participants"]]

    def close(self):
        """This process lives on, so what it does not release would drain."""
        with contextlib.suppress(ReplyError, OSError):
            self.release()
        self.page.close()
        for fd in self.fds:
            if fd >= 0:
                os.close(fd)

    def release(self):
        self.client.call("Release", {"lease": self.lease})


class ChannelTest(HoldersTest):
    def make_daemon(self):
        return Daemon(*self.daemon_args, memory=MEMORY)

    def peer(self, admin=False):
        return self.owned(self.client(admin))

    def create(self, client=None, **more):
        client = client or self.peer()
        return self.owned(Part(client, client.call("ChannelCreate", {**NEW, **more})))

    def attach(self, channel, role="consumer", client=None, watch=False):
        client = client or self.peer()
        which = {"channel": channel.channel["id"]} if isinstance(channel, Part) else {"name": channel}
        return self.owned(Part(client, client.call("ChannelAttach", {**which, "role": role}), watch))

    def refused(self, error, call, *arguments):
        with self.assertRaises(ReplyError) as caught:
            call(*arguments)
        self.assertEqual(caught.exception.name.rpartition(".")[2], error, caught.exception)
        return caught.exception.parameters

    def participants(self, channel, client=None):
        client = client or self.peer()
        reply = client.call("ChannelParticipants", {"channel": channel.channel["id"]})
        found = reply["participants"]
        self.assertEqual(reply["control"]["fd"], 0)
        self.assertEqual(len(client.fds), 1 + sum("fd" in each for each in found))
        client.drop_fds()
        return {each["number"]: (each["generation"], each["role"], each["pid"], each["state"]) for each in found}

    def buffer(self, channel):
        with self.client(admin=True) as admin:
            return next((each for each in admin.call("ListBuffers")["buffers"] if each["id"] == channel.channel["id"]), None)

    def brokered(self):
        return {device["uuid"]: device["brokered_bytes"] for device in self.daemon.status()["devices"]}


class Making(ChannelTest):
    def test_announced(self):
        self.assertIn("channels", self.daemon.status()["features"])

    def test_what_is_made(self):
        for kind, mode in (("queue", 1), ("broadcast", 2)):
            for policy, number in (("block", 1), ("drop_oldest", 2)):
                with self.subTest(kind=kind, policy=policy):
                    made = self.create(kind=kind, policy=policy, meta_bytes=100, slots=5)
                    self.assertEqual(made.page.geometry(), (mode, number, 5, 100, 1000))
                    self.assertEqual((made.channel["kind"], made.channel["policy"]), (kind, policy))
                    self.assertEqual((made.channel["slots"], made.channel["slot_bytes"], made.channel["meta_bytes"]), (5, 1000, 100))
                    self.assertEqual(made.channel["size"], 5 * 1024)
                    self.assertEqual(made.reply["data"]["size"], 5 * 1024)
                    self.assertEqual(made.page.size, made.channel["control_bytes"])
                    self.assertEqual((made.number, made.generation), (0, 1))
                    self.assertEqual(made.page.member(0), (1, PRODUCER, ALIVE))
                    self.assertEqual(made.reply["participants"], [])
                    self.assertEqual("fences" in made.reply, not backend.HOST)

    def test_control_page_is_sealed(self):
        client = self.peer()
        reply = client.call("ChannelCreate", NEW)
        fd = client.fds[reply["control"]["fd"]]
        self.assertEqual(fcntl.fcntl(fd, F_GET_SEALS) & SEALED, SEALED)
        for seal in (0x0008, 0x0010):  # F_SEAL_WRITE, F_SEAL_FUTURE_WRITE
            with self.assertRaises(PermissionError):
                fcntl.fcntl(fd, F_ADD_SEALS, seal)
        for size in (0, 1 << 20):
            with self.assertRaises(PermissionError):
                os.ftruncate(fd, size)
        self.owned(Part(client, reply))

    @backend.host_only
    def test_consumers_read_only(self):
        made = self.create(role="consumer")
        other = self.attach(made, "consumer")
        producer = self.attach(made, "producer")
        for part in (made, other):
            fd = part.take("data")
            with self.assertRaises(PermissionError):
                mmap.mmap(fd, part.channel["size"])
            self.assertNotEqual(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE, os.O_RDWR)
            os.close(fd)
        self.assertEqual(made.page.member(0), (1, CONSUMER, ALIVE))
        self.assertEqual(made.page.member(2), (1, PRODUCER, ALIVE))
        fd = producer.take("data")
        mmap.mmap(fd, producer.channel["size"]).close()
        os.close(fd)

    def test_books(self):
        """What is told of all devices is what buffers and channels take; the account pays for all of it."""
        made = self.create(meta_bytes=1024, slots=300)
        buffer = self.buffer(made)
        self.assertEqual({key: value for key, value in buffer["channel"].items() if key != "participants"},
                         {key: value for key, value in made.channel.items() if key != "participants"})
        expected = dict.fromkeys(self.brokered(), 0)
        expected[buffer["device"]] += buffer["allocated"]
        expected["host"] += buffer["channel"]["control_bytes"]
        self.assertEqual(self.brokered(), expected)
        self.assertEqual(buffer["allocated"] > buffer["size"], not backend.HOST)

    def test_descriptors(self):
        """Those of an idle daemon and: two sockets and a process that it sees twice, and the channel's memory."""
        made = self.create()
        self.attach(made, "producer")
        now = len(open_fds(self.daemon.pid)) - self.daemon.idle_fds
        self.assertEqual(now, 4 + (3 if backend.HOST else 4))

    def test_no_host_memory_for_the_control_page(self):
        if backend.HOST:
            self.skipTest("of a GPU alone")
        with Daemon(memory="cuda") as daemon:
            self.assertNotIn("channels", daemon.status()["features"])
            with daemon.client() as client:
                said = self.refused("HandleUnsupported", client.call, "ChannelCreate", NEW)
                self.assertIn("Backend=auto", said["reason"])

    def test_open_is_refused_in_words(self):
        made = self.create(name="c")
        said = self.refused("AccessDenied", self.peer().call, "Open", {"name": "c"})
        self.assertIn("ChannelAttach", said["reason"])
        self.refused("AccessDenied", self.peer().call, "Open", {"buffer": made.channel["id"]})

    def test_a_buffer_is_no_channel(self):
        client = self.peer()
        granted = client.call("Allocate", {"size": 1, "name": "n"})
        buffer = granted["buffer"]
        for which in ({"name": "n"}, {"channel": buffer["id"]}):
            self.refused("NoSuchBuffer", client.call, "ChannelAttach", {**which, "role": "consumer"})
        self.refused("NoSuchBuffer", client.call, "ChannelParticipants", {"channel": buffer["id"]})
        self.refused("TimedOut", client.call, "ChannelAttach", {"name": "n", "role": "consumer", "wait_ms": 20})
        self.refused("NameTaken", client.call, "ChannelCreate", {**NEW, "name": "n"})
        client.call("Release", {"lease": granted["lease"]})

    def test_wait_for_the_name(self):
        waiting = self.peer()
        waiting.send_call("ChannelAttach", {"name": "c", "role": "consumer", "wait_ms": 60000})
        made = self.create(name="c")
        part = self.owned(Part(waiting, waiting.result()))
        self.assertEqual((part.number, part.channel["id"]), (1, made.channel["id"]))

    def test_largest_numbers(self):
        said = self.refused("OutOfMemory", self.peer().call, "ChannelCreate", {**NEW, "slots": 65536, "slot_bytes": (1 << 53) - 1})
        self.assertGreater(said["asked"], 1 << 52)
        made = self.create(slots=65536, slot_bytes=1)
        self.assertEqual(made.channel["size"], 65536 * 256)


class Quotas(ChannelTest):
    daemon_args = ("--host-bytes=1M",)

    @backend.host_only
    def test_both_parts_count(self):
        """Each part alone would fit, both together do not: that is told at once also to who would wait."""
        for more in ({}, {"wait_ms": 60000}):
            said = self.refused("OutOfMemory", self.peer().call, "ChannelCreate", {**NEW, "slots": 4, "slot_bytes": 255 << 10, **more})
            self.assertGreater(said["asked"], 1 << 20)
            self.assertEqual(said["device"], "host")
        self.create(slots=4, slot_bytes=250 << 10)

    def test_control_page_is_charged_to_the_host(self):
        said = self.refused("OutOfMemory", self.peer().call, "ChannelCreate",
                            {**NEW, "slots": 2048, "slot_bytes": 1, "meta_bytes": 1024})
        self.assertEqual(said["device"], "host")
        self.assertEqual(set(self.brokered().values()), {0})

    def test_waits_for_host_memory(self):
        first = self.create(slots=400, slot_bytes=256, meta_bytes=1024)
        waiting = self.peer()
        waiting.send_call("ChannelCreate", {**NEW, "slots": 600, "slot_bytes": 256, "meta_bytes": 1024, "wait_ms": 60000})
        wait_for(lambda: self.daemon.status()["sessions"] == 3, "both sessions")
        self.assertFalse(waiting.readable())
        first.release()
        self.owned(Part(waiting, waiting.result()))


class Account(ChannelTest):
    daemon_args = (f"--bytes-per-user={3 * backend.PAGE}",)

    def test_both_parts_count(self):
        if not backend.HOST:
            made = self.create()
            self.assertEqual(made.channel["allocated"], 2 * backend.PAGE)
            made.release()
        said = self.refused("QuotaExceeded", self.peer().call, "ChannelCreate", {**NEW, "slots": 2, "slot_bytes": backend.PAGE})
        self.assertEqual(said["scope"], "bytes_per_uid")


class TakingPart(ChannelTest):
    def test_numbers(self):
        made = self.create(name="c")
        parts = [self.attach("c", role) for role in ("consumer", "producer", "consumer")]
        self.assertEqual([part.number for part in parts], [1, 2, 3])
        me = os.getpid()
        self.assertEqual(self.participants(made), {0: (1, "producer", me, "attached"), 1: (1, "consumer", me, "attached"),
                                                   2: (1, "producer", me, "attached"), 3: (1, "consumer", me, "attached")})
        self.assertEqual([each["number"] for each in parts[2].reply["participants"]], [0, 1, 2])
        self.assertEqual(parts[2].channel["participants"], 4)

    def test_pidfds(self):
        """Who is attached gets them of all others, and sees each end by itself."""
        made = self.create(name="c", mode="0666")
        holders = [self.holder() for _ in range(3)]
        for holder in holders:
            holder.call("ChannelAttach", {"name": "c", "role": "consumer"})
        last = self.attach(made, watch=True)
        self.assertEqual([each["pid"] for each in last.reply["participants"]], [os.getpid(), *(holder.pid for holder in holders)])
        fds = last.pidfds()
        for i, holder in enumerate(holders, 1):
            self.assertEqual(select.select(fds, [], [], 0)[0], fds[1:i])
            holder.kill()
            self.assertTrue(select.select([fds[i]], [], [], 10)[0])

    def test_looking(self):
        """Who only looks reads the page, and cannot write there."""
        made = self.create(mode="0644")
        client = self.peer()
        reply = client.call("ChannelParticipants", {"channel": made.channel["id"]})
        fd = client.fds[reply["control"]["fd"]]
        with self.assertRaises(PermissionError):
            mmap.mmap(fd, made.page.size)
        with mmap.mmap(fd, made.page.size, prot=mmap.PROT_READ) as page:
            self.assertEqual(page[:], made.page.map[:])

    def test_left_and_reused(self):
        """A number is given again, with the next generation, when it was given back, and not before."""
        made = self.create()
        client = self.peer()
        part = self.attach(made, client=client)
        for generation in (2, 3, 4):
            made.page.leave(1)
            part.release()
            self.assertEqual(self.participants(made), {0: (1, "producer", os.getpid(), "attached")})
            self.assertEqual(made.page.life(1), REAPED)
            numbers = [self.attach(made, client=client) for _ in range(62)]
            self.assertNotIn(1, [each.number for each in numbers]) if generation == 2 else None
            part = self.attach(made, client=client)
            self.assertEqual((part.number, part.generation), (1, generation))
            self.assertEqual(made.page.member(1), (generation, CONSUMER, ALIVE))
            for each in numbers:
                made.page.leave(each.number)
                each.release()

    def test_released_but_not_left(self):
        made = self.create()
        part = self.attach(made)
        before = made.page.changes()
        part.release()
        self.assertEqual(made.page.life(1), LEFT)
        self.assertNotEqual(made.page.changes()[0], before[0])
        self.assertNotEqual(made.page.changes()[1], before[1])
        self.assertEqual(self.participants(made)[1][3], "left")
        self.assertEqual(self.buffer(made)["channel"]["participants"], 2)
        self.assertEqual(self.attach(made).number, 2)

    def test_sixty_four(self):
        made = self.create()
        client = self.peer()
        parts = [self.attach(made, client=client) for _ in range(63)]
        self.assertEqual(len(self.participants(made)), 64)
        for role in ("producer", "consumer"):
            said = self.refused("QuotaExceeded", client.call, "ChannelAttach", {"channel": made.channel["id"], "role": role})
            self.assertEqual(said, {"scope": "channel_participants", "limit": 64, "used": 64, "asked": 1})
        parts[10].release()
        self.refused("QuotaExceeded", client.call, "ChannelAttach", {"channel": made.channel["id"], "role": "consumer"})
        made.page.leave(11)
        self.assertEqual((lambda part: (part.number, part.generation))(self.attach(made, client=client)), (11, 2))

    def test_free_closes(self):
        made = self.create(name="c")
        part = self.attach("c")
        self.assertFalse(made.page.closed())
        before = made.page.changes()
        self.peer().call("Free", {"name": "c"})
        self.assertTrue(part.page.closed())
        self.assertNotEqual(made.page.changes(), before)
        self.refused("NoSuchBuffer", self.peer().call, "ChannelAttach", {"name": "c", "role": "consumer"})
        self.refused("NoSuchBuffer", self.peer().call, "ChannelAttach", {"channel": made.channel["id"], "role": "consumer"})
        self.assertEqual(len(self.participants(made)), 2)

    def test_sealed(self):
        made = self.create()
        made.client.call("Seal", {"buffer": made.channel["id"]})
        self.refused("AlreadySealed", self.peer().call, "ChannelAttach", {"channel": made.channel["id"], "role": "producer"})
        self.attach(made, "consumer")

    def test_the_last_lease_ends_it(self):
        made = self.create(name="c")
        part = self.attach(made)
        made.release()
        self.assertFalse(part.page.closed())
        part.release()
        self.assertTrue(part.page.closed())
        wait_for(lambda: self.buffer(made) is None, "the channel to be gone")
        self.assertEqual(set(self.brokered().values()), {0})

    def test_kept(self):
        client = self.peer()
        made = self.create(client, name="c", keep_ms=60000)
        made.release()
        self.assertEqual(self.buffer(made)["state"], "kept")
        self.assertFalse(made.page.closed())
        part = self.attach("c")
        self.assertEqual(part.number, 1)
        part.release()
        client.call("Free", {"name": "c"}) if self.buffer(made) else None

    def test_modes(self):
        alice, bob = self.holder(uid=ALICE), self.holder(uid=BOB)
        answers = {"0600": (), "0644": ("consumer",), "0666": ("consumer", "producer"), "0622": ("producer",)}
        for mode, roles in answers.items():
            made = alice.call("ChannelCreate", {**NEW, "mode": mode})["channel"]["id"]
            for role in ("consumer", "producer"):
                with self.subTest(mode=mode, role=role):
                    call = lambda: bob.call("ChannelAttach", {"channel": made, "role": role})  # noqa: E731
                    if role in roles:
                        call()
                    else:
                        self.refused("NoSuchBuffer", call)
            if roles:
                bob.call("ChannelParticipants", {"channel": made})
            else:
                self.refused("NoSuchBuffer", bob.call, "ChannelParticipants", {"channel": made})

    def test_owner_wanted(self):
        self.holder(uid=ALICE).call("ChannelCreate", {**NEW, "name": "c", "mode": "0666"})
        client = self.peer()
        self.refused("NoSuchBuffer", client.call, "ChannelAttach", {"name": "c", "owner": BOB, "role": "consumer"})
        self.owned(Part(client, client.call("ChannelAttach", {"name": "c", "owner": ALICE, "role": "consumer"})))


class Deaths(ChannelTest):
    def test_killed(self):
        made = self.create(name="c")
        for number, role in ((1, "consumer"), (2, "producer")):
            holder = self.holder()
            holder.call("ChannelAttach", {"name": "c", "role": role})
            made.page.join(number)
            before = made.page.changes()
            holder.kill()
            wait_for(lambda: made.page.life(number) == DEAD, "the mark")
            wait_for(lambda: all(now != then for now, then in zip(made.page.changes(), before)), "those who wait to be told, which comes next")
            self.assertEqual(list(self.participants(made)), [0])

    def test_creator_killed(self):
        holder = self.holder()
        channel = holder.call("ChannelCreate", {**NEW, "name": "c"})["channel"]
        part = self.attach("c")
        part.page.join(0)
        holder.kill()
        wait_for(lambda: part.page.life(0) == DEAD, "the mark")
        self.assertEqual(self.buffer(part)["id"], channel["id"])
        self.assertEqual(self.attach("c").number, 2)

    def test_number_of_the_dead(self):
        """It is given again when it was reaped."""
        made = self.create(name="c")
        holder = self.holder()
        holder.call("ChannelAttach", {"name": "c", "role": "consumer"})
        made.page.join(1)
        holder.kill()
        wait_for(lambda: made.page.life(1) == DEAD, "the mark")
        parts = [self.attach(made, client=made.client) for _ in range(62)]
        self.refused("QuotaExceeded", self.peer().call, "ChannelAttach", {"name": "c", "role": "consumer"})
        made.page.reap(1)
        part = self.attach(made)
        self.assertEqual((part.number, part.generation, len(parts)), (1, 2, 62))

    def test_hung_up_then_dead(self):
        """Only the end of the process is a death; the end of its connection is none."""
        made = self.create(name="c")
        holder = self.holder()
        holder.call("ChannelAttach", {"name": "c", "role": "producer"})
        made.page.join(1)
        holder.hang_up()
        wait_for(lambda: made.page.life(1) == LEFT, "the mark")
        self.assertEqual(self.participants(made)[1], (1, "producer", holder.pid, "left"))
        holder.kill()
        wait_for(lambda: made.page.life(1) == DEAD, "the mark")
        self.assertEqual(list(self.participants(made)), [0])

    def test_released_then_dead(self):
        made = self.create(name="c")
        holder = self.holder()
        lease = holder.call("ChannelAttach", {"name": "c", "role": "producer"})["lease"]
        made.page.join(1)
        holder.call("Release", {"lease": lease})
        self.assertEqual(made.page.life(1), LEFT)
        holder.kill()
        wait_for(lambda: made.page.life(1) == DEAD, "the mark")

    def test_never_came(self):
        """One that could not map what it was given, say; its process lives and tries again."""
        made = self.create(name="c")
        holder = self.holder()
        for generation in range(1, 4):
            for number in range(1, 64):
                reply = holder.call("ChannelAttach", {"name": "c", "role": "consumer"})
                self.assertEqual((reply["number"], reply["generation"]), (number, generation))
                holder.call("Release", {"lease": reply["lease"]})
                self.assertEqual(made.page.life(number), REAPED)
        self.assertEqual(list(self.participants(made)), [0])

    def test_gone_properly_then_dead(self):
        """Whose number was given back is not declared dead, nor is its successor."""
        made = self.create(name="c")
        holder = self.holder()
        lease = holder.call("ChannelAttach", {"name": "c", "role": "producer"})["lease"]
        made.page.leave(1)
        holder.call("Release", {"lease": lease})
        for _ in range(62):
            self.attach(made, client=made.client)
        part = self.attach(made, client=made.client)
        self.assertEqual((part.number, part.generation), (1, 2))
        holder.kill()
        other = self.holder()
        other.call("GetStatus")
        self.assertEqual(made.page.member(1), (2, CONSUMER, ALIVE))

    def test_all_leases_of_one(self):
        made = self.create(name="c")
        holder = self.holder()
        for role in ("producer", "consumer", "consumer"):
            made.page.join(holder.call("ChannelAttach", {"name": "c", "role": role})["number"])
        holder.kill()
        for number in (1, 2, 3):
            wait_for(lambda: made.page.life(number) == DEAD, f"the mark of {number}")

    def test_killed_while_waiting(self):
        holder = self.holder()
        holder.send_call("ChannelAttach", {"name": "c", "role": "consumer", "wait_ms": 60000})
        wait_for(lambda: self.daemon.status()["sessions"] == 2, "its session")
        holder.kill()
        made = self.create(name="c")
        self.assertEqual(list(self.participants(made)), [0])

    def test_last_one_killed(self):
        holder = self.holder()
        holder.call("ChannelCreate", {**NEW, "name": "c"})
        holder.kill()
        wait_for(lambda: set(self.brokered().values()) == {0}, "no bytes")

    def test_stop_closes(self):
        """A daemon without a store takes its channels with it, and those in them hear."""
        daemon = Daemon(memory=MEMORY)
        with daemon.client() as client:
            part = Part(client, client.call("ChannelCreate", NEW))
            daemon.stop()
        self.assertTrue(part.page.closed())
        part.close()


class Hostile(ChannelTest):
    """Whoever writes over the page costs the others the channel, and the daemon nothing."""

    def scribble(self, made, data):
        made.page.map[:] = data
        other = self.holder()
        try:
            other.call("ChannelAttach", {"channel": made.channel["id"], "role": "consumer"})
        except ReplyError as error:
            self.assertTrue(error.name.endswith("QuotaExceeded"), error)
        self.participants(made)
        other.kill()
        made.client.call("Free", {"buffer": made.channel["id"]})
        self.assertLessEqual(len(self.participants(made)), 64)
        made.release()
        self.daemon.status()

    def test_scribbled(self):
        chance = random.Random(7)
        for data in (bytes, lambda n: b"\xff" * n, chance.randbytes, chance.randbytes, lambda n: bytes([4]) * n):
            made = self.create()
            self.scribble(made, data(made.page.size))

    def test_holes(self):
        """Pages taken out of the file under the daemon's mapping come back empty."""
        client = self.peer()
        reply = client.call("ChannelCreate", NEW)
        libc = ctypes.CDLL(None, use_errno=True)
        size = reply["channel"]["control_bytes"]
        self.assertEqual(libc.fallocate(client.fds[reply["control"]["fd"]], PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size)), 0)
        made = self.owned(Part(client, reply))
        holder = self.holder()
        holder.call("ChannelAttach", {"channel": made.channel["id"], "role": "consumer"})
        self.assertEqual(made.page.member(1), (1, CONSUMER, ALIVE))
        made.page.join(1)
        holder.kill()
        wait_for(lambda: made.page.life(1) == DEAD, "the mark")

    def test_forged_numbers(self):
        """Who says that a living member is reaped has its number given again only when its lease is over."""
        made = self.create()
        part = self.attach(made)
        made.page.reap(1)
        self.assertEqual(self.attach(made).number, 2)
        self.assertEqual(self.participants(made)[1][3], "attached")
        part.release()


if __name__ == "__main__":
    unittest.main()
