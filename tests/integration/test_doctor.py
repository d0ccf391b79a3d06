# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl doctor in sandboxes that are broken in one way each: the code it gives, and that what it says to do leads on. The driver,
where there is one, is the fake one. deadline: 300 s"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, GPUIPCCTL, GPUIPCD, Daemon, DaemonTest, wait_for  # noqa: E402
from rawclient import WAIT_S, RawClient, ReplyError  # noqa: E402
from relay import Relay  # noqa: E402

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
FAKE = f"{BUILD}/fake"
PORTABLE = f"{BUILD}/portable"
HAVE_FAKE = os.path.exists(f"{FAKE}/libcuda.so.1")
GPUS = ["GPU-fa4e0000-0000-4000-8000-000000000000", "GPU-fa4e0000-0000-4000-8000-000000000001"]
ROOT = os.geteuid() == 0
as_root = unittest.skipUnless(ROOT, "needs root for namespaces")
with_fake = unittest.skipUnless(HAVE_FAKE, "built without CUDA")


class Report:
    """What doctor printed as JSON."""

    def __init__(self, text, status):
        self.status = status
        self.document = json.loads(text)
        self.findings = self.document["findings"]

    def __str__(self):
        return json.dumps(self.document, indent=1)

    def codes(self, level=None):
        return [finding["code"] for finding in self.findings if level in (None, finding["level"])]

    def find(self, code):
        return next((finding for finding in self.findings if finding["code"] == code), None)


