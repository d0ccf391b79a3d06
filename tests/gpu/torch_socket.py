# SPDX-License-Identifier: Apache-2.0
"""tensorsocket as torch_compare.py measures it, where the package is there: a loader of batches, which its producer gives to its consumer.

Of the producer's batch its consumer's thread says that it has it in a queue, and only then the loader is asked for the next: that one is
outstanding at a time is its own way, and its acknowledgement comes before the consumer's program has the batch. So the latency is taken
from the loader's giving to the program's having, by the clock that both have. Nothing says when a batch has been read: its producer writes
each over the tenth before it. Where its first acknowledgement is lost, as happens, both ends wait without end: they are begun anew."""

import os
import queue
import signal
import socket
import threading
import time

import torch
from torch_ends import CONTEXT, DEVICE, differs, finish, hear, process, quantiles, said, settle, state, tell, used

NAME = "tensorsocket"
HALVES = 2  # of a batch: to make its own of one alone, its producer cannot
ATTEMPTS, BEGIN_S = 2, 6
WAIT_S = 10  # so long a consumer waits for what does not come


def missing():
    """Why it cannot be measured; None: it can."""
    try:
        import tensorsocket  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def free_ports():
    """In tensorsocket's own words."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    port, ack, *heart = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return {"port": port, "ack_port": ack, "heart_ports": tuple(heart)}


class Loader:
    """Batches of n floats, each its number, in halves; the iterator's end is the process's."""

    def __init__(self, n, items):
        self.n, self.items = n, items

    def __len__(self):
        return HALVES * (self.items + 2)  # an epoch that does not end

    def half(self, number):
        return (torch.full((1, max(1, self.n // HALVES)), float(number), dtype=torch.float32, device=DEVICE),)

    def batch(self, number):
        for _ in range(HALVES):
            yield self.half(number)


class Measured(Loader):
    """`rounds` of them one at a time, each when the consumer's program has the one before, then the rest as they are asked for."""

    def __init__(self, n, rounds, many, pace, told):
        super().__init__(n, rounds + many)
        self.rounds, self.many, self.pace, self.told = rounds, many, pace, told

    def __iter__(self):
        given, acknowledged = [], []
        for number in range(self.rounds):
            first, second = self.batch(number)
            settle()
            yield first
            given.append(time.perf_counter())
            yield second
            acknowledged.append((time.perf_counter() - given[-1]) * 1e6)  # since it is asked again
            self.pace.recv()
        began = time.perf_counter()
        for number in range(self.rounds, self.rounds + self.many):
            yield from self.batch(number)
        self.told.send((given, acknowledged, began))
        signal.pause()


def produce(loader, ports, told):
    import tensorsocket

    before = used()
    producer = tensorsocket.TensorProducer(loader, rubber_band_pct=0, producer_batch_size=HALVES, **ports)
    told.send(before)
    while True:
        for _ in producer:
            pass


def attach(ports):
    import tensorsocket

    return tensorsocket.TensorConsumer(batch_size=HALVES, **ports)


def wrong(tensor, number, whole=False):
    if not isinstance(tensor, torch.Tensor):
        return 1
    return differs(tensor, number) if whole else tensor[-1, -1] != number


def consume(rounds, many, ports, pace, result):
    consumer = attach(ports)
    had, bad = [], 0
    for number in range(rounds + many):
        tensor, = next(consumer)
        if number == 1:
            result.send("begun")
        bad += wrong(tensor, number) if number >= rounds else 0
        settle()  # or its memory might be written to while it is read
        if number < rounds:
            had.append(time.perf_counter())
            bad += wrong(tensor, number, whole=True)
            pace.send(True)
        del tensor
    result.send((had, time.perf_counter(), int(bad), used()))
    signal.pause()


class Ends:
    """A producer and a consumer, that are begun anew when they do not come to their second batch."""

    def __init__(self):
        self.producer = self.consumer = None

    def begin(self):
        for attempt in range(ATTEMPTS):
            self.ports = free_ports()
            self.told, tells = CONTEXT.Pipe(False)
            self.result, has = CONTEXT.Pipe(False)
            loader, *consumer = self.make(tells, has)
            self.producer, self.consumer = process(produce, loader, self.ports, tells), process(*consumer)
            try:
                self.producer.start()
                self.before = self.hear(self.told, 10, "beginning of the producer's")
                self.consumer.start()
                self.begun()
                return
            except TimeoutError:
                self.close()
                if attempt + 1 == ATTEMPTS:
                    raise

    def hear(self, connection, seconds, what):
        return hear(connection, seconds, what, self.producer, self.consumer)

    def close(self):
        finish(*filter(None, (self.producer, self.consumer)), seconds=0)


