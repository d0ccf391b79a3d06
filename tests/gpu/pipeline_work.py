# SPDX-License-Identifier: Apache-2.0
"""The work of the pipeline benchmark: what prepares a batch, what trains on one, and the processor or GPU that does it."""

import collections
import contextlib
import time

import torch
from torch import nn
from torch.nn import functional

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPE = torch.bfloat16

# What is prepared and trained on: frames as a decoder leaves them, what they are resized to, what is cut out of that, how many frames
# there are to choose from; the widths and blocks of the network; its classes.
Size = collections.namedtuple("Size", "frame resized out frames width blocks classes")
FULL = Size((360, 480), 256, 224, 256, 64, (2, 2, 2, 2), 1000)
TINY = Size((24, 32), 20, 16, 8, 4, (1, 1), 10)


class Gpu:
    """A GPU by its number here. The calling thread works on a stream of its own from then on."""

    kind = "cuda"

    def __init__(self, ordinal):
        torch.cuda.set_device(ordinal)
        self.device = torch.device("cuda", ordinal)
        self.uuid = f"GPU-{torch.cuda.get_device_properties(ordinal).uuid}"
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.handle = self.stream.cuda_stream

    def side(self):
        return torch.cuda.Stream()

    def on(self, stream):
        return torch.cuda.stream(stream)

    def mark(self, timing=False):
        """Where the current stream is now, for follow() and synchronize(), which sleeps: who spins would seem to work."""
        event = torch.cuda.Event(enable_timing=timing, blocking=True)
        event.record()
        return event

    def follow(self, mark):
        torch.cuda.current_stream().wait_event(mark)

    def seconds(self, first, last):
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def settle(self):
        torch.cuda.synchronize()

    def pin(self, tensor):
        result = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0)
        assert int(result) == 0, f"cudaHostRegister: {result}"

    def recorded(self, work):
        """The same work as one CUDA graph: what a step costs the processor is then not what is measured."""
        aside = torch.cuda.Stream()
        aside.wait_stream(self.stream)
        with torch.cuda.stream(aside):
            for _ in range(3):
                work()
        self.stream.wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            work()
        torch.cuda.synchronize()
        return graph.replay

    def forget(self):
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


class Mark:
    """A point in time of a processor, which does what it is told before it is asked for the next."""

    def __init__(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass


class Host:
    """The processor in a GPU's place."""

    kind, handle, uuid = "cpu", None, "host"

    def __init__(self):
        torch.set_num_threads(1)
        self.device = torch.device("cpu")

    def side(self):
        return None

    def on(self, _stream):
        return contextlib.nullcontext()

    def mark(self, timing=False):
        del timing
        return Mark()

    def follow(self, mark):
        pass

    def seconds(self, first, last):
        return last.time - first.time

    def settle(self):
        pass

    def pin(self, tensor):
        pass

    def recorded(self, work):
        return work

    def forget(self):
        pass


def frames_of(device, size):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (size.frames, 3, *size.frame), dtype=torch.uint8, generator=generator).to(device.device)


class Preparation:
    """uint8 frames that lie where it is done → resized with antialiasing, cut, flipped, lit, normalised: a batch of bfloat16."""

    def __init__(self, device, size, frames, batch):
        self.size, self.frames, here = size, frames, device.device
        self.out = torch.empty((batch, 3, size.out, size.out), dtype=DTYPE, device=here)
        self.number = torch.zeros((), dtype=torch.int64, device=here)
        self.chosen, self.side = torch.arange(batch, device=here), torch.arange(size.out, device=here)
        self.scale = torch.tensor([1 / (255 * each) for each in DEVIATION], device=here).view(1, 3, 1, 1)
        self.shift = torch.tensor([-mean / each for mean, each in zip(MEAN, DEVIATION)], device=here).view(1, 3, 1, 1)
        self.step = device.recorded(self.once)

    def into(self, out):
        """The next batch, written to where it is to lie."""
        self.step()
        out.copy_(self.out)

    def once(self):
        batch, spare = self.out.shape[0], self.size.resized - self.size.out + 1
        frames = self.frames[(self.number * batch + self.chosen) % self.size.frames].float()
        image = functional.interpolate(frames, size=(self.size.resized,) * 2, mode="bilinear", antialias=True)
        rows, columns = self.number * 7 % spare + self.side, self.number * 13 % spare + self.side
        image = image[:, :, rows[:, None], columns]
        chance = torch.rand((2, batch, 1, 1, 1), device=self.out.device)
        image = torch.where(chance[0] < 0.5, image, image.flip(3))
        # (image · brightness / 255 − mean) / deviation, the brightness between 0.8 and 1.2
        self.out.copy_(torch.addcmul(self.shift, image, (0.8 + 0.4 * chance[1]) * self.scale))
        self.number.add_(1)


class Block(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.first = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)])
        self.past = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.past = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.past(x))


def residual(size):
    """ResNet-18 in its size: a stem, then blocks that get narrower and deeper, an average, one layer of classes."""
    layers = [nn.Conv2d(3, size.width, 7, 2, 3, bias=False), nn.BatchNorm2d(size.width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n_in = size.width
    for stage, n_blocks in enumerate(size.blocks):
        n_out = size.width << stage
        for number in range(n_blocks):
            layers.append(Block(n_in, n_out, 2 if stage and not number else 1))
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, size.classes))


def light(size):
    """So little that how a batch comes is what counts: an average over squares of 8 × 8, two layers."""
    side = size.out // 8
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * side * side, 256), nn.ReLU(), nn.Linear(256, size.classes))


STEPS = {"light": light, "resnet": residual}


class Training:
    """A step of training: forward and backward in bfloat16 by autocast, SGD with momentum; its batch lies in a place of its own."""

    def __init__(self, device, size, kind, shape):
        self.kind = device.kind
        self.net = STEPS[kind](size).to(device.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9)
        self.labels = torch.randint(0, size.classes, (shape[0],), device=device.device)
        self.batch = torch.zeros(shape, dtype=DTYPE, device=device.device).contiguous(memory_format=torch.channels_last)
        self.step = device.recorded(self.once)

    def load(self, batch):
        """Once the stream is past this the batch's memory is free for the next."""
        self.batch.copy_(batch)

    def once(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.kind, dtype=DTYPE, cache_enabled=False):
            loss = functional.cross_entropy(self.net(self.batch).float(), self.labels)
        loss.backward()
        self.optimizer.step()


def checksum(batch):
    """Of all bits of a batch and of where each lies, as a tensor where the batch is."""
    bits = batch.contiguous().view(torch.int16).view(-1).to(torch.int64)
    return (bits * (torch.arange(bits.numel(), device=bits.device) % 8191 + 1)).sum()
