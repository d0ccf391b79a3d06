# SPDX-License-Identifier: Apache-2.0
"""Channels as one sees them from outside: the example programs, gpuipcctl top, list and bench. Channels in host memory."""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import GPUIPCCTL, wait_for  # noqa: E402
from programs import ProgramsTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

HEADINGS = ["CHANNEL", "NAME", "DEV", "KIND", "SLOTS", "SLOT", "DEPTH", "ITEMS/S", "BYTES/S", "PROD", "CONS", "DROPPED", "BROKEN", "LAGS"]
RATES = ("items_per_second", "bytes_per_second")
FIGURES = {"items", "depth", "closed", "producers", "consumers", "drops", "broken", "members", *RATES}
MEMBER = {"number", "role", "alive", "pid", "items", "bytes", "drops", "broken", "lag"}
WAYS = [("channel", 1), ("copied", 1), ("pipe", 1), ("socket", 1), ("channel", 2), ("pipe", 2), ("socket", 2)]


class ChannelCtlTest(ProgramsTest):
    def programs_environment(self):
        return {**super().programs_environment(), "COLUMNS": "0"}

    def ctl(self, *arguments, status=0, user=None):
        done = subprocess.run([GPUIPCCTL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=2 * WAIT_S,
                              check=False, env=self.programs_environment(), user=user)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout

    def producer(self, name, *arguments):
        producer = self.start("channel_producer", name, *arguments)
        self.assertRegex(producer.stdout.readline(), rf"^ready: {name}, channel \S+$")
        return producer

    def row(self, name, text):
        """The last row of the channel in a picture of top, by heading."""
        lines = text.splitlines()
        heading = [line for line in lines if line.startswith("CHANNEL")][-1]
        line = [line for line in lines if f" {name} " in line][-1]
        starts = [heading.index(word) for word in HEADINGS]
        self.assertEqual(heading.split(), HEADINGS)
        row, words = {}, line.split()
        for word, _ in zip(HEADINGS[:4], starts):
            row[word] = words.pop(0)
        row["DEPTH"] = int(re.search(r" (?:Ki)?B +(\d+) ", line).group(1))
        row["LAGS"] = line[starts[-1]:].strip()
        row["PROD"], row["CONS"], row["DROPPED"], row["BROKEN"] = re.findall(r"\s(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+", line)[-1]
        return row

    def test_one_to_one(self):
        producer = self.producer("flow", 3000, 4096)
        consumer = self.start("channel_consumer", "flow")
        self.assertEqual(consumer.communicate(timeout=WAIT_S)[0], "flow: 3000 items, 12288000 bytes, 0 wrong, 0 broken\n")
        self.assertIn("sent: 3000 items", producer.communicate(timeout=WAIT_S)[0])
        self.assertEqual((producer.returncode, consumer.returncode), (0, 0))

    def test_a_producer_that_is_killed(self):
        producer = self.producer("short", 1 << 60, 4096)
        consumer = self.start("channel_consumer", "short")
        wait_for(lambda: self.row("short", self.ctl("top", "--channels", "--count", 1))["DEPTH"] > 0, "items on their way")
        producer.kill()
        producer.wait()
        wait_for(lambda: self.row("short", self.ctl("top", "--channels", "--count", 1))["PROD"] == "0", "the producer's end")
        wait_for(lambda: self.row("short", self.ctl("top", "--channels", "--count", 1))["LAGS"] == "producers", "all to be taken")
        self.assertLessEqual(int(self.row("short", self.ctl("top", "--channels", "--count", 1))["BROKEN"]), 1)
        self.assertIsNone(consumer.poll())

    def test_top_says_who_lags(self):
        self.producer("full", 1)  # waits for a consumer
        row = self.row("full", self.ctl("top", "--channels", "--count", 1))
        self.assertEqual((row["DEV"], row["KIND"], row["PROD"], row["CONS"], row["LAGS"]), ("host", "queue", "1", "0", "-"))
        buffers = json.loads(self.ctl("list", "--buffers", "--json"))["buffers"]
        self.assertEqual([buffer["channel"]["slots"] for buffer in buffers if buffer["name"] == "full"], [16])
        self.ctl("top", "--channels", "--buffers", status=2)

    def looks(self, *arguments, user=None):
        """The channels, by name, of each picture of top --json."""
        told = self.ctl("top", "--json", *arguments, user=user)
        return [{each["name"]: each for each in json.loads(line)["channels"]} for line in told.splitlines()]

    def pictures(self, n):
        """Two between which so many items were begun, however slow the machine is."""
        delay, found = 0.1, [None, None]

        def flowed():
            nonlocal delay
            delay *= 2
            found[:] = self.looks("--count", 2, "--delay", delay)
            before, after = (look["flow"]["figures"]["items"] for look in found)
            return after - before >= n

        wait_for(flowed, f"{n} items")
        return found

    def test_figures_as_json(self):
        producer = self.producer("flow", 1 << 60, 4096, "broadcast")
        consumers = [self.start("channel_consumer", "flow") for _ in range(2)]
        quiet = self.producer("quiet", 1)
        wait_for(lambda: self.looks("--count", 1)[0]["flow"]["figures"]["consumers"] == 2, "both consumers")
        first, second = self.pictures(20 * 16)
        facts = {"name": "flow", "device": "host", "kind": "broadcast", "policy": "block", "slots": 16, "slot_bytes": 4096}
        for look in (first, second):
            self.assertEqual({name: look["flow"][name] for name in facts}, facts)
            self.assertEqual(set(look["flow"]), {*facts, "id", "figures"})
            self.assertEqual(set(look["flow"]["figures"]), FIGURES)
            for member in look["flow"]["figures"]["members"]:
                self.assertEqual(set(member), MEMBER)
        self.assertEqual([first["flow"]["figures"][rate] for rate in RATES], [None, None])
        figures, before = second["flow"]["figures"], first["flow"]["figures"]
        self.assertGreater(figures["items"], before["items"])
        self.assertGreater(figures["items_per_second"], 0)
        # What is begun is counted when it is begun, and bytes when they are published: up to a lap of difference.
        self.assertAlmostEqual(figures["bytes_per_second"] / 4096 / figures["items_per_second"], 1, delta=0.1)
        self.assertEqual((figures["producers"], figures["consumers"], figures["drops"], figures["broken"], figures["closed"]), (1, 2, 0, 0, False))
        roles = {member["pid"]: (member["role"], member["alive"]) for member in figures["members"]}
        self.assertEqual(roles, {producer.pid: ("producer", True), **{each.pid: ("consumer", True) for each in consumers}})
        self.assertLessEqual({figures["depth"], *(member["lag"] for member in figures["members"])}, set(range(17)))
        idle = second["quiet"]["figures"]
        self.assertEqual([idle[name] for name in ("items", "depth", *RATES, "consumers")], [0, 0, 0, 0, 0])
        self.assertIsNone(quiet.poll())

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to act as another user")
    def test_figures_of_others(self):
        """Who may not attach sees no channel."""
        with self.daemon.client() as owner:
            reply = owner.call("ChannelCreate", {"slots": 2, "slot_bytes": 8, "role": "producer", "name": "mine", "mode": "0600"})
            owner.drop_fds()
            self.assertEqual(self.looks("--count", 1)[0]["mine"]["figures"]["producers"], 1)
            self.assertEqual(self.looks("--count", 1, user=12345), [{}])
            owner.call("Release", {"lease": reply["lease"]})

    def test_bench(self):
        told = json.loads(self.ctl("bench", "--size", "4K", "--duration", "20ms", "--json"))
        self.assertEqual([(row["way"], row["receivers"]) for row in told], WAYS)
        for row in told:
            self.assertEqual(row["size"], 4096)
            self.assertGreater(row["items_per_second"], 0)
            self.assertEqual(row["p50_usec"] > 0, row["receivers"] == 1)
            self.assertGreaterEqual(row["p99_usec"], row["p50_usec"])
        table = self.ctl("bench", "--size", 8, "--duration", "5ms").splitlines()
        self.assertEqual(table[0].split(), ["WAY", "TO", "SIZE", "P50", "P99", "ITEMS/S", "BYTES/S"])
        self.assertEqual(len(table), 1 + len(WAYS))
        self.ctl("bench", "--size", "7", status=2)
        self.ctl("bench", "--duration", "0", status=2)

    def test_bench_without_a_daemon(self):
        self.ctl("bench", "--socket", "/nonexistent/socket", status=3)


if __name__ == "__main__":
    unittest.main()
