# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl doctor where something is wrong with CUDA, here or at the daemon's. The driver is the fake one. deadline: 300 s"""

import os
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from books import end_process  # noqa: E402
from daemon import GPUIPCD, Daemon, wait_for  # noqa: E402
from doctortest import DONE, FAILED, FAKE, GPUS, FakeTest, as_root  # noqa: E402
from rawclient import RawClient, ReplyError  # noqa: E402


class DriverTest(FakeTest):
    def test_all_is_well(self):
        report = self.report(expect=DONE, codes=("G400", "G402"))
        trials = [(finding["figures"]["device"], finding["figures"]["handle"]) for finding in report.findings
                  if finding["code"] == "G600"]
        for uuid in GPUS:
            self.assertIn((uuid, "cuda-fd"), trials)
            self.assertIn((uuid, "cuda-ipc"), trials)
        self.assertEqual(report.codes("fail") + report.codes("warn"), [])

    def test_no_library(self):
        report = self.report(environment={"LD_LIBRARY_PATH": ""}, expect=FAILED, codes=("G001", "G607"), without=("G400",))
        self.assertEqual(report.find("G001")["level"], "fail")
        self.assertIn("--gpus all", report.find("G001")["fix"])
        # As it says: the library's directory is named.
        self.report(environment={"LD_LIBRARY_PATH": FAKE}, expect=DONE, codes=("G400", "G600"), without=("G001",))

    def test_cuda_does_not_start(self):
        for result, code in ((802, "G019"), (803, "G005"), (804, "G005")):
            with self.subTest(result):
                report = self.scripted(f"on cuInit fail={result}", expect=FAILED, codes=(code, "G607"))
                self.assertIn(f"({result})", report.find(code)["cause"])

    def test_library_is_too_old(self):
        report = self.report(environment={"LD_LIBRARY_PATH": f"{FAKE}/older"}, expect=FAILED, codes=("G002", "G607"),
                             without=("G001", "G400"))
        self.assertEqual(report.find("G002")["level"], "fail")
        self.assertIn("cuDeviceGetUuid_v2", report.find("G002")["cause"])
        self.assertIn("470 or newer", report.find("G002")["fix"])

    def test_device_of_the_daemon_is_sick(self):
        self.say("on cuMemCreate exe=gpuipcd device=0 fail=214")
        with self.client() as client, self.assertRaises(ReplyError) as caught:
            client.call("Allocate", {"size": 4096, "device": GPUS[0]})
        self.assertTrue(caught.exception.name.endswith(".DeviceDegraded"), caught.exception)
        report = self.report(expect=FAILED, codes=("G502", "G600"))
        self.assertEqual(report.codes("fail"), ["G502"])
        self.assertIn(f"a device {GPUS[0]} (Fake GPU)", report.find("G502")["cause"])
        self.assertIn("journalctl -u gpuipcd", report.find("G502")["fix"])
        # What its log tells is mended.
        self.say("")
        wait_for(lambda: not any(device["degraded"] for device in self.daemon.status()["devices"]), "a device that answers again")
        self.report(expect=DONE, without=("G502",))

    @as_root
    def test_proc_of_another_namespace(self):
        self.report(before=["unshare", "-pf"], expect=FAILED, codes=("G004", "G607"), without=("G006",))
        self.report(before=["unshare", "-pf", "--mount-proc"], expect=DONE, codes=("G400", "G600"), without=("G004",))

    def test_driver_hangs(self):
        stuck = f"{self.scratch}/stuck"
        open(stuck, "wb").close()
        report = self.scripted(f"on cuInit hang-while={stuck}", "--wait", "1s", expect=FAILED, codes=("G017", "G607"))
        self.assertIn("cuInit()", report.find("G017")["cause"])
        report = self.scripted(f"on cuMemImportFromShareableHandle hang-while={stuck}", "--wait", "1s", expect=FAILED,
                               codes=("G017", "G400"))
        self.assertIn("gpuipc_buffer_map()", report.find("G017")["cause"])
        os.unlink(stuck)

    def test_driver_of_the_daemon_hangs(self):
        """It is the daemon that does not answer, not the driver here; and the daemon says so of its device."""
        stuck = f"{self.scratch}/stuck"
        open(stuck, "wb").close()
        self.say(f"on cuMemCreate exe=gpuipcd device=0 hang-while={stuck}")
        report = self.report("--wait", "2s", expect=FAILED, codes=("G106", "G600"), without=("G017",))
        self.assertIn(f"cuda-fd on {GPUS[0]}", report.find("G106")["cause"])
        os.unlink(stuck)

    def test_driver_ends_the_process(self):
        report = self.scripted("no such statement", expect=FAILED, codes=("G018",))
        self.assertIn("cuInit()", report.find("G018")["cause"])

    def test_visible_devices(self):
        cases = {"1,0": (DONE, ["G026"], ["G025", "G027"]), "1": (DONE, ["G026", "G027", "G605"], ["G025"]),
                 "0,7,1": (DONE, ["G025", "G027"], ["G026"]), "7": (FAILED, ["G024"], ["G400"]), "": (FAILED, ["G024"], ["G400"]),
                 GPUS[1]: (DONE, ["G027"], ["G025"]), "0,1": (DONE, ["G402"], ["G025", "G026", "G027"])}
        for value, (expect, codes, without) in cases.items():
            with self.subTest(value):
                report = self.report(environment={"CUDA_VISIBLE_DEVICES": value}, expect=expect, codes=codes, without=without)
                if "G025" in codes:
                    self.assertIn('"7" is no GPU', report.find("G025")["cause"])

    def test_other_gpus(self):
        report = self.scripted(f"device uuid={GPUS[0]}", codes=("G028",), without=("G402",))
        self.assertIn(GPUS[1], report.find("G028")["cause"])
        self.scripted(f"device uuid={GPUS[0]};device uuid={GPUS[1]};device", expect=DONE, codes=("G029",))

    def test_abilities(self):
        self.scripted(f"device uuid={GPUS[0]} memops=no;device uuid={GPUS[1]}", expect=DONE, codes=("G031",))
        self.scripted(f"device uuid={GPUS[0]} vmm=no;device uuid={GPUS[1]}", codes=("G030",))
        self.scripted(f'device uuid={GPUS[0]} name="H200 MIG 1g.18gb";device uuid={GPUS[1]}', codes=("G032",))
        self.scripted("driver 12040", expect=DONE, codes=("G020",))

    def test_driver_refuses_a_mapping(self):
        report = self.scripted("on cuMemImportFromShareableHandle fail=1", expect=FAILED, codes=("G011", "G600"))
        self.assertIn("CUDA_ERROR_INVALID_VALUE (1)", report.find("G011")["cause"])
        self.assertNotIn("[G011]", report.find("G011")["cause"])
        self.scripted("on cuIpcOpenMemHandle_v2 fail=201", expect=FAILED, codes=("G009",))
        self.scripted("on cuMemcpyHtoD_v2 fail=719", expect=FAILED, codes=("G602",))
        self.scripted("on cuDevicePrimaryCtxRetain fail=2", expect=FAILED, codes=("G012",))


