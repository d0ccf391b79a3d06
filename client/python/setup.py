# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: a wheel with the library in it is of one platform, and of any Python 3."""

import os
import platform
import re
import subprocess

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel

# setuptools takes a version that it does not find for 0.0.0.
if not os.path.exists("VERSION"):
    raise SystemExit("gpuipc: this directory has no VERSION, as it is a part of a greater source. In the top of that run `make python`, "
                     "then install the wheel, which has the C library with it: pip install build/python/gpuipc-*.whl")

LIBRARIES = [f"gpuipc/{name}" for name in ("libgpuipc.so.0", "libcjson.so.1") if os.path.exists(f"gpuipc/{name}")]


def needed_glibc():
    """The newest version of the C library that they ask for, (2, 34)."""
    found = {(2, 17)}
    for path in LIBRARIES:
        told = subprocess.run(["objdump", "-T", path], stdout=subprocess.PIPE, check=True, text=True).stdout
        found |= {(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", told)}
    return max(found)


class Wheel(bdist_wheel):
    """Tagged by what the libraries in it need."""

    def get_tag(self):
        if not LIBRARIES:
            return "py3", "none", "any"
        major, minor = needed_glibc()
        return "py3", "none", f"manylinux_{major}_{minor}_{platform.machine()}"


class Package(Distribution):
    """What has libraries in it goes where such things go."""

    def has_ext_modules(self):
        return bool(LIBRARIES)


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
