# SPDX-License-Identifier: Apache-2.0
"""Tensors by name and id: what arrives, whose the memory is, and when leases end. deadline: 300 s"""

import gc
import threading
import unittest

import torchtest
from torchtest import CUDA, DEVICE, DTYPES, TorchTest, wait_for
from zygote import ChildError, Zygote

import gpuipc
import gpuipc.torch
import gpuipc.torch.multiprocessing
import torch
from gpuipc.torch import _share


def some(dtype, shape, seed=1):
    """A tensor of that dtype and shape with bytes that differ."""
    n = torch.empty(0, dtype=dtype).element_size()
    count = 1
    for extent in shape:
        count *= extent
    raw = torch.arange(count * n, dtype=torch.int64).mul_(seed * 7 + 1).remainder_(2 if dtype == torch.bool else 251).to(torch.uint8)
    return raw.view(dtype).reshape(shape).to(DEVICE)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


class ArrivalTest(TorchTest):
    def arrives(self, tensor):
        with gpuipc.torch.put(tensor) as share:
            got = gpuipc.torch.get(id=share.id)
            self.assertEqual((got.dtype, got.shape, got.device), (tensor.dtype, tensor.shape, tensor.device))
            self.assertEqual(raw(got), raw(tensor))
            self.assertEqual(got.data_ptr(), share.tensor.data_ptr())
            return got.stride()

    def test_each_dtype(self):
        tried = 0
        for name in DTYPES:
            if not hasattr(torch, name):
                continue
            with self.subTest(name):
                self.arrives(some(getattr(torch, name), (3, 5)))
                tried += 1
        self.assertGreaterEqual(tried, 12)

    def test_shapes(self):
        for shape in ((), (1,), (0,), (2, 0, 3), (7,), (2, 3, 4, 5), (1, 1, 1, 1, 1, 1, 2)):
            for dtype in (torch.float32, torch.bfloat16, torch.uint8):
                with self.subTest(shape=shape, dtype=dtype):
                    self.arrives(some(dtype, shape))

    def test_strides(self):
        whole = some(torch.float32, (4, 6, 8, 10))
        cases = {
            "transposed": whole.transpose(1, 3), "channels last": whole.contiguous(memory_format=torch.channels_last),
            "slice": whole[1:3, :, ::2], "expanded": whole[:, :1].expand(4, 6, 8, 10), "flipped": whole.flip(0),
            "narrow": whole[3, 5, 7, 9:],
        }
        for what, tensor in cases.items():
            with self.subTest(what):
                strides = self.arrives(tensor)
                if what in ("transposed", "channels last"):
                    self.assertEqual(strides, tensor.stride())

    def test_with_history(self):
        weight = torch.nn.Parameter(some(torch.float32, (3,)))
        with gpuipc.torch.put(weight * 2) as share:
            self.assertFalse(gpuipc.torch.get(id=share.id).requires_grad)
        conjugate = torch.tensor([1 + 2j], device=DEVICE).conj()
        with gpuipc.torch.put(conjugate) as share:
            self.assertEqual(gpuipc.torch.get(id=share.id).tolist(), [1 - 2j])

    def test_another_process(self):
        tensor = some(torch.bfloat16, (64, 32))
        with gpuipc.torch.put(tensor, "there", label="mine"):
            child = self.partner()
            child.run("tensor = gpuipc.torch.get('there')")
            self.assertEqual(child.ask("(str(tensor.dtype), list(tensor.shape), tensor.device.type)"), ["torch.bfloat16", [64, 32], DEVICE])
            self.assertEqual(child.ask("tensor.double().sum().item()"), tensor.double().sum().item())

    def test_same_memory(self):
        with gpuipc.torch.put(torch.zeros(1000, device=DEVICE), "same") as share:
            child = self.partner()
            child.run("tensor = gpuipc.torch.get('same')")
            share.tensor.fill_(3)
            torchtest.settle()
            self.assertEqual(child.ask("tensor.sum().item()"), 3000)
            child.run("tensor.mul_(2); DEVICE == 'cuda' and torch.cuda.synchronize()")
            self.assertEqual(share.tensor.sum().item(), 6000)

    def test_waited_for(self):
        child = self.zygote.fork()
        child.tell("seen = gpuipc.torch.get('late', wait=60).sum().item()")
        wait_for(lambda: self.daemon.watches(child.pid), "the child's wait")
        # Whoever waits for the name has it when the tensor is whole, and not before.
        with gpuipc.torch.put(torch.ones(1 << 22, device=DEVICE), "late"):
            child.hear()
            self.assertEqual(child.ask("seen"), 1 << 22)

    def test_of_the_core_while_it_is_filled(self):
        meta = {"tensor": {"v": 1, "dtype": "uint8", "shape": [4], "sealed": True}}
        with self.client.allocate(4, name="filling", device="host", meta=meta) as buffer:
            child = self.partner()
            child.tell("got = gpuipc.torch.get('filling', access='ro', wait=30).tolist()")
            wait_for(lambda: self.leases(buffer.id) > 1, "the child to come")
            buffer.write(b"abcd")
            buffer.seal()
            child.hear()
            self.assertEqual(child.ask("got"), list(b"abcd"))

    def test_by_the_core(self):
        """What is put here, any other library can get by the package's own client."""
        tensor = some(torch.int32, (3, 4)).t()
        with gpuipc.torch.put(tensor, "any") as share:
            array = self.client.get("any")
            self.assertEqual((array.dtype, array.shape, array.strides, array.buffer_id), ("int32", (4, 3), (1, 4), share.buffer))
            self.assertEqual(array.tobytes(), bytes(raw(tensor)))
            del array

    def test_of_the_core(self):
        with self.client.put("plain", memoryview(bytearray(b"abcdef"))):
            with self.assertRaises(gpuipc.errors.Error) as caught:
                gpuipc.torch.get("plain")
            self.assertIn("read-only", str(caught.exception))
            self.assertEqual(bytes(gpuipc.torch.get("plain", access="ro").tolist()), b"abcdef")