class BoxTest(FakeTest):
    """CUDA does not start in the command; in its sandbox /dev holds what a script puts there."""

    DEV = "mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/null c 1 3\n"

    def box(self, script, user=(), result=100, **looks):
        return self.report(before=["unshare", "-m", "sh", "-ec", f'{self.DEV}{script}\nexec "$@"', "sh", *user],
                           environment={"GPUIPC_FAKE_CUDA": f"state {self.scratch}/state;on cuInit fail={result}"}, **looks)


@as_root
class NodesTest(BoxTest):
    # Nodes without a driver behind them cannot be opened by anybody; /dev/null's number can.
    NODES = "for n in nvidiactl nvidia-uvm nvidia0; do mknod -m 600 /dev/$n c 1 3; done\n"
    USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")

    def test_no_device_node(self):
        for result, verb in ((100, "is"), (999, "may be")):
            report = self.box("", result=result, expect=FAILED, codes=("G022",), without=("G003", "G006", "G021"))
            self.assertIn("/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0. "
                          f"That {verb} why cuInit() says ", report.find("G022")["cause"])
            self.assertIn(f"({result})", report.find("G022")["cause"])
            self.assertIn("because of G022", report.find("G607")["cause"])

    def test_closed_device_node(self):
        report = self.box(self.NODES, self.USER, expect=FAILED, codes=("G023",), without=("G003", "G022"))
        self.assertIn("Permission denied", report.find("G023")["cause"])
        self.box(self.NODES + "rm /dev/nvidia0", self.USER, expect=FAILED, codes=("G022", "G023"), without=("G003",))
        # As it says: the node is opened to this user. What is left is the driver's own refusal.
        report = self.box(self.NODES + "chmod 666 /dev/nvidia*", self.USER, codes=("G003", "G401"), without=("G023", "G022"))
        self.assertIn("because of G003", report.find("G607")["cause"])

    def test_nodes_are_well(self):
        for result, code in ((100, "G003"), (304, "G006"), (999, "G006")):
            report = self.box(self.NODES, result=result, expect=FAILED, codes=(code, "G401", "G607"), without=("G022",))
            self.assertIn(f"({result})", report.find(code)["cause"])

    def test_no_library(self):
        """Neither library nor nodes are one finding; some of the nodes are another."""
        looks = {"expect": FAILED, "codes": ("G001", "G607")}
        self.environment["LD_LIBRARY_PATH"] = ""
        self.box("", without=("G022", "G021"), **looks)
        report = self.box("mknod -m 666 /dev/nvidia0 c 1 3", **looks)
        self.assertIn("Missing: /dev/nvidiactl, /dev/nvidia-uvm.", report.find("G022")["cause"])
        self.box(self.NODES, without=("G022",), **looks)


