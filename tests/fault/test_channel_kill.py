# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the daemon at every step of the state and the store while channels come and go: afterwards each is there as a whole with
those who were told that they take part in it, or it is gone as a whole. deadline: 400 s"""

import contextlib
import os
import sys
import unittest

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), room) for room in ("support", "fault")]
from daemon import GPUIPCD_FAULT, open_fds, wait_for  # noqa: E402
from holder import Zygote  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402
from ringpage import ALIVE, DEAD, RingPage  # noqa: E402
from test_restart_kill import Undertaker  # noqa: E402

NEW = {"slots": 4, "slot_bytes": 1000, "role": "producer", "mode": "0666"}
DEAD_DAEMON = (ConnectionError, BrokenPipeError)


class Story:
    def __init__(self, manager, holder):
        self.manager, self.holder = manager, holder
        self.client, self.token = None, None
        self.pages, self.leases, self.doubtful, self.numbers = {}, {}, set(), {}
        self.holder_number = None

    def take(self, name, reply):
        fds, self.client.fds = self.client.fds, []
        self.pages.setdefault(name, RingPage(os.dup(fds[reply["control"]["fd"]])))
        for fd in fds:
            os.close(fd)
        self.leases[reply["lease"]] = name
        self.numbers[reply["lease"]] = reply["number"]
        self.pages[name].join(reply["number"])
        return reply["lease"]

    def create(self, name, **more):
        return self.take(name, self.client.call("ChannelCreate", {**NEW, "name": name, **more}))

    def release(self, lease):
        self.doubtful.add(lease)
        self.client.call("Release", {"lease": lease})
        self.doubtful.remove(lease)
        del self.leases[lease]

    def tell(self):
        """Ends by itself, or with the daemon."""
        self.client = RawClient(self.manager.socket)
        self.token = self.client.call("GetStatus")["resume_token"]
        first = self.create("first")
        self.holder_number = self.holder.call("ChannelAttach", {"name": "first", "role": "consumer"})["number"]
        self.pages["first"].join(self.holder_number)
        second = self.create("second", keep_ms=20)
        self.take("first", self.client.call("ChannelAttach", {"name": "first", "role": "consumer"}))
        self.release(second)
        self.release(first)
        third = self.create("third")
        self.client.call("Free", {"name": "third"})
        self.holder.kill()
        wait_for(lambda: self.pages["first"].life(self.holder_number) == DEAD, "the mark")
        wait_for(lambda: self.manager.status()["buffers"] == 2, "the keep to end")
        self.release(third)

    def come_back(self):
        if self.token is None:
            return
        expected = set(self.leases) - self.doubtful
        self.client.close()
        self.client = RawClient(self.manager.socket)
        with contextlib.suppress(AssertionError):
            self.holder.kill()
        back = set()
        # A session that was granted nothing may not be known.
        with contextlib.suppress(*() if expected else (ReplyError,)):
            back = {lease["id"] for lease in self.client.call("Resume", {"token": self.token, "leases": sorted(expected)})["leases"]}
        if back != expected:
            raise AssertionError(f"{expected} were granted, {back} came back")
        for lease in expected:
            page, number = self.pages[self.leases[lease]], self.numbers[lease]
            if page.life(number) != ALIVE:
                raise AssertionError(f"{lease}: number {number} is {page.member(number)}")
        if self.holder_number is not None and "first" in {self.leases[lease] for lease in expected}:
            wait_for(lambda: self.pages["first"].life(self.holder_number) == DEAD, "the mark of who died meanwhile")
        self.leases = {lease: self.leases[lease] for lease in expected}
        self.doubtful = set()

    def end(self):
        for lease in list(self.leases):
            self.release(lease)
        self.holder.kill()
        wait_for(lambda: all(self.manager.status()[what] == 0 for what in ("buffers", "leases")), "an empty ledger")
        wait_for(lambda: not self.manager.status()["devices"][0]["brokered_bytes"], "no bytes")
        wait_for(lambda: len(self.manager.store.names()) == 1, f"the state alone, not {self.manager.store.names()}")

    def close(self):
        if self.client:
            self.client.close()
        for page in self.pages.values():
            page.close()


class ChannelKill(unittest.TestCase):
    def killed_at(self, n, zygote):
        """False when the story came to its end."""
        manager = Manager(program=GPUIPCD_FAULT, environment={"GPUIPC_FAULT_KILL": str(n)}, wait=False)
        story = Story(manager, zygote.holder(manager.socket, connect=False))
        undertaker = Undertaker(manager)
        try:
            done = self.told(story)
            undertaker.end()
            if not done:
                wait_for(lambda: manager.pid is None or manager.status_word() is not None, "its end")
                manager.environment["GPUIPC_FAULT_KILL"] = "0"
                manager.start()
                story.come_back()
                story.end()
                manager.stop()
            else:
                manager.kill()  # the step is one of its going
            story.holder.end()
        except BaseException as error:
            undertaker.ended or undertaker.end()
            story.holder.end()
            manager.kill()
            raise AssertionError(f"killed at step {n}: {error!r}") from error
        finally:
            story.close()
        return not done

    def told(self, story):
        try:
            story.holder.connect()
            story.tell()
            return True
        except DEAD_DAEMON:
            return False
        except AssertionError as error:
            # In the holder, or waiting for something, it was seen that the daemon is gone.
            if "Connection" not in str(error) and story.manager.status_word() is None:
                raise
            return False

    def test_every_step(self):
        zygote = Zygote()
        fds_before, n = len(open_fds()), 1
        try:
            while self.killed_at(n, zygote):
                n += 1
        finally:
            zygote.close()
        self.assertEqual(len(open_fds()), fds_before - 2)
        print(f"{n - 1} steps", end=" ", file=sys.stderr)
        self.assertGreater(n, 100)


if __name__ == "__main__":
    unittest.main()