class LeaseTest(TorchTest):
    def test_the_last_view_ends_it(self):
        share = gpuipc.torch.put(some(torch.float32, (8, 8)), "views")
        got = gpuipc.torch.get("views")
        views = [got[2:], got.t(), got.view(torch.int32)]
        self.assertEqual(self.leases(share.buffer), 2)
        self.assertEqual(self.leases(share.id), 2)
        del got
        for last in range(3):
            views.pop()
            self.assertEqual(self.leases(share.buffer), 1 if last == 2 else 2)
        self.assertEqual(self.leases(share.id), 1)
        share.close()

    def test_closed_while_got(self):
        share = gpuipc.torch.put(some(torch.int64, (100,)), "closed")
        want = share.tensor.sum().item()
        child = self.partner()
        child.run("tensor = gpuipc.torch.get('closed')")
        share.close()
        share.close()
        self.assertTrue(share.closed)
        with self.assertRaises(FileNotFoundError):
            gpuipc.torch.get("closed")
        del share
        self.assertEqual(child.ask("tensor.sum().item()"), want)
        child.run("del tensor")
        wait_for(lambda: not self.buffers(), "all gone")

    def test_named_stays_and_unnamed_does_not(self):
        gpuipc.torch.put(some(torch.float32, (2,)), "stays")
        id = gpuipc.torch.put(some(torch.float32, (2,))).id
        gc.collect()
        self.assertEqual(gpuipc.torch.get("stays").numel(), 2)
        with self.assertRaises(FileNotFoundError):
            gpuipc.torch.get(id=id)

    def test_name_taken(self):
        with gpuipc.torch.put(some(torch.float32, (2,)), "twice"):
            with self.assertRaises(gpuipc.errors.NameTakenError):
                gpuipc.torch.put(some(torch.float32, (2,)), "twice")
        gpuipc.torch.put(some(torch.float32, (2,)), "twice").close()

    def test_a_copy_is_kept_for_nobody(self):
        """When its share could not be made, or was closed, it would stay and nobody could get it."""
        ones = torch.ones(5, device=DEVICE)
        with gpuipc.torch.put(ones, "kept"):
            there = len(self.buffers())
            for how in ({}, {"seal": True}):
                with self.assertRaises(gpuipc.NameTakenError):
                    gpuipc.torch.put(ones, "kept", keep=60, **how)
            gc.collect()
            wait_for(lambda: len(self.buffers()) == there, "the end of those copies")
        with gpuipc.torch.put(ones, "closed", keep=60):
            got = gpuipc.torch.get("closed")
        self.assertEqual(got.tolist(), [1] * 5)
        del got
        gc.collect()
        wait_for(lambda: not self.buffers(), "the end of what was closed")

    def test_a_copy_may_be_shared_again(self):
        """By another share, which stays when the first is closed; after that, its tensor is copied as any other."""
        first = gpuipc.torch.put(torch.ones(5, device=DEVICE))
        with gpuipc.torch.put(first.tensor, copy=False) as second:
            self.assertEqual(second.buffer, first.buffer)
            first.close()
            self.assertEqual(gpuipc.torch.get(id=second.id).tolist(), [1] * 5)
        with gpuipc.torch.put(torch.ones(5, device=DEVICE)) as third:
            pass
        with gpuipc.torch.put(third.tensor) as fourth:
            self.assertNotEqual(fourth.buffer, third.buffer)
            self.assertEqual(gpuipc.torch.get(id=fourth.id).tolist(), [1] * 5)

    def test_a_copy_whose_share_is_closed_while_it_is_shared_again(self):
        """By another thread, between the look at where it lies and the new share: it is copied, since nobody opens its buffer any more."""
        from gpuipc.torch import _pool

        def surveyed(*arguments):
            found = real(*arguments)
            first.close()
            return found

        real = _pool.survey
        for how in ({}, {"copy": False}):
            first = gpuipc.torch.put(torch.ones(5, device=DEVICE))
            _pool.survey = surveyed
            try:
                if how:
                    self.assertRaisesRegex(BufferError, "closed meanwhile", gpuipc.torch.put, first.tensor, **how)
                    continue
                with gpuipc.torch.put(first.tensor) as second:
                    self.assertTrue(second.copied)
                    self.assertEqual(gpuipc.torch.get(id=second.id).tolist(), [1] * 5)
            finally:
                _pool.survey = real

    def test_producer_ends_first(self):
        for how in ("end", "kill"):
            with self.subTest(how):
                producer = self.zygote.fork()
                producer.run("gpuipc.torch.put(torch.arange(1000., device=DEVICE), 'orphan')")
                got = gpuipc.torch.get("orphan")
                getattr(producer, how)()
                wait_for(lambda: len(self.client.leases()) == 2, "its leases to end")
                self.assertEqual(got.sum().item(), 499500)
                self.assertEqual(gpuipc.torch.get("orphan").numel(), 1000)  # as long as anybody has it
                del got
                wait_for(lambda: not self.buffers(), "the memory back")

    def test_producer_ends_before_consumers_come(self):
        producer = self.zygote.fork()
        producer.run("gpuipc.torch.put(torch.arange(10., device=DEVICE), 'kept', keep=60)")
        producer.end()
        self.assertEqual(gpuipc.torch.get("kept").sum().item(), 45)
        for buffer in self.buffers():
            self.client.free(id=buffer.id)

    def test_consumer_killed(self):
        share = gpuipc.torch.put(some(torch.float32, (100,)), "mortal")
        before = torchtest.own_fds()  # among them those of a watch, which may end meanwhile
        for _ in range(3 if CUDA else 10):
            child = self.zygote.fork()
            child.run("tensor = gpuipc.torch.get('mortal')")
            self.assertEqual(self.leases(share.buffer), 2)
            child.kill()
            wait_for(lambda: self.leases(share.buffer) == 1 and self.leases(share.id) == 1, "its leases to end")
        wait_for(lambda: torchtest.own_fds() <= before, "nothing of those that were killed")
        share.close()

    def test_exception_in_a_consumer(self):
        share = gpuipc.torch.put(some(torch.float32, (100,)), "thrown")

        def use():
            tensor = gpuipc.torch.get("thrown")
            raise ValueError(tensor.numel())

        for _ in range(3):
            with self.assertRaises(ValueError):
                use()
        gc.collect()
        self.assertEqual(self.leases(share.buffer), 1)

    def test_threads(self):
        share = gpuipc.torch.put(some(torch.float32, (1000,)), "shared")
        want, failures = share.tensor.sum().item(), []

        def work():
            for _ in range(20):
                if gpuipc.torch.get("shared").sum().item() != want:
                    failures.append("wrong")
                with gpuipc.torch.put(torch.ones(3, device=DEVICE)) as mine:
                    if gpuipc.torch.get(id=mine.id).sum().item() != 3:
                        failures.append("wrong")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(self.leases(share.buffer), 1)

    def test_exit_with_all_in_hand(self):
        child = self.zygote.fork()
        child.run("a = gpuipc.torch.put(torch.ones(5, device=DEVICE), 'left')\n"
                  "b = gpuipc.torch.get('left')\n"
                  "c = gpuipc.torch.empty(7, device=DEVICE); d = gpuipc.torch.put(c); e = gpuipc.torch.get(id=d.id)\n"
                  "f = [a]; f.append(f)")
        self.assertEqual(len(self.buffers()), 4)
        child.end()
        wait_for(lambda: not self.buffers(), "all gone")


