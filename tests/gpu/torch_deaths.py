# SPDX-License-Identifier: Apache-2.0
"""Producers that end first and consumers that are killed while they read, with PyTorch on this machine: lines of JSON.

    torch_deaths.py SOCKET DEVICE WANTED SECONDS"""

import json
import os
import sys
import threading
import time

import gpuipc
from daemon import wait_for
from zygote import Zygote

AT_ONCE = 4
READERS = 6  # of each producer
HOLDERS = 50  # of each tensor, killed at once
TENSORS = 5  # of each producer of what is held
KEEP_S = 120
N = 3 * (1 << 20)  # floats
# Heard when the first is given to the GPU; a thread gives more, until the process is killed.
READ = """import threading
begun = threading.Event()
def read():
    while True:
        got.sum()
        begun.set()
threading.Thread(target=read, daemon=True).start()
begun.wait()"""
# A share of what was copied for it is not kept when it is closed, as it is where a process ends in good order: so they lie in place.
MAKE = f"""tensors = [gpuipc.torch.empty({N}, device=DEVICE, keep={KEEP_S}).fill_(1) for _ in range({TENSORS})]
DEVICE == 'cuda' and torch.cuda.synchronize()
shares = [gpuipc.torch.put(tensor) for tensor in tensors]
ids = [share.buffer for share in shares]
for share in shares: share.close()"""


def round_(zygote, number, readers):
    """A producer shares and ends, or is killed; consumers that are reading are killed after it. How many of them saw other bytes."""
    producer, consumers = zygote.fork(), [zygote.fork() for _ in range(readers)]
    name, wrong = f"round-{number}", 0
    producer.run(f"tensor = torch.full(({N},), {number}.0, device=DEVICE)\nshare = gpuipc.torch.put(tensor, {name!r})")
    for consumer in consumers:
        consumer.tell(f"got = gpuipc.torch.get({name!r}, wait=30)")
    for consumer in consumers:
        consumer.hear()
    if number % 2:
        producer.kill()
    else:
        producer.end()
    for consumer in consumers:
        wrong += consumer.ask("got[-1].item()") != number
        consumer.run(READ)
    for consumer in consumers:
        consumer.kill()
    return wrong


def worker(zygote, until, most, wanted, done, lock):
    """Rounds, `most` at the most."""
    for _ in range(most):
        with lock:
            number = done["begun"]
            if done["killed"] + done["held"] >= wanted or time.monotonic() > until:
                return
            done["begun"] += 1
        try:
            wrong = round_(zygote, number, READERS)
        except Exception as error:  # pylint: disable=broad-except
            with lock:
                done["errors"].append(f"{type(error).__name__}: {str(error)[-300:]}")
            return
        with lock:
            done["killed"] += READERS
            done["wrong"] += wrong


def readers(zygote, until, most, wanted, done):
    lock = threading.Lock()
    threads = [threading.Thread(target=worker, args=(zygote, until, most, wanted, done, lock)) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Left:
    """Tensors whose producers have ended, every other one killed; each is kept until somebody has it."""

    def __init__(self, zygote, client):
        self.zygote, self.client, self.ids, self.made = zygote, client, [], 0

    def make(self, n):
        """n of them at least; their producers work at once."""
        producers = [self.zygote.fork() for _ in range((n + TENSORS - 1) // TENSORS)]
        for producer in producers:
            producer.tell(MAKE)
        for producer in producers:
            producer.hear()
            self.ids += producer.ask("ids")
            self.made += 1
            if self.made % 2:
                producer.kill()
            else:
                producer.end()

    def take(self):
        if not self.ids:
            self.make(1)
        return self.ids.pop()

    def end(self):
        for each in self.ids:
            self.client.free(id=each)


def holders(zygote, left, n):
    """Consumers that hold a lease on such memory and its descriptor, and have yet to map it: killed, many at once."""
    client, id = left.client, left.take()
    children = [zygote.fork() for _ in range(n)]
    for child in children:
        child.tell(f"buffer = gpuipc.torch._clients.client_for().open(id={id!r})")
    for child in children:
        child.hear()
    held = [lease.pid for lease in client.leases() if lease.buffer == id]
    if sorted(held) != sorted(child.pid for child in children):
        raise AssertionError(f"{len(held)} leases on {id}, not those of the {n} consumers alone")
    client.free(id=id)  # the keep ends: they alone hold it
    for child in children:
        child.kill()
    wait_for(lambda: all(buffer.id != id for buffer in client.buffers()), "the memory whose last holders were killed")
    return n


def main():
    socket, device, wanted, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    client = gpuipc.Client(socket)
    began = time.monotonic()
    done = {"begun": 1, "killed": 0, "held": 0, "wrong": 0, "errors": []}

    def say(**what):
        print(json.dumps(what), flush=True)
        sys.stdin.readline()

    with Zygote(socket, device) as zygote:
        left = Left(zygote, client)
        round_(zygote, 0, 1)  # what is made once is made
        wait_for(lambda: not client.buffers(), "the first round's memory", 30)
        say(ready=os.getpid())
        until = began + seconds
        readers(zygote, until, 1, wanted, done)
        done["held"] += holders(zygote, left, HOLDERS)
        left.end()
        left.ids.clear()
        wait_for(lambda: not client.buffers(), "the memory of the warm-up", 30)
        say(warm=done["killed"] + done["held"])
        readers(zygote, until, wanted, wanted, done)
        missing = max(0, wanted - done["killed"] - done["held"])
        left.make((missing + HOLDERS - 1) // HOLDERS)
        while done["killed"] + done["held"] < wanted:
            done["held"] += holders(zygote, left, min(HOLDERS, wanted - done["killed"] - done["held"]))
        left.end()
        wait_for(lambda: not client.buffers(), "all memory back", 30)
        say(killed=done["killed"], held=done["held"], wrong=done["wrong"], errors=done["errors"][:3])


if __name__ == "__main__":
    main()
