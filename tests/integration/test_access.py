# SPDX-License-Identifier: Apache-2.0
"""Who may open, see, seal, free and kick what: modes over real users and groups, and what an administrator may. Runs
on memory that has descriptors."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from actors import ActorTest  # noqa: E402
from daemon import wait_for  # noqa: E402

ALICE, BOB, CAROL = 2001, 2002, 2003
TEAM, STAFF = 3001, 3002


class AccessTest(ActorTest):
    def setUp(self):
        super().setUp()
        self.alice = self.actor(ALICE, gid=TEAM)

    def make(self, mode=None, name="n", owner=None):
        more = {"mode": mode} if mode else {}
        return (owner or self.alice).call("Allocate", {"size": 4096, "name": name, **more})["buffer"]

    def opens(self, actor, access, name="n"):
        """Whether it may, by name and by id alike; a lease got is given back."""
        with self.client(admin=True) as admin:
            buffer = next(each["id"] for each in admin.call("ListBuffers")["buffers"] if each["name"] == name)
        answers = []
        for which in ({"name": name}, {"buffer": buffer}):
            try:
                lease = actor.call("Open", {**which, "access": access})["lease"]
                actor.call("Release", {"lease": lease})
                answers.append(True)
            except Exception as error:
                self.assertEqual(getattr(error, "name", error), "io.gpuipc.Broker.NoSuchBuffer")
                answers.append(False)
        self.assertEqual(answers[0], answers[1], "by name and by id")
        return answers[0]


class Modes(AccessTest):
    def people(self):
        return {
            "owner": self.alice,
            "owner elsewhere": self.actor(ALICE, gid=STAFF),
            "group": self.actor(BOB, gid=TEAM),
            "supplementary group": self.actor(BOB, gid=STAFF, groups=(1, TEAM)),
            "other": self.actor(CAROL, gid=STAFF),
            "root": self.actor(0, gid=0),
            "root of the group": self.actor(0, gid=TEAM),
        }

    def expect(self, mode, **answers):
        """answers: who → the accesses allowed, "" for none."""
        self.make(mode)
        people = self.people()
        expected, found = {}, {}
        for who, actor in people.items():
            kind = {"owner elsewhere": "owner", "supplementary group": "group", "root": "other",
                    "root of the group": "group"}.get(who, who)
            expected[who] = answers[kind]
            found[who] = " ".join(access for access in ("ro", "rw") if self.opens(actor, access))
        self.assertEqual(found, expected)

    def test_default_is_0600(self):
        self.assertEqual(self.make()["mode"], "0600")
        for actor in list(self.people().values())[2:]:
            self.refused("NoSuchBuffer", actor.call, "Open", {"name": "n"})

    def test_0600(self):
        self.expect("0600", owner="ro rw", group="", other="")

    def test_0640(self):
        self.expect("0640", owner="ro rw", group="ro", other="")

    def test_0660(self):
        self.expect("0660", owner="ro rw", group="ro rw", other="")

    def test_0666(self):
        self.expect("0666", owner="ro rw", group="ro rw", other="ro rw")

    def test_0604_shuts_the_group_out(self):
        self.expect("0604", owner="ro rw", group="", other="ro")

    def test_0444_binds_the_owner_too(self):
        self.expect("0444", owner="ro", group="ro", other="ro")

    def test_0020_write_without_read(self):
        self.expect("0020", owner="", group="rw", other="")

    def test_0000(self):
        self.expect("0000", owner="", group="", other="")

    def test_three_digits(self):
        self.expect("644", owner="ro rw", group="ro", other="ro")

    @backend.ro_enforced
    def test_a_read_only_handle_does_not_write(self):
        self.make("0604")
        with self.client() as root:
            root.call("Open", {"name": "n", "access": "ro"})
            fd = root.take_fd()
            try:
                with self.assertRaises(OSError):
                    os.write(fd, b"x")
                self.assertEqual(os.pread(fd, 4, 0), bytes(4))
            finally:
                os.close(fd)
            for lease in root.call("List")["leases"]:
                if lease["uid"] == 0:
                    root.call("Release", {"lease": lease["id"]})

    def test_refused_ro_only_as_rw_reads_as_no_such_buffer(self):
        self.make("0604")
        carol = self.actor(CAROL, gid=STAFF)
        self.assertEqual(self.refused("NoSuchBuffer", carol.call, "Open", {"name": "n"}), {})
        self.assertEqual(self.refused("NoSuchBuffer", carol.call, "Open", {"name": "absent"}), {})

    def test_the_owner_asked_for(self):
        self.make("0666")
        bob = self.actor(BOB)
        bob.call("Open", {"name": "n", "owner": ALICE})
        self.refused("NoSuchBuffer", bob.call, "Open", {"name": "n", "owner": BOB})
        self.refused("NoSuchBuffer", bob.call, "Open", {"name": "n", "owner": 0})

    def test_a_name_is_taken_for_all(self):
        """One namespace, even where the holder of the name is not seen."""
        self.make("0600")
        told = self.refused("NameTaken", self.actor(BOB).call, "Allocate", {"size": 1, "name": "n"})
        self.assertEqual(told, {"name": "n"})


class Sight(AccessTest):
    """List, ListBuffers and Watch show one's own and what one may open."""

    def setUp(self):
        super().setUp()
        self.bob = self.actor(BOB, gid=STAFF)
        self.make("0600", "private")
        self.make("0640", "team")
        self.make("0604", "world")
        self.make("0600", "bobs", self.bob)

    def buffers(self, actor, **which):
        return sorted(each["name"] for each in actor.call("ListBuffers", which)["buffers"])

    def leases(self, actor, **which):
        return sorted(each["name"] for each in actor.call("List", which)["leases"])

    def test_own_and_openable(self):
        mate = self.actor(CAROL, gid=TEAM)
        for actor, sees in ((self.alice, ["private", "team", "world"]), (self.bob, ["bobs", "world"]), (mate, ["team"])):
            self.assertEqual(self.buffers(actor), sees)
            self.assertEqual(self.leases(actor), sees)

    def test_root_on_the_shared_socket_is_like_any(self):
        with self.client() as root:
            self.assertEqual(self.buffers(root), ["world"])
            self.assertEqual(self.leases(root), ["world"])

    def test_administrators_see_everything(self):
        with self.client(admin=True) as admin:
            self.assertEqual(self.buffers(admin), ["bobs", "private", "team", "world"])
            self.assertEqual(self.leases(admin), ["bobs", "private", "team", "world"])
            self.assertEqual(self.buffers(admin, uid=BOB), ["bobs"])
            self.assertEqual(self.leases(admin, uid=ALICE), ["private", "team", "world"])
            self.assertEqual(self.buffers(admin, name="team"), ["team"])

    def test_filters_do_not_widen(self):
        self.assertEqual(self.buffers(self.bob, uid=ALICE), ["world"])
        self.assertEqual(self.buffers(self.bob, name="private"), [])
        self.assertEqual(self.leases(self.bob, name="private"), [])

    def test_ones_own_lease_on_anothers_buffer(self):
        """It stays in one's sight when the buffer's name is gone."""
        self.bob.call("Open", {"name": "world", "access": "ro"})
        self.assertEqual(self.leases(self.bob), ["bobs", "world", "world"])
        self.assertEqual(self.leases(self.alice), ["private", "team", "world", "world"])
        self.alice.call("Free", {"name": "world"})
        self.assertIn(BOB, [each["uid"] for each in self.bob.call("List")["leases"] if "name" not in each])

    def test_counts_are_no_secret(self):
        status = self.bob.call("GetStatus")
        self.assertEqual((status["buffers"], status["leases"]), (4, 4))

    def watch(self, since, uid=None, gid=None, admin=False):
        actor = self.actor(uid, admin=admin, gid=gid)
        actor.send_call("Watch", {"since": since}, more=True)
        return actor

    def last_event(self):
        """The number of the last event there is, which an administrator makes for the purpose."""
        with self.client(admin=True) as admin:
            admin.send_call("Watch", {}, more=True)
            with self.client() as other:
                lease = other.call("Allocate", {"size": 1, "label": "mark"})["lease"]
                other.call("Release", {"lease": lease})
            while True:
                event = admin.result()["event"]
                if event["kind"] == "freed" and event["buffer"]["size"] == 1:
                    return event["sequence"]

    def heard(self, watcher, until):
        """(kind, name) of each event up to the one that tells of the buffer `until` being freed."""
        events = []
        while True:
            event = watcher.result()["event"]
            buffer = event.get("buffer") or {}
            if event["kind"] == "freed" and buffer.get("mode") == until:
                return events
            events.append((event["kind"], buffer.get("name")))

    def happen(self):
        """Three lives; the last, that all may see and whose mode is 0606, ends the story."""
        for name, mode in (("secret", "0600"), ("shown", "0604"), ("end", "0606")):
            lease = self.alice.call("Allocate", {"size": 4096, "name": name, "mode": mode})["lease"]
            self.alice.call("Release", {"lease": lease})
            wait_for(lambda: self.daemon.status()["buffers"] == 4, "the buffer to be gone")

    def story(self, name):
        return [("created", name), ("opened", name), ("released", name), ("unnamed", name), ("freed", None)]

    def test_watch(self):
        since = self.last_event()
        other, root = self.watch(since, uid=BOB, gid=STAFF), self.watch(since)
        owner, admin = self.watch(since, uid=ALICE, gid=STAFF), self.watch(since, admin=True)
        self.happen()
        for watcher, names in ((other, ["shown", "end"]), (root, ["shown", "end"]), (owner, ["secret", "shown", "end"]),
                               (admin, ["secret", "shown", "end"])):
            expected = [event for name in names for event in self.story(name)][:-1]
            self.assertEqual(self.heard(watcher, "0606"), expected)

    def test_watchers_who_see_nothing(self):
        """They are passed over, however many there are."""
        since = self.last_event()
        watchers = [self.watch(since, uid=CAROL, gid=STAFF) for _ in range(3)]
        lease = self.alice.call("Allocate", {"size": 4096})["lease"]
        self.alice.call("Release", {"lease": lease})
        for watcher in watchers:
            self.assertFalse(watcher.readable(0.02))

    def test_ones_own_leases_are_always_seen(self):
        """What Bob got as an administrator, he could not open as himself: the lease is his to see all the same."""
        os.chmod(self.daemon.admin_socket, 0o666)
        bob = self.watch(self.last_event(), uid=BOB, gid=STAFF)
        boss = self.actor(BOB, gid=STAFF, admin=True)
        lease = boss.call("Open", {"name": "private"})["lease"]
        self.assertEqual(self.buffers(self.bob), ["bobs", "world"])
        self.assertIn(lease, [each["id"] for each in self.bob.call("List")["leases"]])
        boss.call("Release", {"lease": lease})
        kinds = [(event["kind"], event["lease"]["uid"]) for event in (bob.result()["event"] for _ in range(2))]
        self.assertEqual(kinds, [("opened", BOB), ("released", BOB)])


