# SPDX-License-Identifier: Apache-2.0
"""Containers for a test, by any of three tools that are used alike. Standard library only.

    sandbox = Podman(directory)                       # or Runc, or Bwrap
    with sandbox.start("gpuipcctl", "put", "w", "/file", mounts={shared: "/run/gpuipcd"}) as box:
        box.line()                                    # waits for what it prints
        sandbox.run("gpuipcctl", "get", "w", mounts=...)

Each container has a small tree of its own as its root, namespaces of its own, and the word of its maker for what is in the way: run()
and start() take the same options.

    user      (uid, gid) inside, else root
    groups    more gids
    mapped    a user namespace: root inside is uid MAPPED outside
    host_ipc  the machine's IPC namespace
    hardened  root read-only, no capability, no new privileges
    mounts    {outside: inside}, with ":ro" after it for one that cannot be written to
    env       {name: value}
"""

import json
import os
import secrets
import shutil
import subprocess
import tempfile

import tree
from podman import SETTINGS
from rawclient import WAIT_S

MAPPED, MAPPED_N = 100000, 65536


class Done:
    """What a container did: its status, and all it said."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __repr__(self):
        return f"status {self.status}, out {self.out[-2000:]!r}, err {self.err[-2000:]!r}"

    @property
    def said(self):
        return (self.out + self.err).decode(errors="replace")


class Box:
    """A container that runs. Its standard input is a pipe of ours; leaving the block removes it by force."""

    def __init__(self, sandbox, name, command, environment=None):
        self.sandbox, self.name, self.removed = sandbox, name, False
        self.errors = open(f"{sandbox.directory}/{name}.err", "w+b")
        # pylint: disable-next=consider-using-with # it ends with the box
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def line(self):
        """The next line it prints; a container that ends first is a fault."""
        text = self.process.stdout.readline()
        if not text:
            raise AssertionError(f"the container ended: {self.finish()}")
        return text.decode().rstrip("\n")

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def id(self):
        """What its control group is called, 64 hex digits; None where the tool makes none."""
        return self.sandbox.id_of(self)

    def finish(self):
        """Waits for its end."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        return Done(self.process.returncode, out, self.said_wrong())

    def said_wrong(self):
        self.errors.seek(0)
        return self.errors.read()

    def remove(self):
        """By force, as `podman rm -f`."""
        if self.removed:
            return
        self.removed = True
        self.sandbox.remove(self)
        self.process.communicate(timeout=WAIT_S)
        self.errors.close()
        os.unlink(self.errors.name)


def split(mounts):
    """(outside, inside, "ro" or "rw") of each."""
    return [(outside, inside.removesuffix(":ro"), "ro" if inside.endswith(":ro") else "rw") for outside, inside in (mounts or {}).items()]


class Sandbox:
    """What the three have in common."""

    tool = None
    has_id = True  # what runs inside can be told by its control group

    @classmethod
    def missing(cls):
        """Why it cannot be used here, or None."""
        if os.geteuid() != 0:
            return f"{cls.tool}: needs root"
        gone = [tool for tool in cls.needed() if not shutil.which(tool)]
        return f"{cls.tool}: {', '.join(gone)} not installed" if gone else None

    @classmethod
    def needed(cls):
        return (cls.tool,)

    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o755)
        self.n = 0

    def new_name(self):
        self.n += 1
        return f"{self.tool}-{os.getpid()}-{self.n}"

    def run(self, *argv, data=b"", **how):
        with self.start(*argv, **how) as box:
            try:
                box.process.stdin.write(data)
                box.process.stdin.close()
            except BrokenPipeError:
                pass
            box.process.stdin = None
            return box.finish()


