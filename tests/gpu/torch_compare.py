# SPDX-License-Identifier: Apache-2.0
"""Ways to hand tensors from one process to another, measured with PyTorch on this machine: lines of JSON. Both ends are forked from here,
where no GPU is touched.

    torch_compare.py DEVICE ROUNDS SIZE..."""

import json
import os
import signal
import sys
import time
import traceback

import gpuipc
import gpuipc.torch
import gpuipc.torch.multiprocessing as broker
import torch
import torch.multiprocessing as multiprocessing

DEVICE = sys.argv[1]
CONTEXT = multiprocessing.get_context("fork")
WAYS = os.environ.get("GPUIPC_COMPARE_WAYS", "").split()  # the names of the classes below; all of them
TOKENS = 8  # items that may be on their way when many are


def settle():
    if DEVICE == "cuda":
        torch.cuda.current_stream().synchronize()


def used():
    """Bytes of the GPU in use."""
    if DEVICE != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def tell(**row):
    print(json.dumps(row), flush=True)


# ---- ways: how one end sends a tensor of n floats and the other takes it ----


class Queue:
    """torch.multiprocessing's own."""

    name = "torch.multiprocessing"

    def __init__(self):
        self.queue = CONTEXT.Queue()

    def producer(self, n):
        del n

    def consumer(self, n):
        del n

    def make(self, n):
        return torch.ones(n, dtype=torch.float32, device=DEVICE)

    def send(self, tensor):
        self.queue.put(tensor)

    def take(self):
        return self.queue.get()

    def done(self):
        pass


class Ack(Queue):
    """Nothing is handed over but an int: what all the others pay for besides."""

    name = "an int over the same pipes, and the same torch calls"

    def consumer(self, n):
        self.own = self.make(n)
        settle()

    def send(self, tensor):
        self.queue.put(0)

    def take(self):
        self.queue.get()
        return self.own


class Copied(Queue):
    """The same queue, tensors by way of the daemon, copied."""

    name = "the same through gpuipc, copied"

    def producer(self, n):
        broker.register(devices=("cpu", "cuda"))

    consumer = producer


class InPlace(Copied):
    """The same, tensors that lie in buffers of their own."""

    name = "the same through gpuipc, not copied"

    def producer(self, n):
        super().producer(n)
        self.pool = None
        self.tensors = [gpuipc.torch.empty(n, dtype=torch.float32, device=DEVICE) for _ in range(TOKENS + 1)]
        self.next = 0

    def make(self, n):
        self.next += 1
        return self.tensors[self.next % len(self.tensors)].fill_(1)


class Channel(Queue):
    """A gpuipc channel."""

    name = "gpuipc channel, copied into its slot"

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


