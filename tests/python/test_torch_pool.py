# SPDX-License-Identifier: Apache-2.0
"""Pools: what is shared where it lies, what is copied, and that memory is not given out again while others read it. On the host the blocks
are a pool's and the pieces the test's own; on a GPU they are PyTorch's. deadline: 300 s"""

import contextlib
import ctypes
import gc
import os
import threading
import unittest
import unittest.mock

from rawclient import WAIT_S
from torchtest import CUDA, DEVICE, TorchTest, cuda_only, settle, wait_for
from zygote import Zygote

import gpuipc
import gpuipc.torch
import torch
from gpuipc.torch import _compat, _pool, _share

MIB = 1 << 20
BIG = 12 * MIB // 4  # floats; a block of its own, and PyTorch cuts nothing off


class Cutter:
    """A pool's functions, called as PyTorch calls them, for host memory."""

    def __init__(self, client):
        core = _pool._Core(client, _pool._native.PoolOptions(struct_size=ctypes.sizeof(_pool._native.PoolOptions)))
        self.take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(core.functions[0])
        self.give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(core.functions[1])

    def block(self, size):
        address = self.take(size, -1, None)
        assert address
        return address

    @staticmethod
    def piece(address, n, dtype=torch.float32):
        return torch.frombuffer((ctypes.c_char * n).from_address(address), dtype=dtype)


@unittest.skipIf(CUDA, "of host memory alone")
class CutTest(TorchTest):
    def setUp(self):
        self.cutter = Cutter(self.torch_client())
        self.address = self.cutter.block(4096)

    def tearDown(self):
        self.cutter.give(self.address, 4096, -1, None)
        super().tearDown()

    def test_all_of_a_block(self):
        whole = Cutter.piece(self.address, 4096)
        whole.fill_(2)
        with gpuipc.torch.put(whole.view(32, 32), copy=False) as share:
            child = self.zygote.fork()
            child.run(f"got = gpuipc.torch.get(id={share.id!r})")
            self.assertEqual(child.ask("(got.sum().item(), list(got.shape))"), [2048, [32, 32]])
            whole[5] = 7
            self.assertEqual(child.ask("got[0, 5].item()"), 7)
            child.kill()

    def test_a_piece_is_copied(self):
        for start, n in ((0, 2048), (0, 4092), (1024, 1024), (2048, 2048)):
            piece = Cutter.piece(self.address + start, n)
            with self.subTest(start=start, n=n):
                with gpuipc.torch.put(piece) as share:
                    self.assertTrue(share.copied)
                    self.assertIn("beside it", share.reason)
                    self.assertNotEqual(share.buffer, _pool.find(self.address).buffer)
                with self.assertRaisesRegex(BufferError, "neighbours=True"):
                    gpuipc.torch.put(piece, copy=False)

    def test_neighbours_may_be_seen(self):
        first, second = Cutter.piece(self.address, 1024), Cutter.piece(self.address + 1024, 2048, torch.int16)
        first.fill_(1)
        second.fill_(9)
        with gpuipc.torch.put(second, neighbours=True) as share:
            self.assertEqual((share.copied, share.buffer), (False, _pool.find(self.address).buffer))
            got = gpuipc.torch.get(id=share.id)
            self.assertEqual((got.data_ptr(), got.sum().item()), (second.data_ptr(), 9 * 1024))
            self.assertEqual(first.sum().item(), 256)
            del got

    def test_beyond_a_block(self):
        self.assertIsNone(_pool.find(self.address + 4096))
        self.assertIsNone(_pool.find(0))
        self.assertIsNone(_pool.find(torch.ones(1).data_ptr()))

    def test_pools_need_a_gpu(self):
        pool = gpuipc.torch.pool()
        self.assertIs(pool, gpuipc.torch.pool())
        self.assertIsNot(pool, gpuipc.torch.pool(mode="0640"))
        self.assertEqual((pool.bytes, pool.failures, pool.error), (0, 0, None))
        if torch.cuda.is_available():
            return
        with self.assertRaisesRegex(RuntimeError, r"torch\.empty\(\)" if _compat.version() >= (2, 6) else "MemPool"):
            with pool:
                pass

    def test_dead_process_s_pool(self):
        child = self.zygote.fork()
        child.run("import ctypes\nfrom gpuipc.torch import _pool, _clients\n"
                  "options = _pool._native.PoolOptions(struct_size=ctypes.sizeof(_pool._native.PoolOptions))\n"
                  "core = _pool._Core(_clients.client_for(), options)\n"
                  "take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(core.functions[0])\n"
                  "memory = torch.frombuffer((ctypes.c_char * 4096).from_address(take(4096, -1, None)), dtype=torch.uint8)\n"
                  "share = gpuipc.torch.put(memory, 'of-a-pool', keep=60)")
        got = gpuipc.torch.get("of-a-pool")
        child.end()
        self.assertEqual(got.sum().item(), 0)  # who has it has it
        del got
        wait_for(lambda: len(self.buffers()) == 2, "the pool's memory to go")
        with self.assertRaisesRegex(FileNotFoundError, "keep="):
            gpuipc.torch.get("of-a-pool")
        self.client.free("of-a-pool")


