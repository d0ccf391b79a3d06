# SPDX-License-Identifier: Apache-2.0
"""A machine with systemd as its first process, over a throw-away overlay of this one's root. Standard library only.

    def setUpModule():
        global machine
        machine = Machine.for_module()      # skips the module, saying why, where none can be had
        machine.install()                   # make install, and what README.md tells to do afterwards

    machine.systemctl("restart", "gpuipcd.service")
    machine.ctl("list", uid=1000)
    machine.wait_show("gpuipcd.service", StatusText=lambda text: text.startswith("1 buffers"))
    with machine.follow("gpuipcd.service") as journal:
        machine.systemctl("reload", "gpuipcd.service")
        journal.wait("configuration reloaded")

One boot takes half a second, so a suite boots once and its cases leave the machine as they found it. Whatever happens to the test, guard.py
takes all of it down: processes, mounts, control groups and files.
"""

import glob
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/tests/support")
from daemon import BUILD, wait_for  # noqa: E402

SERVICE, SOCKET, ADMIN_SOCKET = "gpuipcd.service", "gpuipcd.socket", "gpuipcd-admin.socket"
UNITS = (SERVICE, SOCKET, ADMIN_SOCKET)
HIERARCHIES = ("systemd", "unified", "pids", "memory", "devices")
BOOT_S, COMMAND_S, WAIT_S = 60, 60, 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "TERM": "dumb", "SYSTEMD_PAGER": "cat"}
# What README.md tells to do after make install.
AFTER_INSTALL = (("systemd-sysusers",), ("systemd-tmpfiles", "--create"), ("journalctl", "--update-catalog"),
                 ("systemctl", "daemon-reload"), ("systemctl", "enable", "--now", SOCKET, ADMIN_SOCKET))


class Unavailable(Exception):
    """Why there can be no machine here."""


class Process(subprocess.Popen):
    """A command inside. nsenter stays outside as its parent and ends as it ends; signals are for the command."""

    def command_pid(self):
        """The command's number out here; None when it is over."""
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
                return next((int(pid) for pid in file.read().split()), None)
        except FileNotFoundError:
            return None

    def send_signal(self, sig):
        pid = wait_for(lambda: self.poll() is not None and -1 or self.command_pid(), "the command to start")
        if pid > 0:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass


class Journal:
    """Lines of a unit that come from now on; each is a dictionary of the journal's fields."""

    def __init__(self, machine, unit):
        cursor = machine.cursor(unit)
        self.process = machine.start("journalctl", "-f", "--no-tail", "-o", "json", "-u", unit,
                                     *([f"--after-cursor={cursor}"] if cursor else []), stdout=subprocess.PIPE)
        self.lines = []
        self.arrived = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.arrived:
                self.lines.append(json.loads(line))
                self.arrived.notify_all()

    def wait(self, text, seconds=WAIT_S):
        """The first line that has it."""
        def found():
            return next((line for line in self.lines if text in str(line.get("MESSAGE"))), None)
        with self.arrived:
            if not self.arrived.wait_for(found, seconds):
                raise AssertionError(f"not within {seconds} s: {text!r} in the journal, which had:\n" +
                                     "\n".join(str(line.get("MESSAGE")) for line in self.lines))
            return found()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.reader.join()


