# SPDX-License-Identifier: Apache-2.0
"""What a GPU that is kept busy does to the daemon's answers about another and about none: the driver has locks of the whole process."""

import os
import threading
import time

from daemon import wait_for
from rawclient import RawClient
from rig import GIB, KIB, MIB, size_text
from step import Step

HELD = 100 * GIB  # at once, where there is so much
PIECES = 5
TIMES = 10  # so much longer an answer may take that has nothing to do with the busy GPU
LONG = "on cuMem* exe=gpuipcd device=0 delay=20 global=yes"  # in a dry run: so the whole of the fake driver waits for each call


class Asker(threading.Thread):
    """Asks the daemon again and again over a connection of its own, until it is stopped."""

    def __init__(self, path):
        super().__init__()
        self.path, self.n, self.fault, self.stopped = path, 0, None, threading.Event()
        self.start()

    def run(self):
        try:
            with RawClient(self.path) as client:
                client.socket.settimeout(20)
                while not self.stopped.is_set():
                    self.ask(client)
                    self.n += 1
        except Exception as error:  # pylint: disable=broad-except
            self.fault = error

    def end(self, _seconds=0):
        self.stopped.set()
        self.join()
        if self.fault:
            raise AssertionError(f"{type(self).__name__}: {self.fault}")


class Churn(Asker):
    """Allocates and frees large buffers on one GPU."""

    def __init__(self, path, device, size):
        self.call = {"size": size, "device": device, "handle": "cuda-fd", "wait_ms": 15_000}
        super().__init__(path)

    def ask(self, client):
        leases = []
        for _ in range(PIECES):
            leases.append(client.call("Allocate", self.call)["lease"])
            client.drop_fds()
        for lease in leases:
            client.call("Release", {"lease": lease})


class Timed(Asker):
    """One answer each millisecond, and how long it took."""

    def __init__(self, path, act):
        self.act, self.times = act, []
        super().__init__(path)

    def ask(self, client):
        started = time.perf_counter()
        self.act(client)
        self.times.append((time.perf_counter() - started) * 1e3)
        self.stopped.wait(0.001)

    def figures(self):
        """(p50, worst) in ms."""
        return sorted(self.times)[len(self.times) // 2], max(self.times)


def there_and_back(device, size):
    def act(client):
        lease = client.call("Allocate", {"size": size, "device": device})["lease"]
        client.drop_fds()
        client.call("Release", {"lease": lease})
    return act


def answers(rig, daemon, others, seconds):
    """{what is asked, all at once for so long: (p50, worst)}; none waits for another's answer."""
    acts = {"GetStatus": lambda client: client.call("GetStatus"), "Allocate+Release of 64 KiB on the host": there_and_back("host", 64 * KIB)}
    for number, other in enumerate(others, 1):
        acts[f"Allocate+Release of 2 MiB on GPU {number}"] = there_and_back(other["uuid"], 2 * MIB)
    askers = {what: rig.owned(Timed(daemon.socket, act)) for what, act in acts.items()}
    time.sleep(seconds)
    for asker in askers.values():
        asker.end()
    return {what: asker.figures() for what, asker in askers.items()}


def locks(rig):
    """Nothing is made ahead, so that each allocation is a call of the driver's."""
    script = {"GPUIPC_FAKE_CUDA": f"{os.environ['GPUIPC_FAKE_CUDA']}; {LONG}"} if rig.dry else None
    daemon = rig.daemon("--spare-max", "0", memory="auto", environment=script)
    first, *others = [device for device in daemon.status()["devices"] if device["kind"] == "cuda"]
    piece = 4 * MIB if rig.dry else min(HELD, first["free_bytes"] * 7 // 10) // PIECES // MIB * MIB
    idle = answers(rig, daemon, others, 1 if rig.dry else 4)
    churn = rig.owned(Churn(daemon.socket, first["uuid"], piece))
    wait_for(lambda: churn.n > 0 or churn.fault, "a first round")
    before, started = churn.n, time.monotonic()
    busy = answers(rig, daemon, others, 2 if rig.dry else 6)
    rounds, seconds = churn.n - before, time.monotonic() - started
    churn.end()
    yield (f"GPU 0 kept busy: {PIECES} × {size_text(piece)} allocated, then freed, again and again",
           f"{rounds} times in {seconds:.1f} s", "more than 0", rounds > 0)
    for what, (p50, worst) in busy.items():
        was_p50, was_worst = idle[what]
        judged = "GPU" not in what
        good = p50 <= TIMES * was_p50 and worst <= TIMES * max(was_worst, 1)
        yield (f"{what} meanwhile", f"p50 {p50:.2f} ms, worst {worst:.1f}; with GPU 0 idle {was_p50:.2f} and {was_worst:.1f}",
               f"≤ {TIMES} times as long" if judged else "", good if judged else None)
    rig.stop(daemon)


STEPS = [Step("locks", 25, locks)]