class StandIn(str):
    uses = 1

    @property
    def id(self):
        return 0, self

    def use_count(self):
        return self.uses


@unittest.skipIf(CUDA, "where there is no PyTorch with CUDA")
class StandInTest(TorchTest):
    """A stand-in for what PyTorch has of pools, to see what it is asked for."""

    def setUp(self):
        self.asked = asked = []
        self.current = 0
        recording = set()

        @contextlib.contextmanager
        def on(ordinal):
            before, self.current = self.current, ordinal
            yield
            self.current = before

        @contextlib.contextmanager
        def use_mem_pool(pool, device=None):
            if pool in recording:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            recording.add(pool)
            asked.append(("use", pool, device))
            try:
                yield
            finally:
                recording.remove(pool)
                asked.append(("used", pool))

        def mem_pool(allocator, **options):
            asked.append(("pool", allocator, self.current, options))
            return StandIn(f"pool {len(asked)}")

        stand_ins = {"torch.cuda.MemPool": mem_pool, "torch.cuda.use_mem_pool": use_mem_pool, "torch.cuda.is_available": lambda: True,
                     "torch.cuda.init": lambda: None, "torch.cuda.current_device": lambda: self.current, "torch.cuda.device": on,
                     "torch._C._cuda_customAllocator": lambda *functions: functions,
                     "gpuipc.torch._expandable._configure": lambda text: asked.append(("configure", text))}
        for name, stand_in in stand_ins.items():
            self.patch(name, stand_in)

    def patch(self, name, stand_in):
        patch = unittest.mock.patch(name, stand_in, create=True)
        patch.start()
        self.addCleanup(patch.stop)

    def test_made_once_and_entered(self):
        pool = gpuipc.torch.Pool(self.client, device=1)
        with pool, pool:
            pass
        with pool:
            pass
        functions = self.asked[0][1]
        self.assertEqual(self.asked, [("pool", functions, 1, {}), ("use", "pool 1", 1), ("used", "pool 1"), ("use", "pool 1", 1),
                                      ("used", "pool 1")])
        self.assertEqual(functions, pool._core.functions)
        other = gpuipc.torch.Pool(self.client, split=False)
        with other:
            self.assertEqual(self.asked[-2], ("pool", other._core.functions, 0, {"no_split": True}))
        self.assertNotEqual(other._core.functions[0], functions[0])

    def test_which_gpu(self):
        """PyTorch has a pool's allocator for one GPU, and says nothing when it takes memory of another its own way."""
        pool = gpuipc.torch.pool()
        self.current = 1
        other = gpuipc.torch.pool()
        self.assertIsNot(pool, other)
        for named in ("cuda", "cuda:1", torch.device("cuda", 1), 1):
            self.assertIs(gpuipc.torch.pool(device=named), other)
        for each, ordinal in ((pool, 0), (other, 1)):
            self.asked.clear()
            with each:
                self.assertEqual([self.asked[0][2], self.asked[1][2]], [ordinal, ordinal])
        with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "^device: .*'cpu'"):
            gpuipc.torch.pool(device="cpu")

    def test_threads_at_once(self):
        """PyTorch bears but one `with` of each of its pools at a time."""
        pool, failures, inside, out = gpuipc.torch.Pool(self.client), [], threading.Barrier(3), threading.Barrier(3)

        def work():
            try:
                with pool, pool:
                    inside.wait(2 * WAIT_S)
                    out.wait(2 * WAIT_S)
            except BaseException as error:
                failures.append(repr(error))
                inside.abort()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(2 * WAIT_S)
        self.assertEqual(sum(each[0] == "pool" for each in self.asked), 2)
        self.assertFalse(pool.empty_cache())
        out.wait(2 * WAIT_S)
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        with pool:
            self.assertEqual(sum(each[0] == "pool" for each in self.asked), 2)
            with pool.using(pool.mem_pool) as there:
                self.assertTrue(there)
        with unittest.mock.patch("torch.cuda.empty_cache", lambda: None):
            self.assertTrue(pool.empty_cache())

    def test_emptied(self):
        pool = gpuipc.torch.Pool(self.client)
        self.assertTrue(pool.empty_cache())  # nothing was made yet
        with unittest.mock.patch("torch.cuda.empty_cache", lambda: self.asked.append(("emptied",))):
            with pool:
                self.assertFalse(pool.empty_cache())
            pool.mem_pool.uses = 2
            self.assertFalse(pool.empty_cache())
            pool.mem_pool.uses = 1
            self.assertTrue(pool.empty_cache())
        self.assertEqual(self.asked[-1], ("emptied",))
        with pool:
            self.assertEqual([each[0] for each in self.asked], ["pool", "use", "used", "emptied", "pool", "use"])

    def segment(self, *pieces):
        pool = gpuipc.torch.Pool(self.client)
        blocks = [{"size": size, "state": state} for size, state in pieces]
        self.patch("torch.cuda.memory_snapshot", lambda: [{"address": 4096, "blocks": blocks, "segment_pool_id": list(pool.mem_pool.id)}])
        return _pool.Block(4096, sum(size for size, _ in pieces), "b1")

    def test_what_is_left_of_a_block(self):
        given = []

        def empty(n, dtype, device):
            return unittest.mock.Mock(size=n, data_ptr=lambda: given.pop(0))

        self.patch("torch.empty", empty)
        self.patch("torch.cuda.device", contextlib.nullcontext)
        tensor = unittest.mock.Mock()
        self.assertEqual(_pool._alone(self.segment((100, "active_allocated")), tensor), [])
        block = self.segment((100, "active_allocated"), (50, "inactive"))
        given[:] = [1, 2, 4196, 3]
        (rest,) = _pool._alone(block, tensor)
        self.assertEqual((rest.size, given), (50, [3]))
        given[:] = list(range(1, 50))
        self.assertIsNone(_pool._alone(block, tensor))
        for pieces in ([(100, "active_allocated"), (50, "active_allocated")], [(10, "active_allocated"), (50, "inactive")],
                       [(100, "active_allocated"), (10, "inactive"), (10, "inactive")]):
            self.assertIsNone(_pool._alone(self.segment(*pieces), tensor))
        self.assertIsNone(_pool._alone(_pool.Block(8192, 100, "b1"), tensor))

    def test_cannot_be_told_not_to_split(self):
        with unittest.mock.patch("torch.cuda.MemPool", lambda allocator: None):
            with self.assertRaisesRegex(RuntimeError, "no_split"):
                gpuipc.torch.Pool(self.client, split=False).mem_pool

    def test_expandable_segments_are_off_meanwhile(self):
        pool = gpuipc.torch.Pool(self.client)
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            with unittest.mock.patch.dict(os.environ, {variable: "max_split_size_mb:64,expandable_segments:True"}):
                self.asked.clear()
                with pool:
                    with pool:
                        pass
                    self.assertEqual([each[1] for each in self.asked if each[0] == "configure"],
                                     ["max_split_size_mb:64,expandable_segments:False"])
                self.assertEqual(self.asked[-1], ("configure", "max_split_size_mb:64,expandable_segments:True"))
        self.asked.clear()
        with unittest.mock.patch.dict(os.environ, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}), pool:
            pass
        self.assertNotIn("configure", [each[0] for each in self.asked])

    def test_out_of_memory_says_why(self):
        pool = gpuipc.torch.Pool(self.client)
        take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)(pool._core.functions[0])
        with self.assertRaises(torch.cuda.OutOfMemoryError) as caught, pool:
            self.assertIsNone(take(1 << 50, -1, None))
            raise torch.cuda.OutOfMemoryError("out of memory")
        self.assertIsInstance(caught.exception.__cause__, gpuipc.Error)
        self.assertEqual((pool.failures, str(pool.error)), (1, str(caught.exception.__cause__)))
        with self.assertRaises(torch.cuda.OutOfMemoryError) as caught, pool:
            raise torch.cuda.OutOfMemoryError("somebody else's")
        self.assertIsNone(caught.exception.__cause__)


