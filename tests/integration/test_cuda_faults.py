# SPDX-License-Identifier: Apache-2.0
"""A daemon on GPUs that fail, hang, are full, or are not there: what callers are told, what the books say afterwards, and that other
devices and host memory never notice. On the fakes. deadline: 240 s"""

import os
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from actors import SLOWER, Timing  # noqa: E402
from daemon import BUILD, Daemon, DaemonTest, wait_for  # noqa: E402
from rawclient import WAIT_S, ReplyError  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAKES = os.path.join(os.environ.get("GPUIPC_BUILD", f"{ROOT}/build"), "fake")
MIB = 1 << 20
GPUS = ["GPU-fa4e0000-0000-4000-8000-000000000000", "GPU-fa4e0000-0000-4000-8000-000000000001"]
TWO = "devices 2\n"
STUCK_S = 5  # after which a call counts as one that does not return
SCRUBBED = 'RegistryDwords: ""\n'
UNSCRUBBED = 'RegistryDwords: "RMDisableScrubOnFree=1"\n'


class Machine:
    """Fake GPUs, their script, and what the driver says of itself."""

    def __init__(self, script=TWO, params=SCRUBBED, libraries=("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")):
        self.directory = tempfile.mkdtemp(prefix="m.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.path = f"{self.directory}/script"
        self.libraries = f"{self.directory}/lib"
        os.mkdir(self.libraries)
        for name in ("libcuda.so.1", "libcudart.so.13", "libcudart.so.12", "libnvidia-ml.so.1"):
            if name in libraries:
                os.symlink(f"{FAKES}/{name}", f"{self.libraries}/{name}")
            else:
                self.spoil(name)
        self.script(script)
        with open(f"{self.directory}/params", "w", encoding="ascii") as file:
            file.write(params)
        self.environment = {"LD_LIBRARY_PATH": self.libraries, "GPUIPC_FAKE_CUDA": self.path,
                            "GPUIPC_NVIDIA_PARAMS": f"{self.directory}/params"}

    def spoil(self, name):
        """Whoever looks for the library finds this, and looks no further: the machine may have a real one."""
        with open(f"{self.libraries}/{name}.new", "w", encoding="ascii") as file:
            file.write("no library\n" * 100)
        os.rename(f"{self.libraries}/{name}.new", f"{self.libraries}/{name}")

    def script(self, text):
        with open(f"{self.path}.new", "w", encoding="ascii") as file:
            file.write(text)
        os.rename(f"{self.path}.new", self.path)

    def flag(self):
        path = f"{self.directory}/flag"
        open(path, "w", encoding="ascii").close()
        return path

    def calls(self, entry):
        try:
            with open(f"{self.path}.state/calls", encoding="ascii") as file:
                return [line for line in file if line.split()[2].startswith(entry)]
        except FileNotFoundError:
            return []

    def contexts(self):
        return len(self.calls("cuDevicePrimaryCtxRetain")) + len(self.calls("cuCtxCreate"))

    def end(self):
        shutil.rmtree(self.directory)


def assert_as_usual(now, usual):
    """Of two Timings: what others do holds up nobody. One call of many may meet a machine that has other things to do."""
    if now.median > 5 * usual.median + 0.01 * SLOWER or now.worst > SLOWER:
        raise AssertionError(f"usually {usual}; now {now}")


with_fakes = unittest.skipUnless(os.path.exists(f"{BUILD}/fake/libcuda.so.1"), "built without CUDA: there is no cuda.h here")


@with_fakes
class CudaTest(DaemonTest):
    script = TWO
    params = SCRUBBED
    args = ()

    def setUp(self):
        self.machine = None
        self.addCleanup(lambda: self.machine and self.machine.end())  # the last one, after its daemon
        super().setUp()

    def make_daemon(self):
        self.machine = Machine(self.script, self.params)
        return Daemon("--backend", "auto", *self.args, environment=self.machine.environment)

    def device(self, uuid):
        return next(device for device in self.daemon.status()["devices"] if device["uuid"] == uuid)

    def allocate(self, client, device=0, handle="cuda-fd", **more):
        reply = client.call("Allocate", {"size": 1, "device": GPUS[device] if isinstance(device, int) else device,
                                         "handle": handle, **more})
        client.drop_fds()
        return reply

    def refused(self, client, device=0, handle="cuda-fd", **more):
        with self.assertRaises(ReplyError) as caught:
            self.allocate(client, device, handle, **more)
        return caught.exception.name.rpartition(".")[2], caught.exception.parameters

    def heal(self):
        self.machine.script(TWO)
        for uuid in GPUS:
            wait_for(lambda u=uuid: not self.device(u)["degraded"], "a device that is well again")

    def release(self, client, *grants):
        for grant in grants:
            client.call("Release", {"lease": grant["lease"]})


class HandlesTest(CudaTest):
    def test_a_descriptor_costs_no_context(self):
        with self.client() as client:
            grant = self.allocate(client)
            self.assertEqual(grant["handle"], {"kind": "cuda-fd", "fd": 0, "offset": 0, "size": 1, "device": GPUS[0]})
            self.assertEqual((grant["buffer"]["allocated"], grant["buffer"]["ro_enforced"]), (2 * MIB, False))
            again = client.call("Open", {"buffer": grant["buffer"]["id"], "access": "ro"})
            self.assertEqual(again["handle"], grant["handle"])
            client.drop_fds()
            self.release(client, grant, again)
        self.assertEqual(self.machine.contexts(), 0)

    def test_a_classic_handle(self):
        free = self.device(GPUS[1])["free_bytes"]
        with self.client() as client:
            grant = self.allocate(client, 1, "cuda-ipc")
            handle = grant["handle"]
            self.assertEqual((handle["kind"], len(handle["ipc"]), handle["offset"], "fd" in handle), ("cuda-ipc", 88, 0, False))
            again = client.call("Open", {"buffer": grant["buffer"]["id"]})
            self.assertEqual(again["handle"], handle)
            self.assertEqual(client.fds, [])
            with self.assertRaises(ReplyError) as caught:
                client.call("Open", {"buffer": grant["buffer"]["id"], "access": "ro"})
            self.assertEqual(caught.exception.name, "io.gpuipc.Broker.HandleUnsupported")
            self.assertIn('open it "rw"', caught.exception.parameters["reason"])
            wait_for(lambda: self.device(GPUS[1])["free_bytes"] < free - 500 * MIB, "a context")
            self.release(client, grant, again)
        wait_for(lambda: self.device(GPUS[1])["free_bytes"] == free, "no context")

    def test_names_find_the_device(self):
        with self.client() as client:
            self.assertEqual(self.refused(client, "GPU-nowhere")[0], "NoSuchDevice")
            self.assertEqual(self.refused(client, 0, "memfd")[0], "HandleUnsupported")
            grant = self.allocate(client, 1, "auto")
            self.assertEqual(grant["handle"]["kind"], "cuda-fd")
            self.release(client, grant)


class ReadOnlyTest(CudaTest):
    args = ("--unenforced-read-only", "refuse")

    def test_read_only_is_not_pretended(self):
        with self.client() as client:
            grant = self.allocate(client)
            with self.assertRaises(ReplyError) as caught:
                client.call("Open", {"buffer": grant["buffer"]["id"], "access": "ro"})
            self.assertEqual(caught.exception.name, "io.gpuipc.Broker.HandleUnsupported")
            self.release(client, grant)


class FailuresTest(CudaTest):
    """Each entry point of the way to a buffer, with each kind of error."""

    args = ("--spare-max", "0")  # the call that fails is to be the client's own
    CODES = {1: "Internal", 2: "OutOfMemory", 46: "DeviceDegraded", 304: "Internal", 719: "DeviceDegraded", 801: "HandleUnsupported",
             999: "DeviceDegraded"}

    def fail(self, handle, entries):
        with self.client() as client, self.client() as other:
            for entry in entries:
                for code, error in self.CODES.items():
                    with self.subTest(entry=entry, code=code):
                        self.machine.script(f"{TWO}on {entry} device=0 fail={code}\n")
                        name, parameters = self.refused(client, 0, handle)
                        self.assertEqual(name, "DeviceDegraded" if entry == "cuMemRelease" else error)
                        if name == "HandleUnsupported":
                            self.assertIn(f"{entry.partition('_')[0]}: ", parameters["reason"])
                        if name == "OutOfMemory":
                            self.assertGreater(parameters["free"], 0)
                        self.release(other, self.allocate(other, 1), self.allocate(other, "host", "auto"))
                        self.heal()
                        self.assertEqual(self.device(GPUS[0])["brokered_bytes"], 0)
                        wait_for(lambda: self.daemon.status()["buffers"] == 0, "no buffer")
                        self.release(client, self.allocate(client, 0, handle))
                        wait_for(lambda: self.daemon.status()["buffers"] == 0, "no buffer")

    def test_of_a_descriptor(self):
        self.fail("cuda-fd", ("cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease"))
        self.assertEqual(self.machine.contexts(), 0)
        for name in ("cuMemCreate: CUDA_ERROR_UNKNOWN (999): unknown error", "cuMemRelease: CUDA_ERROR_LAUNCH_FAILED (719)"):
            self.daemon.wait_log(name)

    def test_of_a_classic_handle(self):
        free = self.device(GPUS[0])["free_bytes"]
        self.fail("cuda-ipc", ("cudaMalloc", "cudaIpcGetMemHandle", "cuMemGetAddressRange_v2"))
        wait_for(lambda: self.device(GPUS[0])["free_bytes"] == free, "all of it back")

    def test_a_sick_device_is_said_to_be(self):
        with self.client() as client, self.client() as watcher:
            watcher.send_call("Watch", {"since": 0}, more=True)
            self.machine.script(f"{TWO}on cuMemCreate device=0 fail=214\n")
            self.assertEqual(self.refused(client), ("DeviceDegraded", {"device": GPUS[0]}))
            while watcher.read()["parameters"]["event"]["kind"] != "degraded":
                pass
            self.assertTrue(self.device(GPUS[0])["degraded"])
            self.assertFalse(self.device(GPUS[1])["degraded"])
            n = len(self.machine.calls("cuMemCreate"))
            self.assertEqual(self.refused(client)[0], "DeviceDegraded")
            wait_for(lambda: len(self.machine.calls("cuMemCreate")) > n, "another check")
            self.assertTrue(self.device(GPUS[0])["degraded"])
            self.heal()
            self.release(client, self.allocate(client))
            self.daemon.wait_log("device answers again")
            self.daemon.wait_log("device degraded: cuMemCreate: CUDA_ERROR_ECC_UNCORRECTABLE (214)")

    def test_freeing_fails(self):
        with self.client() as client:
            grant = self.allocate(client, 0, "cuda-ipc")
            self.machine.script(f"{TWO}on cudaFree fail=700 nth=1\n")
            self.release(client, grant)
            self.daemon.wait_log("device degraded: cudaFree: cudaErrorIllegalAddress (700)")
            self.heal()

    def test_a_client_that_dies_meanwhile(self):
        flag = self.machine.flag()
        for handle in ("cuda-fd", "cuda-ipc"):
            entry = "cuMemCreate" if handle == "cuda-fd" else "cudaMalloc"
            open(flag, "w", encoding="ascii").close()
            self.machine.script(f"{TWO}on {entry} hang-while={flag}\n")
            client = self.client()
            client.send_call("Allocate", {"size": 1, "device": GPUS[0], "handle": handle})
            wait_for(lambda e=entry: any(line.endswith("waits\n") for line in self.machine.calls(e)), "the driver's call")
            client.close()
            os.unlink(flag)
            self.daemon.wait_idle()


class FullTest(CudaTest):
    script = "device total=64M\ndevice\n"

    def test_waiting_for_memory_that_the_books_promise(self):
        """Somebody else has the GPU's memory: the books do not know, the driver does."""
        with self.client() as client:
            self.machine.script("device total=64M\ndevice\non cuMemCreate device=0 fail=2\n")
            name, parameters = self.refused(client, size=32 * MIB)
            self.assertEqual((name, parameters["asked"]), ("OutOfMemory", 32 * MIB))
            self.assertEqual(parameters["free"], self.device(GPUS[0])["free_bytes"])
            client.send_call("Allocate", {"size": 32 * MIB, "device": GPUS[0], "wait_ms": 60000})
            n = len(self.machine.calls("cuMemCreate"))
            wait_for(lambda: len(self.machine.calls("cuMemCreate")) > n + 2, "more tries")
            self.machine.script("device total=64M\ndevice\n")
            grant = client.result()
            client.drop_fds()
            self.release(client, grant)

    def test_more_than_there_is(self):
        with self.client() as client:
            name, parameters = self.refused(client, size=65 * MIB, wait_ms=60000)
            self.assertEqual(name, "OutOfMemory")
            self.assertLessEqual(parameters["free"], 64 * MIB)


class HangTest(CudaTest):
    """A call that does not return."""

    args = ("--drain-sec", "2s")

    def hang(self, entry="cuMemCreate", more="device=0"):
        self.flag = self.machine.flag()
        self.machine.script(f"{TWO}on {entry} {more} hang-while={self.flag}\n")

    def lives(self, client, *devices):
        """How long buffers on the devices take to be made and given back."""
        def live():
            for device in devices:
                self.release(client, self.allocate(client, device, "auto"))

        return Timing(live, 20)

    def test_other_devices_go_on(self):
        with self.client() as stuck, self.client() as client:
            usual = self.lives(client, 1, "host")
            self.hang()
            stuck.send_call("Allocate", {"size": 1, "device": GPUS[0]})
            assert_as_usual(self.lives(client, 1, "host"), usual)
            began = time.monotonic()
            wait_for(lambda: self.device(GPUS[0])["degraded"], "a degraded device", seconds=STUCK_S + 5 * SLOWER)
            self.assertLess(time.monotonic() - began, STUCK_S + 2 * SLOWER)
            self.assertEqual(self.refused(client), ("DeviceDegraded", {"device": GPUS[0]}))
            assert_as_usual(self.lives(client, 1, "host"), usual)
            os.unlink(self.flag)
            grant = stuck.result()
            stuck.drop_fds()
            self.release(stuck, grant)
            self.heal()

    def test_host_memory_goes_on_when_cuda_stands_still(self):
        """CUDA takes locks of the whole process: then all GPUs stand, and nothing else does."""
        with self.client() as stuck, self.client() as client:
            usual = self.lives(client, "host")
            self.hang(more="device=0 global=yes")
            stuck.send_call("Allocate", {"size": 1, "device": GPUS[0]})
            wait_for(lambda: any(line.endswith("waits\n") for line in self.machine.calls("cuMemCreate")), "the driver's call")
            assert_as_usual(self.lives(client, "host"), usual)
            os.unlink(self.flag)
            self.release(stuck, stuck.result())
            stuck.drop_fds()

    def test_closing_that_hangs(self):
        with self.client() as client:
            grant = self.allocate(client, 0, "cuda-ipc")
            self.hang("cudaFree")
            self.release(client, grant)
            self.release(client, self.allocate(client, 0), self.allocate(client, 1))
            self.assertEqual(self.device(GPUS[0])["draining_bytes"], 4 * MIB)  # one behind the other
            os.unlink(self.flag)

    def test_it_stops_by_its_deadline(self):
        with self.client() as client:
            self.hang()
            client.send_call("Allocate", {"size": 1, "device": GPUS[0]})
            wait_for(lambda: any(line.endswith("waits\n") for line in self.machine.calls("cuMemCreate")), "the driver's call")
            began = time.monotonic()
            self.daemon.process.terminate()
            self.assertEqual(self.daemon.process.wait(timeout=WAIT_S), 0)
            self.assertLess(time.monotonic() - began, 2 + 2 * SLOWER)
            self.assertIn("a device or a client does not answer", self.daemon.log())
        self.daemon.forget()
        self.daemon = self.make_another()

    def make_another(self):
        self.machine.end()
        return self.make_daemon()


class WipeTest(CudaTest):
    script = "device scrub=no\ndevice\n"
    params = UNSCRUBBED

    def test_new_memory_is_wiped(self):
        self.assertEqual(self.device(GPUS[0])["zeroed"], "wiped")
        self.daemon.wait_log("new memory is wiped, at the cost of some time for each buffer: the driver's registry keys turn its scrubbing off")
        with self.client() as client:
            grant = client.call("Allocate", {"size": 3 * MIB, "device": GPUS[0]})
            fd = client.fds[0]
            self.assertEqual(os.pread(fd, 4 * MIB, 0), bytes(4 * MIB))
            client.drop_fds()
            self.release(client, grant)
        self.assertEqual(self.machine.contexts(), 1)  # the helper's

    def test_a_wipe_that_fails_fails_the_call(self):
        self.machine.script(f"{self.script}on cuMemsetD8_v2 exe=gpuipcd fail=719\n")
        with self.client() as client:
            name, parameters = self.refused(client)
            self.assertEqual(name, "Internal")
            self.daemon.wait_log("wiping new memory: cuMemsetD8: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure "
                                 f"reference={parameters['reference']}")
        self.assertFalse(self.device(GPUS[0])["degraded"])


@with_fakes
class ChoiceTest(unittest.TestCase):
    """What is found, and what Backend= and Wipe= make of it."""

    def run_on(self, *args, expect=0, **machine):
        machine = Machine(**machine)
        daemon = Daemon(*args, environment=machine.environment, wait=expect == 0)
        try:
            if expect == 0:
                status = daemon.status()
                log = daemon.stop()
                return status["backend"], {device["uuid"]: device for device in status["devices"]}, log
            status, log = daemon.wait_end()
            self.assertEqual(status, expect)
            return log
        finally:
            machine.end()

    def test_auto_takes_all(self):
        backend, devices, _ = self.run_on("--backend", "auto")
        self.assertEqual((backend, list(devices)), ("auto", [*GPUS, "host"]))
        self.assertEqual([device["zeroed"] for device in devices.values()], ["driver"] * 3)

    def test_host_asks_no_driver(self):
        backend, devices, _ = self.run_on("--backend", "host")
        self.assertEqual((backend, list(devices)), ("host", ["host"]))

    def test_cuda_takes_gpus_alone(self):
        backend, devices, _ = self.run_on("--backend", "cuda")
        self.assertEqual((backend, list(devices)), ("cuda", GPUS))

    def test_the_device_that_goes_without_saying(self):
        for args, script, device in (("auto", "devices 1\n", GPUS[0]), ("auto", TWO, "host"), ("cuda", "devices 1\n", GPUS[0]),
                                     ("cuda", TWO, None)):
            with self.subTest(args=args, script=script):
                machine = Machine(script)
                with Daemon("--backend", args, environment=machine.environment) as daemon, daemon.client() as client:
                    if device:
                        self.assertEqual(client.call("Allocate", {"size": 1})["buffer"]["device"], device)
                    else:
                        with self.assertRaises(ReplyError) as caught:
                            client.call("Allocate", {"size": 1})
                        self.assertEqual((caught.exception.name, caught.exception.parameters),
                                         ("org.varlink.service.InvalidParameter", {"parameter": "device"}))
                machine.end()

    def test_auto_without_gpus(self):
        for machine, words in (({"libraries": ()}, ""), ({"script": "devices 0\n"}, "CUDA_ERROR_NO_DEVICE (100)"),
                               ({"script": "on cuInit fail=802\n"}, "CUDA_ERROR_SYSTEM_NOT_READY (802)")):
            with self.subTest(**machine):
                backend, devices, log = self.run_on("--backend", "auto", **machine)
                self.assertEqual((backend, list(devices)), ("auto", ["host"]))
                self.assertIn(words, log)
                self.assertEqual("host memory alone is served" in log, words != "")

    def test_cuda_without_gpus(self):
        for machine, words in (({"libraries": ()}, f"{'/'}"),
                               ({"script": "devices 0\n"}, "cuInit: CUDA_ERROR_NO_DEVICE (100)")):
            with self.subTest(**machine):
                log = self.run_on("--backend", "cuda", expect=1, **machine)
                self.assertIn(f"Backend=cuda: no GPU can be used: {words}", log)
                self.assertIn("or set Backend=auto", log)

    def test_one_that_cannot_be_used_is_left_out(self):
        _, devices, log = self.run_on("--backend", "auto", script=f"{TWO}on cuDeviceGetUuid_v2 device=0 fail=46\n")
        self.assertEqual(list(devices), [GPUS[1], "host"])
        self.assertIn("GPU 0 is left out: cuDeviceGetUuid: CUDA_ERROR_DEVICE_UNAVAILABLE (46)", log)

    def test_without_nvml(self):
        _, devices, _ = self.run_on("--backend", "auto", "--wipe", "never", libraries=("libcuda.so.1", "libcudart.so.13"))
        self.assertNotIn("free_bytes", devices[GPUS[0]])
        self.assertIn("free_bytes", devices["host"])

    def test_who_wipes(self):
        for args, params, zeroed in (((), UNSCRUBBED, "wiped"), (("--wipe", "never"), UNSCRUBBED, "unknown"),
                                     (("--wipe", "never"), SCRUBBED, "driver"), (("--wipe=always",), SCRUBBED, "wiped")):
            with self.subTest(args=args, params=params):
                _, devices, _ = self.run_on("--backend", "auto", *args, params=params)
                self.assertEqual(devices[GPUS[0]]["zeroed"], zeroed)
                self.assertEqual(devices["host"]["zeroed"], "driver")

    def test_a_runtime_that_goes(self):
        """It is looked for at the start, and loaded when the first asks for a classic handle."""
        machine = Machine()
        daemon = Daemon("--backend", "auto", environment=machine.environment)
        try:
            machine.spoil("libcudart.so.13")
            with daemon.client() as client:
                with self.assertRaises(ReplyError) as caught:
                    client.call("Allocate", {"size": 1, "device": GPUS[0], "handle": "cuda-ipc"})
                self.assertEqual(caught.exception.name, "io.gpuipc.Broker.HandleUnsupported")
                self.assertIn("no CUDA runtime library, which makes classic handles, fits a driver for CUDA 13.0",
                              caught.exception.parameters["reason"])
            daemon.wait_idle()
            daemon.stop()
        finally:
            machine.end()

    def test_without_a_runtime(self):
        _, devices, _ = self.run_on("--backend", "auto", libraries=("libcuda.so.1", "libnvidia-ml.so.1"))
        self.assertEqual(devices[GPUS[0]]["handles"], ["cuda-fd"])

    def test_a_runtime_newer_than_the_driver(self):
        _, devices, _ = self.run_on("--backend", "auto", script="driver 12040\n")
        self.assertEqual(devices[GPUS[0]]["handles"], ["cuda-fd"])


if __name__ == "__main__":
    unittest.main()
