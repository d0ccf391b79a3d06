# SPDX-License-Identifier: Apache-2.0
"""What the two ends of each way of torch_compare.py have in common: where they work, how they are started, heard and ended."""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

import torch
import torch.multiprocessing as multiprocessing

DEVICE = sys.argv[1]
CONTEXT = multiprocessing.get_context("fork")
PR_SET_PDEATHSIG = 1


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


def quantiles(times):
    """Of µs, without those of the first rounds."""
    times = sorted(times[len(times) // 10:])
    return {"p50": times[len(times) // 2], "p99": times[len(times) - 1 - len(times) // 100]}


def differs(tensor, number):
    """Whether any element is another number; takes no memory for it."""
    low, high = tensor.aminmax()
    return (low != number) | (high != number)


def state(wrong, tensor, number):
    """In words: whether each element is as it was sent."""
    try:
        if not isinstance(tensor, torch.Tensor):
            return f"no tensor but a {type(tensor).__name__}"
        return "other bytes" if bool(wrong(tensor, number, whole=True)) else "whole"
    except Exception as error:  # pylint: disable=broad-except
        return said(error)


def said(error):
    return f"{type(error).__name__} ({(str(error).splitlines() or [''])[0][:90]})"


def _guarded(target, *arguments):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # whoever ends the driver ends them
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def process(target, *arguments):
    """A process to be started, from here, where no GPU was touched."""
    return CONTEXT.Process(target=_guarded, args=(target, *arguments))


def hear(connection, seconds, what, *ends):
    """What comes; TimeoutError when it does not, within so long or because an end has failed."""
    deadline = time.monotonic() + seconds
    while not connection.poll(0.05):
        if time.monotonic() > deadline or any(end.exitcode for end in ends):
            raise TimeoutError(f"no {what} within {seconds} s; the ends ended with {', '.join(str(end.exitcode) for end in ends)}")
    return connection.recv()


def finish(*ends, seconds=5):
    for end in ends:
        if end.pid is None:
            continue
        end.join(seconds)
        if end.is_alive():
            end.kill()
            end.join()
