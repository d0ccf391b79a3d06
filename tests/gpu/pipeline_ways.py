# SPDX-License-Identifier: Apache-2.0
"""The ways in which a batch comes from one process to another, each as one would write it who wants it fast.

A sender's begin() gives the tensor to write, publish() sends it; a receiver's take() gives the tensor to read, done() gives it back. Each
is called on the working stream, and what it gives is in that stream's order: nobody waits for the GPU but where a way cannot do without.
By every way there are at most so many batches between the two as there are slots, from begin() until the stream is past done()."""

import mmap
import os
import queue
import threading

import gpuipc
import torch

from pipeline_work import DTYPE

PATIENCE_S = 60  # no wait for the other process is longer


class Shared:
    """What both processes are given when they are made."""

    def __init__(self, context, slots, largest):
        self.slots, self.largest = slots, largest  # bytes of the largest batch
        self.free, self.ready = context.Semaphore(slots), context.Semaphore(0)
        self.tensors, self.back = context.SimpleQueue(), context.SimpleQueue()
        self.memory = os.memfd_create("pipeline")
        os.truncate(self.memory, slots * largest)
        self.path = f"/proc/{os.getpid()}/fd/{self.memory}"

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "memory"}


def wait_for(semaphore):
    if not semaphore.acquire(timeout=PATIENCE_S):
        raise TimeoutError("nothing came from the other process")


class Finisher:
    """Does what is to be done when the GPU has come to a mark, in the order given, while its owner goes on."""

    def __init__(self):
        self.queue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while (given := self.queue.get()) is not None:
            mark, action = given
            mark.synchronize()
            action()
            del given, mark, action

    def add(self, mark, action):
        self.queue.put((mark, action))

    def end(self):
        self.queue.put(None)
        self.thread.join(PATIENCE_S)


class Way:
    """One end of one way; `shape` is a batch's."""

    def __init__(self, device, shared, shape):
        self.device, self.shared, self.shape, self.n = device, shared, shape, 0

    def turn(self):
        """The next slot's number."""
        self.n += 1
        return (self.n - 1) % self.shared.slots

    def ring(self):
        return [torch.empty(self.shape, dtype=DTYPE, device=self.device.device) for _ in range(self.shared.slots)]

    def end(self):
        pass


# ---- pinned host memory and a queue ---------------------------------------------------------------------------
# One ring in shared memory that both have registered with CUDA, copied to and from by streams of their own. Its order is that of the
# slots, so the queue need only count: two semaphores.


class Pinned(Way):
    mapped = None  # once for a process: registering takes long

    def __init__(self, device, shared, shape):
        super().__init__(device, shared, shape)
        if Pinned.mapped is None:
            with open(shared.path, "r+b") as file:
                Pinned.mapped = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
            device.pin(Pinned.mapped)
        n_bytes = 2 * torch.Size(shape).numel()
        self.host = [Pinned.mapped[i * shared.largest:][:n_bytes].view(DTYPE).view(shape) for i in range(shared.slots)]
        self.here, self.copying, self.finisher = self.ring(), device.side(), Finisher()

    def end(self):
        self.finisher.end()


class PinnedSender(Pinned):
    def begin(self):
        wait_for(self.shared.free)
        self.slot = self.turn()
        return self.here[self.slot]

    def publish(self):
        written = self.device.mark()
        with self.device.on(self.copying):
            self.device.follow(written)
            self.host[self.slot].copy_(self.here[self.slot], non_blocking=True)
            self.finisher.add(self.device.mark(), self.shared.ready.release)


class PinnedReceiver(Pinned):
    def take(self):
        wait_for(self.shared.ready)
        self.slot = self.turn()
        with self.device.on(self.copying):
            self.here[self.slot].copy_(self.host[self.slot], non_blocking=True)
            copied = self.device.mark()
        self.device.follow(copied)
        return self.here[self.slot]

    def done(self):
        self.finisher.add(self.device.mark(), self.shared.free.release)


# ---- torch.multiprocessing ------------------------------------------------------------------------------------
# A queue of tensors. It is a SimpleQueue since that sends in the thread that puts: the event by which torch orders the reader after the
# writer is one of the sending thread's current stream, and a Queue's own thread has another. The receiver drops its reference as soon as
# its stream has read the tensor, as the documentation demands, by a thread: torch waits for the current stream when it frees one.