class MeasuredEnds(Ends):
    def __init__(self, n, rounds, many):
        super().__init__()
        self.n, self.rounds, self.many = n, rounds, many

    def make(self, tells, has):
        hears_pace, pace = CONTEXT.Pipe(False)
        return (Measured(self.n, self.rounds, self.many, hears_pace, tells), consume, self.rounds, self.many, self.ports, pace, has)

    def begun(self):
        self.hear(self.result, BEGIN_S, "second batch")


def compare(size, rounds):
    many = rounds * 2
    ends = MeasuredEnds(max(HALVES, size // 4), rounds, many)
    try:
        ends.begin()
        had, over, bad, after = ends.hear(ends.result, 12, "figures")
        given, acknowledged, began = ends.hear(ends.told, 2, "times of the producer")
        tell(way=NAME, size=size, **quantiles([(there - here) * 1e6 for here, there in zip(given, had)]), rate=many / (over - began), bad=bad,
             held=after - ends.before, acknowledged=quantiles(acknowledged)["p50"])
    finally:
        ends.close()


# ---- its producer is killed ----


class Doomed(Loader):
    """Two batches, and one more when the consumer stands still."""

    def __init__(self, n, gate, told):
        super().__init__(n, 3)
        self.gate, self.told = gate, told

    def __iter__(self):
        yield from self.batch(1)
        yield from self.batch(2)
        self.told.send("both acknowledged")
        self.gate.recv()
        yield from self.batch(3)
        signal.pause()


def outlive(ports, result, go):
    """What the tensor that was taken before, and those after it, are after the producer's end, and how long it waits for more."""
    consumer = attach(ports)
    first, = next(consumer)
    settle()
    result.send("taken")
    go.recv()
    words, taken = [f"taken before: {state(wrong, first, 1)}"], queue.Queue()

    def take():
        try:
            while True:
                taken.put(next(consumer))
        except BaseException as error:  # pylint: disable=broad-except
            taken.put(error)

    threading.Thread(target=take, daemon=True).start()
    killed, more = time.monotonic(), ["acknowledged, not yet taken", "on its way"]
    while True:
        try:
            came = taken.get(timeout=max(0.0, killed + WAIT_S - time.monotonic()))
        except queue.Empty:
            words += [f"{what}: does not come" for what in more] + [f"then nothing, and no error, within {WAIT_S} s: it waits on"]
            break
        if isinstance(came, BaseException):
            words.append(f"then {said(came)} after {time.monotonic() - killed:.1f} s")
            break
        words.append(f"{more.pop(0) if more else 'one more'}: {state(wrong, came[0], 3 - len(more))}")
    result.send("; ".join(words))


def arrived(pid, port):
    """Whether bytes lie in a socket of that process's network which came from that port."""
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file][1:]
    return any(int(row[2].split(":")[1], 16) == port and int(row[4].split(":")[1], 16) > 0 for row in rows)


class ProducerDies(Ends):
    """Killed and told in two steps, since the consumer waits for long."""

    def make(self, tells, has):
        hears_gate, self.gate = CONTEXT.Pipe(False)
        hears_go, self.go = CONTEXT.Pipe(False)
        return Doomed(1 << 20, hears_gate, tells), outlive, self.ports, has, hears_go

    def begun(self):
        self.hear(self.result, BEGIN_S, "first batch")
        self.hear(self.told, BEGIN_S, "acknowledgements")

    def kill(self):
        """When one batch was taken, one acknowledged, and one has been sent to a consumer that stands still."""
        self.begin()
        os.kill(self.consumer.pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self.consumer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.gate.send(True)
            deadline = time.monotonic() + 5
            while not arrived(self.consumer.pid, self.ports["port"]):
                if time.monotonic() > deadline:
                    raise TimeoutError("the batch that was to be on its way was not sent within 5 s")
            self.producer.kill()
            self.producer.join()
        finally:
            os.kill(self.consumer.pid, signal.SIGCONT)
        self.go.send(True)

    def tell(self):
        tell(death=NAME, outlives=False, words=hear(self.result, WAIT_S + 10, "words of the consumer", self.consumer))
