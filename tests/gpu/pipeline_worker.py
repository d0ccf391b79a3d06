# SPDX-License-Identifier: Apache-2.0
"""The two processes of the pipeline benchmark: one prepares batches, one trains on them. Each does what its pipe says, and answers."""

import collections
import contextlib
import ctypes
import signal
import sys
import time
import traceback

import torch

import pipeline_ways as ways
import pipeline_work as work

PR_SET_PDEATHSIG = 1
# `devices`: the ordinals of the producer's and the consumer's GPU; None: the processor does it
Setup = collections.namedtuple("Setup", "devices size shared socket")
Count = collections.namedtuple("Count", "warm measured after")  # batches; the ones before and after keep both sides busy meanwhile


def timed(device, count, act, ahead):
    """Seconds for the measured ones as the GPU saw them, and of the processor's for each. It is at most so many ahead of the GPU."""
    first = last = None
    behind = collections.deque()
    spent = time.process_time()
    for number in range(sum(count)):
        act()
        if number == count.warm - 1:
            first = device.mark(timing=True)
        if number == count.warm + count.measured - 1:
            last = device.mark(timing=True)
        behind.append(device.mark())
        if len(behind) > ahead:
            behind.popleft().synchronize()
    while behind:
        behind.popleft().synchronize()
    spent = time.process_time() - spent
    device.settle()
    return device.seconds(first, last), spent / sum(count)


class Worker:
    """What both have in common. `channel` makes its end of the channel, in a process that uses it."""

    def __init__(self, setup, role):
        self.device = work.Gpu(setup.devices[role]) if setup.devices else work.Host()
        self.setup = setup
        self.frames = work.frames_of(self.device, setup.size)
        self.preparation, self.ends = None, {}

    def begin(self, name, kind, batch):
        """The ends of all ways for batches of that size; whether the channel's must wait for the GPU on the processor."""
        del kind
        self.preparation = work.Preparation(self.device, self.setup.size, self.frames, batch)
        shape = tuple(self.preparation.out.shape)
        for way, end in self.made.items():
            self.ends[way] = end(self.device, self.setup.shared, shape)
        self.ends["channel"] = self.channel(self.device, self.setup, name, shape)
        return self.ends["channel"].channel.is_synchronous

    def end(self):
        self.device.settle()
        for end in self.ends.values():
            end.end()
        self.preparation, self.ends = None, {}
        self.device.forget()


class Producer(Worker):
    made = {"pinned": ways.PinnedSender, "torch": ways.TensorSender, "ring": ways.RingSender, "alone": ways.Alone}
    channel = staticmethod(ways.ChannelSender)

    def __init__(self, setup):
        super().__init__(setup, 0)

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
        super().__init__(setup, 1)

    def begin(self, name, kind, batch):
        synchronous = super().begin(name, kind, batch)
        self.training = work.Training(self.device, self.setup.size, kind, tuple(self.preparation.out.shape))
        return synchronous

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
        with contextlib.suppress(OSError):
            pipe.send(("failed", f"the {role}: {traceback.format_exc()}"))