class InPlaceTest(TorchTest):
    """Tensors of buffers of their own, which are shared where they lie."""

    def test_no_copy(self):
        tensor = gpuipc.torch.empty(16, 4, dtype=torch.float16, device=DEVICE)
        self.assertEqual(tensor.double().sum().item(), 0)
        with gpuipc.torch.put(tensor, copy=False) as share:
            self.assertEqual((share.copied, share.reason), (False, ""))
            self.assertEqual(share.tensor.data_ptr(), tensor.data_ptr())
            child = self.partner()
            child.run(f"got = gpuipc.torch.get(id={share.id!r}); got.fill_(2); DEVICE == 'cuda' and torch.cuda.synchronize()")
            self.assertEqual(tensor.double().sum().item(), 128)

    def test_a_part_is_copied(self):
        tensor = gpuipc.torch.empty(16, 4, device=DEVICE)
        for part in (tensor[2:], tensor[:3], tensor[:, 1], tensor[::2]):
            with gpuipc.torch.put(part) as share:
                self.assertTrue(share.copied)
                self.assertIn("part of its storage", share.reason)
            with self.assertRaisesRegex(BufferError, "neighbours=True"):
                gpuipc.torch.put(part, copy=False)
            part.fill_(5)
            torchtest.settle()
            with gpuipc.torch.put(part, neighbours=True) as share:
                self.assertFalse(share.copied)
                got = gpuipc.torch.get(id=share.id)
                self.assertEqual((got.data_ptr(), got.shape, got.stride()), (part.data_ptr(), part.shape, part.stride()))
                del got
            tensor.zero_()
        with gpuipc.torch.put(tensor.t()) as share:
            self.assertFalse(share.copied)
            self.assertEqual(gpuipc.torch.get(id=share.id).stride(), tensor.t().stride())

    def test_memory_stays_until_the_other_side_is_done(self):
        tensor = gpuipc.torch.empty(1000, device=DEVICE).fill_(4)
        address = tensor.data_ptr()
        share = gpuipc.torch.put(tensor)
        child = self.zygote.fork()
        child.run(f"got = gpuipc.torch.get(id={share.id!r})")
        share.close()
        del share, tensor
        gc.collect()
        self.assertEqual(_share.pinned(), 1)
        self.assertIsNotNone(gpuipc.torch._pool.find(address))
        child.kill()
        wait_for(lambda: _share.pinned() == 0, "the memory to be let go")
        wait_for(lambda: not self.buffers(), "the memory back")
        wait_for(lambda: gpuipc.torch._pool.find(address) is None, "nothing to be known of it")

    def test_an_address_is_forgotten_before_it_is_unmapped(self):
        """Another tensor may be mapped there before it is known that this one's memory is gone, and would be taken for it."""
        from gpuipc.torch import _pool

        library, found = gpuipc._native.library(), []
        real, tensor = library.gpuipc_release, gpuipc.torch.empty(4, device=DEVICE)
        address = tensor.data_ptr()
        self.assertIsNotNone(_pool.find(address))
        library.gpuipc_release = lambda pointer, error: (found.append(_pool.find(address)), real(pointer, error))[1]
        try:
            del tensor
            gc.collect()
        finally:
            library.gpuipc_release = real
        self.assertEqual(found, [None])

    def test_copy_is_wanted(self):
        tensor = gpuipc.torch.empty(10, device=DEVICE)
        with gpuipc.torch.put(tensor, copy=True, seal=True) as share:
            self.assertNotEqual(share.tensor.data_ptr(), tensor.data_ptr())
            with self.assertRaises(gpuipc.errors.Error):
                gpuipc.torch.get(id=share.id)
            self.assertEqual(gpuipc.torch.get(id=share.id, access="ro").numel(), 10)
        with self.assertRaisesRegex(ValueError, "copy=True"):
            gpuipc.torch.put(tensor, seal=True)