class Podman(Sandbox):
    """podman with storage of its own. `account` (see machine.py) makes it rootless; `default` is for a machine whose usual storage is the
    test's own already."""

    tool = "podman"
    IMAGE = "localhost/gpuipc-test"

    @classmethod
    def needed(cls):
        return ("podman", "runc")

    def __init__(self, directory, account=None, default=False):
        super().__init__(directory)
        self.home = account.home if account else directory
        self.conf = f"{directory}/containers.conf"
        with open(self.conf, "w", encoding="ascii") as file:
            file.write(SETTINGS)
        self.environment = {**os.environ, "CONTAINERS_CONF": self.conf, **(account.environment if account else {})}
        self.prefix = list(account.prefix) if account else []
        # podman wants at most 50 characters here.
        self.runroot = tempfile.mkdtemp(prefix="gpuipc.", dir="/tmp")
        if account:
            os.chown(self.runroot, account.uid, account.uid)
        self.storage = [] if default else ["--root", f"{self.home}/storage", "--runroot", self.runroot]
        archive = tree.archive(directory)
        self.podman("import", "-c", "ENV PATH=/bin", archive, self.IMAGE)

    def command(self, *words):
        return [*self.prefix, "podman", *self.storage, *words]

    def podman(self, *words, check=True):
        done = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=self.environment, timeout=10 * WAIT_S, check=False, cwd="/")
        if check and done.returncode != 0:
            raise AssertionError(f"podman {' '.join(words)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="replace")

    @staticmethod
    def options(user=None, groups=(), mapped=False, host_ipc=False, hardened=False, mounts=None, env=None, more=()):
        words = []
        if user:
            words += ["--user", f"{user[0]}:{user[1]}"]
        words += [f"--group-add={gid}" for gid in groups]
        if mapped:
            words += ["--uidmap", f"0:{MAPPED}:{MAPPED_N}", "--gidmap", f"0:{MAPPED}:{MAPPED_N}"]
        if host_ipc:
            words += ["--ipc=host"]
        if hardened:
            words += ["--read-only", "--cap-drop=all", "--security-opt", "no-new-privileges"]
        for outside, inside in (mounts or {}).items():
            words += ["-v", f"{outside}:{inside}"]
        for name, value in (env or {}).items():
            words += ["-e", f"{name}={value}"]
        return [*words, *more]

    def start(self, *argv, image=None, **how):
        name = self.new_name()
        words = self.command("run", "-i", "--rm", "--name", name, *self.options(**how), image or self.IMAGE, *argv)
        return Box(self, name, words, self.environment)

    def id_of(self, box):
        return self.podman("inspect", "--format", "{{.Id}}", box.name).strip()

    def remove(self, box):
        if box.process.poll() is None:
            self.podman("rm", "-f", "-t", "0", box.name, check=False)

    def close(self):
        self.podman("rm", "-fa", "-t", "0", check=False)
        self.podman("rmi", "-fa", check=False)
        for path in (f"{self.home}/storage/overlay", f"{self.home}/storage"):
            subprocess.run([*self.prefix, "umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.runroot, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)


class Runc(Sandbox):
    """runc over bundles that are written here, as containerd does."""

    tool = "runc"
    CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT"]
    MOUNTS = [("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
              ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
              ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
              ("/tmp", "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"])]

    def __init__(self, directory):
        super().__init__(directory)
        self.tree = tree.make(f"{directory}/tree")
        self.group = f"gpuipc-test-{os.getpid()}-{secrets.token_hex(4)}"

    def config(self, name, argv, user=None, groups=(), mapped=False, host_ipc=False, hardened=False, mounts=None, env=None):
        uid, gid = user or (0, 0)
        capabilities = [] if hardened or uid else self.CAPABILITIES
        spaces = ["pid", "mount", "uts", "network", *([] if host_ipc else ["ipc"]), *(["user"] if mapped else [])]
        ids = [{"containerID": 0, "hostID": MAPPED, "size": MAPPED_N}] if mapped else []
        return {
            "ociVersion": "1.0.2", "root": {"path": self.tree, "readonly": True}, "hostname": "box",
            "process": {
                "args": list(argv), "cwd": "/", "user": {"uid": uid, "gid": gid, "additionalGids": list(groups)},
                "env": ["PATH=/bin", *(f"{key}={value}" for key, value in (env or {}).items())],
                "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")},
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}], "noNewPrivileges": hardened},
            "mounts": [{"destination": to, "type": kind, "source": source, "options": options}
                       for to, kind, source, options in self.MOUNTS]
                      + [{"destination": inside, "type": "bind", "source": outside, "options": ["rbind", how, "nosuid", "nodev"]}
                         for outside, inside, how in split(mounts)],
            "linux": {"namespaces": [{"type": space} for space in spaces], "cgroupsPath": f"/{self.group}/{name}",
                      "uidMappings": ids, "gidMappings": ids}}

    def start(self, *argv, **how):
        name = secrets.token_hex(32)
        bundle = f"{self.directory}/{name}"
        os.mkdir(bundle)
        with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
            json.dump(self.config(name, argv, **how), file)
        return Box(self, name, ["runc", "--root", f"{self.directory}/state", "run", "--bundle", bundle, name])

    def id_of(self, box):
        return box.name

    def remove(self, box):
        subprocess.run(["runc", "--root", f"{self.directory}/state", "delete", "-f", box.name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(f"{self.directory}/{box.name}", ignore_errors=True)

    def close(self):
        for where in ["/sys/fs/cgroup", *(f"/sys/fs/cgroup/{entry}" for entry in os.listdir("/sys/fs/cgroup"))]:
            if os.path.isdir(f"{where}/{self.group}"):
                os.rmdir(f"{where}/{self.group}")
        shutil.rmtree(self.directory, ignore_errors=True)


class Bwrap(Sandbox):
    """bubblewrap: namespaces and nothing else, so no control group. It maps one uid alone: `mapped` and `user` are had by being that
    user before it starts, and then it is in a user namespace in either case."""

    tool = "bwrap"
    has_id = False

    @classmethod
    def needed(cls):
        return ("bwrap", "setpriv")

    def __init__(self, directory):
        super().__init__(directory)
        self.tree = tree.make(f"{directory}/tree")

    def start(self, *argv, user=None, groups=(), mapped=False, host_ipc=False, hardened=False, mounts=None, env=None):
        uid, gid = user or (0, 0)
        outside = (uid + MAPPED, gid + MAPPED) if mapped else (uid, gid)
        words = []
        if outside != (0, 0):
            words += ["setpriv", f"--reuid={outside[0]}", f"--regid={outside[1]}",
                      f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"]
        words += ["bwrap", "--bind", self.tree, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent",
                  "--unshare-pid", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try", "--clearenv", "--setenv", "PATH", "/bin"]
        words += [] if host_ipc else ["--unshare-ipc"]
        if outside != (0, 0):
            words += ["--unshare-user", "--uid", str(uid), "--gid", str(gid)]
        if hardened:
            words += ["--remount-ro", "/", "--cap-drop", "ALL"]
        for source, target, way in split(mounts):
            words += ["--bind" if way == "rw" else "--ro-bind", source, target]
        for key, value in (env or {}).items():
            words += ["--setenv", key, value]
        return Box(self, self.new_name(), [*words, *argv])

    def id_of(self, box):
        return None

    def remove(self, box):
        """Its first process dies with bwrap, and with it all that is in its pid namespace."""
        if box.process.poll() is None:
            box.process.kill()

    def close(self):
        shutil.rmtree(self.directory, ignore_errors=True)
