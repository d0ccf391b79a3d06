# SPDX-License-Identifier: Apache-2.0
"""Ways to hand tensors from one process to another, measured with PyTorch on this machine: lines of JSON. Both ends are forked from here,
where no GPU is touched. Each item is filled with its number.

    torch_compare.py DEVICE SECONDS SIZE:ROUNDS...        nothing is begun after SECONDS"""

import os
import signal
import sys
import time

import gpuipc
import gpuipc.torch
import gpuipc.torch.multiprocessing as broker
import torch
import torch_socket
from torch_ends import CONTEXT, DEVICE, differs, finish, hear, process, quantiles, said, settle, state, tell, used

WAYS = os.environ.get("GPUIPC_COMPARE_WAYS", "").split()  # the names of the classes below; all of them
TOKENS = 8  # items that may be on their way when many are
KEEP_S = 5  # what is sent stays so long after its producer's end
WHOLE = TOKENS + 2  # items of which each byte is looked at


# ---- ways: how one end sends a tensor of n floats and the other takes it ----


class Queue:
    """torch.multiprocessing's own."""

    name = "torch.multiprocessing"
    outlives = False  # its items are to outlive their producer

    def __init__(self):
        self.queue = CONTEXT.Queue()

    def producer(self, n):
        del n

    def consumer(self, n):
        del n

    def make(self, n, number):
        return torch.full((n,), float(number), dtype=torch.float32, device=DEVICE)

    def send(self, tensor):
        self.queue.put(tensor)

    def take(self):
        return self.queue.get()

    def done(self):
        pass

    def coming(self):
        """Waits until the next item can be taken."""
        deadline = time.monotonic() + 10
        while self.queue.empty():
            if time.monotonic() > deadline:
                raise TimeoutError("the second item was not sent within 10 s")

    def wrong(self, tensor, number, whole=False):
        return differs(tensor, number) if whole else tensor[-1] != number


class Ack(Queue):
    """Nothing is handed over but an int: what all the others pay for besides."""

    name = "an int over the same pipes, and the same torch calls"

    def consumer(self, n):
        self.own, self.sent = self.make(n, -1), 0
        settle()

    def make(self, n, number):
        self.sent = number
        return super().make(n, number)

    def send(self, tensor):
        self.queue.put(self.sent)

    def take(self):
        self.got = self.queue.get()
        return self.own

    def wrong(self, tensor, number, whole=False):
        return super().wrong(tensor, -1, whole) if self.got == number else 1


class Copied(Queue):
    """The same queue, tensors by way of the daemon, copied."""

    name = "the same through gpuipc, copied"
    outlives = True

    def producer(self, n):
        broker.register(devices=("cpu", "cuda"), keep=KEEP_S)

    consumer = producer


class InPlace(Copied):
    """The same, tensors that lie in buffers of their own. Those stay with their producer, unless they are made with keep=."""

    name = "the same through gpuipc, not copied"
    outlives = False
    keep = 0

    def producer(self, n):
        super().producer(n)
        self.pool = None
        self.tensors = [gpuipc.torch.empty(n, dtype=torch.float32, device=DEVICE, keep=self.keep) for _ in range(TOKENS + 1)]
        self.next = 0

    def make(self, n, number):
        self.next += 1
        return self.tensors[self.next % len(self.tensors)].fill_(number)


class Kept(InPlace):
    """The same, as one makes them that are to outlive their producer."""

    name = "the same through gpuipc, not copied, made with keep="
    outlives = True
    keep = KEEP_S


class Channel(Queue):
    """A gpuipc channel."""

    name = "gpuipc channel, copied into its slot"
    outlives = True

    def __init__(self):
        super().__init__()
        self.received = None
        self.label = f"compare-{os.getpid()}-{id(self)}"

    def producer(self, n):
        self.channel = gpuipc.torch.channel.create(self.label, slot_bytes=max(4, n * 4), slots=TOKENS, device=DEVICE)

    def consumer(self, n):
        self.channel = gpuipc.torch.channel.attach(self.label, wait=30)

    def send(self, tensor):
        self.channel.send(tensor)

    def take(self):
        self.received = self.channel.receive()
        return self.received.batch

    def done(self):
        self.received.release()

    def coming(self):
        pass


