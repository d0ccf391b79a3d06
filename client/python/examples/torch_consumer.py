# SPDX-License-Identifier: Apache-2.0
"""Reads the tensor of torch_producer.py where it lies.

torch_consumer.py [NAME]
"""

import sys

import gpuipc.torch                                                           # 4

name = sys.argv[1] if len(sys.argv) > 1 else "example"
tensor = gpuipc.torch.get(name, wait=30)                                      # 5
print(f"{name}: checksum {tensor.double().sum().item():.6f}", flush=True)
