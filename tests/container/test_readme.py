# SPDX-License-Identifier: Apache-2.0
"""What README.md shows of containers is typed as it stands there, line by line, into one shell. What differs from a newcomer's machine is
podman's settings, by the environment, and that /run, /etc and podman's storage are the test's own. deadline: 300 s"""

import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import machine  # noqa: E402
from containertest import main, make_scratch  # noqa: E402
from daemon import ROOT, wait_for  # noqa: E402
from image import build  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from sandbox import Podman  # noqa: E402

SOCKET = f"{machine.SOCKETS}/gpuipcd.sock"
END = "---- that was it:"

setUpModule = machine.enter


def blocks():
    """[[(command, what it prints)]] of each console block."""
    with open(f"{ROOT}/README.md", encoding="utf-8") as file:
        text = file.read()
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        steps = re.split(r"^# ", block, flags=re.M)[1:]
        found.append([(step.partition("\n")[0].split("   # ")[0].rstrip(), step.partition("\n")[2]) for step in steps])
    return found


def block_with(word):
    return next(block for block in blocks() if any(word in command for command, _ in block))


class Shell:
    """A newcomer's."""

    def __init__(self, environment):
        # pylint: disable-next=consider-using-with # until close()
        self.process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT,
                                        env=environment)

    def type(self, command):
        """(status, what it printed)."""
        self.process.stdin.write(f"{command}\necho '{END}' $?\n".encode())
        self.process.stdin.flush()
        said = ""
        while True:
            line = self.process.stdout.readline().decode(errors="replace")
            if not line:
                raise AssertionError(f"the shell ended: {said}")
            if END in line:
                return int(line.split()[-1]), said + line.partition(END)[0]
            said += line

    def close(self):
        self.process.communicate(b"kill %% 2>/dev/null; wait\n", timeout=WAIT_S)


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = Podman.missing() or (None if shutil.which("git") else "README's example: git not installed")
        if not reason and os.environ.get("GPUIPC_SANITIZER"):
            reason = "README's example: it is about build/, not this one"
        if not reason and os.stat(ROOT).st_dev != os.stat("/").st_dev:
            reason = f"README's example: {ROOT} is on a file system of its own, which an overlay of / does not have"
        if reason:
            raise unittest.SkipTest(reason)
        cls.scratch = make_scratch("box.")
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        os.mkdir(f"{cls.scratch}/storage")
        machine.use_as_storage(f"{cls.scratch}/storage")
        cls.addClassCleanup(machine.leave_storage)
        cls.podman = Podman(f"{cls.scratch}/sandbox", default=True)
        cls.addClassCleanup(cls.podman.close)

    def setUp(self):
        for directory in (machine.SOCKETS, "/run/gpuipcd-admin"):
            shutil.rmtree(directory, ignore_errors=True)
        self.shell = Shell({**os.environ, "CONTAINERS_CONF": self.podman.conf})
        self.addCleanup(self.shell.close)
        self.addCleanup(self.podman.podman, "rm", "-fa", "-t", "0", check=False)

    def types(self, command):
        status, said = self.shell.type(command)
        self.assertEqual(status, 0, f"{command}: {said}")
        if command.endswith("&"):  # a newcomer types slower than a daemon starts
            wait_for(lambda: os.path.exists(SOCKET), "the socket")
        return said

    def test_the_first_screen(self):
        steps = block_with("--name producer")
        said = [self.types(command) for command, _ in steps]
        commands = [command for command, _ in steps]
        get = next(n for n, command in enumerate(commands) if " get " in command)
        with open("/usr/bin/git", "rb") as file:
            wanted = subprocess.run(["sha256sum"], stdin=file, stdout=subprocess.PIPE, check=True).stdout.decode()
        self.assertTrue(said[get].endswith(wanted), said[get])
        self.assertRegex(steps[get][1], r"^[0-9a-f]{64}  -\n$")
        self.assertNotIn("--ipc", " ".join(commands))
        self.assert_list(said[get + 1], steps[get + 1][1])
        self.assertEqual(said[-1].splitlines()[-1].split(), steps[-1][1].split())

    def assert_list(self, said, shown):
        """The same columns, and in the row all that is not of this machine or this moment."""
        (said_head, said_row), (shown_head, shown_row) = ([line.split() for line in text.splitlines()[-2:]] for text in (said, shown))
        self.assertEqual(said_head, shown_head)
        changing = {"SIZE", "PID", "CONTAINER", "AGE"}
        at = {name: said_row[n + (n > said_head.index("SIZE"))] for n, name in enumerate(said_head)}
        for n, name in enumerate(shown_head):
            if name not in changing:
                self.assertEqual(at[name], shown_row[n + (n > shown_head.index("SIZE"))], name)
        self.assertRegex(at["CONTAINER"], "^[0-9a-f]{12}$")

    def test_python(self):
        """The package unpacked, in two containers."""
        self.addCleanup(shutil.rmtree, f"{ROOT}/build/python/unpacked", ignore_errors=True)
        self.types("build/gpuipcd &")
        steps = block_with("put.py")
        said = [self.types(command) for command, _ in steps]
        self.assertEqual(said[1:], [shown for _, shown in steps[1:]])

    def test_the_device(self):
        self.types("build/gpuipcd &")
        steps = block_with("--device gpuipc.io/broker")
        said = [self.types(command) for command, _ in steps]
        self.assertRegex(said[-1], r"(?m)^socket +/run/gpuipcd/gpuipcd.sock$")

    def test_the_daemon_in_a_container(self):
        build(self.podman, f"{self.scratch}/sandbox")
        for command, _ in block_with("--name gpuipcd"):
            self.types(command)
        wait_for(lambda: os.path.exists(SOCKET), "the socket")
        self.assertIn("sessions", self.types("build/gpuipcctl status"))
        self.types("podman stop gpuipcd")


if __name__ == "__main__":
    main()
