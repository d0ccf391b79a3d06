# SPDX-License-Identifier: Apache-2.0
"""Batches of tensors in channels, and a DataLoader at the other end of one. deadline: 300 s"""

import unittest

from torchtest import CUDA, DEVICE, DTYPES, TorchTest, settle, wait_for

import gpuipc
import gpuipc.torch
import torch
from gpuipc.torch._batch import Plan
from gpuipc.torch.channel import attach, create

SLOT = 64
BATCH = (torch.zeros(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64))


def batch(n):
    return torch.full((8, 3, 16, 16), float(n), device=DEVICE), torch.full((8,), n, dtype=torch.int64, device=DEVICE)


class BatchTest(TorchTest):
    def test_structures(self):
        one, two = torch.arange(6., device=DEVICE).reshape(2, 3), torch.ones(4, dtype=torch.int32, device=DEVICE)
        with create("structures", slot_bytes=1 << 16, device=DEVICE) as producer, attach("structures") as consumer:
            for sent in ((one, two), [one, two], {"x": one, "y": {"z": two}}, (one, [two, {"k": (one,)}], "text", 5, None, True, 1.5)):
                with self.subTest(type(sent).__name__):
                    producer.send(sent)
                    with consumer.receive(10) as got:
                        self.assertEqual(repr(got), repr(sent))
            for zero in (0.0, -0.0):
                producer.send([one, zero])
                with consumer.receive(10) as (_, got):
                    self.assertEqual(str(got), str(zero))
            producer.send(one)
            item = consumer.channel.take(10, stream=consumer.stream)
            self.assertEqual(item.meta["tensor"]["shape"], [2, 3])  # as any program reads it
            item.release()

    def test_each_dtype(self):
        with create("dtypes", slot_bytes=4096, device=DEVICE) as producer, attach("dtypes") as consumer:
            for name in DTYPES:
                if not hasattr(torch, name):
                    continue
                with self.subTest(name):
                    dtype = getattr(torch, name)
                    sent = torch.arange(64, dtype=torch.uint8).remainder(2 if name == "bool" else 251).to(DEVICE)
                    sent = sent.view(dtype)[:4].reshape(2, 2).t()
                    producer.send((sent, sent[:0]))
                    with consumer.receive(10) as (got, nothing):
                        self.assertEqual((got.dtype, got.stride(), nothing.shape), (dtype, sent.stride(), sent[:0].shape))
                        self.assertTrue(torch.equal(got.contiguous().view(torch.uint8), sent.contiguous().view(torch.uint8)))

    def test_in_place(self):
        with create("places", like=batch(0), slots=2) as producer, attach("places") as consumer:
            with producer.slot(like=BATCH) as (images, labels):
                images.fill_(3)
                labels.fill_(4)
            with consumer.receive(10) as (images, labels):
                self.assertEqual((images.mean().item(), labels.sum().item()), (3, 32))
            with self.assertRaises(ZeroDivisionError), producer.slot(like=BATCH):
                1 / 0
            with self.assertRaises(TimeoutError):
                consumer.receive(0)

    def test_a_slot_s_second_batch(self):
        """Tensors in slots are made once; what the user does to one of them is not seen in the next."""
        with create("second", like=torch.zeros(4, device=DEVICE), slots=1) as producer, attach("second") as consumer:
            addresses = set()
            for n in range(4):
                with producer.slot(like=torch.zeros(4)) as sent:
                    sent.fill_(n)
                    addresses.add(sent.data_ptr())
                with consumer.receive(10) as got:
                    self.assertEqual((got.sum().item(), got.requires_grad), (4 * n, False))
                    got.requires_grad_()
            self.assertEqual(len(addresses), 1)
            self.assertEqual(len(consumer._views), 1)
            producer.send(torch.zeros(2, 2))
            with consumer.receive(10) as got:
                self.assertEqual(list(got.shape), [2, 2])
            weight = torch.ones(4, device=DEVICE, requires_grad=True)
            producer.send(weight * 2)
            with consumer.receive(10) as got:
                self.assertEqual((got.sum().item(), got.requires_grad), (8, False))
            self.assertFalse(any(view.requires_grad for views in producer._views.values() for view in views))

    def test_refused(self):
        with create("refused", slot_bytes=8192, device=DEVICE) as producer:
            with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "slot_bytes"):
                producer.send(torch.zeros(3000))
            with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "description"):
                producer.send({"k" * 100 + str(i): torch.zeros(1) for i in range(20)})
            for wrong, words in (((), "no tensor"), ({1: torch.zeros(1)}, "no str"), ([torch.zeros(1), {2}], r"batch\[1\].*set"),
                                 (object(), "object")):
                with self.assertRaisesRegex(TypeError, words):
                    producer.send(wrong)
            with self.assertRaisesRegex(TypeError, "exactly one"):
                create("x")
            for meta in ({"batch": 5}, {"batch": {"v": 9}}, {"batch": {"v": 1, "tensors": [["float32"]], "tree": 0}},
                         {"batch": {"v": 1, "tensors": [["float32", [4096], 0]], "tree": {"t": 0}}},
                         {"batch": {"v": 1, "tensors": [], "tree": {"t": 0}}}, {}):
                with attach("refused") as consumer:
                    with producer.channel.item() as item:
                        item.meta = meta
                    with self.assertRaises(gpuipc.errors.LayoutError):
                        consumer.receive(10)
                    with self.assertRaises(TimeoutError):  # and the slot is back
                        consumer.receive(0)

    def test_refused_each_time(self):
        """What made no sense in a slot is not remembered for the next that looks the same."""
        meta = {"batch": {"v": 1, "tensors": [["float32", [1], 0]] * 3, "tree": {"t": 5}}}
        with create("lies", slot_bytes=512, slots=1, device=DEVICE) as producer, attach("lies") as consumer:
            for _ in range(2):
                with producer.channel.item(10, stream=producer.stream) as item:
                    item.meta = meta
                with self.assertRaises(gpuipc.LayoutError):
                    consumer.receive(10)

    def test_closed_before_a_batch_is_looked_at(self):
        """As by another thread: nothing that is remembered holds the channel any more."""
        with create("closing", like=batch(0), slots=2) as producer:
            consumer = attach("closing")
            producer.send(batch(1))
            producer.send(batch(2))
            first = consumer.receive(10)
            item = consumer.channel.take(10, stream=consumer.stream)
            consumer.close()
            second = consumer.batch_of(item)
            self.assertEqual((first.batch[1].sum().item(), second[1].sum().item()), (8, 16))
            self.assertEqual(len(consumer._views), 0)
            first.release()
            del second
            wait_for(lambda: not any(member.alive and member.role == "consumer" for member in producer.stats().members), "it to leave")

    def test_plan(self):
        plan = Plan([torch.zeros(3), torch.zeros(5)])
        self.assertEqual([layout.offset for layout in plan.layouts], [0, 256])
        self.assertEqual(plan.nbytes, 276)

    def test_another_process(self):
        with create("numbers", like=batch(0), slots=3) as producer:
            child = self.partner()
            child.run("from gpuipc.torch.channel import attach\nchannel = attach('numbers')")
            child.tell("sums = [(images.sum().item(), labels.sum().item()) for images, labels in channel]")
            for n in range(50):
                producer.send(batch(n), 20)
            producer.end()
            child.hear()
            self.assertEqual(child.ask("sums"), [[n * 8. * 3 * 16 * 16, n * 8] for n in range(50)])

    def test_producer_killed(self):
        child = self.zygote.fork()
        child.run("from gpuipc.torch.channel import create\n"
                  "channel = create('broken', slot_bytes=4096, slots=4, device=DEVICE)\n"
                  "channel.send(torch.ones(4)); item = channel.channel.item(stream=channel.stream)\n"
                  "DEVICE == 'cuda' and torch.cuda.synchronize()")
        with attach("broken") as consumer:
            child.kill()
            with consumer.receive(20) as tensor:
                self.assertEqual(tensor.sum().item(), 4)
            with self.assertRaises(gpuipc.errors.BrokenItemError):
                consumer.receive(20)