@cuda_only
class PoolTest(TorchTest):
    def new(self, *shape, pool=None, **options):
        with pool or gpuipc.torch.pool():
            return torch.empty(*shape, device=DEVICE, **options)

    def test_not_copied(self):
        tensor = self.new(BIG).fill_(1)
        with gpuipc.torch.put(tensor, "big", copy=False) as share:
            self.assertEqual(_pool.find(tensor.data_ptr()).buffer, share.buffer)
            here = gpuipc.torch.get("big")
            self.assertEqual(here.data_ptr(), tensor.data_ptr())
            del here
            child = self.partner()
            child.run("got = gpuipc.torch.get('big')")
            self.assertEqual(child.ask("got.sum().item()"), BIG)
            tensor.fill_(5)
            settle()
            self.assertEqual(child.ask("got.sum().item()"), 5 * BIG)
            child.run("got.mul_(2); torch.cuda.synchronize()")
            self.assertEqual(tensor.sum().item(), 10 * BIG)
            child.clear()

    def test_neighbours(self):
        first, second = self.new(1000).fill_(1), self.new(1000).fill_(2)
        self.assertEqual(_pool.find(first.data_ptr()), _pool.find(second.data_ptr()))
        with gpuipc.torch.put(first) as share:
            self.assertIn("beside it", share.reason)
            self.assertEqual(gpuipc.torch.get(id=share.id).sum().item(), 1000)
        with gpuipc.torch.put(second, neighbours=True, copy=False) as share:
            got = gpuipc.torch.get(id=share.id)
            self.assertEqual((got.data_ptr(), got.sum().item()), (second.data_ptr(), 2000))
            del got
        # Alone in its block for now, but PyTorch would put others there.
        lonely = self.new(3 * MIB, dtype=torch.uint8)
        with gpuipc.torch.put(lonely) as share:
            self.assertTrue(share.copied)

    def test_what_is_left_of_a_block_is_kept_free(self):
        """64x3x224x224 floats: PyTorch cuts off what is left of the block, and would give it to others."""
        batch = self.new(64, 3, 224, 224).fill_(1)
        block = _pool.find(batch.data_ptr())
        self.assertGreater(block.size - batch.numel() * 4, MIB)
        with gpuipc.torch.put(batch, copy=False) as share:
            others = [self.new(block.size - batch.numel() * 4, dtype=torch.uint8) for _ in range(4)]
            self.assertNotIn(block, [_pool.find(other.data_ptr()) for other in others])
            with self.client.open(id=share.buffer, access="ro") as buffer:
                self.assertEqual(buffer.read(-1, batch.numel() * 4).count(0), block.size - batch.numel() * 4)
        del share
        wait_for(lambda: _share.pinned() == 0, "the memory to be let go")
        again = self.new(block.size - batch.numel() * 4, dtype=torch.uint8)
        self.assertEqual(_pool.find(again.data_ptr()), block)
        with gpuipc.torch.put(batch) as share:  # now it has a neighbour
            self.assertTrue(share.copied)

    def test_one_block_a_tensor(self):
        try:
            pool = gpuipc.torch.pool(split=False)
            tensors = [self.new(100, pool=pool).fill_(n) for n in range(3)]
        except RuntimeError as error:
            self.assertIn("no_split", str(error))
            self.skipTest(str(error))
        for n, tensor in enumerate(tensors):
            with gpuipc.torch.put(tensor, copy=False) as share:
                self.assertEqual(gpuipc.torch.get(id=share.id).sum().item(), 100 * n)
        self.assertEqual(len({_pool.find(tensor.data_ptr()) for tensor in tensors}), 3)

    def test_what_was_there_before_is_not_given_away(self):
        old = self.new(12 * MIB, dtype=torch.uint8).fill_(0xAA)
        block = _pool.find(old.data_ptr())
        del old
        tensor = self.new(12 * MIB - 700_000, dtype=torch.uint8).fill_(1)
        self.assertEqual(tensor.data_ptr(), block.pointer)
        with gpuipc.torch.put(tensor, copy=False) as share:
            with self.client.open(id=share.buffer, access="ro") as buffer:
                self.assertEqual(buffer.read(700_000, 12 * MIB - 700_000), bytes(700_000))
                self.assertEqual(buffer.read(10), b"\x01" * 10)

    def test_reuse(self):
        """A producer frees and makes new tensors while consumers read."""
        children = [self.zygote.fork() for _ in range(3)]
        for child in children:
            child.run("torch.zeros(1, device=DEVICE)")
        for round_ in range(4):
            tensor = self.new(BIG).fill_(100 + round_)
            address = tensor.data_ptr()
            with gpuipc.torch.put(tensor) as share:
                self.assertFalse(share.copied)
                for child in children:
                    child.run(f"got = gpuipc.torch.get(id={share.id!r})")
            del tensor, share
            gc.collect()
            for child in children:
                child.tell("bad = sum((got != " + str(100 + round_) + ").sum().item() for _ in range(200))")
            others = []
            for _ in range(40):
                others.append(self.new(BIG).fill_(-1))
                self.assertNotEqual(others[-1].data_ptr(), address)
                if len(others) > 3:
                    others.pop(0)
            settle()
            for child in children:
                child.hear()
                self.assertEqual(child.ask("bad"), 0)
            for child in children[1:]:
                child.run("del got")
            self.assertEqual(_share.pinned(), 1)
            children[0].run("del got")
            wait_for(lambda: _share.pinned() == 0, "the memory to be let go")
            del others
            # And from then on it is given out again.
            again = [self.new(BIG) for _ in range(8)]
            self.assertIn(address, [each.data_ptr() for each in again])
            del again

    def test_reuse_would_be_seen(self):
        """The same without what keeps the memory: so the test above could fail."""
        child = self.partner()
        tensor = self.new(BIG).fill_(3)
        share = gpuipc.torch.put(tensor)
        child.run(f"got = gpuipc.torch.get(id={share.id!r})")
        share.close()
        _share._pinned.clear()
        del tensor, share
        gc.collect()
        again = [self.new(BIG).fill_(-1) for _ in range(4)]
        settle()
        self.assertNotEqual(child.ask("(got != 3).sum().item()"), 0)
        child.clear()
        del again

    def test_autograd(self):
        with gpuipc.torch.pool():
            weight = torch.nn.Parameter(torch.full((2048, 2048), 0.5, device=DEVICE))
        with gpuipc.torch.put(weight, "weight", copy=False):
            child = self.partner()
            child.run("weight = gpuipc.torch.get('weight')")
            optimizer = torch.optim.SGD([weight], lr=0.25)
            with gpuipc.torch.pool():
                loss = (torch.ones(2048, 2048, device=DEVICE) * weight).sum()
            loss.backward()
            optimizer.step()
            settle()
            self.assertEqual(child.ask("weight.unique().tolist()"), [0.25])
            child.clear()
        del weight, loss, optimizer

    def test_graphs(self):
        source = torch.ones(BIG, device=DEVICE)
        pool = gpuipc.torch.pool()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), pool:
            result = torch.empty(BIG, device=DEVICE)
            torch.mul(source, 2, out=result)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.mem_pool.id):
            torch.mul(source, 2, out=result)
            made = result + 1
        graph.replay()
        settle()
        child = self.partner()
        with gpuipc.torch.put(result, "result", copy=False), gpuipc.torch.put(made, "made", neighbours=True) as share:
            child.run("result, made = gpuipc.torch.get('result'), gpuipc.torch.get('made')")
            self.assertFalse(share.copied)
            for n in (1, 4, 9):
                source.fill_(n)
                graph.replay()
                settle()
                self.assertEqual(child.ask("(result.unique().tolist(), made.unique().tolist())"), [[2 * n], [2 * n + 1]])
            child.clear()
        del graph, result, made

    def test_memory_goes_back(self):
        tensors = [self.new(BIG) for _ in range(4)]
        self.assertGreaterEqual(gpuipc.torch.pool().bytes, 4 * BIG * 4)
        with gpuipc.torch.pool() as pool:
            self.assertFalse(pool.empty_cache())
        del tensors[1:]
        gc.collect()
        self.assertTrue(pool.empty_cache())
        self.assertEqual(pool.bytes, BIG * 4)
        more = self.new(BIG).fill_(1)
        self.assertEqual(pool.bytes, 2 * BIG * 4)
        del tensors, more
        gc.collect()
        self.assertTrue(pool.empty_cache())
        self.assertEqual(pool.bytes, 0)

    def test_out_of_memory(self):
        pool = gpuipc.torch.pool()
        failures = pool.failures
        with self.assertRaises(torch.cuda.OutOfMemoryError) as caught:
            with pool:
                torch.empty(1 << 40, dtype=torch.uint8, device=DEVICE)
        self.assertIsInstance(caught.exception.__cause__, gpuipc.errors.OutOfMemoryError)
        self.assertGreater(pool.failures, failures)
        self.assertIsInstance(pool.error, gpuipc.Error)
        self.new(BIG).fill_(1)
        settle()

    def test_threads(self):
        failures = []

        def work(n):
            try:
                for _ in range(10):
                    tensor = self.new(BIG).fill_(n)
                    with gpuipc.torch.put(tensor, copy=False) as share:
                        got = gpuipc.torch.get(id=share.id)
                        if got.data_ptr() != tensor.data_ptr() or got[0].item() != n:
                            failures.append("wrong")
                        del got
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_outlives_its_process(self):
        child = self.zygote.fork()
        child.run(f"with gpuipc.torch.pool(keep=60): tensor = torch.empty({BIG}, device=DEVICE).fill_(6)\n"
                  "share = gpuipc.torch.put(tensor, 'outlives', copy=False, keep=60)")
        child.kill()
        wait_for(lambda: not self.client.leases(), "its leases to end")
        self.assertEqual(gpuipc.torch.get("outlives").unique().tolist(), [6])
        for buffer in self.buffers():
            self.client.free(id=buffer.id)

    def test_expandable_segments(self):
        for variable in ("PYTORCH_CUDA_ALLOC_CONF",):
            settings = {variable: "expandable_segments:True,max_split_size_mb:512"}
            with self.subTest(variable), Zygote(self.daemon.socket, DEVICE, settings) as zygote:
                child = zygote.fork()
                child.run("before = torch.ones(1 << 22, device=DEVICE)\n"
                          f"with gpuipc.torch.pool(): tensor = torch.full(({BIG},), 2.0, device=DEVICE)\n"
                          "after = torch.ones(1 << 22, device=DEVICE)\n"
                          "from gpuipc.torch import _pool\n"
                          "share = gpuipc.torch.put(tensor, 'expandable', copy=False)\n"
                          "plain = gpuipc.torch.put(before, 'before')\n"
                          "segments = {s['address']: s.get('is_expandable') for s in torch.cuda.memory_snapshot()}\n")
                self.assertEqual(gpuipc.torch.get("expandable").unique().tolist(), [2])
                self.assertEqual(gpuipc.torch.get("before").unique().tolist(), [1])
                self.assertEqual(child.ask("(plain.copied, _pool.find(after.data_ptr()) is None)"), [True, True])
                self.assertTrue(child.ask("any(segments.values())"))
                child.end()


if __name__ == "__main__":
    unittest.main()