class Slot(Channel):
    name = "gpuipc channel, computed in its slot"

    def make(self, n, number):
        return n, number

    def send(self, tensor):
        n, number = tensor
        with self.channel.slot(like=self.like(n)) as slot:
            slot.fill_(number)

    def like(self, n):
        if not hasattr(self, "_like"):
            self._like = torch.empty(n, dtype=torch.float32, device=DEVICE)
        return self._like


# ---- both ends ----


def consume(way, n, rounds, many, acks):
    way.consumer(n)
    acks.send("ready")
    for _ in range(rounds):
        tensor = way.take()
        settle()
        del tensor
        way.done()
        acks.send(True)
    bad = 0
    for number in range(many + WHOLE):
        if number == many:
            settle()
            acks.send("all")
        tensor = way.take()
        bad += way.wrong(tensor, rounds + number, whole=number >= many)
        del tensor
        way.done()
        acks.send(True)
    settle()
    acks.send((int(bad), used()))


def produce(way, n, rounds, many, acks, result):
    before = used()
    way.producer(n)
    result.send("made")
    acks.recv()
    times = []
    for number in range(rounds):
        tensor = way.make(n, number)
        settle()
        started = time.perf_counter()
        way.send(tensor)
        acks.recv()
        times.append((time.perf_counter() - started) * 1e6 / 2)
        del tensor
    started, ahead = time.perf_counter(), 0
    for number in range(many):
        if ahead == TOKENS:
            acks.recv()
            ahead -= 1
        way.send(way.make(n, rounds + number))
        ahead += 1
    for _ in range(ahead + 1):
        acks.recv()
    rate = many / (time.perf_counter() - started)
    for number in range(many, many + WHOLE):
        way.send(way.make(n, rounds + number))
        acks.recv()
    bad, after = acks.recv()
    result.send({**quantiles(times), "rate": rate, "bad": bad, "held": after - before})


