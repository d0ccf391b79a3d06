# SPDX-License-Identifier: Apache-2.0
"""An inference process whose weights are those that weights_loader.py has loaded: the same memory for all of them.

weights_server.py NAME
"""

import json
import sys

import torch

import gpuipc.torch

name = sys.argv[1]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, x):
        return self.layers(x)


# Read-only, so that no process can spoil the others' by mistake.
weights = gpuipc.torch.get(name, access="ro", wait=60)
places = json.loads(bytes(gpuipc.torch.get(f"{name}.index", access="ro").tolist()))

model = Model()
for key, parameter in model.named_parameters():
    dtype, shape, start = places[key]
    n = parameter.numel() * parameter.element_size()
    parameter.requires_grad_(False)
    parameter.data = weights[start:start + n].view(getattr(torch, dtype)).view(shape)

with torch.no_grad():
    result = model(torch.ones(1, 64, device=weights.device))
print(f"{name}: {result.double().sum().item():.6f}", flush=True)
sys.stdin.readline()