@unittest.skipUnless(CUDA and torch.cuda.device_count() > 1, "of two GPUs")
class TwoGpusTest(TorchTest):
    """The channel lies on the GPU that is not current."""

    N, SIZE = 200, 1 << 20

    def test_on_its_gpu(self):
        with create("second", slot_bytes=4 * self.SIZE, device="cuda:1", slots=2) as producer:
            self.assertEqual(str(producer.device), "cuda:1")
            child = self.partner()
            child.run("from gpuipc.torch.channel import attach\nchannel = attach('second', device='cuda:1')")
            self.flow(producer, child, "cuda:1", "cuda:1")

    def test_by_peer_access(self):
        with create("peer", slot_bytes=4 * self.SIZE, device="cuda:1", slots=2) as producer:
            child = self.partner()
            child.run("from gpuipc.torch.channel import attach\nchannel = attach('peer', device='cuda:0')")
            self.flow(producer, child, "cuda:0", "cuda:0")

    def flow(self, producer, child, made_on, seen_on):
        """Tensors of either GPU, in order by the streams alone."""
        child.tell("got = [(str(batch.device), batch.min(), batch.max()) for batch in channel]\n"
                   "got = [(where, low.item(), high.item()) for where, low, high in got]")
        try:
            for n in range(self.N):
                producer.send(torch.full((self.SIZE,), n, dtype=torch.int32, device=made_on), 20)
        finally:
            producer.end()  # or the child waits without end
            child.hear(20)
        self.assertEqual(child.ask("got"), [[seen_on, n, n] for n in range(self.N)])


