# SPDX-License-Identifier: Apache-2.0
"""What the broker adds to the driver's own time."""

from rig import GIB, MIB, size_text
from step import Step

TARGET_USEC = 50


NAMES = {"allocate": "Allocate+map", "again": "Allocate+map, each freed before the next,", "open": "Open+map"}
UNAIDED = "with nothing made ahead (SpareMax=0)"


def costs(rig):
    """The bare driver calls beside Allocate+map and Open+map, turn and turn about."""
    yield from measure(rig)
    yield from measure(rig, "--spare-max", "0")


def measure(rig, *args):
    daemon = rig.daemon(*args)
    sizes = [2 * MIB, 64 * MIB] if rig.dry else [2 * MIB, 64 * MIB, GIB]
    program = rig.program("cost", daemon.socket, "20" if rig.dry else "200", *map(str, sizes))
    for _ in range(len(NAMES) * len(sizes)):
        what, size, n, driver, bare, ours, over = program.line(100).split(" ")
        hop = f", with a hop between two processes {bare}" if what != "open" else ""
        told = rig.dry or what == "again" or args  # "again": one waits until the other's memory is cleared
        if args and what == "open":
            continue
        yield (f"{NAMES[what]} of {size_text(int(size))} by cuda-fd{', ' + UNAIDED if args else ''}, median of {n}",
               f"{ours} µs; bare driver calls {driver}{hop}; overhead {over}", "" if told else f"≤ {TARGET_USEC} µs over",
               None if told else float(over) <= TARGET_USEC)
    program.end()
    rig.stop(daemon)


STEPS = [Step("costs", 100, costs)]