@as_root
class DriverlessTest(BoxTest):
    """The daemon has no GPU, and the host no driver; yet the library is here."""

    def make_daemon(self):
        super().make_daemon().stop()
        return Daemon("--backend", "host")

    def test_no_driver_on_the_host(self):
        if os.path.exists("/proc/driver/nvidia/version"):
            self.skipTest("this machine has a driver")
        report = self.box("", expect=DONE, codes=("G021",), without=("G003", "G022"))
        self.assertIn("modprobe nvidia", report.find("G021")["fix"])

    def test_driver_on_the_host(self):
        driver = "mount -t tmpfs none /proc/driver; mkdir /proc/driver/nvidia; echo NVRM > /proc/driver/nvidia/version\n"
        self.box(driver, expect=DONE, codes=("G022",), without=("G003", "G021"))


class HostDaemonTest(FakeTest):
    """The daemon was told to lend host memory alone."""

    def make_daemon(self):
        super().make_daemon().stop()
        return Daemon("--backend", "host")

    def test_a_gpu_here(self):
        report = self.report(expect=FAILED, codes=("G400", "G501", "G600"), without=("G402",))
        self.assertEqual(report.codes("fail"), ["G501"])
        self.assertIn("with 2 GPUs, but the daemon has none", report.find("G501")["cause"])
        self.assertIn("--backend host", report.find("G501")["fix"])

    def test_no_gpu_anywhere(self):
        report = self.report(environment={"LD_LIBRARY_PATH": ""}, expect=DONE, codes=("G501", "G600"), without=("G400",))
        self.assertEqual(report.find("G501")["level"], "note")