def compare(kind, size, rounds):
    n, way = max(1, size // 4), kind()
    theirs, acks = CONTEXT.Pipe()
    result, told = CONTEXT.Pipe(False)
    producer = process(produce, way, n, rounds, rounds * 2, acks, told)
    consumer = process(consume, way, n, rounds, rounds * 2, theirs)
    try:
        producer.start()
        hear(result, 15, "beginning of the producer's", producer)
        consumer.start()
        tell(way=way.name, size=size, **hear(result, 20, "figures", producer, consumer))
    finally:
        finish(producer, consumer)


# ---- nothing but channels: an item there and one back ----

CHANNELS = "gpuipc channels there and back, ordered by streams alone"


def back(name, n, rounds):
    there = gpuipc.torch.channel.attach(f"{name}-there", wait=30)
    home = gpuipc.torch.channel.create(f"{name}-back", slot_bytes=max(4, n * 4), slots=4, device=DEVICE)
    like = torch.empty(n, dtype=torch.float32, device=DEVICE)
    for _ in range(rounds):
        with there.receive(), home.slot(like):
            pass
    there.close()
    home.close()


def there(name, n, rounds, result):
    out = gpuipc.torch.channel.create(f"{name}-there", slot_bytes=max(4, n * 4), slots=4, device=DEVICE)
    home = gpuipc.torch.channel.attach(f"{name}-back", wait=30)
    like = torch.empty(n, dtype=torch.float32, device=DEVICE)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        with out.slot(like):
            pass
        with home.receive():
            pass
        times.append((time.perf_counter() - started) * 1e6 / 2)
    settle()
    result.send({**quantiles(times), "rate": 1e6 / (2 * sum(times) / len(times))})
    out.close()
    home.close()


def channels(size, rounds):
    """The streams are in order, nobody waits for them and nothing is computed, as the C figures are measured."""
    result, told = CONTEXT.Pipe(False)
    name, n = f"pure-{os.getpid()}-{size}", max(1, size // 4)
    ends = process(there, name, n, rounds, told), process(back, name, n, rounds)
    try:
        for end in ends:
            end.start()
        tell(way=CHANNELS, size=size, **hear(result, 15, "figures", *ends))
    finally:
        finish(*ends)


# ---- a producer that is killed ----


def die_holding(way, n, ready):
    way.producer(n)
    for number in (1, 2):
        tensor = way.make(n, number)
        settle()
        way.send(tensor)
    settle()
    ready.send(True)
    signal.pause()


def outlive(way, n, result, go):
    """What the first tensor, taken before, and the second, on its way, are after the producer's end."""
    way.consumer(n)
    first = way.take()
    settle()
    way.coming()
    result.send("taken")
    go.recv()
    words = [f"taken before: {state(way.wrong, first, 1)}"]
    del first
    way.done()
    try:
        words.append(f"on its way: {state(way.wrong, way.take(), 2)}")
    except Exception as error:  # pylint: disable=broad-except
        words.append(f"on its way: {said(error)}")
    result.send("; ".join(words))


def producer_dies(kind):
    way, n = kind(), 1 << 20
    ready, told = CONTEXT.Pipe(False)
    result, says = CONTEXT.Pipe(False)
    go_there, go = CONTEXT.Pipe(False)
    producer, consumer = process(die_holding, way, n, told), process(outlive, way, n, says, go_there)
    try:
        producer.start()
        hear(ready, 20, "beginning of the producer's", producer)
        consumer.start()
        hear(result, 20, "first item", producer, consumer)
        producer.kill()
        producer.join()
        go.send(True)
        tell(death=way.name, outlives=way.outlives, words=hear(result, 15, "words of the consumer, which waits on", consumer))
    finally:
        finish(producer, consumer, seconds=0)


# ---- all of it ----


def bounded(late, run, *arguments, **row):
    """What does not come, and what there is no time for, is a row in words. Whether it came."""
    if late():
        tell(words="not run: no time was left for it", **row)
        return False
    try:
        run(*arguments)
    except (TimeoutError, EOFError, OSError) as error:
        tell(words=f"{type(error).__name__}: {error}", **row)
        return False
    return True


def deaths(late):
    """What waits for long, waits while the others die."""
    missing = torch_socket.missing()
    slow = None if missing else torch_socket.ProducerDies()
    try:
        killed = slow and bounded(late, slow.kill, death=torch_socket.NAME, outlives=False)
        for kind in (Queue, Copied, InPlace, Kept, Channel, Slot):
            bounded(late, producer_dies, kind, death=kind.name, outlives=kind.outlives)
        if killed:
            bounded(lambda: False, slow.tell, death=torch_socket.NAME, outlives=False)
    finally:
        if slow:
            slow.close()
    if missing:
        tell(death=torch_socket.NAME, outlives=False, words=f"not here: {missing}")


def main():
    deadline = time.monotonic() + float(sys.argv[2])
    missing = torch_socket.missing()

    def late():
        return time.monotonic() > deadline

    sizes = [tuple(map(int, each.split(":"))) for each in sys.argv[3:]]
    for size, rounds in sizes:
        for kind in (Ack, Queue, Copied, InPlace, Channel, Slot):
            if not WAYS or kind.__name__ in WAYS:
                bounded(late, compare, kind, size, rounds, way=kind.name, size=size)
        if not WAYS:
            bounded(late, channels, size, rounds * 5, way=CHANNELS, size=size)
    if WAYS:
        return
    deaths(late)
    # Last, so that what it waits for takes no time from the others.
    for size, rounds in sizes:
        if missing:
            tell(way=torch_socket.NAME, size=size, words=f"not here: {missing}")
        else:
            bounded(late, torch_socket.compare, size, rounds, way=torch_socket.NAME, size=size)


if __name__ == "__main__":
    main()
