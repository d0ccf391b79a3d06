# SPDX-License-Identifier: Apache-2.0
"""Which kind of memory a test runs on: $GPUIPC_TEST_BACKEND is host (the default), fake-fd, fake-ipc, cuda-fd or cuda-ipc. The same
assertions hold on all of them; what differs is here. Standard library only."""

import os
import unittest

KINDS = ("host", "fake-fd", "fake-ipc", "cuda-fd", "cuda-ipc")
NAME = os.environ.get("GPUIPC_TEST_BACKEND", "host")
if NAME not in KINDS:
    raise SystemExit(f"GPUIPC_TEST_BACKEND={NAME}: give one of {', '.join(KINDS)}")

HOST = NAME == "host"
REAL = NAME.startswith("cuda")
CLASSIC = NAME.endswith("-ipc")
HANDLE = "memfd" if HOST else "cuda-ipc" if CLASSIC else "cuda-fd"
DAEMON = "host" if HOST else "cuda"  # what --backend is given

# Sizes are told in what the smallest buffer takes; MIB is as many of them as there are pages in a MiB.
PAGE = 4096 if HOST else 2 << 20
MIB = 256 * PAGE

FDS_BUFFER = 0 if CLASSIC else 1  # descriptors of the daemon's for a buffer, and once it was lent read-only
READ = "rw" if CLASSIC else "ro"  # the least access there is

host_only = unittest.skipUnless(HOST, "of host memory alone")
with_descriptors = unittest.skipIf(CLASSIC, "a classic handle takes no descriptor")
read_only = unittest.skipIf(CLASSIC, "a classic handle cannot be lent read-only")
ro_enforced = unittest.skipUnless(HOST, "who has memory of a GPU chooses himself how to map it")
opened_by_work = unittest.skipUnless(HOST, "what a GPU's memory is lent by is there from the start")