class TensorSender(Way):
    def begin(self):
        wait_for(self.shared.free)
        self.tensor = torch.empty(self.shape, dtype=DTYPE, device=self.device.device)
        return self.tensor

    def publish(self):
        self.shared.tensors.put(self.tensor)
        self.tensor = None


class TensorReceiver(Way):
    def __init__(self, device, shared, shape):
        super().__init__(device, shared, shape)
        self.finisher, self.held = Finisher(), []

    def take(self):
        self.held = [self.shared.tensors.get()]
        return self.held[0]

    def done(self):
        held, free = self.held, self.shared.free
        self.held = []

        def drop():
            held.clear()
            free.release()

        self.finisher.add(self.device.mark(), drop)

    def end(self):
        self.finisher.end()


# ---- torch.multiprocessing by hand ----------------------------------------------------------------------------
# What one comes to who is not content with that: tensors and events are sent once, and then the order is that of the slots, counted by
# two semaphores. Events of another process need its /dev/shm and its user; whoever dies leaves the other waiting.


class Ring(Way):
    def wait(self, semaphore, event):
        wait_for(semaphore)
        self.slot = self.turn()
        if self.device.kind == "cuda":
            self.device.follow(event[self.slot])
        return self.here[self.slot]

    def tell(self, semaphore, event):
        if self.device.kind == "cuda":
            event[self.slot].record()
        semaphore.release()

    def events(self):
        if self.device.kind != "cuda":
            return []
        events = [torch.cuda.Event(interprocess=True) for _ in range(self.shared.slots)]
        for event in events:
            event.record()
        return events


class RingSender(Ring):
    def __init__(self, device, shared, shape):
        super().__init__(device, shared, shape)
        self.here, self.written = self.ring(), self.events()
        shared.tensors.put((self.here, self.written))
        self.read = shared.back.get()

    def begin(self):
        return self.wait(self.shared.free, self.read)

    def publish(self):
        self.tell(self.shared.ready, self.written)


class RingReceiver(Ring):
    def __init__(self, device, shared, shape):
        super().__init__(device, shared, shape)
        self.here, self.written = shared.tensors.get()
        self.read = self.events()
        shared.back.put(self.read)

    def take(self):
        return self.wait(self.shared.ready, self.written)

    def done(self):
        self.tell(self.shared.free, self.read)


# ---- a channel ------------------------------------------------------------------------------------------------
# The batch is written to the slot itself, and what a slot is as a tensor is found out once for each. Streams wait, processors do not.


class Channel(Way):
    def __init__(self, device, setup, name, shape):
        super().__init__(device, setup.shared, shape)
        self.client, self.views = gpuipc.Client(setup.socket), {}
        self.channel = self.join(name, 2 * torch.Size(shape).numel())

    def view(self, item):
        if item.slot not in self.views:
            self.views[item.slot] = item.array(self.shape, "bfloat16").torch()
        return self.views[item.slot]

    def end(self):
        self.item = None
        self.views.clear()
        self.channel.close()
        self.client.close()


class ChannelSender(Channel):
    def join(self, name, n_bytes):
        return self.client.channel_create(name, slots=self.shared.slots, slot_bytes=n_bytes, device=self.device.uuid)

    def begin(self):
        self.item = self.channel.item(PATIENCE_S, stream=self.device.handle)
        return self.view(self.item)

    def publish(self):
        self.item.publish()


class ChannelReceiver(Channel):
    def join(self, name, n_bytes):
        del n_bytes
        return self.client.channel_attach(name, wait=PATIENCE_S)

    def take(self):
        self.item = self.channel.take(PATIENCE_S, stream=self.device.handle)
        return self.view(self.item)

    def done(self):
        self.item.release()


# ---- within one process ---------------------------------------------------------------------------------------


class Alone(Way):
    """Nobody at the other end: a ring of one's own. What is written is dropped, what is read was there."""

    def __init__(self, device, shared, shape):
        super().__init__(device, shared, shape)
        self.here = self.ring()
        for tensor in self.here:
            tensor.normal_()

    def begin(self):
        return self.here[self.turn()]

    take = begin

    def publish(self):
        pass

    done = publish
