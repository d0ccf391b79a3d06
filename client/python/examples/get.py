# SPDX-License-Identifier: Apache-2.0
"""The other of two processes: waits for what put.py puts, and reads it where it is.

get.py NAME
"""

import sys

import gpuipc

with gpuipc.Client(label="get.py") as client:
    matrix = client.get(sys.argv[1], wait=30)
view = matrix.memoryview()
rows, columns = matrix.shape
print(f"{sys.argv[1]}: {rows} x {columns} of {matrix.dtype}, sum {sum(view[i, j] for i in range(rows) for j in range(columns)):.0f}")
