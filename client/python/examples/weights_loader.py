# SPDX-License-Identifier: Apache-2.0
"""Loads a model's weights once, hands them to inference processes (weights_server.py), and ends.

weights_loader.py FILE NAME

All tensors go into one buffer, one after the other, and what lies where into a second, so that the largest model is two shares. They stay
for a minute without this process, and then for as long as anybody has them.
"""

import json
import sys

import torch

import gpuipc.torch

path, name = sys.argv[1:3]
device = "cuda" if torch.cuda.is_available() else "cpu"
state = torch.load(path, map_location="cpu")

places, end = {}, 0
for key, tensor in state.items():
    places[key] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end]
    end += (tensor.numel() * tensor.element_size() + 255) // 256 * 256

weights = gpuipc.torch.empty(max(1, end), dtype=torch.uint8, device=device, keep=60)
for key, tensor in state.items():
    n, start = tensor.numel() * tensor.element_size(), places[key][2]
    weights[start:start + n].copy_(tensor.contiguous().view(-1).view(torch.uint8))

index = torch.frombuffer(bytearray(json.dumps(places).encode()), dtype=torch.uint8)
gpuipc.torch.put(index, f"{name}.index", seal=True, keep=60)
gpuipc.torch.put(weights, name, copy=False, keep=60)
print(f"{name}: {len(places)} tensors, {end} bytes", flush=True)