class Slot(Channel):
    name = "gpuipc channel, computed in its slot"

    def make(self, n):
        return n

    def send(self, tensor):
        with self.channel.slot(like=self.like(tensor)) as slot:
            slot.fill_(1)

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
    for _ in range(many):
        tensor = way.take()
        bad += tensor[-1] != 1
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
    for _ in range(rounds):
        tensor = way.make(n)
        settle()
        started = time.perf_counter()
        way.send(tensor)
        acks.recv()
        times.append((time.perf_counter() - started) * 1e6 / 2)
        del tensor
    started, ahead = time.perf_counter(), 0
    for _ in range(many):
        if ahead == TOKENS:
            acks.recv()
            ahead -= 1
        way.send(way.make(n))
        ahead += 1
    for _ in range(ahead):
        acks.recv()
    bad, _ = acks.recv()
    rate = many / (time.perf_counter() - started)
    times = sorted(times[len(times) // 10:])
    result.send({"p50": times[len(times) // 2], "p99": times[len(times) - 1 - len(times) // 100], "rate": rate, "bad": bad,
                 "held": used() - before})


def guarded(target, *arguments):
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def compare(kind, size, rounds):
    n, way = max(1, size // 4), kind()
    many = rounds * 2
    theirs, acks = CONTEXT.Pipe()
    result, told = CONTEXT.Pipe(False)
    producer = CONTEXT.Process(target=guarded, args=(produce, way, n, rounds, many, acks, told))
    producer.start()
    if not result.poll(15) or result.recv() != "made":
        raise TimeoutError("the producer does not begin")
    consumer = CONTEXT.Process(target=guarded, args=(consume, way, n, rounds, many, theirs))
    consumer.start()
    try:
        deadline = time.monotonic() + 20
        while not result.poll(0.05):
            if time.monotonic() > deadline or producer.exitcode or consumer.exitcode:
                raise TimeoutError(f"no figures; the ends ended with {producer.exitcode}, {consumer.exitcode}")
        tell(way=way.name, size=size, **result.recv())
    finally:
        for process in (producer, consumer):
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


# ---- nothing but channels: an item there and one back ----


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
    times = sorted(times[len(times) // 10:])
    result.send({"p50": times[len(times) // 2], "p99": times[len(times) - 1 - len(times) // 100],
                 "rate": 1e6 / (2 * sum(times) / len(times))})
    out.close()
    home.close()


def channels(size, rounds):
    """The streams are in order, nobody waits for them and nothing is computed, as the C figures are measured."""
    result, told = CONTEXT.Pipe(False)
    name, n = f"pure-{os.getpid()}-{size}", max(1, size // 4)
    ends = [CONTEXT.Process(target=guarded, args=(there, name, n, rounds, told)),
            CONTEXT.Process(target=guarded, args=(back, name, n, rounds))]
    for end in ends:
        end.start()
    try:
        if not result.poll(15):
            raise TimeoutError("no figures")
        tell(way="gpuipc channels there and back, ordered by streams alone", size=size, **result.recv())
    finally:
        for end in ends:
            end.join(5)
            if end.is_alive():
                end.kill()
                end.join()


# ---- a producer that is killed ----


def die_holding(way, n, ready):
    way.producer(n)
    tensor = way.make(n)
    settle()
    way.send(tensor)
    way.send(way.make(n))
    time.sleep(0.3)  # the queue's own thread sends
    ready.send(True)
    signal.pause()


def outlive(way, n, result, go):
    """What the first tensor, taken before, and the second, on its way, are after the producer's end."""
    words = []
    way.consumer(n)
    first = way.take()
    settle()
    result.send("taken")
    go.recv()
    try:
        words.append(f"taken before: {'whole' if (first == 1).all().item() else 'other bytes'}")
    except Exception as error:  # pylint: disable=broad-except
        words.append(f"taken before: {type(error).__name__}")
    del first
    way.done()
    try:
        second = way.take()
        words.append(f"on its way: {'whole' if (second == 1).all().item() else 'other bytes'}")
    except Exception as error:  # pylint: disable=broad-except
        words.append(f"on its way: {type(error).__name__} ({str(error).splitlines()[0][:90]})")
    result.send("; ".join(words))


def producer_dies(kind):
    way, n = kind(), 1 << 20
    ready, told = CONTEXT.Pipe(False)
    result, says = CONTEXT.Pipe(False)
    go_there, go = CONTEXT.Pipe(False)
    producer = CONTEXT.Process(target=guarded, args=(die_holding, way, n, told))
    producer.start()
    consumer = None
    try:
        if not ready.poll(30):
            raise TimeoutError("the producer does not begin")
        consumer = CONTEXT.Process(target=guarded, args=(outlive, way, n, says, go_there))
        consumer.start()
        if not result.poll(30) or result.recv() != "taken":
            raise TimeoutError("nothing was taken")
        producer.kill()
        producer.join()
        go.send(True)
        tell(death=way.name, words=result.recv() if result.poll(15) else "the consumer waits without end")
    finally:
        for process in (producer, consumer):
            if process is not None and process.is_alive():
                process.kill()
                process.join()


# ---- tensorsocket, where it is there ----


class Loader:
    def __init__(self, n, many):
        self.n, self.many = n, many

    def __len__(self):
        return self.many

    def __iter__(self):
        tensor = torch.ones(1, self.n, dtype=torch.float32, device=DEVICE)
        return iter([(tensor,)] * self.many)


def socket_produce(n, many, ports):
    import tensorsocket

    # In groups of two: one alone its collate() does not bear.
    producer = tensorsocket.TensorProducer(Loader(n, many), port=ports, ack_port=ports + 1, heart_ports=(ports + 2, ports + 3),
                                           producer_batch_size=2)
    while True:
        for _ in producer:
            pass


def socket_consume(n, many, ports, result):
    import tensorsocket

    consumer = tensorsocket.TensorConsumer(port=ports, ack_port=ports + 1, heart_ports=(ports + 2, ports + 3), batch_size=1)
    started, seen = None, 0
    for batch in consumer:
        del batch
        settle()
        if started is None:
            started = time.perf_counter()
        else:
            seen += 1
        if seen == many // 2:
            break
    settle()
    result.send(seen / (time.perf_counter() - started))


def tensorsocket_rate(size, many, ports):
    result, told = CONTEXT.Pipe(False)
    ends = [CONTEXT.Process(target=guarded, args=(socket_produce, max(1, size // 4), many, ports)),
            CONTEXT.Process(target=guarded, args=(socket_consume, max(1, size // 4), many, ports, told))]
    for end in ends:
        end.start()
    try:
        if result.poll(8):
            tell(way="tensorsocket", size=size, rate=result.recv())
        else:
            tell(way="tensorsocket", size=size, words="nothing came within 8 s")
    except EOFError:
        tell(way="tensorsocket", size=size, words="an end failed")
    finally:
        for end in ends:
            end.kill()
            end.join()


def main():
    rounds, sizes = int(sys.argv[2]), list(map(int, sys.argv[3:]))
    for size in sizes:
        for kind in (Ack, Queue, Copied, InPlace, Channel, Slot):
            if WAYS and kind.__name__ not in WAYS:
                continue
            try:
                compare(kind, size, rounds)
            except (TimeoutError, EOFError, OSError) as error:
                tell(way=kind.name, size=size, words=f"{type(error).__name__}: {error}")
        if WAYS:
            continue
        try:
            channels(size, rounds * 5)
        except (TimeoutError, EOFError, OSError) as error:
            tell(way="gpuipc channels there and back", size=size, words=f"{type(error).__name__}: {error}")
    if WAYS:
        return
    for kind in (Queue, Copied, Channel):
        try:
            producer_dies(kind)
        except (TimeoutError, EOFError, OSError) as error:
            tell(death=kind.name, words=f"{type(error).__name__}: {error}")
    try:
        import tensorsocket  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        tell(way="tensorsocket", size=0, words=f"not here: {error}")
        return
    for index, size in enumerate(sizes):
        tensorsocket_rate(size, rounds * 2, 25555 + 10 * index)


if __name__ == "__main__":
    main()
