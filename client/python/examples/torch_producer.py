# SPDX-License-Identifier: Apache-2.0
"""A tensor for torch_consumer.py, in any process or container on this machine. Five lines of this are gpuipc's.

torch_producer.py [NAME]
"""

import sys

import torch

import gpuipc.torch                                                           # 1

name = sys.argv[1] if len(sys.argv) > 1 else "example"
device = "cuda" if torch.cuda.is_available() else "cpu"
tensor = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1)).to(device)

share = gpuipc.torch.put(tensor, name)                                        # 2
print(f"{name}: checksum {tensor.double().sum().item():.6f}", flush=True)

sys.stdin.readline()                                                          # it is there for as long as this process
share.close()                                                                 # 3
