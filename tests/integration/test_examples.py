# SPDX-License-Identifier: Apache-2.0
"""The example programs as one runs them: a producer, consumers, and what is left when they have gone. Runs on memory that has
descriptors."""

import os
import signal
import subprocess
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import backend  # noqa: E402
from books import BooksTest  # noqa: E402
from daemon import EXAMPLES, GPUIPCCTL  # noqa: E402
from rawclient import WAIT_S  # noqa: E402

SIZE = (4 << 20) + 12345 if not backend.HOST else 123457  # more than the step that is copied at once
PRODUCER, CONSUMER = ("producer", "consumer") if backend.HOST else ("cuda_producer", "cuda_consumer")


def pattern(size):
    return bytes((i * 31 + (i >> 12) * 7) & 0xff for i in range(size))


def checksum(data):
    total = 0xcbf29ce484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{total:016x}"


class ExamplesTest(BooksTest):
    def programs_environment(self):
        return {**os.environ, "GPUIPC_SOCKET": self.daemon.socket}

    def start(self, program, *arguments):
        process = subprocess.Popen([f"{EXAMPLES}/{program}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.programs_environment())
        self.owned(types.SimpleNamespace(end=lambda: self.finish(process)))
        return process

    def finish(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def consume(self, *arguments):
        return subprocess.run([f"{EXAMPLES}/{CONSUMER}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=WAIT_S, check=False, env=self.programs_environment())

    def test_what_one_makes_the_other_reads(self):
        data = pattern(SIZE)
        early = self.start(CONSUMER, "example/pattern", "60000")
        producer = self.start(PRODUCER, "example/pattern", str(SIZE))
        line = producer.stdout.readline()
        self.assertTrue(line.startswith(f"ready: example/pattern, {SIZE} bytes"), line)
        for told in (early.communicate(timeout=WAIT_S)[0], self.consume("example/pattern").stdout):
            self.assertIn(f"example/pattern: {SIZE} bytes", told)
            self.assertIn(f"checksum {checksum(data)}", told)
        got = subprocess.run([GPUIPCCTL, "get", "--sealed", "example/pattern"], stdout=subprocess.PIPE, timeout=WAIT_S, check=True,
                             env=self.programs_environment()).stdout
        self.assertEqual(got, data)
        producer.send_signal(signal.SIGTERM)
        self.assertEqual(producer.wait(timeout=WAIT_S), 0)

    def test_a_consumer_without_a_producer(self):
        done = self.consume("example/nothing", "50")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, f"^{CONSUMER}: .")

    def test_usage(self):
        self.assertEqual(self.consume().returncode, 2)
        self.assertEqual(self.start(PRODUCER).wait(timeout=WAIT_S), 2)


if __name__ == "__main__":
    unittest.main()
