# SPDX-License-Identifier: Apache-2.0
"""Whatever setUp() or setUpClass() started is ended where it then raises and unittest calls no tearDown(): of every class of every suite
that starts things by itself. deadline: 300 s"""

import contextlib
import glob
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SUPPORT = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(SUPPORT)
sys.path.insert(0, SUPPORT)
import backend  # noqa: E402
from actors import ActorTest  # noqa: E402
from books import BooksTest  # noqa: E402
from daemon import BUILD, Daemon, DaemonTest, open_fds, wait_for  # noqa: E402
from library import SANITIZED  # noqa: E402
from manager import Manager  # noqa: E402
from package import PackageTest  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from restarting import RestartTest  # noqa: E402

ROOMS = ("integration", "fault") if SANITIZED else ("integration", "python", "fault")
STARTERS = ("setUp", "make_daemon", "setUpClass")


class Meant(Exception):
    """What is raised when all else was done."""


def fails(case):
    case.fail("meant")


def skips(case):
    case.skipTest("meant")


def breaks(_):
    raise Meant


WAYS = {fails: "failures", skips: "skipped", breaks: "errors"}


def broken(base, how, start=lambda case: None):
    """A class whose setUp() ends so, with all of the base's done."""

    class Broken(base):
        def setUp(self):
            super().setUp()
            start(self)
            how(self)

        def runTest(self):
            raise AssertionError("setUp() was to raise")

    Broken.__qualname__ = f"broken {base.__name__}"
    return Broken


def broken_class(base):
    class Broken(base):
        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            raise Meant

        def runTest(self):
            raise AssertionError("setUpClass() was to raise")

    Broken.__qualname__ = f"broken class {base.__name__}"
    return Broken


def children():
    """This process's own, and theirs, the dead that nobody asked after among them."""
    found, parents = [], {os.getpid()}
    while parents:
        parents = {int(child) for parent in parents if os.path.exists(f"/proc/{parent}") for child in own_children(parent)}
        found += parents
    return found


def own_children(pid):
    told = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                told += file.read().split()
    except (FileNotFoundError, ProcessLookupError):
        pass
    return told


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().replace("\0", " ").strip()
    except OSError:
        return ""


def left_by(case, scratch):
    """(the result, what is left of it when it has run): processes, which are ended, and what is in the scratch directory."""
    before, files, result = set(children()), os.listdir(scratch), unittest.TestResult()
    unittest.TestSuite([case()]).run(result)
    new = []

    def nothing():
        new[:] = [pid for pid in children() if pid not in before]
        return not new

    try:
        wait_for(nothing, "nothing")
    except AssertionError:
        pass
    left = [command(pid) or f"process {pid}" for pid in new] + [name for name in os.listdir(scratch) if name not in files]
    for pid in new:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return result, left


class BasesTest(unittest.TestCase):
    """The classes that others are built upon, each with what it is good for under way."""

    BASES = {
        DaemonTest: lambda case: case.owned(case.client()),
        ActorTest: lambda case: case.actor().call("Allocate", {"size": 1}),
        BooksTest: lambda case: case.holder().call("Allocate", {"size": 1}),
        PackageTest: lambda case: case.connect().allocate(1),
        RestartTest: lambda case: (case.start(), case.guest().allocate(), case.actor()),
    }
    if SANITIZED:
        del BASES[PackageTest]

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        os.chmod(self.scratch.name, 0o755)
        before = os.environ.get("TMPDIR")
        self.addCleanup(lambda: os.environ.update(TMPDIR=before) if before else os.environ.pop("TMPDIR"))
        os.environ["TMPDIR"] = self.scratch.name

    def test_each_way(self):
        for base, start in self.BASES.items():
            for how, told in WAYS.items():
                with self.subTest(base=base.__name__, how=how.__name__):
                    fds = len(open_fds())
                    result, left = left_by(broken(base, how, start), self.scratch.name)
                    self.assertEqual([len(getattr(result, kind)) for kind in WAYS.values()], [kind == told for kind in WAYS.values()],
                                     [*result.errors, *result.failures])
                    self.assertEqual(left, [])
                    wait_for(lambda n=fds: len(open_fds()) == n, f"{fds} descriptors; there are {open_fds()}")

    def test_a_daemon_that_cannot_be_started(self):
        fds = len(open_fds())
        for start in (Daemon, Manager):
            with self.subTest(start.__name__):
                with self.assertRaises((OSError, AssertionError)):
                    start(program="/nonexistent/gpuipcd")
                self.assertEqual((os.listdir(self.scratch.name), children(), len(open_fds())), ([], [], fds))

    def test_ended_more_than_once(self):
        for start in (Daemon, Manager):
            for first in ("stop", "kill"):
                daemon = start()
                getattr(daemon, first)()
                kept = open_fds()  # whose numbers were the daemon's descriptors
                daemon.kill()
                daemon.kill()
                self.assertEqual(open_fds(), kept)


