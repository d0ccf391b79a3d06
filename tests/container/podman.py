# SPDX-License-Identifier: Apache-2.0
"""Real containers for a test: podman with runc, whose storage, settings and CDI files are the test's own. Standard library only.

    podman = Podman(directory)
    done = podman.run("-v", "/there:/here", command=["gpuipcctl", "status"])
    podman.close()

A container's root is a throw-away copy of image(): a C library, a shell, a few commands, and gpuipcctl as `make portable` makes it."""

import os
import re
import shutil
import subprocess

from daemon import BUILD, wait_for
from rawclient import WAIT_S

PORTABLE = f"{BUILD}/portable"
HERE = "/opt/gpuipc"  # where the command is in a container
COMMANDS = ("sh", "cat", "ls", "sleep", "touch")
SETTINGS = """[containers]
default_ulimits = ["nofile=4096:4096","nproc=4096:4096"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
CDI = "/run/cdi"


def unavailable():
    """Why there can be no containers here; None: there can."""
    if os.geteuid() != 0:
        return "needs root for containers"
    for name in ("podman", "runc", "unshare", "nsenter"):
        if not shutil.which(name):
            return f"needs {name} (make deps)"
    if not os.path.exists(f"{PORTABLE}/gpuipcctl"):
        return "needs make portable"
    return None


def libraries(program):
    """Where the loader finds what a program links, the loader itself included."""
    text = subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True, text=True).stdout
    return re.findall(r"(?:^\s*|=> )(/\S+) \(0x", text, re.M)


def image(directory):
    """Makes the tree."""
    for path in ("bin", "dev", "etc", "opt", "proc", "run", "sys", "tmp"):
        os.makedirs(f"{directory}/{path}")
    os.chmod(f"{directory}/tmp", 0o1777)
    shutil.copytree(PORTABLE, f"{directory}{HERE}")
    programs = [shutil.which(name) for name in COMMANDS]
    for program in programs:
        shutil.copy(program, f"{directory}/bin")
    for program in [*programs, f"{PORTABLE}/gpuipcctl"]:
        for library in libraries(program):
            if not library.startswith(BUILD):  # that one lies beside its program
                os.makedirs(f"{directory}{os.path.dirname(library)}", exist_ok=True)
                shutil.copy(library, f"{directory}{library}")


class Podman:
    """A machine to make containers on: a mount namespace, in which /run/cdi is the test's. What it starts is gone after close()."""

    def __init__(self, directory):
        self.directory = directory
        self.root = f"{directory}/image"
        self.cdi = f"{directory}/cdi"
        os.makedirs(self.cdi)
        image(self.root)
        with open(f"{directory}/containers.conf", "w", encoding="ascii") as file:
            file.write(SETTINGS)
        # Only to be mounted over, where nobody else sees it. It stays, empty: to remove it would end others' mounts on it.
        os.makedirs(CDI, exist_ok=True)
        self.machine = subprocess.Popen(["unshare", "-m", "sh", "-ec", f"mount --bind {self.cdi} {CDI}; echo ready; read -r _ || :"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.machine.stdout.readline() != b"ready\n":
            raise AssertionError("no mount namespace")

    def give_to(self, uid):
        """Makes the image that user's, who can then be a container's root in a user namespace."""
        for where, directories, files in os.walk(self.root):
            for name in (".", *directories, *files):
                os.chown(f"{where}/{name}", uid, uid, follow_symlinks=False)

    def call(self, *words, check=True, text=True, seconds=WAIT_S * 3):
        """podman WORD... on the machine."""
        words = ["nsenter", "-t", str(self.machine.pid), "-m", "podman", "--root", f"{self.directory}/storage",
                 "--runroot", f"{self.directory}/state", "--tmpdir", f"{self.directory}/tmp", *words]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds,
                              check=False, text=text, env={**os.environ, "CONTAINERS_CONF": f"{self.directory}/containers.conf"})
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {done.returncode}: {done.stderr}")
        return done

    def run(self, *options, command, root=None, check=False, text=True):
        """Runs a command in a new container to its end."""
        return self.call("run", "--rm", *options, "--rootfs", root or f"{self.root}:O", *command, check=check, text=text)

    def start(self, name, *options, command, root=None):
        """Starts a container that goes on."""
        self.call("run", "-d", "--name", name, *options, "--rootfs", root or f"{self.root}:O", *command)

    def remove(self, *which):
        """Ends and removes containers, "-a" all. One that has just ended is cleaned up by podman itself, too, which must be over first."""
        wait_for(lambda: self.call("rm", "-f", "-i", "-t", "0", *which, check=False).returncode == 0, f"removal of {which}")

    def close(self):
        self.call("rm", "-f", "-a", "-t", "0", check=False)
        self.machine.communicate()
