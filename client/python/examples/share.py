# SPDX-License-Identifier: Apache-2.0
"""An array shared in five lines, in host memory: any process on this machine that may open it finds the same bytes."""

import array

import gpuipc

with gpuipc.Client() as client:
    buffer = client.put("example/numbers", array.array("d", [1, 2, 3]))
    found = client.get("example/numbers")
    print(found, found.memoryview().tolist())