class DoctorTest(DaemonTest):
    """A healthy daemon, and a command that is run elsewhere."""

    environment = {}

    def setUp(self):
        self.scratch = tempfile.mkdtemp(prefix="doctor.", dir=os.environ.get("TMPDIR", "/tmp"))
        os.chmod(self.scratch, 0o755)
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        super().setUp()

    def command(self, *options, path=None):
        return [GPUIPCCTL, "doctor", "--json", "--socket", path or self.daemon.socket, *options]

    def report(self, *options, path=None, before=(), environment=None, expect=None, codes=(), without=()):
        """Runs it behind the words of `before` (unshare, setpriv, ...) and looks at the exit status and the codes."""
        done = subprocess.run([*before, *self.command(*options, path=path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=WAIT_S * 3, check=False,
                              env={**os.environ, **self.environment, **(environment or {})})
        return self.looked_at(done, expect, codes, without)

    def looked_at(self, done, expect, codes, without):
        self.assertTrue(done.stdout, done.stderr)
        report = Report(done.stdout, done.returncode)
        self.assertEqual(done.stderr, b"", report)
        self.assertEqual(report.document["exit_status"], done.returncode, report)
        if expect is not None:
            self.assertEqual(done.returncode, expect, report)
        for code in codes:
            self.assertIn(code, report.codes(), report)
        for code in without:
            self.assertNotIn(code, report.codes(), report)
        for finding in report.findings:
            self.assertTrue(finding["cause"], finding)
            if finding["level"] in ("warn", "fail"):
                self.assertTrue(finding["fix"], finding)
        return report

    def shell(self, script, *options, path=None, flags="-m", **looks):
        """The same after a script in namespaces of its own."""
        return self.report(*options, path=path, before=["unshare", *flags.split(), "sh", "-ec", f'{script}\nexec "$@"', "sh"],
                           **looks)


class SocketTest(DoctorTest):
    def test_all_is_well(self):
        report = self.report(expect=DONE, codes=("G100", "G200", "G300", "G310", "G600"))
        self.assertEqual(report.codes("fail") + report.codes("warn"), [])
        trial = report.find("G600")["figures"]
        self.assertEqual((trial["device"], trial["handle"], trial["bytes"]), ("host", "memfd", 2 << 20))
        for beat in ("allocate", "map", "write", "read", "release"):
            self.assertGreaterEqual(trial[f"{beat}_usec"], 0)

    def test_text_fits_a_terminal(self):
        done = subprocess.run([GPUIPCCTL, "doctor", "--socket", "/nowhere/at/all/gpuipcd.sock"], stdout=subprocess.PIPE,
                              timeout=WAIT_S, check=False, text=True)
        self.assertEqual(done.returncode, UNREACHABLE)
        lines = done.stdout.splitlines()
        self.assertTrue(lines[0].startswith("FAIL  G101  There is no /nowhere/at/all/gpuipcd.sock"), lines)
        self.assertTrue(any("docker run -v /run/gpuipcd:/run/gpuipcd:ro" in line for line in lines), lines)
        self.assertLessEqual(max(map(len, lines)), 80)

    def test_who_one_is(self):
        report = self.report(codes=("G200",))
        self.assertIn(f"uid {os.geteuid()}, gid {os.getegid()}", report.find("G200")["cause"])

    def test_nothing_mounted(self):
        self.report(path=f"{self.scratch}/run/gpuipcd.sock", expect=UNREACHABLE, codes=("G101",), without=("G100", "G600"))

    def test_directory_without_a_socket(self):
        report = self.report(path=f"{self.scratch}/gpuipcd.sock", expect=UNREACHABLE, codes=("G101",))
        self.assertIn("no gpuipcd.sock in it", report.find("G101")["cause"])

    def test_nobody_listens(self):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{self.scratch}/s")
        report = self.report(path=f"{self.scratch}/s", expect=UNREACHABLE, codes=("G103",))
        self.assertIn("systemctl start gpuipcd", report.find("G103")["fix"])

    def test_something_else_in_its_place(self):
        os.mkdir(f"{self.scratch}/s")
        self.report(path=f"{self.scratch}/s", expect=UNREACHABLE, codes=("G105",))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(f"{self.scratch}/d")
            self.report(path=f"{self.scratch}/d", expect=UNREACHABLE, codes=("G105",))

    def test_long_path(self):
        self.report(path=f"{self.scratch}/{'x' * 120}", expect=UNREACHABLE, codes=("G108",))

    def test_another_server(self):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{self.scratch}/s")
            server.listen()

            def answer():
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"220 mail.example ESMTP\r\n\0")
                    connection.recv(4096)

            thread = threading.Thread(target=answer)
            thread.start()
            self.report(path=f"{self.scratch}/s", expect=UNREACHABLE, codes=("G107",))
            thread.join()

    def test_silent_daemon(self):
        self.daemon.process.send_signal(signal.SIGSTOP)
        try:
            report = self.report("--wait", "500ms", expect=UNREACHABLE, codes=("G106",))
        finally:
            self.daemon.process.send_signal(signal.SIGCONT)
        self.assertIn("systemctl status gpuipcd", report.find("G106")["fix"])

    def test_the_environment_names_the_socket(self):
        done = subprocess.run([GPUIPCCTL, "doctor", "--json"], stdout=subprocess.PIPE, timeout=WAIT_S, check=False,
                              env={**os.environ, "GPUIPC_SOCKET": self.daemon.socket})
        self.assertEqual(Report(done.stdout, done.returncode).document["socket"], self.daemon.socket)

    def test_explains_codes(self):
        for code in ("G101", "g101"):
            text = subprocess.run([GPUIPCCTL, "doctor", code], stdout=subprocess.PIPE, check=True, text=True).stdout
            self.assertTrue(text.startswith("G101  Nothing is at the socket's path.\n"), text)
            self.assertIn("docker run -v /run/gpuipcd:/run/gpuipcd:ro ...", text)
        done = subprocess.run([GPUIPCCTL, "doctor", "G999"], stderr=subprocess.PIPE, check=False, text=True)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("G999", done.stderr)

    def test_other_verbs_carry_the_code(self):
        done = subprocess.run([GPUIPCCTL, "status", "--socket", "/nowhere/s"], stderr=subprocess.PIPE, check=False, text=True)
        self.assertEqual(done.returncode, UNREACHABLE)
        self.assertTrue(done.stderr.rstrip().endswith("[G101]"), done.stderr)


class VersionTest(DoctorTest):
    def test_another_version(self):
        """All of it works; what is told is that the two differ. (To the daemon it is the relay that calls, of another pid: G009.)"""
        version = self.daemon.status()["version"]
        words = {f'"version":"{version}"'.encode(): b'"version":"9.8.7"'}
        with Relay(f"{self.scratch}/s", self.daemon.socket, words) as relay:
            report = self.report(path=f"{self.scratch}/s", expect=DONE, codes=("G100", "G200", "G504", "G600"))
            self.assertGreater(relay.replaced, 0)
        self.assertEqual(report.find("G504")["cause"], f"The daemon is 9.8.7, this command {version}.")
        direct = self.report(expect=DONE, without=("G504",))
        self.assertEqual([code for code in report.codes() if code not in ("G504", "G009")], direct.codes())
        self.assertEqual(report.find("G504")["level"], "note")


@as_root
class MountTest(DoctorTest):
    def waiting_box(self, script):
        """A sandbox that has mounted what it mounts, and waits for a line to run doctor."""
        command = ["unshare", "-m", "sh", "-ec", f'{script}\necho ready\nread -r _\nexec "$@"', "sh",
                   *self.command(path=f"{self.scratch}/in/s")]
        box = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(box.stdout.readline(), b"ready\n")
        return box

    def answer(self, box, **looks):
        out, err = box.communicate(b"go\n", timeout=WAIT_S * 3)
        done = subprocess.CompletedProcess(box.args, box.returncode, out, err)
        return self.looked_at(done, **{"codes": (), "without": (), **looks})

    def test_file_mount_will_go_stale(self):
        os.mkdir(f"{self.scratch}/in")
        open(f"{self.scratch}/in/s", "wb").close()
        report = self.shell(f"mount --bind {self.daemon.socket} {self.scratch}/in/s", path=f"{self.scratch}/in/s", expect=DONE,
                            codes=("G100", "G109"))
        self.assertEqual(report.find("G109")["level"], "warn")

    def test_file_mount_of_a_daemon_that_was_restarted(self):
        os.mkdir(f"{self.scratch}/in")
        open(f"{self.scratch}/in/s", "wb").close()
        os.mkdir(f"{self.scratch}/run")
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(f"{self.scratch}/run/s")
            old.listen()
            box = self.waiting_box(f"mount --bind {self.scratch}/run/s {self.scratch}/in/s")
        os.unlink(f"{self.scratch}/run/s")
        os.link(self.daemon.socket, f"{self.scratch}/run/s")
        report = self.answer(box, expect=UNREACHABLE, codes=("G102",))
        self.assertIn("-v /run/gpuipcd:/run/gpuipcd:ro", report.find("G102")["fix"])
        # As it says: the directory is mounted instead.
        self.shell(f"mount --bind {self.scratch}/run {self.scratch}/in", path=f"{self.scratch}/in/s", expect=DONE, codes=("G100",),
                   without=("G102", "G109"))

    def test_directory_mount_that_was_removed(self):
        os.mkdir(f"{self.scratch}/in")
        os.mkdir(f"{self.scratch}/run")
        box = self.waiting_box(f"mount --bind {self.scratch}/run {self.scratch}/in")
        os.rmdir(f"{self.scratch}/run")
        report = self.answer(box, expect=UNREACHABLE, codes=("G102",))
        self.assertIn("removed on the host", report.find("G102")["cause"])
        self.assertIn("Start the container anew", report.find("G102")["fix"])

    def test_shm_of_ones_own(self):
        report = self.shell("mount -t tmpfs -o size=1g shm /dev/shm", expect=DONE, codes=("G311",), without=("G310", "G313"))
        self.assertEqual(report.find("G311")["level"], "note")
        self.assertIn("205", report.find("G311")["cause"])
        self.assertIn("--ipc=host", report.find("G311")["fix"])
        self.report(expect=DONE, codes=("G310",), without=("G311",))

    def test_small_and_missing_shm(self):
        self.shell("mount -t tmpfs -o size=64m shm /dev/shm", expect=DONE, codes=("G311", "G313"))
        report = self.shell("mount -t tmpfs -o size=1m shm /dev/shm; dd if=/dev/zero of=/dev/shm/x bs=4k count=255 2>/dev/null",
                            expect=DONE, codes=("G313",))
        self.assertEqual(report.find("G313")["level"], "warn")
        self.shell("mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/null c 1 3", expect=DONE, codes=("G314",))

    def test_bare_container(self):
        """Nothing there but libc, the command and the socket's directory."""
        root = f"{self.scratch}/root"
        files = subprocess.run(["ldd", f"{PORTABLE}/gpuipcctl"], stdout=subprocess.PIPE, check=True, text=True).stdout
        for path in ("proc", "dev", "opt", "run/gpuipcd", "lib64", "lib/x86_64-linux-gnu"):
            os.makedirs(f"{root}/{path}")
        for line in files.splitlines():
            where = next((word for word in line.split() if word.startswith("/")), "")
            if where.startswith(("/lib/", "/lib64/", "/usr/lib/")):
                shutil.copy(where, f"{root}/lib64" if "ld-linux" in where else f"{root}/lib/x86_64-linux-gnu")
        script = (f"mount --bind {PORTABLE} {root}/opt\nmount --bind {self.daemon.directory} {root}/run/gpuipcd\n"
                  f"mount -t proc proc {root}/proc\nmknod -m 666 {root}/dev/null c 1 3\n")
        done = subprocess.run(["unshare", "-pfmiun", "sh", "-ec", f'{script}exec chroot {root} /opt/gpuipcctl doctor --json "$@"', "sh",
                               "--socket", "/run/gpuipcd/s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=WAIT_S,
                              check=False, env={})
        report = self.looked_at(done, DONE, ("G100", "G200", "G600", "G314"), ())
        self.assertIn("pid: one of its own, ipc: one of its own", report.find("G300")["cause"])


@as_root
class UserTest(DoctorTest):
    GROUP = 4711

    def as_user(self, *groups, uid=1000):
        listed = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
        return ["setpriv", f"--reuid={uid}", "--regid=1000", listed]

    def test_wrong_group(self):
        os.chown(self.daemon.socket, 0, self.GROUP)
        os.chmod(self.daemon.socket, 0o660)
        report = self.report(before=self.as_user(), expect=UNREACHABLE, codes=("G104",))
        self.assertIn(f"--group-add {self.GROUP}", report.find("G104")["fix"])
        self.assertIn("uid 1000, gid 1000", report.find("G104")["cause"])
        # Nobody is told to join root's.
        os.chown(self.daemon.socket, 0, 0)
        self.assertNotIn("--group-add 0", self.report(before=self.as_user(), expect=UNREACHABLE, codes=("G104",)).find("G104")["fix"])
        os.chown(self.daemon.socket, 0, self.GROUP)
        # As it says: the group is added.
        self.report(before=self.as_user(self.GROUP), expect=DONE, codes=("G100",))

    def test_closed_directory(self):
        os.chmod(self.daemon.directory, 0o700)
        report = self.report(before=self.as_user(), expect=UNREACHABLE, codes=("G104",))
        self.assertIn(f"{self.daemon.directory} is closed to you", report.find("G104")["cause"])
        os.chmod(self.daemon.directory, 0o755)
        self.report(before=self.as_user(), expect=DONE, codes=("G100",))

    def test_overflow_uid(self):
        self.report(before=self.as_user(uid=65534), expect=FAILED, codes=("G202",), without=("G201",))

    def test_user_namespace(self):
        report = self.report(before=["unshare", "-U", "setpriv", "--inh-caps=-all"], expect=DONE, codes=("G204",))
        self.assertIn("uid 0 to the daemon", report.find("G204")["cause"])


class PolicyTest(DoctorTest):
    def make_daemon(self):
        return Daemon(config="[Access]\nAllowUsers=0 12\n")

    @as_root
    def test_not_admitted(self):
        report = self.report(before=["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"], expect=FAILED, codes=("G201",),
                             without=("G202",))
        self.assertIn("AllowUsers=", report.find("G201")["fix"])
        self.assertEqual(report.document["reachable"], True)
        self.report(before=["setpriv", "--reuid=12", "--regid=12", "--clear-groups"], expect=DONE, codes=("G100",))


class LimitsTest(DoctorTest):
    def limited(self, limit, **looks):
        return self.report(before=["sh", "-ec", f'ulimit {limit}; exec "$@"', "sh"], **looks)

    def test_limits(self):
        self.limited("-S -n 256", expect=DONE, codes=("G411",), without=("G410",))
        if not os.environ.get("GPUIPC_SANITIZER"):  # which has no room then
            self.limited("-S -v 4000000", expect=DONE, codes=("G413",))
        self.limited("-S -l 16", expect=DONE, codes=("G412",))


class QuotaTest(DoctorTest):
    def make_daemon(self):
        return Daemon(config="[Limits]\nBytesPerUser=1M\nClientsPerUser=8\n")

    def test_turned_away(self):
        clients = [self.client() for _ in range(8)]
        for client in clients:
            client.call("GetStatus")
        report = self.report(expect=FAILED, codes=("G203",), without=("G100",))
        for client in clients:
            client.close()
        self.assertIn("clients_per_uid", report.find("G203")["cause"])

    def test_not_a_byte_is_lent(self):
        """Another client has all that this user may have: who one is cannot be asked, and the rest is looked at all the same."""
        with self.client() as client:
            lease = client.call("Allocate", {"size": 1 << 20, "device": "host"})["lease"]
            report = self.report(expect=FAILED, codes=("G100", "G205", "G300", "G601"), without=("G200", "G600"))
            client.call("Release", {"lease": lease})
        self.assertEqual(report.find("G205")["level"], "warn")
        self.assertIn("bytes_per_uid", report.find("G205")["cause"])

    def test_trial_refused(self):
        report = self.report(expect=FAILED, codes=("G200", "G601"), without=("G600",))
        self.assertIn("bytes_per_uid", report.find("G601")["cause"])


@with_fake
class FakeTest(DoctorTest):
    """A daemon with two GPUs that are none."""

    script = ""
    config = ""

    def make_daemon(self):
        self.say(self.script)
        self.environment = {"LD_LIBRARY_PATH": FAKE, "GPUIPC_FAKE_CUDA": f"{self.scratch}/script"}
        return Daemon("--backend", "auto", config=self.config, environment=self.environment)

    def say(self, script):
        with open(f"{self.scratch}/new", "w", encoding="utf-8") as file:
            file.write(f"state {self.scratch}/state\n{script}\n")
        os.rename(f"{self.scratch}/new", f"{self.scratch}/script")

    def scripted(self, script, *options, **looks):
        """With a driver that has these whims in the command alone: a script of its own, over the same machine."""
        return self.report(*options, environment={"GPUIPC_FAKE_CUDA": f"state {self.scratch}/state;{script}"}, **looks)


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
        self.daemon.kill()
        self.daemon.wait()

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
