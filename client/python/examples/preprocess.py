# SPDX-License-Identifier: Apache-2.0
"""Makes batches for train.py: decoded, resized, normalised, on the GPU where there is one, computed in the memory that train.py reads.

preprocess.py NAME EPOCHS BATCHES
"""

import sys

import torch

import gpuipc.torch

name, epochs, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"
size = 32
like = torch.empty(size, 3, 64, 64, device=device), torch.empty(size, dtype=torch.int64, device=device)

with gpuipc.torch.channel.create(name, like=like, slots=4) as channel:
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        for _ in range(batches):
            raw = torch.randint(0, 256, (size, 3, 96, 96), dtype=torch.uint8, generator=generator).to(device)
            with channel.slot(like, timeout=60) as (images, labels):
                resized = torch.nn.functional.interpolate(raw.float(), size=64, mode="bilinear", align_corners=False)
                torch.sub(resized / 255, 0.5, out=images)
                torch.remainder(raw[:, 0, 0, 0].long(), 10, out=labels)
        gpuipc.torch.data.end_epoch(channel, batches)
    channel.end()
