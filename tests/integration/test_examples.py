# SPDX-License-Identifier: Apache-2.0
"""The example programs as one runs them: a producer, consumers, and what is left when they have gone. Runs on memory that has
descriptors."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from daemon import EXAMPLES, GPUIPCCTL  # noqa: E402
from programs import ProgramsTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

SIZE = (4 << 20) + 12345 if not backend.HOST else 123457  # more than the step that is copied at once


def pattern(size):
    return bytes((i * 31 + (i >> 12) * 7) & 0xff for i in range(size))


def checksum(data):
    total = 0xcbf29ce484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{total:016x}"


class ExamplesTest(ProgramsTest):
    def consume(self, *arguments):
        return subprocess.run([f"{EXAMPLES}/consumer", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=WAIT_S, check=False, env=self.programs_environment())

    def test_what_one_makes_the_other_reads(self):
        device = self.daemon.status()["devices"][0]["uuid"]
        self.passes(pattern(SIZE), [str(SIZE), device], device)

    def test_a_file(self):
        """Of the daemon's own choice where it lies."""
        with tempfile.NamedTemporaryFile() as file:
            data = pattern(SIZE)[::-1]
            file.write(data)
            file.flush()
            self.passes(data, [file.name], self.daemon.status()["devices"][0]["uuid"])

    def passes(self, data, words, device):
        early = self.start("consumer", "example/pattern", "60000")
        producer = self.start("producer", "example/pattern", *words)
        line = producer.stdout.readline()
        self.assertTrue(line.startswith(f"ready: example/pattern, {SIZE} bytes on {device}, buffer "), line)
        for told in (early.communicate(timeout=WAIT_S)[0], self.consume("example/pattern").stdout):
            self.assertEqual(told, f"example/pattern: {SIZE} bytes on {device}, checksum {checksum(data)}\n")
        got = subprocess.run([GPUIPCCTL, "get", "--sealed", "example/pattern"], stdout=subprocess.PIPE, timeout=WAIT_S, check=True,
                             env=self.programs_environment()).stdout
        self.assertEqual(got, data)
        producer.send_signal(signal.SIGTERM)
        self.assertEqual(producer.wait(timeout=WAIT_S), 0)

    def test_a_consumer_without_a_producer(self):
        done = self.consume("example/nothing", "50")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "^consumer: .")

    def test_usage(self):
        self.assertEqual(self.consume().returncode, 2)
        self.assertEqual(self.start("producer").wait(timeout=WAIT_S), 2)
        self.assertEqual(self.start("producer", "a", "8", "host", "more").wait(timeout=WAIT_S), 2)

    def test_no_such_device(self):
        producer = self.start("producer", "example/nowhere", "8", "GPU-none")
        self.assertIn("GPU-none", producer.communicate(timeout=WAIT_S)[1])
        self.assertEqual(producer.returncode, 1)


if __name__ == "__main__":
    unittest.main()
