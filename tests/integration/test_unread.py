# SPDX-License-Identifier: Apache-2.0
"""Output that its client does not read: how much of it there may be, and for how long. Runs on any memory. deadline: 180 s"""

import contextlib
import os
import select
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER, churn  # noqa: E402
from daemon import wait_for  # noqa: E402
from test_limits import STATUS, LimitTest  # noqa: E402


class Unread(LimitTest):
    CALLS_MAX = 60000

    def test_unread_ms(self):
        self.start("--unread-sec=300ms", "--unread-bytes-max=128K", shows={"unread_ms": 300, "unread_bytes": 131072})
        with self.client() as slow, self.client() as other:
            other.call("GetStatus")
            began = time.monotonic()
            self.flood(slow)
            wait_for(lambda: other.call("GetStatus")["sessions"] == 1, "the client that does not read to be dropped")
            self.assertGreaterEqual(time.monotonic() - began, 0.3)
            self.daemon.wait_log("does not read")
            self.daemon.wait_log("session dropped")

    def flood(self, client):
        """Calls until the daemon takes no more of them: how many whole ones, and what is missing of the last."""
        n, size = 0, len(STATUS) + 1
        client.socket.setblocking(False)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while n < self.CALLS_MAX * size and select.select([], [client], [], 0.1)[1]:
                n += client.socket.send((STATUS + b"\0")[n % size:])
        client.socket.settimeout(10 * SLOWER)
        return n // size, (STATUS + b"\0")[n % size:] if n % size else b""

    def answered(self, client, n, rest):
        for _ in range(n):
            self.assertIn("version", client.result())
        if rest:
            client.send(rest)
            self.assertIn("version", client.result())

    def test_unread_ms_while_the_daemon_stands_still(self):
        """It is the client's time that is measured: who has read meanwhile is not dropped because nobody looked."""
        unread_ms = 1000 * SLOWER
        self.start(f"--unread-sec={unread_ms}ms", "--unread-bytes-max=128K", shows={"unread_ms": unread_ms, "unread_bytes": 131072})
        with self.client() as client, self.client() as other:
            n, rest = self.flood(client)
            other.call("GetStatus")
            with self.daemon.frozen():
                over = time.monotonic() + unread_ms / 1000
                while select.select([client], [], [], 0)[0]:
                    client.received += client.receive()
                wait_for(lambda: time.monotonic() > over, "its time to be up")
            self.answered(client, n, rest)
            self.assertNotIn("does not read", self.daemon.log())

    def test_unread_ms_spares_who_reads_slowly(self):
        """Whose output moves on is waited for, though it is never all read."""
        unread_ms = 500 * SLOWER
        self.start(f"--unread-sec={unread_ms}ms", "--unread-bytes-max=1M", shows={"unread_ms": unread_ms, "unread_bytes": 1 << 20})
        with self.client() as slow:
            slow.socket.setblocking(False)
            until = time.monotonic() + 3 * unread_ms / 1000
            while time.monotonic() < until:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        slow.socket.send((STATUS + b"\0") * 10)
                time.sleep(0.01)  # more slowly than anyone would; the time itself is what is tried
                self.assertTrue(select.select([slow.socket], [], [], 10 * SLOWER)[0], "no answer")
                self.assertTrue(slow.socket.recv(1 << 14), "dropped although it reads")
            self.assertNotIn("does not read", self.daemon.log())

    def test_unread_bytes(self):
        """Paused: what is sent beyond stays unread by the daemon, and all is answered once the client reads."""
        self.start("--unread-bytes-max=128K", shows={"unread_bytes": 131072})
        with self.client() as client, self.client() as other:
            n, rest = self.flood(client)
            self.assertIn("version", other.call("GetStatus"))
            self.assertLess(n, self.CALLS_MAX, "the daemon took all that came")
            self.answered(client, n, rest)

    def test_events_lost_to_a_slow_watcher(self):
        self.start("--events-max=4", "--unread-sec=1h", "--unread-bytes-max=128K", shows={"events": 4, "unread_bytes": 131072})
        with self.client() as client, self.client() as watcher:
            watcher.send_call("Watch", {}, more=True)
            wait_for(lambda: client.call("GetStatus")["sessions"] == 2, "the watcher")
            churn(client, 1500)
            sequence, error = 0, None
            while not error:
                reply = watcher.read()
                error = reply.get("error")
                if not error:
                    self.assertTrue(sequence in (0, reply["parameters"]["event"]["sequence"] - 1), "a gap that nobody told of")
                    sequence = reply["parameters"]["event"]["sequence"]
            self.assertEqual(error, "io.gpuipc.Broker.EventsLost")
            self.assertGreater(reply["parameters"]["oldest"], sequence + 1)
            self.assertIn("version", watcher.call("GetStatus"))


if __name__ == "__main__":
    unittest.main()
