# SPDX-License-Identifier: Apache-2.0
"""The root of a test's containers: gpuipcctl, a few tools of the machine, and the libraries they load. Standard library only."""

import os
import shutil
import tarfile

from daemon import BUILD
from podman import libraries

TOOLS = ("sh", "cat", "sha256sum", "head", "ls", "id", "sleep", "true", "readlink", "rm", "env")
DIRECTORIES = ("bin", "dev", "etc", "mnt", "proc", "run/gpuipcd", "sys", "tmp", "state", "opt")
PASSWD = "root:x:0:0::/:/bin/sh\n"
GROUP = "root:x:0:\n"


def put(root, source, target):
    os.makedirs(os.path.dirname(f"{root}{target}"), exist_ok=True)
    if not os.path.exists(f"{root}{target}"):
        shutil.copy(source, f"{root}{target}")


def add_program(root, source, name):
    """A program with what it needs; a library that lies beside it goes beside it."""
    put(root, source, f"/bin/{name}")
    beside = os.path.dirname(os.path.realpath(source))
    for library in libraries(source):
        near = os.path.realpath(library).startswith(beside + "/") and "/lib" not in beside
        put(root, library, f"/bin/{os.path.basename(library)}" if near else library)


def make(root, programs=()):
    """Makes the tree, owned by root and readable by all; its path is the result. `programs` are of the build directory."""
    for directory in DIRECTORIES:
        os.makedirs(f"{root}/{directory}", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    for tool in TOOLS:
        add_program(root, shutil.which(tool), tool)
    add_program(root, f"{BUILD}/portable/gpuipcctl", "gpuipcctl")
    for program in programs:
        add_program(root, f"{BUILD}/{program}", os.path.basename(program))
    for name, text in (("passwd", PASSWD), ("group", GROUP)):
        with open(f"{root}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return root


def archive(directory, programs=()):
    """The tree as a tar file in the directory."""
    path = f"{directory}/tree.tar"
    if not os.path.exists(path):
        make(f"{directory}/tree", programs)
        with tarfile.open(path, "w") as file:
            file.add(f"{directory}/tree", arcname=".")
        os.chmod(path, 0o644)
    return path
