# SPDX-License-Identifier: Apache-2.0
"""Each call that fails while the daemon takes up what an earlier one left: it ends in words and leaves all as it was, or serves it
all. And each that fails while buffers and leases are stored. deadline: 240 s"""

import errno
import os
import re
import select
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import open_fds, wait_for  # noqa: E402
from guest import Guest  # noqa: E402
from manager import Manager  # noqa: E402
from rawclient import WAIT_S, ReplyError  # noqa: E402
from test_failures import MOST, WITHOUT_SANITIZER, Shim  # noqa: E402


@WITHOUT_SANITIZER
class RestartFailureTest(unittest.TestCase):
    def setUp(self):
        self.shim = Shim()
        self.addCleanup(self.shim.close)
        self.fds_before = len(open_fds())
        self.begin()

    def begin(self):
        self.manager = Manager(environment=self.shim.environment())
        self.addCleanup(self.manager.kill)
        self.guest = Guest(self.manager.socket)
        self.addCleanup(self.guest.close)

    def tearDown(self):
        if any(test is self for test, _ in self._outcome.result.failures + self._outcome.result.errors):
            return
        self.guest.leave()
        wait_for(lambda: len(self.manager.store.names()) == 1, "the state alone")
        self.manager.stop()
        self.assertEqual(len(open_fds()), self.fds_before)

    def served(self):
        """Whether the daemon that was started serves; else it has ended, with words."""
        deadline = time.monotonic() + WAIT_S
        while not self.manager.store.wait_told("READY", 0.002):
            if select.select([self.manager.pidfd], [], [], 0)[0]:
                status = self.manager.status_word()
                self.assertTrue(os.WIFEXITED(status) and os.WEXITSTATUS(status) > 0, f"{status}: {self.manager.log()[-2000:]}")
                self.assertRegex(self.manager.log(), re.compile(r"^(gpuipcd:|\S+ error) .*\S", re.M))
                return False
            self.assertLess(time.monotonic(), deadline, self.manager.log()[-2000:])
        return True

    def recover_each(self, function, error, step=1):
        for i in range(6):
            self.guest.allocate(name=f"n{i}", meta={"i": i}, label="label", keep_ms=1000)
        n_ended = 0
        for n in range(1, MOST, step):
            self.manager.end(signal.SIGKILL)
            self.shim.arm(function, n, error)
            self.manager.start(wait=False)
            served = self.served()
            reached = self.shim.disarm(function)
            if not served:
                n_ended += 1
                self.manager.start()
            self.guest.resume()
            self.assertEqual(len(self.guest.leases), 6, f"{function} number {n}:\n{self.manager.log()[-2000:]}")
            self.guest.check()
            if not reached:
                break
        else:
            self.fail(f"{MOST} calls of {function} and no end")
        print(f"{function}: {n - 1} calls failed, {n_ended} ended the daemon", file=sys.stderr)
        for i in range(6):
            self.guest.call("Free", {"name": f"n{i}"})

    def test_recovery_malloc(self):
        self.recover_each("malloc", errno.ENOMEM, 2)

    def test_recovery_calloc(self):
        self.recover_each("calloc", errno.ENOMEM)

    def test_recovery_realloc(self):
        self.recover_each("realloc", errno.ENOMEM)

    def store_each(self, function, error):
        """A client's calls that need the store; what was refused is not there, what was granted is."""
        for n in range(1, MOST):
            # The thread pool runs: without memory for its threads libuv ends the process.
            self.guest.release(self.guest.allocate()["lease"])
            self.shim.arm(function, n, error)
            # A session of its own, so that everything is done for the first time.
            dropped = False
            try:
                other = Guest(self.manager.socket)
            except ReplyError:
                other = None
            except ConnectionError:
                other, dropped = None, True
            for step in ("allocate", "open", "release"):
                try:
                    if other and step == "allocate":
                        other.allocate(name="n")
                    elif other and step == "open":
                        other.open(name="n")
                    elif other and other.leases:
                        other.release(next(iter(other.leases)))
                except ReplyError:
                    pass
                except ConnectionError:
                    dropped = True
                    break
            reached = self.shim.disarm(function)
            if dropped:
                # What it had drains for as long as this process lives: begin anew.
                self.assertIsNone(self.manager.status_word(), self.manager.log()[-2000:])
                for guest in filter(None, (other, self.guest)):
                    guest.close()
                self.manager.kill()
                self.begin()
                continue
            granted = set(other.leases) if other else set()
            self.manager.restart()
            if granted:
                other.resume()
                self.assertLessEqual(set(other.leases), granted)
                other.check()
                other.leave()
            elif other:
                other.close()
            self.guest.resume()
            wait_for(lambda: len(self.manager.store.names()) == 1, f"the state alone, after {function} number {n}")
            if not reached:
                break
        else:
            self.fail(f"{MOST} calls of {function} and no end")
        print(f"{function}: {n - 1} calls failed while storing", file=sys.stderr)

    def test_storing_calloc(self):
        self.store_each("calloc", errno.ENOMEM)

    def test_storing_realloc(self):
        self.store_each("realloc", errno.ENOMEM)

    def test_storing_fallocate(self):
        self.store_each("fallocate", errno.ENOSPC)


if __name__ == "__main__":
    unittest.main()
