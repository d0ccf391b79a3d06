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
N = 3 * (1 << 20)  # floats


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
        consumer.tell("while True: got.sum()")
    for consumer in consumers:
        consumer.kill()
    return wrong


def worker(zygote, until, wanted, done, lock):
    while time.monotonic() < until:
        with lock:
            number = done["begun"]
            if done["killed"] >= wanted:
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


def holders(zygote, client, device, n):
    """Consumers that hold a lease on such memory and its descriptor, and have yet to map it: killed, fifty at once."""
    where = next(each.uuid for each in client.status().devices if each.kind == ("cuda" if device == "cuda" else "host"))
    share = client.allocate(N * 4, device=where)
    killed = 0
    while killed < n:
        children = [zygote.fork() for _ in range(min(50, n - killed))]
        for child in children:
            child.tell(f"buffer = gpuipc.torch._clients.client_for().open(id={share.id!r})")
        for child in children:
            child.hear()
        for child in children:
            child.kill()
        killed += len(children)
    wait_for(lambda: sum(lease.buffer == share.id for lease in client.leases()) == 1, "their leases to end")
    share.close()
    return killed


def main():
    socket, device, wanted, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    client = gpuipc.Client(socket)
    began = time.monotonic()
    with Zygote(socket, device) as zygote:
        round_(zygote, 0, 1)  # what is made once is made
        wait_for(lambda: not client.buffers(), "the first round's memory", 30)
        print(json.dumps({"ready": os.getpid()}), flush=True)
        sys.stdin.readline()
        done, lock = {"begun": 1, "killed": 0, "wrong": 0, "errors": []}, threading.Lock()
        until = began + seconds
        threads = [threading.Thread(target=worker, args=(zygote, until, wanted, done, lock)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = holders(zygote, client, device, max(0, wanted - done["killed"]))
        wait_for(lambda: not client.buffers(), "all memory back", 30)
        print(json.dumps({"killed": done["killed"], "wrong": done["wrong"], "errors": done["errors"][:3], "held": held}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
