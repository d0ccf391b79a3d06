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

AT_ONCE = 8
N = 3 * (1 << 20)  # floats


def round_(zygote, number, client):
    """A producer shares and is killed; a consumer that is reading is killed after it."""
    producer, consumer = zygote.fork(), zygote.fork()
    name = f"round-{number}"
    producer.run(f"tensor = torch.full(({N},), {number}.0, device=DEVICE)\nshare = gpuipc.torch.put(tensor, {name!r})")
    consumer.run(f"got = gpuipc.torch.get({name!r}, wait=30)")
    if number % 2:
        producer.kill()
    else:
        producer.end()
    right = consumer.ask("got[-1].item()") == number
    consumer.tell("while True: got.sum()")
    consumer.kill()
    return right


def worker(zygote, until, wanted, done, lock, client):
    while time.monotonic() < until:
        with lock:
            number = done["begun"]
            if number >= wanted:
                return
            done["begun"] += 1
        try:
            right = round_(zygote, number, client)
        except Exception as error:  # pylint: disable=broad-except
            with lock:
                done["errors"].append(f"{type(error).__name__}: {str(error)[-300:]}")
            return
        with lock:
            done["rounds"] += 1
            done["wrong"] += not right


def holders(zygote, client, n):
    """Consumers that hold a lease and its descriptor, and do not map it: killed, all at once."""
    share = client.put("held", memoryview(bytearray(4096)))
    killed = 0
    while killed < n:
        children = [zygote.fork() for _ in range(min(50, n - killed))]
        for child in children:
            child.tell("buffer = gpuipc.torch._clients.client_for().open('held', access='ro')")
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
        round_(zygote, 0, client)  # what is made once is made
        wait_for(lambda: not client.buffers(), "the first round's memory", 30)
        print(json.dumps({"ready": os.getpid()}), flush=True)
        sys.stdin.readline()
        done, lock = {"begun": 1, "rounds": 0, "wrong": 0, "errors": []}, threading.Lock()
        until = began + seconds
        threads = [threading.Thread(target=worker, args=(zygote, until, wanted, done, lock, client)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = holders(zygote, client, max(0, wanted - done["rounds"]))
        wait_for(lambda: not client.buffers(), "all memory back", 30)
        print(json.dumps({"rounds": done["rounds"], "wrong": done["wrong"], "errors": done["errors"][:3], "held": held}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
