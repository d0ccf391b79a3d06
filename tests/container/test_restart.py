# SPDX-License-Identifier: Apache-2.0
"""Containers hold memory while the daemon is killed and started again, with somebody (tests/support/manager.py) who keeps its descriptors
meanwhile, as systemd does. deadline: 300 s"""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import for_each, main  # noqa: E402
from daemon import wait_for  # noqa: E402
from manager import Manager  # noqa: E402

INSIDE = {"GPUIPC_SOCKET": "/run/gpuipcd/s"}
READ = ("gpuipcctl", "hold", "w", "--", "sh", "-c", "echo held; read x; cat <&3")


class Host(Manager):
    """What is left when all clients are gone."""

    def wait_idle(self):
        def idle():
            status = self.status()
            return (status["leases"], status["buffers"], status["sessions"]) == (0, 0, 1)
        wait_for(idle, f"an empty ledger; now {self.status()}")


class Kept:
    def make_daemon(self, **more):
        host = Host(config=self.config, **more)
        self.mounted = host.directory
        return host

    def mounts(self, more=None):
        return {self.mounted: "/run/gpuipcd:ro", **(more or {})}

    def box(self, *argv, **how):
        return super().box(*argv, env=INSIDE, **how)

    def inside(self, *argv, **how):
        return super().inside(*argv, env=INSIDE, **how)

    def told(self):
        return sorted((each["name"], each["state"], each.get("container"), each["access"]) for each in self.leases())

    def test_held_over_the_daemons_death(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.producer("--seal") as producer, self.box(*READ) as consumer:
                consumer.line()
                before = self.told()
                self.assertEqual(len(before), 2)
                self.daemon.restart(number)
                wait_for(lambda: self.told() == before, f"the same leases, {before}, not {self.told()}")
                self.works(self.inside("gpuipcctl", "get", "w"), self.original())
                producer.remove()
                self.wait_leases(1)
                consumer.say("go")
                self.works(consumer.finish(), self.original())
            self.daemon.wait_idle()

    def test_in_user_namespaces(self):
        with self.producer("--seal", mapped=True):
            before = self.told()
            self.daemon.restart(signal.SIGKILL)
            wait_for(lambda: self.told() == before, f"the same lease, {before}, not {self.told()}")
            self.works(self.inside("gpuipcctl", "get", "w", mapped=True), self.original())

    def test_removed_while_there_is_no_daemon(self):
        """A process that dies in a pid namespace of its own meanwhile is found dead."""
        box = self.producer()
        self.daemon.end(signal.SIGKILL)
        box.remove()
        self.daemon.start()
        self.wait_leases(0)
        wait_for(lambda: self.bytes_held() == (0, 0), "the bytes back")


for_each(globals(), Kept)

if __name__ == "__main__":
    main()
