# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl bench on this kind of memory. Runs on memory that has descriptors."""

import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import GPUIPCCTL, Daemon, DaemonTest  # noqa: E402

WAYS = [("channel", 1), ("copied", 1), ("pipe", 1), ("socket", 1), ("channel", 2), ("pipe", 2), ("socket", 2)] if backend.HOST else \
    [("channel", 1), ("pipe", 1), ("channel", 2)]


class ChannelBench(DaemonTest):
    def make_daemon(self):
        return Daemon(memory="host" if backend.HOST else "auto")

    def setUp(self):
        super().setUp()
        self.device = self.daemon.status()["devices"][0]["uuid"]
        self.assertEqual(self.device == "host", backend.HOST)

    def bench(self, *arguments, status=0):
        done = subprocess.run([GPUIPCCTL, "bench", "--socket", self.daemon.socket, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr if status else done.stdout

    def test_ways(self):
        for size in (8, 65536):
            told = json.loads(self.bench("--json", "--device", self.device, "--size", str(size), "--duration", "20ms"))
            self.assertEqual([(row["way"], row["receivers"]) for row in told], WAYS)
            for row in told:
                self.assertEqual((row["size"], row["device"]), (size, self.device))
                self.assertGreater(row["items_per_second"], 0)
                self.assertEqual(row["p50_usec"] > 0, row["receivers"] == 1)
                self.assertGreaterEqual(row["p99_usec"], row["p50_usec"])

    def test_refused(self):
        self.assertIn("no device 'GPU-none'", self.bench("--device", "GPU-none", "--size", "8", "--duration", "1ms", status=1))
        self.assertIn("--size is 8", self.bench("--device", self.device, "--size", "7", status=2))


if __name__ == "__main__":
    unittest.main()
