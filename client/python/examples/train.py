# SPDX-License-Identifier: Apache-2.0
"""Trains on what preprocess.py makes, as on a torch.utils.data.DataLoader.

train.py NAME
"""

import sys

import torch

import gpuipc.torch

torch.manual_seed(0)
loader = gpuipc.torch.ChannelLoader(sys.argv[1], wait=60, timeout=60)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10)).to(loader.channel.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

while True:
    seen, total = 0, 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        seen, total = seen + len(labels), total + loss.item()
    if loader.over:
        break
    print(f"epoch {loader.epoch}: {seen} images, mean loss {total / len(loader):.4f}", flush=True)
