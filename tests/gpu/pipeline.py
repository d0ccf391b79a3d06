# SPDX-License-Identifier: Apache-2.0
"""Batches prepared in one process and trained on in another, on one GPU: how many a second by each way from the one to the other.

    pipeline.py [--device cuda|cpu] [--steps light,resnet] [--batches 1,4,...] [--slots N] [--seconds S] [--window S] [--tiny] DIRECTORY

The daemon is that of $GPUIPC_SOCKET. Says what comes of it by a line of JSON each, and leaves all of it in DIRECTORY/pipeline.json, from
which pipeline_plot.py draws. Each round measures every way once, one right after the other, in an order that turns; what is told is the
median of the rounds, and a ratio is the median of the ratios within a round."""

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
WAYS = PIPED + ("one", "alone-producer", "alone-consumer")
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
                    except EOFError:
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

    def end(self):
        """They end when they are told nothing more, or else are killed."""
        for pipe in self.pipes.values():
            pipe.close()
        for process in self.processes:
            process.join(20)
            process.kill()
            process.join()


def say(**what):
    print(json.dumps(what), flush=True)
    return what


class Case:
    """One step at one size of batches."""

    def __init__(self, pair, options, step, batch):
        self.pair, self.slots, self.window_s, self.step, self.batch = pair, options.slots, options.window, step, batch
        self.seconds_each = {}  # as the last round of a way had it
        self.rounds = []  # {way: batches per second}

    def count(self, way):
        """About a window of it, but no fewer than makes a figure; before and after as many as there are between the two."""
        each = self.seconds_each.get(way)
        if each is None:
            return Count(self.slots, self.slots, self.slots)
        return Count(max(self.slots, int(self.window_s / 8 / each)), max(12, int(self.window_s / each)), self.slots)

    def once(self, way):
        count = self.count(way)
        side, name = SIDES.get(way, ("producer", "consumer")), way.partition("-")[0]
        taken = self.pair.ask(side, "run", name, count)[side[-1]]
        self.seconds_each[way] = taken / count.measured
        return count.measured / taken

    def check(self):
        """Every bit of every batch, in passes of their own: {way: (batches, of which were not what was sent)}."""
        n = 4 * self.slots
        for way in PIPED:
            sums = self.pair.both("check", way, n)
            sent, came = sums["producer"], sums["consumer"]
            say(what="check", step=self.step, batch=self.batch, way=way, batches=n, wrong=wrong(sent, came),
                different=len(set(sent)))

    def measure(self, seconds):
        deadline = time.monotonic() + seconds
        for way in WAYS:
            self.once(way)
        began = time.monotonic()
        while len(self.rounds) < MOST_ROUNDS:
            turn = len(self.rounds) % len(WAYS)
            rates = {way: self.once(way) for way in WAYS[turn:] + WAYS[:turn]}
            self.rounds.append(rates)
            spent = time.monotonic() - began
            if len(self.rounds) >= FEWEST_ROUNDS and time.monotonic() + spent / len(self.rounds) > deadline:
                break
        return self.figures()

    def figures(self):
        rates = {way: statistics.median(each[way] for each in self.rounds) for way in WAYS}
        ratios = {way: statistics.median(each["channel"] / each[way] for each in self.rounds) for way in WAYS}
        return say(what="case", step=self.step, batch=self.batch, rounds=len(self.rounds), batches_per_s=rates, channel_over=ratios,
                   each=self.rounds)


def wrong(sent, came):
    """How many did not come as they were sent, in their order."""
    return sum(one != other for one, other in zip(sent, came)) + abs(len(sent) - len(came))


def run(options):
    context = multiprocessing.get_context("spawn")
    size = work.TINY if options.tiny else work.FULL
    batches = [int(each) for each in options.batches.split(",")]
    shared = Shared(context, options.slots, 2 * 3 * size.out ** 2 * max(batches))
    pair = Pair(Setup(options.device, size, shared, os.environ.get("GPUIPC_SOCKET")), context)
    cases = [(step, batch) for step in options.steps.split(",") for batch in batches]
    deadline, results = time.monotonic() + options.seconds, []
    for number, (step, batch) in enumerate(cases):
        case = Case(pair, options, step, batch)
        share = (deadline - time.monotonic()) / (len(cases) - number)
        until = time.monotonic() + share
        pair.both("begin", f"pipeline-{os.getpid()}-{number}", step, batch)
        case.check()
        results.append(case.measure(until - time.monotonic()))
        pair.both("end")
    pair.end()
    return {"torch": torch.__version__, "device": options.device, "slots": options.slots, "shape": [3, size.out, size.out],
            "frame": [3, *size.frame], "cases": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", default="light,resnet")
    parser.add_argument("--batches", default="1,4,16,64,256")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=95, help="for all that is measured; it may take longer")
    parser.add_argument("--window", type=float, default=0.2, help="seconds that a way is measured for at a time")
    parser.add_argument("--tiny", action="store_true", help="small images and a small network, to see that it works")
    options = parser.parse_args()
    try:
        found = run(options)
    except Failed as failure:
        say(what="failed", why=str(failure))
        return 1
    with open(f"{options.directory}/pipeline.json", "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
