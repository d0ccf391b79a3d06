# SPDX-License-Identifier: Apache-2.0
"""The daemon's image, built by its recipe upon a base that has the libraries. Standard library only."""

import os
import subprocess

import tree
from daemon import BUILD, GPUIPCCTL, GPUIPCD, ROOT
from podman import libraries

RECIPE = f"{ROOT}/packaging/container/Containerfile"
BASE, IMAGE = "localhost/base", "localhost/gpuipcd"


def build(sandbox, directory):
    """Builds it in that sandbox's storage; what the build said is the result."""
    stage = f"{directory}/stage"
    subprocess.run(["make", "stage", f"STAGE={stage}", f"B={os.path.relpath(BUILD, ROOT)}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    base = f"{directory}/base"
    tree.make(base)
    os.unlink(f"{base}/bin/gpuipcctl")
    for library in libraries(GPUIPCD) + libraries(GPUIPCCTL):
        if not library.startswith(BUILD):
            tree.put(base, library, library)
    subprocess.run(["tar", "-C", base, "-cf", f"{directory}/base.tar", "."], check=True)
    sandbox.podman("import", "-c", "ENV PATH=/usr/sbin:/usr/bin:/bin", f"{directory}/base.tar", BASE)
    return sandbox.podman("build", "--format", "docker", "--network=none", "--build-arg", f"BASE={BASE}", "-t", IMAGE, "-f", RECIPE, stage)