class LoaderTest(TorchTest):
    def test_epochs(self):
        dataset = torch.utils.data.TensorDataset(torch.arange(10.).reshape(10, 1), torch.arange(10))
        child = self.partner()
        child.run("import gpuipc.torch.data as data\n"
                  "dataset = torch.utils.data.TensorDataset(torch.arange(10.).reshape(10, 1), torch.arange(10))\n"
                  "loader = torch.utils.data.DataLoader(dataset, batch_size=4)\n"
                  "channel = gpuipc.torch.channel.create('loader', slot_bytes=4096, slots=2, device=DEVICE)")
        child.tell("for epoch in range(3): data.feed(channel, loader)\nchannel.end()")
        with gpuipc.torch.ChannelLoader("loader", wait=20, timeout=20) as loader:
            with self.assertRaisesRegex(TypeError, "length="):
                len(loader)
            for epoch in range(3):
                seen = [(images.flatten().tolist(), labels.tolist()) for images, labels in loader]
                self.assertEqual(seen, [(images.flatten().tolist(), labels.tolist())
                                        for images, labels in torch.utils.data.DataLoader(dataset, batch_size=4)])
                self.assertEqual((loader.epoch, len(loader), loader.over), (epoch + 1, 3, False))
            self.assertEqual(list(loader), [])
            self.assertTrue(loader.over)
            child.hear()

    def test_copies_may_be_kept(self):
        with create("kept", like=torch.zeros(4, device=DEVICE), slots=2) as producer:
            loader = gpuipc.torch.ChannelLoader("kept", copy=True, timeout=10)
            kept = []
            for n in range(6):
                producer.send(torch.full((4,), float(n), device=DEVICE))
                kept.append(next(iter(loader)))
            settle()
            self.assertEqual([tensor.mean().item() for tensor in kept], list(range(6)))
            kept[0].add_(1)
            loader.close()

    def test_a_batch_may_tell_its_epoch(self):
        """By a member of its own metadata, which is not the end of one; and what claims to be one must make sense."""
        with create("told", slot_bytes=SLOT, device=DEVICE) as producer, gpuipc.torch.ChannelLoader("told", timeout=10) as loader:
            ones = torch.ones(2, device=DEVICE)
            producer.channel.put(ones, meta={"epoch": 1}, stream=producer.stream)
            self.assertEqual(next(iter(loader)).tolist(), [1, 1])
            for lie in ("x", None, -1, 1e30, True, [1]):
                self.tell(producer, {"epoch": lie})
                with self.subTest(lie), self.assertRaisesRegex(gpuipc.LayoutError, "^meta: an epoch of .* makes no sense"):
                    next(iter(loader))
            gpuipc.torch.data.end_epoch(producer, 1)
            self.assertEqual((list(loader), loader.epoch, len(loader)), ([], 1, 1))

    def test_more_elements_than_bytes(self):
        """Of a producer that lies: who clones such a batch would need memory for all of them."""
        with create("more", slot_bytes=SLOT, device=DEVICE) as producer, attach("more") as consumer:
            for row in (["uint8", [1 << 50], 0, [0]], ["uint8", [2] * 60, 0, [0] * 60]):
                self.tell(producer, {"batch": {"v": 1, "tensors": [row], "tree": {"t": 0}}})
                with self.assertRaisesRegex(gpuipc.LayoutError, "overlap"):
                    consumer.receive(10)

    def tell(self, producer, meta):
        with producer.channel.item(10, stream=producer.stream) as item:
            item.meta = meta
            item.publish(SLOT, stream=producer.stream)

    def test_slots_come_back(self):
        like = torch.zeros(4, device=DEVICE)
        with create("back", like=like, slots=2) as producer, gpuipc.torch.ChannelLoader("back", timeout=10) as loader:
            for _ in range(5):
                producer.send(torch.zeros(4, device=DEVICE), 5)
                producer.send(torch.zeros(4, device=DEVICE), 5)
                for n, _ in enumerate(loader):
                    if n == 1:
                        break
            self.assertEqual(producer.stats().depth, 0)

    def test_several_consumers(self):
        with create("queue", like=torch.zeros(1, device=DEVICE), slots=2) as producer, attach("queue"), attach("queue"):
            with self.assertRaisesRegex(ValueError, "broadcast"):
                gpuipc.torch.data.feed(producer, [])
        with create("all", like=torch.zeros(1, device=DEVICE), slots=4, kind="broadcast") as producer:
            loaders = [gpuipc.torch.ChannelLoader("all", timeout=10) for _ in range(2)]
            gpuipc.torch.data.feed(producer, [torch.ones(1, device=DEVICE)] * 2, last=True)
            for loader in loaders:
                self.assertEqual([tensor.item() for tensor in loader], [1, 1])
                self.assertEqual(loader.epoch, 1)
                loader.close()

    def test_broken(self):
        with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "skip"):
            gpuipc.torch.ChannelLoader("any", broken="ignore")
        for how in ("raise", "skip"):
            with self.subTest(how):
                child = self.zygote.fork()
                child.run("channel = gpuipc.torch.channel.create('dying', slot_bytes=4096, slots=4, device=DEVICE)\n"
                          "channel.send(torch.ones(4)); item = channel.channel.item(stream=channel.stream)\n"
                          "DEVICE == 'cuda' and torch.cuda.synchronize()")
                with gpuipc.torch.ChannelLoader("dying", broken=how, timeout=20) as loader:
                    child.kill()
                    batches = iter(loader)
                    self.assertEqual(next(batches).sum().item(), 4)
                    if how == "raise":
                        self.assertRaises(gpuipc.errors.BrokenItemError, next, batches)
                    else:
                        with attach("dying", role="producer") as other:
                            other.send(torch.full((4,), 2.0))
                            self.assertEqual(next(batches).sum().item(), 8)
                        batches.close()
                    self.assertEqual(loader.skipped, 0 if how == "raise" else 1)
                    # Past that there is nothing, and nobody to send.
                    with gpuipc.torch.ChannelLoader(loader.channel, timeout=0.01) as hasty:
                        self.assertRaises(TimeoutError, next, iter(hasty))
                wait_for(lambda: not self.buffers(), "the channel's end")


if __name__ == "__main__":
    unittest.main()