class SuitesTest(unittest.TestCase):
    """The classes of the suites, each suite in a process of its own."""

    def assert_leaves_nothing(self, path, environment=None):
        """What became of each class."""
        with tempfile.TemporaryDirectory() as scratch:
            os.chmod(scratch, 0o755)
            done = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--suite", path, scratch], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=WAIT_S * 10,
                                  env={**os.environ, "TMPDIR": scratch, **(environment or {})})
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout.splitlines()[-1])
            self.assertEqual({name: left for name, (_, left) in told.items() if left}, {})
            return {name: became for name, (became, _) in told.items()}

    def test_each(self):
        n = 0
        for room in ROOMS:
            for path in filter(has_starters, sorted(glob.glob(f"{TESTS}/{room}/test_*.py"))):
                with self.subTest(os.path.relpath(path, TESTS)):
                    n += list(self.assert_leaves_nothing(path).values()).count("errors")
        self.assertGreater(n, 20 if SANITIZED else 50)

    @unittest.skipIf(SANITIZED, "a sanitized library is not for a plain interpreter")
    @unittest.skipUnless(os.path.exists(f"{BUILD}/fake/libcuda.so.1"), "built without CUDA: there is no cuda.h here")
    def test_on_one_gpu(self):
        """A case of two GPUs starts a daemon to ask how many there are."""
        with tempfile.TemporaryDirectory() as state:
            os.chmod(state, 0o755)
            with open(f"{state}/params", "w", encoding="ascii") as file:
                file.write('RegistryDwords: ""\n')
            environment = {"GPUIPC_TEST_BACKEND": "fake-fd", "LD_LIBRARY_PATH": f"{BUILD}/fake", "GPUIPC_NVIDIA_PARAMS": f"{state}/params",
                           "GPUIPC_FAKE_CUDA": f"state {state}/gpu; log no; devices 1", "CUDA_VISIBLE_DEVICES": "0"}
            became = self.assert_leaves_nothing(f"{TESTS}/python/test_gpu_work.py", environment)
        self.assertEqual(became["OtherGpuTest.setUp"], "skipped: of two GPUs")


def has_starters(path):
    with open(path, encoding="utf-8") as file:
        return re.search(rf"\bdef ({'|'.join(STARTERS)})\(", file.read())


def classes_of(path):
    """Those that start things in a way of their own, once each way."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("suite", path)
    suite = importlib.util.module_from_spec(spec)
    sys.modules["suite"] = suite
    spec.loader.exec_module(suite)
    found = {}
    for each in vars(suite).values():
        if isinstance(each, type) and issubclass(each, unittest.TestCase):
            starters = [getattr(each, name, None) for name in STARTERS]
            if "suite" in [starter.__module__ for starter in starters if starter]:
                found.setdefault(tuple(getattr(starter, "__func__", starter) for starter in starters), each)
    return found.values()


def what_became(result):
    for kind in ("skipped", "failures", "errors"):
        for _, text in getattr(result, kind):
            return kind if "Meant" in text else f"{kind}: {text.strip().splitlines()[-1]}"
    return "passed"


def try_suite(path, scratch):
    told = {}
    for each in classes_of(path):
        ways = []
        if each.setUp is not unittest.TestCase.setUp:
            ways.append(("setUp", broken(each, breaks)))
        if each.setUpClass.__func__ is not unittest.TestCase.setUpClass.__func__:
            ways.append(("setUpClass", broken_class(each)))
        for name, case in ways:
            result, left = left_by(case, scratch)
            told[f"{each.__name__}.{name}"] = what_became(result), left
    print(json.dumps(told))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--suite"]:
        try_suite(*sys.argv[2:])
    else:
        if not backend.HOST:
            sys.exit("these run on host memory")
        unittest.main()
