# SPDX-License-Identifier: Apache-2.0
"""A machine of the test's own, as far as /run and /etc go: the places that programs and documents take for granted can be used there as
they stand, and nobody else sees it. Standard library only.

    setUpModule = machine.enter     # from then on, for this process and what it starts, /run is empty and what is written to /etc a copy
"""

import ctypes
import itertools
import os
import shutil
import subprocess
import unittest

CLONE_NEWNS = 0x20000
SOCKETS = "/run/gpuipcd"
CDI = "/run/cdi"
STORAGE = "/var/lib/containers"


def use_as_storage(directory):
    """Podman keeps its containers in that directory when it is told nothing else; after enter()."""
    os.makedirs(STORAGE, exist_ok=True)
    subprocess.run(["mount", "--bind", directory, STORAGE], check=True)


def leave_storage():
    subprocess.run(["umount", "-l", STORAGE], check=True)


def enter():
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, for a /run of its own")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise unittest.SkipTest(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
    os.makedirs("/run/etc/upper")
    os.mkdir("/run/etc/work")
    subprocess.run(["mount", "-t", "overlay", "-o", "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work", "overlay", "/etc"],
                   check=True)
    if not os.path.ismount("/dev/mqueue"):  # rootless podman wants it for --ipc=host
        os.makedirs("/dev/mqueue", exist_ok=True)
        subprocess.run(["mount", "-t", "mqueue", "mqueue", "/dev/mqueue"], check=True)


class Account:
    """A user made for the test, with a home, gids and ranges of uids and gids for containers."""

    _numbers = itertools.count()

    def __init__(self, directory):
        self.name = f"gpuipc-t{os.getpid()}-{next(self._numbers)}"  # one before may not be removed yet: its last process ends just now
        self.home = f"{directory}/home"
        subprocess.run(["useradd", "--create-home", "--home-dir", self.home, "--shell", "/bin/sh", self.name], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.fill()
        except BaseException:
            self.remove()
            raise

    @staticmethod
    def missing():
        gone = [tool for tool in ("useradd", "userdel", "newuidmap", "newgidmap", "setpriv") if not shutil.which(tool)]
        return f"rootless containers: {', '.join(gone)} not installed" if gone else None

    def fill(self):
        with open("/etc/passwd", encoding="utf-8") as file:
            self.uid, self.gid = next((int(row[2]), int(row[3])) for row in (line.split(":") for line in file) if row[0] == self.name)
        with open("/etc/subuid", encoding="utf-8") as file:
            self.first, self.n = next((int(row[1]), int(row[2])) for row in (line.split(":") for line in file) if row[0] == self.name)
        self.runtime = f"{self.home}/run"
        os.mkdir(self.runtime, 0o700)
        os.chown(self.runtime, self.uid, self.gid)
        os.chmod(self.home, 0o755)
        self.prefix = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        self.environment = {"HOME": self.home, "XDG_RUNTIME_DIR": self.runtime, "TMPDIR": "/tmp"}

    def outside(self, uid):
        """What a uid of a rootless container is on the machine."""
        return self.uid if uid == 0 else self.first + uid - 1

    def remove(self):
        self.end_pause()
        subprocess.run(["userdel", "--force", "--remove", self.name], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end_pause(self):
        """The process that keeps a user's namespaces for the next podman."""
        for where, _, files in os.walk(f"{self.home}/run"):
            if "pause.pid" in files:
                with open(f"{where}/pause.pid", encoding="ascii") as file:
                    try:
                        os.kill(int(file.read()), 9)
                    except ProcessLookupError:
                        pass
