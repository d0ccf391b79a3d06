# SPDX-License-Identifier: Apache-2.0
"""Batches prepared in one process and trained on in another, on a GPU or on two: how many a second by each way from the one to the other.

    pipeline.py [--devices 0,0|0,1|cpu] [--place NAME] [--steps light,resnet] [--batches 1,4,...] [--slots N] [--seconds S] [--window S]
        [--tiny] FILE

The daemon is that of $GPUIPC_SOCKET. Says what comes of it by a line of JSON each, and leaves all of it in FILE, from which
pipeline_plot.py draws. Each round measures every way once, one right after the other, in an order that turns; what is told is the median
of the rounds, and a ratio is the median of the ratios within a round. A way is measured while it flows: both sides have more before and
after what is measured than can be between them."""

import argparse
import json
import os
import statistics
import sys
import time
from multiprocessing import connection

import torch
from torch import multiprocessing

import pipeline_work as work
from pipeline_ways import Shared
from pipeline_worker import Count, Setup, serve

PIPED = ("channel", "torch", "ring", "pinned")  # from one process to the other
SIDES = {"one": ("consumer",), "alone-producer": ("producer",), "alone-consumer": ("consumer",)}
FEWEST_ROUNDS, MOST_ROUNDS = 3, 9
ANSWER_S = 120


class Failed(Exception):
    """One of the two processes says so, or says nothing."""


