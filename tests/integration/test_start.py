# SPDX-License-Identifier: Apache-2.0
"""What the daemon meets while it starts: long paths, signals, and a machine that grants it few open files. deadline: 120 s"""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER  # noqa: E402
from daemon import GPUIPCD, Daemon, DaemonTest, open_fds, wait_for  # noqa: E402
from test_cuda_faults import Machine, with_fakes  # noqa: E402

LEAST = 128  # open files
PATH_MAX = 103


def limited(n):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))


class Start(unittest.TestCase):
    def run_refused(self, *options, **others):
        done = subprocess.run([GPUIPCD, "--backend=host", "--log-target=stderr", "--config=/dev/null", *options], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10 * SLOWER, check=False, **others)
        return done.returncode, done.stdout

    def test_the_longest_path(self):
        """What the configuration takes can be listened at."""
        directory = tempfile.mkdtemp(prefix="s.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(os.rmdir, directory)
        path = f"{directory}/".ljust(PATH_MAX, "x")
        with Daemon(admin=False, socket_path=path) as longest:
            self.assertIn("version", longest.status())
        status, said = self.run_refused(f"--socket={path}x")
        self.assertEqual(status, 2, said)
        self.assertIn(f"{PATH_MAX + 1} bytes long; the path of a socket of the daemon has at most {PATH_MAX}", said)

    def test_few_open_files(self):
        """Too few for libuv, to accept, or to lend: said at once and in the same words."""
        for n in (5, 10, 64, LEAST - 1):
            with self.subTest(n):
                status, said = self.run_refused("--socket=/nonexistent/there/s", preexec_fn=limited(n))
                self.assertEqual(status, 1, said)
                self.assertIn(f"the hard limit of open files is {n}, too few to serve anybody; give at least {LEAST} (LimitNOFILE=", said)

    @unittest.skipUnless(os.geteuid() == 0, "needs root for mounts")
    def test_a_directory_that_takes_no_socket(self):
        for options, says in (("ro", "Read-only file system; mount the directory writable"),
                              ("nr_inodes=1", "No space left on device; make room in the directory")):
            with self.subTest(options), tempfile.TemporaryDirectory() as directory:
                done = subprocess.run(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o {options} none {directory} && exec \"$@\"", "sh",
                                       GPUIPCD, "--backend=host", "--log-target=stderr", "--config=/dev/null", f"--socket={directory}/s"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      timeout=10 * SLOWER, check=False)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(f"cannot listen at {directory}/s: {says}, or give another path", done.stdout)

    def test_a_configuration_that_is_no_file(self):
        """Nobody writes into the pipe: neither the start nor a reload waits for it."""
        with Daemon() as daemon:
            os.mkdir(f"{daemon.directory}/conf.d")
            os.mkfifo(f"{daemon.directory}/conf.d/pipe.conf")
            status, said = self.run_refused(f"--config={daemon.directory}/conf", "--test-config")
            self.assertEqual((status, said), (2, f"gpuipcd: {daemon.directory}/conf.d/pipe.conf: neither a file nor /dev/null; a reload could "
                                                 "not read it again\n"))
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_log("configuration not reloaded, the old one stays")
            self.assertIn("version", daemon.status())
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(f"{daemon.directory}/other")
                status, said = self.run_refused(f"--config={daemon.directory}/other", "--test-config")
                self.assertEqual(status, 2, said)
                self.assertIn("neither a file nor /dev/null", said)

    @unittest.skipUnless(os.geteuid() == 0, "needs root for namespaces")
    def test_no_journal(self):
        done = subprocess.run(["unshare", "--mount", "sh", "-c", "[ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd && exec \"$@\"", "sh",
                               GPUIPCD, "--backend=host", "--log-target=journal", "--config=/dev/null", "--socket=/nonexistent/there/s"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10 * SLOWER,
                              check=False)
        self.assertEqual((done.returncode, done.stdout),
                         (1, "gpuipcd: LogTarget=journal: /run/systemd/journal/socket: No such file or directory; start systemd-journald, "
                             "or give auto or stderr\n"))

    @unittest.skipUnless(os.geteuid() == 0, "needs root to be another user")
    def test_no_thread(self):
        done = subprocess.run(["prlimit", "--nproc=1:1", "setpriv", "--reuid=2005", "--regid=2005", "--clear-groups", GPUIPCD, "--backend=host",
                               "--config=/dev/null", "--socket=/nonexistent/there/s"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=10 * SLOWER, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("cannot start a thread: Resource temporarily unavailable; raise the limit of processes", done.stdout)

    def test_the_fewest_open_files(self):
        daemon = Daemon(f"--descriptors-max={LEAST}")
        with daemon.client() as client:
            self.assertIn("lease", client.call("Allocate", {"size": 4096}))
        daemon.stop()

    @with_fakes
    def test_a_reload_that_comes_too_early(self):
        """While a driver takes its time, nobody is at the signals yet."""
        machine = Machine()
        self.addCleanup(machine.end)
        flag = machine.flag()
        machine.script(f"devices 1\non cuInit hang-while={flag}\n")
        daemon = Daemon(memory="auto", wait=False, environment=machine.environment)
        wait_for(lambda: machine.calls("cuInit"), "the driver to be asked")
        with open(f"{daemon.directory}/conf", "w", encoding="ascii") as file:
            file.write("[Limits]\nBuffersMax=77\n")
        daemon.process.send_signal(signal.SIGHUP)
        os.unlink(flag)
        daemon.wait_notified("RELOADING=1")
        daemon.wait_notified("STATUS=configuration reloaded")
        self.assertEqual(daemon.status()["limits"]["buffers"], 77)
        daemon.stop()


class NoDescriptorLeft(DaemonTest):
    def switches(self):
        """How often the loop has slept."""
        with open(f"/proc/{self.daemon.pid}/status", encoding="ascii") as file:
            return int(next(line for line in file if line.startswith("voluntary_ctxt_switches")).split()[1])

    def test_it_is_said_once(self):
        before = resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, (min(set(range(1 << 10)) - set(open_fds(self.daemon.pid))), before[1]))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.daemon.socket)
            self.daemon.wait_log("cannot accept a connection: Too many open files")
            tried = self.switches()
            wait_for(lambda: self.switches() >= tried + 10, "it to be tried again")
            self.assertEqual(self.daemon.log().count("cannot accept a connection"), 1)
            resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, before)
        self.assertIn("version", self.daemon.status())


if __name__ == "__main__":
    unittest.main()