@unittest.skipUnless(CUDA and torch.cuda.device_count() > 1, "of two GPUs")
class TwoGpusTest(TorchTest):
    def test_on_its_gpu_whichever_is_current(self):
        tensor = torch.arange(100_000.0, device="cuda:1")
        with gpuipc.torch.put(tensor, "second") as share:
            self.assertEqual(str(share.tensor.device), "cuda:1")
            self.assertEqual(str(gpuipc.torch.get("second").device), "cuda:1")
            child = self.zygote.fork()
            child.run("got = gpuipc.torch.get('second')")
            self.assertEqual(child.ask("(str(got.device), got.sum().item())"), ["cuda:1", tensor.sum().item()])
        own = gpuipc.torch.empty(10, device="cuda:1")
        self.assertEqual(str(own.device), "cuda:1")
        with gpuipc.torch.put(own, copy=False) as share:
            self.assertEqual(gpuipc.torch.get(id=share.id).data_ptr(), own.data_ptr())

    def test_hidden(self):
        tensor = torch.arange(100_000.0, device="cuda:1")
        with gpuipc.torch.put(tensor, "hidden"), Zygote(self.daemon.socket, DEVICE, {"CUDA_VISIBLE_DEVICES": "0"}) as zygote:
            child = zygote.fork()
            child.run("got = gpuipc.torch.get('hidden')")
            self.assertEqual(child.ask("(str(got.device), got.sum().item())"), ["cuda:0", tensor.sum().item()])
            child.end()

    def test_copied_between(self):
        """PyTorch has the source's GPU copy, and memory of the daemon's is mapped for its own GPU alone."""
        here = torch.arange(100_000, device="cuda:0")
        with gpuipc.torch.put(torch.zeros(100_000, dtype=torch.int64, device="cuda:1"), "there") as share:
            got = gpuipc.torch.get("there")
            with self.assertRaisesRegex(RuntimeError, "invalid argument"):
                share.tensor.copy_(here)
                torch.cuda.synchronize(0)
            share.tensor.copy_(here.to("cuda:1"))
            torch.cuda.synchronize(1)
            self.assertTrue(torch.equal(got.to("cuda:0"), here))
            del got

    def test_pool(self):
        """A pool is of the GPU that was named or was current, whichever is when it is used."""
        with torch.cuda.device(1):
            pool = gpuipc.torch.pool()
        for each in (pool, gpuipc.torch.pool(device=1), gpuipc.torch.pool(device="cuda:1")):
            self.assertIs(each, pool)
            with each:
                tensor = torch.ones(4 << 20, device="cuda:1")
            with gpuipc.torch.put(tensor, copy=False) as share:
                got = gpuipc.torch.get(id=share.id)
                self.assertEqual((got.data_ptr(), str(got.device)), (tensor.data_ptr(), "cuda:1"))
                child = self.zygote.fork()
                child.run(f"got = gpuipc.torch.get(id={share.id!r}); got += 1; torch.cuda.synchronize(1)")
                self.assertEqual(child.ask("str(got.device)"), "cuda:1")
                child.kill()
                self.assertEqual(tensor.sum().item(), 2 * tensor.numel())
                del got
            del tensor


