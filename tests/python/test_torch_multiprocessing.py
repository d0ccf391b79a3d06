# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing's queues and arguments by way of the daemon. deadline: 300 s"""

import gc
import os
import pickle
import threading
import unittest

from rawclient import WAIT_S
from torchtest import CUDA, DEVICE, TorchTest, settle, wait_for

import gpuipc
import gpuipc.torch
import gpuipc.torch.multiprocessing as broker
import torch
import torch.multiprocessing as multiprocessing
from multiprocessing.reduction import ForkingPickler
from gpuipc.torch import _share


def double(inbox, outbox, n):
    for _ in range(n):
        tensor = inbox.get()
        outbox.put(tensor * 2)
    inbox.get()  # until what was sent has been received


def put_and_leave(outbox, device):
    broker.register(devices=("cpu", "cuda"))
    outbox.put(torch.full((1000,), 7.0, device=device))
    outbox.close()
    outbox.join_thread()


def take_and_die(inbox, ready):
    tensor = inbox.get()
    ready.put(tensor.numel())
    ready.close()
    ready.join_thread()
    os.kill(os.getpid(), 9)


def argument(tensor, parameter):
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
    tensor.mul_(parameter.detach().sum())
    if tensor.is_cuda:
        torch.cuda.synchronize()


def dumped(tensor):
    return bytes(ForkingPickler.dumps(tensor))


