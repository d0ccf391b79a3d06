# SPDX-License-Identifier: Apache-2.0
"""The two processes of the pipeline benchmark: one prepares batches, one trains on them. Each does what its pipe says, and answers."""

import collections
import ctypes
import signal
import sys
import traceback

import torch

import pipeline_ways as ways
import pipeline_work as work

PR_SET_PDEATHSIG = 1
Setup = collections.namedtuple("Setup", "kind size shared socket")
Count = collections.namedtuple("Count", "warm measured after")  # batches; the ones before and after keep both sides busy meanwhile


def timed(device, count, act, ahead):
    """Seconds for the measured ones, as the GPU saw them. The processor is at most so many ahead of it."""
    first = last = None
    behind = collections.deque()
    for number in range(sum(count)):
        act()
        if number == count.warm - 1:
            first = device.mark(timing=True)
        if number == count.warm + count.measured - 1:
            last = device.mark(timing=True)
        behind.append(device.mark())
        if len(behind) > ahead:
            behind.popleft().synchronize()
    device.settle()
    return device.seconds(first, last)


class Worker:
    """What both have in common. `channel` makes its end of the channel, in a process that uses it."""

    def __init__(self, setup, seed):
        self.device = work.Gpu() if setup.kind == "cuda" else work.Host()
        self.setup = setup
        self.preparation = work.Preparation(self.device, setup.size, seed)
        self.ends = {}

    def shape(self, batch):
        return self.preparation.shape(batch)

    def begin(self, name, kind, batch):
        """The ends of all ways for batches of that size."""
        del kind
        for way, end in self.made.items():
            self.ends[way] = end(self.device, self.setup.shared, self.shape(batch))
        self.ends["channel"] = self.channel(self.device, self.setup, name, self.shape(batch))

    def end(self):
        self.device.settle()
        for end in self.ends.values():
            end.end()
        self.ends = {}
        self.device.forget()


class Producer(Worker):
    made = {"pinned": ways.PinnedSender, "torch": ways.TensorSender, "ring": ways.RingSender, "alone": ways.Alone}
    channel = staticmethod(ways.ChannelSender)

    def __init__(self, setup):
        super().__init__(setup, 1)

    def run(self, way, count):
        end = self.ends[way]

        def act():
            self.preparation.into(end.begin())
            end.publish()

        return timed(self.device, count, act, self.setup.shared.slots)

    def check(self, way, n):
        end, sums = self.ends[way], []
        for _ in range(n):
            batch = end.begin()
            self.preparation.into(batch)
            sums.append(work.checksum(batch))
            del batch  # nobody may hold what torch.multiprocessing has been given
            end.publish()
        return torch.stack(sums).tolist()


class Consumer(Worker):
    made = {"pinned": ways.PinnedReceiver, "torch": ways.TensorReceiver, "ring": ways.RingReceiver,
            "alone": ways.Alone, "one": ways.Alone}
    channel = staticmethod(ways.ChannelReceiver)
    training = None

    def __init__(self, setup):
        super().__init__(setup, 2)

    def begin(self, name, kind, batch):
        super().begin(name, kind, batch)
        self.training = work.Training(self.device, self.setup.size, kind, self.shape(batch))

    def end(self):
        self.training = None
        super().end()

    def run(self, way, count):
        end, training = self.ends[way], self.training

        def act():
            training.load(end.take())
            end.done()
            training.step()

        def both():
            batch = end.begin()
            self.preparation.into(batch)
            training.load(batch)
            training.step()

        return timed(self.device, count, both if way == "one" else act, self.setup.shared.slots)

    def check(self, way, n):
        end, training, sums = self.ends[way], self.training, []
        for _ in range(n):
            training.load(end.take())
            end.done()
            sums.append(work.checksum(training.batch))
            training.step()
        return torch.stack(sums).tolist()


def serve(role, pipe, setup):
    """Ends with its parent, or when its pipe does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.setswitchinterval(1e-4)  # a thread that the GPU has woken does not wait for 5 ms
    try:
        worker = (Producer if role == "producer" else Consumer)(setup)
        pipe.send(("ok", None))
        while True:
            word, *arguments = pipe.recv()
            pipe.send(("ok", getattr(worker, word)(*arguments)))
    except EOFError:
        pass
    except BaseException:  # pylint: disable=broad-except
        pipe.send(("failed", f"the {role}: {traceback.format_exc()}"))