class RefusalTest(TorchTest):
    def test_what_is_no_dense_tensor(self):
        for wrong, word in (([1], "list"), (torch.eye(2).to_sparse(), "sparse"), (torch.empty(2, device="meta"), "meta"),
                            (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized")):
            with self.subTest(word):
                with self.assertRaisesRegex(TypeError, word):
                    gpuipc.torch.put(wrong)

    def test_other_kinds_of_arguments(self):
        channel, ones = gpuipc.torch.channel, torch.ones(2)
        for call in (lambda it: gpuipc.torch.put(ones, client=it), lambda it: gpuipc.torch.get("x", client=it),
                     lambda it: gpuipc.torch.empty(2, client=it), lambda it: channel.create(slot_bytes=8, client=it),
                     lambda it: channel.attach("x", client=it), lambda it: gpuipc.torch.Pool(it),
                     lambda it: gpuipc.torch.multiprocessing.register(it)):
            with self.assertRaisesRegex(TypeError, r"^client: .*not str; .*gpuipc\.Client\(path\)"):
                call("/run/some.sock")
        for call in (lambda it: gpuipc.torch.empty(2, device=it), lambda it: channel.create(slot_bytes=8, device=it)):
            with self.assertRaisesRegex(gpuipc.InvalidParameterError, "^device: 'meta' is neither"):
                call("meta")
        with channel.create(like=ones.to(DEVICE)) as carrier:
            for call in (gpuipc.torch.ChannelLoader, lambda it: gpuipc.torch.data.feed(it, []), gpuipc.torch.data.end_epoch):
                with self.assertRaisesRegex(TypeError, "^channel: .*TensorChannel is wanted, not Channel"):
                    call(carrier.channel)
            for batch in ((ones, float("nan")), (ones, "\ud800")):
                with self.assertRaisesRegex(gpuipc.InvalidParameterError, "^batch: .* as a tensor"):
                    carrier.send(batch)

    def test_sizes_and_dtypes_of_empty(self):
        for given, dtype in ((int, torch.int64), (float, torch.float64), (bool, torch.bool), (None, torch.float32)):
            self.assertEqual(gpuipc.torch.empty(2, dtype=given, device=DEVICE).dtype, dtype)
        for size in ((2, 3), ((2, 3),), ([2, 3],), (torch.Size((2, 3)),)):
            self.assertEqual(gpuipc.torch.empty(*size, device=DEVICE).shape, (2, 3))
        with self.assertRaisesRegex(gpuipc.errors.LayoutError, r"^shape: .*\(3.5,\)"):
            gpuipc.torch.empty(3.5, device=DEVICE)

    def test_copy_refused(self):
        with self.assertRaisesRegex(BufferError, "not made"):
            gpuipc.torch.put(torch.ones(2, device=DEVICE), copy=False)

    def test_no_tensor_there(self):
        with self.client.allocate(10, name="bytes", device="host"):
            with self.assertRaisesRegex(gpuipc.errors.LayoutError, "no tensor"):
                gpuipc.torch.get("bytes")
        for meta in ({"v": 2}, {"v": 1, "buffer": 7}, {"v": 1, "buffer": "b1"},
                     {"v": 1, "buffer": "b999999", "tensor": {"dtype": "int8", "shape": [1]}}):
            with self.client.allocate(1, name="card", device="host", meta={"share": meta}):
                with self.assertRaises((gpuipc.errors.LayoutError, gpuipc.errors.NoSuchBufferError)):
                    gpuipc.torch.get("card")
        with self.client.allocate(8, device="host") as small:
            lie = {"v": 1, "buffer": small.id, "tensor": {"dtype": "float64", "shape": [2]}}
            with self.client.allocate(1, name="lie", device="host", meta={"share": lie}):
                with self.assertRaisesRegex(gpuipc.errors.LayoutError, "there are 8"):
                    gpuipc.torch.get("lie")

    def test_unknown_dtype(self):
        with self.client.allocate(8, name="future", device="host", meta={"tensor": {"dtype": "float8_e8m0fnu", "shape": [8]}}):
            if not hasattr(torch, "float8_e8m0fnu"):
                with self.assertRaisesRegex(gpuipc.errors.LayoutError, "float8_e8m0fnu"):
                    gpuipc.torch.get("future")

    def test_forked(self):
        child = self.zygote.fork()
        child.run("import os\nshare = gpuipc.torch.put(torch.ones(2), 'parents')\n"
                  "pid = os.fork()\n"
                  "if pid == 0:\n"
                  "    ok = gpuipc.torch.get('parents').sum().item() == 2\n"  # a client of its own
                  "    share.close()\n"
                  "    del share\n"
                  "    os._exit(0 if ok else 1)\n"
                  "status = os.waitpid(pid, 0)[1]")
        self.assertEqual(child.ask("status"), 0)
        self.assertEqual(child.ask("gpuipc.torch.get('parents').sum().item()"), 2)

    def test_forked_while_a_thread_has_the_tables(self):
        """The child's own have nobody waiting."""
        child = self.zygote.fork()
        child.run("import contextlib, os, select, threading\n"
                  "from gpuipc import _dlpack, _native\n"
                  "from gpuipc.torch import _clients, _pool, _reaper, multiprocessing\n"
                  "share = gpuipc.torch.put(torch.ones(2))\n"
                  "has, goes = threading.Event(), threading.Event()\n"
                  "def hold():\n"
                  "    with contextlib.ExitStack() as stack:\n"
                  "        for lock in (_native._lock, _dlpack._lock, _clients._lock, _pool._pools_lock, _reaper._all_lock,\n"
                  "                     multiprocessing._lock, share._lock):\n"
                  "            stack.enter_context(lock)\n"
                  "        has.set()\n"
                  "        goes.wait()\n"
                  "thread = threading.Thread(target=hold)\n"
                  "thread.start()\n"
                  "has.wait()\n"
                  "pid = os.fork()\n"
                  "if pid == 0:\n"
                  "    own = gpuipc.torch.put(gpuipc.torch.empty(2, device='cpu'), copy=False)\n"  # by way of the client and the reaper
                  "    gpuipc.torch.pool() if DEVICE == 'cpu' else None\n"
                  "    ok = multiprocessing.pending() == 0\n"
                  "    share.close()\n"
                  "    os._exit(0 if ok else 1)\n"
                  "ended = select.select([os.pidfd_open(pid)], [], [], 20)[0]\n"
                  "if not ended: os.kill(pid, 9)\n"
                  "status = os.waitpid(pid, 0)[1]\n"
                  "goes.set()\n"
                  "thread.join()")
        self.assertEqual(child.ask("status"), 0)

    def test_another_user(self):
        with self.assertRaises(ChildError) as caught:
            child = self.zygote.fork()
            child.run("import os; os.setgid(65000); os.setuid(65000)")
            with gpuipc.torch.put(torch.ones(2), "mine"):
                child.run("gpuipc.torch.get('mine', owner=0)")
        self.assertEqual(caught.exception.name, "NoSuchBufferError")
        with gpuipc.torch.put(torch.ones(2), "everyones", mode="0644"):
            with self.assertRaises(ChildError) as caught:
                child.run("gpuipc.torch.get('everyones', owner=0)")
            self.assertEqual(caught.exception.name, "AccessDeniedError")
            self.assertEqual(child.ask("gpuipc.torch.get('everyones', owner=0, access='ro').sum().item()"), 2)


if __name__ == "__main__":
    unittest.main()