class Rights(AccessTest):
    """Seal, Free and Kick."""

    def setUp(self):
        super().setUp()
        self.bob = self.actor(BOB)

    def test_seal(self):
        buffer = self.make("0606")["id"]
        told = self.refused("AccessDenied", self.bob.call, "Seal", {"buffer": buffer})
        self.assertIn(f"uid {ALICE}", told["reason"])
        self.alice.call("Seal", {"buffer": buffer})
        self.refused("AlreadySealed", self.alice.call, "Seal", {"buffer": buffer})
        self.refused("AlreadySealed", self.bob.call, "Open", {"buffer": buffer})
        self.bob.call("Open", {"buffer": buffer, "access": "ro"})
        self.assertTrue(self.bob.call("ListBuffers")["buffers"][0]["sealed"])

    def test_free(self):
        buffer = self.make("0606")["id"]
        for which in ({"name": "n"}, {"buffer": buffer}):
            told = self.refused("AccessDenied", self.bob.call, "Free", which)
            self.assertIn(f"uid {ALICE}", told["reason"])
        held = self.bob.call("Open", {"name": "n"})["lease"]
        self.alice.call("Free", {"name": "n"})
        self.refused("NoSuchBuffer", self.bob.call, "Open", {"name": "n"})
        self.refused("NoSuchBuffer", self.bob.call, "Open", {"buffer": buffer})
        self.refused("NoSuchBuffer", self.alice.call, "Open", {"buffer": buffer})
        self.assertIn(held, [each["id"] for each in self.bob.call("List")["leases"]])

    def test_what_one_may_not_see_is_not_there(self):
        buffer = self.make("0600")["id"]
        self.refused("NoSuchBuffer", self.bob.call, "Seal", {"buffer": buffer})
        self.refused("NoSuchBuffer", self.bob.call, "Free", {"buffer": buffer})
        self.refused("NoSuchBuffer", self.bob.call, "Free", {"name": "n"})

    def test_the_group_does_not_rule(self):
        buffer = self.make("0660")["id"]
        mate = self.actor(BOB, gid=TEAM)
        self.refused("AccessDenied", mate.call, "Seal", {"buffer": buffer})
        self.refused("AccessDenied", mate.call, "Free", {"buffer": buffer})

    def test_root_on_the_shared_socket_does_not_rule(self):
        buffer = self.make("0606")["id"]
        with self.client() as root:
            self.refused("AccessDenied", root.call, "Seal", {"buffer": buffer})
            self.refused("AccessDenied", root.call, "Free", {"buffer": buffer})
            self.refused("NoSuchSession", root.call, "Kick", {"session": self.alice.call("GetStatus")["session"]})

    def test_administrators_do(self):
        buffer = self.make("0600")["id"]
        self.make("0600", "other")
        with self.client(admin=True) as admin:
            admin.call("Seal", {"buffer": buffer})
            admin.call("Free", {"buffer": buffer})
            admin.call("Free", {"name": "other"})
            lease = self.alice.call("Allocate", {"size": 4096, "name": "third"})["lease"]
            opened = admin.call("Open", {"name": "third"})["lease"]
            self.refused("NoSuchLease", admin.call, "Release", {"lease": lease})
            admin.call("Release", {"lease": opened})

    def test_a_lease_is_its_sessions_alone(self):
        lease = self.alice.call("Allocate", {"size": 4096})["lease"]
        self.refused("NoSuchLease", self.alice.client().call, "Release", {"lease": lease})
        self.refused("NoSuchLease", self.bob.call, "Release", {"lease": lease})
        self.alice.call("Release", {"lease": lease})
        self.refused("NoSuchLease", self.alice.call, "Release", {"lease": lease})

    def test_kick_ones_own(self):
        victim = self.alice.client()
        victim.call("Allocate", {"size": 4096, "name": "n"})
        session = victim.call("GetStatus")["session"]
        self.refused("NoSuchSession", self.bob.call, "Kick", {"session": session})
        self.alice.call("Kick", {"session": session})
        self.assertIsNone(victim.read())
        self.refused("NoSuchSession", self.alice.call, "Kick", {"session": session})
        self.assertEqual([each["state"] for each in self.alice.call("List")["leases"]], ["draining"])
        self.refused("NoSuchBuffer", self.alice.call, "Open", {"name": "n"})

    def test_kick_oneself(self):
        self.alice.send_call("Kick", {"session": self.alice.call("GetStatus")["session"]})
        self.assertEqual(self.alice.result(), {})
        self.assertIsNone(self.alice.read())

    def test_kick_one_who_waits(self):
        victim = self.alice.client()
        session = victim.call("GetStatus")["session"]
        victim.send_call("Open", {"name": "never", "wait_ms": 60000})
        self.alice.call("GetStatus")
        self.alice.call("Kick", {"session": session})
        self.assertIsNone(victim.read())

    def test_kick_one_who_watches(self):
        victim = self.alice.client()
        session = victim.call("GetStatus")["session"]
        victim.send_call("Watch", {}, more=True)
        self.alice.call("GetStatus")
        self.alice.call("Kick", {"session": session})
        self.assertIsNone(victim.read())

    def test_kick_by_an_administrator(self):
        session = self.alice.call("GetStatus")["session"]
        with self.client(admin=True) as admin:
            admin.call("Kick", {"session": session})
        self.assertIsNone(self.alice.read())

    def test_kick_of_an_administrator(self):
        """Root in a container is no administrator: it can't end an administrator's session, which is the same uid's."""
        with self.client(admin=True) as admin, self.client() as root:
            session = admin.call("GetStatus")["session"]
            self.refused("NoSuchSession", root.call, "Kick", {"session": session})
            self.assertEqual(admin.call("GetStatus")["session"], session)
            with self.client(admin=True) as other:
                other.call("Kick", {"session": session})
            self.assertIsNone(admin.read())

    def test_admin_socket_is_for_the_few(self):
        self.assertEqual(os.stat(self.daemon.admin_socket).st_mode & 0o777, 0o660)
        self.assertEqual(os.stat(self.daemon.socket).st_mode & 0o777, 0o666)
        with self.assertRaises(PermissionError):
            self.actor(BOB, admin=True).call("GetStatus")


if __name__ == "__main__":
    unittest.main()
