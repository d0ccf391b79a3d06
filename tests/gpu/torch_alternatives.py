# SPDX-License-Identifier: Apache-2.0
"""What one uses without channels, measured with torch on this machine: a line of JSON for each way and size, half of there and back in µs.

    torch_alternatives.py ROUNDS SIZE..."""

import json
import sys
import time

import torch
import torch.multiprocessing as multiprocessing


def figures(way, size, times):
    times.sort()
    print(json.dumps({"way": way, "size": size, "p50": times[len(times) // 2], "p99": times[len(times) - 1 - len(times) // 100]}), flush=True)


def tensors_back(there, back):
    """Tensors on the GPU, as torch.multiprocessing shares them: the other process says that it can use each."""
    stream = torch.cuda.current_stream()
    while (tensor := there.get()) is not None:
        stream.synchronize()
        assert tensor.is_cuda
        del tensor
        back.put(True)


def tensors(context, size, rounds):
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=tensors_back, args=(there, back))
    process.start()
    times = []
    for _ in range(rounds + 5):
        tensor = torch.ones(max(1, size // 4), dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        started = time.perf_counter()
        there.put(tensor)
        back.get()
        times.append((time.perf_counter() - started) * 1e6 / 2)
        del tensor
    there.put(None)
    process.join()
    figures("torch.multiprocessing queue of a CUDA tensor", size, times[5:])


def host_back(shared, there, back):
    """Copies to the GPU and back into the same memory, which both have registered with CUDA."""
    pin(shared)
    tensor = torch.empty(shared.numel(), dtype=torch.float32, device="cuda")
    while there.recv():
        tensor.copy_(shared, non_blocking=True)
        torch.cuda.synchronize()
        shared.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        back.send(True)


def pin(shared):
    result = torch.cuda.cudart().cudaHostRegister(shared.data_ptr(), shared.numel() * 4, 0)
    assert int(result) == 0, result


def host(context, size, rounds):
    shared = torch.zeros(max(1, size // 4), dtype=torch.float32).share_memory_()
    hear, there = context.Pipe(False)
    answer, back = context.Pipe(False)
    process = context.Process(target=host_back, args=(shared, hear, back))
    process.start()
    pin(shared)
    tensor = torch.ones(shared.numel(), dtype=torch.float32, device="cuda")
    times = []
    for _ in range(rounds + 5):
        started = time.perf_counter()
        shared.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        there.send(True)
        answer.recv()
        tensor.copy_(shared, non_blocking=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e6 / 2)
    there.send(False)
    process.join()
    figures("pinned host memory that both share, a pipe to say so", size, times[5:])


def main():
    context = multiprocessing.get_context("spawn")
    rounds = int(sys.argv[1])
    for size in map(int, sys.argv[2:]):
        tensors(context, size, rounds)
        host(context, size, rounds)


if __name__ == "__main__":
    main()