class Pair:
    """The two processes."""

    def __init__(self, setup, context):
        self.pipes, self.processes = {}, []
        for role in ("producer", "consumer"):
            self.pipes[role], theirs = context.Pipe()
            process = context.Process(target=serve, args=(role, theirs, setup), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
        self.answers("producer", "consumer")

    def answers(self, *roles):
        """What each says, as soon as all have; one that failed is told of at once."""
        said, deadline = {}, time.monotonic() + ANSWER_S
        while len(said) < len(roles):
            waiting = [self.pipes[role] for role in roles if role not in said]
            ready = connection.wait(waiting, max(0, deadline - time.monotonic()))
            if not ready:
                raise Failed(f"no answer within {ANSWER_S} s")
            for role in roles:
                if self.pipes[role] in ready:
                    try:
                        word, value = self.pipes[role].recv()
                    except (EOFError, OSError):
                        raise Failed(f"the {role} has ended") from None
                    if word != "ok":
                        raise Failed(value)
                    said[role] = value
        return said

    def ask(self, roles, *words):
        for role in roles:
            try:
                self.pipes[role].send(words)
            except OSError:
                pass  # what it said last tells why
        return self.answers(*roles)

    def both(self, *words):
        return self.ask(("producer", "consumer"), *words)

    def end(self, seconds=20):
        """They end when they are told nothing more, or else are killed after so long."""
        for pipe in self.pipes.values():
            pipe.close()
        for process in self.processes:
            process.join(seconds)
            process.kill()
            process.join()


def say(**what):
    print(json.dumps(what), flush=True)
    return what


class Case:
    """One step at one size of batches."""

    def __init__(self, pair, options, step, batch):
        self.pair, self.slots, self.window_s, self.step, self.batch = pair, options.slots, options.window, step, batch
        self.ways = PIPED + tuple(SIDES if options.devices in ("cpu", "0,0") else ("alone-producer", "alone-consumer"))
        self.seconds_each = {}  # as the last round of a way had it
        self.rounds, self.spent = [], []  # {way: batches per second}, {way: the processors' seconds for a batch}

    def count(self, way):
        """About a window of it, but no fewer than makes a figure."""
        each, around = self.seconds_each[way], self.slots + 2 if way in PIPED else 2
        return Count(max(around, int(self.window_s / 8 / each)), max(12, int(self.window_s / each)), around)

    def once(self, way, count=None):
        count = count or self.count(way)
        side, name = SIDES.get(way, ("producer", "consumer")), way.partition("-")[0]
        found = self.pair.ask(side, "run", name, count)
        seconds = found[side[-1]][0]
        self.seconds_each[way] = seconds / count.measured
        return count.measured / seconds, sum(spent for _, spent in found.values())

    def check(self):
        """Every bit of every batch, in passes of their own; they warm up what they go through, too."""
        n = 3 * self.slots
        for way in PIPED:
            sums = self.pair.both("check", way, n)
            sent, came = sums["producer"], sums["consumer"]
            say(what="check", step=self.step, batch=self.batch, way=way, batches=n, wrong=wrong(sent, came), different=len(set(sent)))

    def measure(self, seconds):
        deadline = time.monotonic() + seconds
        for way in SIDES:
            if way in self.ways:
                self.once(way, Count(4, 8, 0))
        slower = max(self.seconds_each.values())
        self.seconds_each = {way: self.seconds_each.get(way, slower) for way in self.ways}
        began = time.monotonic()
        while len(self.rounds) < MOST_ROUNDS:
            turn = len(self.rounds) % len(self.ways)
            found = {way: self.once(way) for way in self.ways[turn:] + self.ways[:turn]}
            self.rounds.append({way: rate for way, (rate, _) in found.items()})
            self.spent.append({way: spent for way, (_, spent) in found.items()})
            spent = time.monotonic() - began
            if len(self.rounds) >= FEWEST_ROUNDS and time.monotonic() + spent / len(self.rounds) > deadline:
                break

    def figures(self, place, synchronous):
        def over(figure, rounds, digits):
            return {way: round(figure([each[way] for each in rounds]), digits) for way in self.ways}

        ratios = [{way: each["channel"] / each[way] for way in self.ways} for each in self.rounds]
        return say(what="case", place=place, step=self.step, batch=self.batch, rounds=len(self.rounds), synchronous=synchronous,
                   batches_per_s=over(statistics.median, self.rounds, 1), least=over(min, self.rounds, 1), most=over(max, self.rounds, 1),
                   channel_over=over(statistics.median, ratios, 3),
                   cpu_s_per_1000=over(lambda each: 1000 * statistics.median(each), self.spent, 4))


def wrong(sent, came):
    """How many did not come as they were sent, in their order."""
    return sum(one != other for one, other in zip(sent, came)) + abs(len(sent) - len(came))


def run(options):
    context = multiprocessing.get_context("spawn")
    size = work.TINY if options.tiny else work.FULL
    batches = [int(each) for each in options.batches.split(",")]
    devices = None if options.devices == "cpu" else [int(each) for each in options.devices.split(",")]
    shared = Shared(context, options.slots, 2 * 3 * size.out ** 2 * max(batches))
    deadline, results = time.monotonic() + options.seconds, []
    pair = Pair(Setup(devices, size, shared, os.environ.get("GPUIPC_SOCKET")), context)
    try:
        # What takes longest leaves the rest of the time to the others.
        cases = sorted(((step, batch) for step in options.steps.split(",") for batch in batches),
                       key=lambda each: (each[0] == "light", -each[1] if each[0] != "light" else each[1]))
        for number, (step, batch) in enumerate(cases):
            case = Case(pair, options, step, batch)
            until = time.monotonic() + (deadline - time.monotonic()) / (len(cases) - number)
            synchronous = any(pair.both("begin", f"pipeline-{os.getpid()}-{number}", step, batch).values())
            case.check()
            case.measure(until - time.monotonic())
            results.append(case.figures(options.place, synchronous))
            pair.both("end")
    except Failed:
        pair.end(0)
        raise
    pair.end()
    return {"place": options.place, "torch": torch.__version__, "devices": options.devices, "slots": options.slots,
            "shape": [3, size.out, size.out], "frame": [3, *size.frame], "cases": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--devices", default="0,0", help="the number of the GPU that prepares and of the one that trains, or cpu")
    parser.add_argument("--place", default="shared", help="a word for where it was, put down beside the figures")
    parser.add_argument("--steps", default="light,resnet")
    parser.add_argument("--batches", default="1,4,16,64,256")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=45, help="for all of it; it may take longer")
    parser.add_argument("--window", type=float, default=0.09, help="seconds that a way is measured for at a time")
    parser.add_argument("--tiny", action="store_true", help="small images and a small network, to see that it works")
    options = parser.parse_args()
    try:
        found = run(options)
    except Failed as failure:
        say(what="failed", why=str(failure))
        return 1
    with open(options.file, "w", encoding="utf-8") as file:
        json.dump(found, file, separators=(",", ":"))
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