class QueueTest(TorchTest):
    def setUp(self):
        broker.register(devices=("cpu", "cuda"))
        self.context = multiprocessing.get_context("spawn")

    def tearDown(self):
        broker.unregister()
        super().tearDown()

    def test_there_and_back(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.context.Process(target=double, args=(inbox, outbox, 5))
        process.start()
        for n in range(5):
            inbox.put(torch.full((100, 10), float(n), device=DEVICE))
            back = outbox.get(timeout=6 * WAIT_S)
            self.assertEqual(back.sum().item(), 2000 * n)
            self.assertEqual(back.device.type, DEVICE)
        inbox.put(None)
        process.join()
        self.assertEqual(process.exitcode, 0)
        wait_for(lambda: broker.pending() == 0, "all to be received")
        del back
        for queue in (inbox, outbox):
            queue.close()
            queue.join_thread()

    def test_producer_may_exit(self):
        outbox = self.context.Queue()
        process = self.context.Process(target=put_and_leave, args=(outbox, DEVICE))
        process.start()
        process.join()
        self.assertEqual(process.exitcode, 0)
        tensor = outbox.get(timeout=6 * WAIT_S)
        self.assertEqual(tensor.sum().item(), 7000)
        del tensor
        wait_for(lambda: not self.buffers(), "the memory back, though it was to be kept for a minute")

    def test_consumer_may_die(self):
        inbox, ready = self.context.Queue(), self.context.Queue()
        process = self.context.Process(target=take_and_die, args=(inbox, ready))
        process.start()
        inbox.put(torch.ones(5000, device=DEVICE))
        self.assertEqual(ready.get(timeout=6 * WAIT_S), 5000)
        process.join()
        self.assertEqual(process.exitcode, -9)
        wait_for(lambda: not self.buffers(), "all gone")

    def test_arguments(self):
        tensor = gpuipc.torch.empty(4, device=DEVICE).fill_(1)
        parameter = torch.nn.Parameter(torch.ones(3, device=DEVICE))
        settle()
        process = self.context.Process(target=argument, args=(tensor, parameter))
        process.start()
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.assertEqual(tensor.tolist(), [3, 3, 3, 3])  # the same memory, since it lies in a buffer of its own


class PickleTest(TorchTest):
    """Without a process at the other end: what is sent, and what becomes of it."""

    def setUp(self):
        broker.register(devices=("cpu", "cuda"))

    def tearDown(self):
        broker.drop_pending()
        broker.unregister()
        super().tearDown()

    def test_small_on_the_wire(self):
        self.assertLess(len(dumped(torch.zeros(1 << 20, device=DEVICE))), 400)

    def test_received_once(self):
        sent = dumped(torch.arange(5, device=DEVICE))
        self.assertEqual(broker.pending(), 1)
        got = pickle.loads(sent)
        self.assertEqual(got.tolist(), [0, 1, 2, 3, 4])
        wait_for(lambda: broker.pending() == 0, "news of it")
        del got
        wait_for(lambda: not self.buffers(), "the memory back")
        with self.assertRaisesRegex(FileNotFoundError, "received before"):
            pickle.loads(sent)

    def test_given_up(self):
        sent = [dumped(torch.zeros(10, device=DEVICE)) for _ in range(3)]
        tensor = gpuipc.torch.empty(10, device=DEVICE)
        sent.append(dumped(tensor))
        del tensor
        gc.collect()
        self.assertEqual((broker.pending(), _share.pinned()), (4, 1))
        self.assertEqual(broker.drop_pending(), 4)
        wait_for(lambda: not self.buffers(), "all gone")
        wait_for(lambda: _share.pinned() == 0, "the memory let go")
        with self.assertRaisesRegex(FileNotFoundError, "given up"):
            pickle.loads(sent[0])

    def test_same_memory_stays_while_it_is_used(self):
        tensor = gpuipc.torch.empty(10, device=DEVICE).fill_(1)
        got = pickle.loads(dumped(tensor))
        self.assertEqual(got.data_ptr(), tensor.data_ptr())
        del tensor
        gc.collect()
        wait_for(lambda: broker.pending() == 0, "news of it")
        self.assertEqual(_share.pinned(), 1)
        self.assertEqual(got.sum().item(), 10)
        del got
        wait_for(lambda: _share.pinned() == 0, "the memory let go")

    def test_what_could_not_be_sent_is_not_pending(self):
        real = gpuipc.torch._reaper.Reaper.expect
        gpuipc.torch._reaper.Reaper.expect = lambda *_: [][1]
        try:
            with self.assertRaises(IndexError):
                dumped(torch.ones(3, device=DEVICE))
        finally:
            gpuipc.torch._reaper.Reaper.expect = real
        self.assertEqual(broker.pending(), 0)

    def test_sent_while_the_share_of_its_memory_is_closed(self):
        """By another thread, after the look at where it lies: it is copied."""
        share, real = gpuipc.torch.put(torch.ones(3, device=DEVICE)), gpuipc.torch._pool.survey
        gpuipc.torch._pool.survey = lambda *arguments: (real(*arguments), share.close())[0]
        try:
            sent = dumped(share.tensor)
        finally:
            gpuipc.torch._pool.survey = real
        self.assertEqual(pickle.loads(sent).tolist(), [1] * 3)

    def test_gradients(self):
        leaf = torch.ones(3, device=DEVICE, requires_grad=True)
        self.assertTrue(pickle.loads(dumped(leaf)).requires_grad)
        with self.assertRaisesRegex(RuntimeError, "non-leaf"):
            dumped(leaf * 2)

    def test_unregistered(self):
        broker.unregister()
        if CUDA:
            return
        before = broker.pending()
        pickle.loads(dumped(torch.ones(3)))
        self.assertEqual(broker.pending(), before)

    def test_what_cannot_be_shared_goes_pytorchs_way(self):
        """With what it carries and what it refuses."""
        def known(tensor):
            return str((tensor.dtype, tensor.layout, tensor.is_quantized, tensor.is_nested))

        others = [torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8), torch.ones(3, dtype=torch.complex32),
                  torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.ones(2, 2, names=("a", "b"))]
        if hasattr(torch, "nested"):
            others.append(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
        carried = 0
        for other in others:
            broker.unregister()
            try:
                wanted = known(pickle.loads(dumped(other)))
            except RuntimeError as error:  # NotImplementedError, too
                wanted = str(error)
            broker.register(devices=("cpu", "cuda"))
            with self.subTest(wanted):
                try:
                    got = known(pickle.loads(dumped(other)))
                    carried += 1
                except RuntimeError as error:
                    got = str(error)
                self.assertEqual(got, wanted)
        self.assertGreater(carried, 1)
        broker.drop_pending()

    def test_what_is_wrong_is_said_at_once(self):
        """Not in the thread of a queue, which would print it and go on."""
        for what, kind, how in (("keep", gpuipc.InvalidParameterError, {"keep": float("nan")}), ("keep", TypeError, {"keep": "60"}),
                                ("mode", gpuipc.InvalidParameterError, {"mode": "rw"}), ("mode", TypeError, {"mode": 6.5}),
                                ("devices: 'cuda:0'", gpuipc.InvalidParameterError, {"devices": "cuda:0"}),
                                ("devices: '5'", gpuipc.InvalidParameterError, {"devices": 5})):
            with self.subTest(what), self.assertRaisesRegex(kind, f"^{what}"):
                broker.register(**how)
        broker.register(devices="cpu")
        self.assertEqual(pickle.loads(dumped(torch.ones(2))).tolist(), [1, 1])

    def test_sent_on_before_its_sender_has_let_go(self):
        """In the sender's own process, where a buffer has one address, and who has received it gives it up."""
        real, let_go = broker._await, []
        broker._await = lambda client, id, done: let_go.append(done)
        try:
            got = pickle.loads(dumped(torch.ones(1024, device=DEVICE)))
            again = pickle.loads(dumped(got))
        finally:
            broker._await = real
            for done in let_go:
                done()
        self.assertEqual(again.sum().item(), 1024)

    def test_devices(self):
        with self.assertRaisesRegex(gpuipc.errors.InvalidParameterError, "tpu"):
            broker.register(devices=("tpu",))
        broker.register(devices=("cuda",))
        pickle.loads(dumped(torch.ones(3)))
        self.assertEqual(broker.pending(), 0)


class ReaperTest(TorchTest):
    """Who is told what became of buffers."""

    def reaper(self, client):
        return gpuipc.torch._reaper.Reaper(client)

    def test_told_once(self):
        reaper, heard = self.reaper(self.client), []
        buffer = self.client.allocate(1, device="host")
        reaper.expect(buffer.id, "opened", lambda: heard.append("opened"))
        reaper.expect(buffer.id, "freed", lambda: heard.append("freed"))
        for _ in range(2):
            self.client.open(id=buffer.id).close()
        buffer.close()
        wait_for(lambda: len(heard) == 2, "both")
        self.assertEqual((heard, reaper.awaited), (["opened", "freed"], 0))
        reaper.stop()

    def test_forgotten(self):
        reaper, heard = self.reaper(self.client), []
        buffer, other = (self.client.allocate(1, device="host") for _ in range(2))
        reaper.expect(buffer.id, "freed", lambda: heard.append("forgotten"))
        reaper.expect(other.id, "freed", lambda: heard.append("other"))
        self.assertTrue(reaper.forget(buffer.id, "freed"))
        self.assertFalse(reaper.forget(buffer.id, "freed"))
        buffer.close()
        other.close()
        wait_for(lambda: heard, "the other")
        self.assertEqual((heard, reaper.awaited), (["other"], 0))
        reaper.stop()

    def test_events_lost(self):
        """More happens than the daemon remembers while the thread is held up: the list of buffers is asked."""
        client, heard, go = LossyClient(self.client), [], threading.Event()
        reaper = self.reaper(client)
        client.lose = lambda: (go.wait(6 * WAIT_S), gpuipc.errors.EventsLostError("lost", oldest=1))[1]
        gone, opened, given_up, waiting, quiet = (self.client.allocate(1, device="host") for _ in range(5))
        reaper.expect(gone.id, "freed", lambda: heard.append("freed"))
        reaper.expect(opened.id, "opened", lambda: heard.append("opened"))
        reaper.expect(given_up.id, "opened", lambda: heard.append("opened, and given up"))
        reaper.expect(waiting.id, "opened", lambda: heard.append("waiting"))
        reaper.expect(quiet.id, "freed", lambda: heard.append("quiet"))
        gone.close()
        self.client.open(id=given_up.id).close()
        self.client.free(id=given_up.id)
        second = self.client.open(id=opened.id)
        wait_for(lambda: gone.id not in [buffer.id for buffer in self.buffers()], "its end")
        self.assertEqual(heard, [])
        go.set()
        wait_for(lambda: len(heard) == 3, "all three")
        self.assertEqual(sorted(heard), ["freed", "opened", "opened, and given up"])
        self.assertEqual((client.watches, reaper.awaited), (2, 2))
        self.client.open(id=waiting.id).close()
        for buffer in (second, opened, given_up, waiting, quiet):
            buffer.close()
        wait_for(lambda: len(heard) == 5, "the last")
        reaper.stop()

    def test_what_is_made_after_the_list_is_not_gone(self):
        """By another thread, between the answer and the look at what it says."""
        client, heard, made = LossyClient(self.client), [], []
        reaper = self.reaper(client)
        real = client.buffers

        def buffers():
            there = real()
            made.append(self.client.allocate(1, device="host"))
            reaper.expect(made[0].id, "freed", lambda: heard.append("made"))
            return there

        client.buffers = buffers
        gone, client.lose = self.client.allocate(1, device="host"), lambda: gpuipc.errors.EventsLostError("lost", oldest=1)
        gone.close()
        reaper.expect(gone.id, "freed", lambda: heard.append("gone"))
        wait_for(lambda: heard, "news")
        wait_for(lambda: client.watches == 2 and reaper.awaited == 1, "one that is left")
        self.assertEqual(heard, ["gone"])
        made[0].close()
        wait_for(lambda: heard == ["gone", "made"], "the other's end")
        reaper.stop()

    def test_nothing_is_believed_of_another_daemon(self):
        """After a restart that lost the buffers an id that is not there says nothing: others may still have the memory."""
        client, heard, go = LossyClient(self.client), [], threading.Event()
        reaper = self.reaper(client)
        client.lose = lambda: (go.wait(6 * WAIT_S), setattr(client, "restarts", 1), gpuipc.errors.EventsLostError("lost", oldest=1))[2]
        gone, after = (self.client.allocate(1, device="host") for _ in range(2))
        reaper.expect(gone.id, "freed", lambda: heard.append("gone"))
        reaper.expect(after.id, "freed", lambda: heard.append("after"))
        gone.close()
        wait_for(lambda: gone.id not in [buffer.id for buffer in self.buffers()], "its end")
        go.set()
        wait_for(lambda: client.watches == 2, "another watch")
        after.close()
        wait_for(lambda: heard, "news")
        self.assertEqual(heard, ["after"])
        reaper.stop()


class LossyClient:
    """A client whose first watch loses events."""

    def __init__(self, client):
        self.client, self.restarts, self.watches = client, 0, 0
        self.buffers, self.open = client.buffers, client.open

    def watch(self, since=None):
        # From now on, not from the oldest: what was lost is lost.
        watch = self.client.watch()
        self.watches += 1
        if self.watches == 1:
            def lossy(timeout):
                raise self.lose()

            watch.next = lossy
        return watch


@unittest.skipUnless(CUDA and torch.cuda.device_count() > 1, "of two GPUs")
class TwoGpusTest(TorchTest):
    def test_on_its_gpu_whichever_is_current(self):
        self.addCleanup(broker.unregister)
        broker.register()
        with gpuipc.torch.pool(device=1):
            pooled = torch.full((4 << 20,), 3.0, device="cuda:1")
        child = self.zygote.fork()
        child.run("import pickle, gpuipc.torch.multiprocessing")
        for tensor, total in ((pooled, 3.0 * (4 << 20)), (torch.full((1000,), 7.0, device="cuda:1"), 7000.0)):
            child.run(f"got = pickle.loads(bytes.fromhex({dumped(tensor).hex()!r}))")
            self.assertEqual(child.ask("[str(got.device), got.sum().item()]"), ["cuda:1", total])


if __name__ == "__main__":
    unittest.main()
