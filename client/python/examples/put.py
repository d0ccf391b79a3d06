# SPDX-License-Identifier: Apache-2.0
"""One of two processes: puts a matrix where get.py finds it, and ends.

put.py NAME ROWS COLUMNS
"""

import array
import sys

import gpuipc

name, rows, columns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numbers = array.array("f", range(rows * columns))
with gpuipc.Client(label="put.py") as client:
    # It stays for a minute when this process has gone, or until its last reader has.
    client.put(name, memoryview(numbers).cast("B").cast("f", (rows, columns)), keep=60)
print(f"{name}: {rows} x {columns}")