class TrialTest(FakeTest):
    """What cannot happen happens between the trial's writing and its reading back."""

    def while_it_waits(self, act, **looks):
        """The first trial on a GPU stops before it reads back what it wrote, until `act` is done with its lease."""
        stuck, calls = f"{self.scratch}/stuck", f"{self.scratch}/state/calls"
        open(stuck, "wb").close()

        def waits():
            with open(calls, encoding="ascii") as file:
                return " cuMemcpyDtoH_v2 0 waits" in file.read()

        def meanwhile():
            try:
                wait_for(waits, "the trial to wait")
                with self.client(admin=True) as admin:
                    act(admin, next(lease for lease in admin.call("List")["leases"] if lease["device"] == GPUS[0]))
            finally:
                os.unlink(stuck)

        thread = threading.Thread(target=meanwhile)
        thread.start()
        report = self.scripted(f"on cuMemcpyDtoH_v2 nth=2 hang-while={stuck}", expect=FAILED, **looks)
        thread.join()
        return report

    def test_bytes_are_others(self):
        def overwrite(admin, lease):
            mine = admin.call("Open", {"buffer": lease["buffer"], "access": "rw"})["lease"]
            fd = admin.take_fd()
            os.pwrite(fd, b"other", 4096)
            os.close(fd)
            admin.call("Release", {"lease": mine})

        report = self.while_it_waits(overwrite, codes=("G603",))
        self.assertEqual(report.codes("fail"), ["G603"])
        self.assertIn(f"on {GPUS[0]}", report.find("G603")["cause"])

    def test_release_fails(self):
        report = self.while_it_waits(lambda admin, lease: admin.call("Kick", {"session": lease["session"]}), codes=("G606",))
        self.assertEqual(report.codes("fail"), ["G606"])
        self.assertIn(f"on {GPUS[0]}", report.find("G606")["cause"])


class DirtyTest(FakeTest):
    """The driver was told to clear memory, says so, and does not."""

    script = "device scrub=no"

    def make_daemon(self):
        with open(f"{self.scratch}/params", "w", encoding="ascii") as file:
            file.write('RegistryDwords: ""\n')
        os.environ["GPUIPC_NVIDIA_PARAMS"] = f"{self.scratch}/params"
        self.addCleanup(os.environ.pop, "GPUIPC_NVIDIA_PARAMS")
        return super().make_daemon()

    def test_new_memory_is_not_zero(self):
        report = self.report(expect=FAILED, codes=("G600", "G604"), without=("G503", "G603"))
        self.assertEqual(report.codes("fail"), ["G604", "G604"])
        self.assertIn("cuda-fd on GPU-", report.find("G604")["cause"])


class WipeTest(FakeTest):
    script = "device scrub=no"
    config = "[Daemon]\nWipe=never\n"

    def test_memory_that_nobody_wipes(self):
        self.report(codes=("G503",), without=("G604",))


@as_root
class SamePidTest(FakeTest):
    """The daemon is pid 1 of a pid namespace of its own."""

    def make_daemon(self):
        self.say("")
        self.environment = {"LD_LIBRARY_PATH": FAKE, "GPUIPC_FAKE_CUDA": f"{self.scratch}/script"}
        path = f"{self.scratch}/s"
        daemon = subprocess.Popen(["unshare", "-pfm", "--mount-proc", "--kill-child", GPUIPCD, "--backend", "auto", "--socket", path,
                                   "--admin-socket", "", "--log-target", "stderr"], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env={**os.environ, **self.environment})
        self.addCleanup(end_process, daemon)
        daemon.socket = path

        def serves():
            try:
                with RawClient(path) as client:
                    return client.call("GetStatus")["daemon_pid"] == 1
            except OSError:
                return False

        wait_for(serves, "the daemon to be pid 1")
        return daemon

    def tearDown(self):
        """Of a daemon that is not asked to stop."""

    def test_same_number(self):
        box = ["unshare", "-pfm", "--mount-proc"]
        report = self.report(before=box, expect=FAILED, codes=("G009",))
        self.assertEqual(report.find("G009")["level"], "fail")
        self.assertIn("pid 1", report.find("G009")["cause"])
        self.assertIn("--init", report.find("G009")["fix"])
        # As it says: an init of its own takes the number.
        report = self.report(before=[*box, "sh", "-c", '"$@"; exit $?', "sh"], expect=DONE, codes=("G009", "G600"))
        self.assertEqual(report.find("G009")["level"], "warn")
        self.assertIn("sh here", report.find("G009")["cause"])


if __name__ == "__main__":
    unittest.main()