class Machine:
    def __init__(self, *binds, lower="/"):
        """`binds`: directories of this machine to be seen inside, read-only, as (here, there). `lower`: the tree it stands on."""
        self.name = f"gpuipc-{os.getpid()}-{time.monotonic_ns() % 1000000}"
        self.leader = self.idle_kinds = None
        self.children = []
        self.binds, self.lower = binds, lower
        self.check()
        self.guard = subprocess.Popen([sys.executable, "-B", f"{ROOT}/tests/systemd/guard.py"], stdin=subprocess.PIPE, text=True,
                                      env={key: value for key, value in os.environ.items() if key != "GPUIPC_TEST_MARK"},
                                      start_new_session=True)
        try:
            self.make_tree()
        except BaseException:
            self.close()
            raise

    @classmethod
    def for_module(cls, *binds, boot=True):
        """For setUpModule(): booted, and taken down when the module is done; skips the module where there can be none."""
        try:
            machine = cls(*binds)
        except Unavailable as why:
            raise unittest.SkipTest(f"no machine can be booted: {why}") from None
        unittest.addModuleCleanup(machine.close)
        if boot:
            machine.boot()
        return machine

    # ---- making and taking down

    @staticmethod
    def check():
        if os.geteuid() != 0:
            raise Unavailable("it takes root")
        for tool in ("systemd-nspawn", "nsenter"):
            if not shutil.which(tool, path=PATH):
                raise Unavailable(f"there is no {tool}")

    def told(self, word, thing):
        self.guard.stdin.write(f"{word} {thing}\n")
        self.guard.stdin.flush()

    def mount(self, *arguments):
        done = subprocess.run(["mount", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(done.stdout.strip())
        self.told("mount", arguments[-1])

    def make_tree(self):
        """The overlay's upper layer is in memory: it may not lie on an overlay itself."""
        self.directory = tempfile.mkdtemp(prefix="machine.", dir="/tmp")
        self.told("remove", self.directory)
        layers, self.root = f"{self.directory}/layers", f"{self.directory}/root"
        for path in (layers, self.root):
            os.mkdir(path)
        self.mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", layers)
        for path in ("upper", "work"):
            os.mkdir(f"{layers}/{path}")
        self.mount("-t", "overlay", "-o", f"lowerdir={self.lower},upperdir={layers}/upper,workdir={layers}/work", "overlay", self.root)
        # A machine of its own: without this one's policy for packages and its past, not at its first boot, and without an index of
        # manual pages that each package would have made anew.
        for path in ("usr/sbin/policy-rc.d", "var/lib/man-db/auto-update"):
            if os.path.lexists(f"{self.root}/{path}"):
                os.unlink(f"{self.root}/{path}")
        with open(f"{self.root}/etc/machine-id", "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(16)}\n")
        for path in ("var/log/journal", "run/log"):
            shutil.rmtree(f"{self.root}/{path}", ignore_errors=True)
        self.cgroups = [f"/sys/fs/cgroup/{name}/{self.name}" for name in HIERARCHIES if os.path.isdir(f"/sys/fs/cgroup/{name}")]
        self.cgroups = self.cgroups or [f"/sys/fs/cgroup/{self.name}"]
        for path in self.cgroups:
            try:
                os.mkdir(path)
            except OSError as error:
                raise Unavailable(f"{path}: {error.strerror}") from None
            self.told("cgroup", path)

    def boot(self):
        """Up to basic.target, so that this machine's own services stay out of it."""
        log = open(f"{self.directory}/console", "ab")
        command = ["systemd-nspawn", "-q", "-D", self.root, f"--machine={self.name}", "--register=no", "--keep-unit",
                   "--private-network", "--link-journal=no", "--console=pipe",
                   *(f"--bind-ro={here}:{there}" for here, there in self.binds), "--boot", "systemd.unit=basic.target"]

        def enter():
            for path in self.cgroups:
                with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(os.getpid()))

        self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=enter,
                                       start_new_session=True)
        log.close()
        self.told("pid", self.nspawn.pid)
        try:
            self.leader = wait_for(self.find_leader, "nspawn to start the machine", BOOT_S)
            self.told("pid", self.leader)
            wait_for(self.is_up, "the machine to be up", BOOT_S)
            # Limits and device policies hold only where the manager may write.
            for path in self.cgroups:
                if os.path.basename(os.path.dirname(path)) in ("pids", "memory", "devices"):
                    self.run("mount", "-o", "remount,rw,bind", os.path.dirname(path), check=False)
            self.systemctl("daemon-reexec")
            wait_for(self.is_up, "the machine to be up again", BOOT_S)
        except AssertionError as why:
            with open(f"{self.directory}/console", encoding="utf-8", errors="replace") as file:
                raise AssertionError(f"{why}; its console:\n{file.read()[-3000:]}") from None

    def find_leader(self):
        if self.nspawn.poll() is not None:
            raise AssertionError(f"nspawn ended with {self.nspawn.returncode}")
        with open(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children", encoding="ascii") as file:
            return next((int(pid) for pid in file.read().split() if self.is_init(pid)), None)

    @staticmethod
    def is_init(pid):
        try:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                return next(line for line in file if line.startswith("NSpid:")).split()[-1] == "1"
        except (OSError, StopIteration):
            return False

    def is_up(self):
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def close(self):
        self.guard.stdin.close()
        self.guard.wait()
        if self.leader:
            self.nspawn.wait()
        for process in self.children:
            process.wait()
            for end in (process.stdin, process.stdout):
                if end:
                    end.close()

    # ---- inside

    def words(self, command, uid=None, gid=None, groups=()):
        inside = ["nsenter", "-t", str(self.leader), "-a"]
        if uid is not None:
            inside += ["setpriv", "--reuid", str(uid), "--regid", str(gid if gid is not None else uid)]
            inside += ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
        return inside + list(command)

    def run(self, *command, uid=None, gid=None, groups=(), check=True, input=None, environment=None, seconds=COMMAND_S):
        """Runs a command to its end. Both outputs are in stdout, as a person sees them."""
        done = subprocess.run(self.words(command, uid, gid, groups), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False, timeout=seconds, env={**ENVIRONMENT, **(environment or {})},
                              **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}))
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: ended with {done.returncode}:\n{done.stdout}")
        return done

    def start(self, *command, uid=None, gid=None, groups=(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **others):
        """Starts a command that runs on; it ends with the machine at the latest."""
        process = Process(self.words(command, uid, gid, groups), stdin=stdin, stdout=stdout, stderr=subprocess.STDOUT, text=True,
                          env=ENVIRONMENT, **others)
        self.children.append(process)
        return process

    def inside(self, path):
        """A path of the machine, as this process reaches it; also what is mounted there only."""
        return f"/proc/{self.leader}/root{path}"

    def read(self, path):
        with open(self.inside(path), encoding="utf-8") as file:
            return file.read()

    def write(self, path, text):
        os.makedirs(os.path.dirname(self.inside(path)), exist_ok=True)
        with open(self.inside(path), "w", encoding="utf-8") as file:
            file.write(text)

    def remove(self, path):
        try:
            os.unlink(self.inside(path))
        except FileNotFoundError:
            pass

    # ---- the manager

    def systemctl(self, *words, check=True):
        return self.run("systemctl", *words, check=check)

    def show(self, unit, *properties):
        """{property: value}, all of them when none is named."""
        text = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties)).stdout
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def property(self, unit, name):
        return self.show(unit, name)[name]

    def wait_show(self, unit, seconds=WAIT_S, **wanted):
        """Waits until each property is as wanted: a value, or a function of it that says yes. What they are then."""
        seen = {}

        def fits():
            seen.update(self.show(unit, *wanted))
            return all(want(seen[name]) if callable(want) else seen[name] == want for name, want in wanted.items())

        try:
            wait_for(fits, "it", seconds)
        except AssertionError:
            raise AssertionError(f"not within {seconds} s: {', '.join(wanted)} of {unit} as wanted; last {seen}") from None
        return seen

    def drop_in(self, unit, name, text):
        """Writes a drop-in, or with None takes it away."""
        path = f"/etc/systemd/system/{unit}.d/{name}.conf"
        if text is None:
            self.remove(path)
        else:
            self.write(path, text)
        self.systemctl("daemon-reload")

    def main_pid(self, unit=SERVICE):
        return int(self.property(unit, "MainPID"))

    def processes(self, unit=SERVICE, command="gpuipcd"):
        """The unit's processes of that name, by their numbers out here; costs no call of the manager."""
        found = []
        for path in glob.glob(f"{self.cgroups[0]}/**/{unit}/cgroup.procs", recursive=True):
            try:
                with open(path, encoding="ascii") as file:
                    pids = [int(pid) for pid in file.read().split()]
            except OSError:
                continue  # it has just ended
            found += [pid for pid in pids if self.command_of(pid) == command]
        return found

    @staticmethod
    def command_of(pid):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def outer_pid(self, pid):
        """The number by which this machine knows a process of that one."""
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/status", encoding="ascii", errors="replace") as file:
                    inner = next(line for line in file if line.startswith("NSpid:")).split()[1:]
                if len(inner) == 2 and inner[1] == str(pid) and os.readlink(f"/proc/{entry}/ns/pid") == self.namespace():
                    return int(entry)
            except (OSError, StopIteration):
                continue
        raise AssertionError(f"no process {pid} in the machine")

    def namespace(self):
        return os.readlink(f"/proc/{self.leader}/ns/pid")

    def signal(self, number, unit=SERVICE):
        """To the unit's main process, without PID 1: as if it came from anywhere."""
        os.kill(self.outer_pid(self.main_pid(unit)), number)

    def pause_init(self):
        """Stops the machine's PID 1; resume_init() lets it go on."""
        os.kill(self.leader, signal.SIGSTOP)

    def resume_init(self):
        os.kill(self.leader, signal.SIGCONT)

    # ---- the journal

    def cursor(self, unit=SERVICE):
        """Where the unit's lines end now; for journal(after=…) of the same unit: journalctl passes over a line too many when the cursor
        is of a line that is not asked for. None before there is any."""
        self.run("journalctl", "--sync")
        found = re.search(r"^-- cursor: (\S+)$", self.run("journalctl", "-u", unit, "--show-cursor", "-n", "1").stdout, re.M)
        return found and found.group(1)

    def journal(self, unit=SERVICE, after=None, *more):
        """Lines of the unit, each a dictionary."""
        self.run("journalctl", "--sync")
        words = ["journalctl", "-o", "json", "-u", unit, *more] + ([f"--after-cursor={after}"] if after else [])
        return [json.loads(line) for line in self.run(*words).stdout.splitlines() if line.startswith("{")]

    def journal_text(self, unit=SERVICE, after=None):
        return "\n".join(str(line.get("MESSAGE")) for line in self.journal(unit, after))

    def wait_journal(self, text, unit=SERVICE, after=None, seconds=WAIT_S):
        wait_for(lambda: text in self.journal_text(unit, after), f"{text!r} in the journal", seconds)

    def follow(self, unit=SERVICE):
        return Journal(self, unit)

    # ---- gpuipc

    def install(self):
        """What make install does, into the tree, then what README.md tells to do."""
        subprocess.run(["mk/install", BUILD], cwd=ROOT, check=True, env={"PATH": PATH, "DESTDIR": self.root, "prefix": "/usr"})
        for command in AFTER_INSTALL:
            self.run(*command)

    def ctl(self, *words, **others):
        return self.run("gpuipcctl", *words, **others)

    def ctl_json(self, *words, **others):
        return json.loads(self.ctl(*words, "--json", **others).stdout)

    def status(self, **others):
        return self.ctl_json("status", **others)

    def hold(self, name, size="1M", uid=None, keep=None, device=None, **others):
        """A process that holds a new buffer; answers once it does."""
        words = ["gpuipcctl", "alloc", size, "--name", name]
        words += [word for option, value in (("--keep", keep), ("--device", device)) if value for word in (option, value)]
        process = self.start(*words, uid=uid, stdout=subprocess.PIPE, **others)
        ready, _, _ = select.select([process.stdout], [], [], WAIT_S)
        line = process.stdout.readline() if ready else ""
        if name not in line:
            raise AssertionError(f"no buffer {name} was allocated: {line or 'nothing was said'}")
        return process

    @staticmethod
    def end(process):
        """At once: some that make namespaces do not listen to SIGTERM."""
        process.kill()
        process.wait()


def serving(machine):
    """Whether the broker answers."""
    return machine.ctl("status", check=False).returncode == 0


__all__ = ["AFTER_INSTALL", "PATH", "ADMIN_SOCKET", "BUILD", "Journal", "Machine", "ROOT", "SERVICE", "SOCKET", "UNITS", "Unavailable", "serving", "wait_for"]
