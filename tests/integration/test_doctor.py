# SPDX-License-Identifier: Apache-2.0
"""gpuipcctl doctor in sandboxes that are broken in one way each, none of them CUDA's: the code it gives, and that what it says to do leads
on. deadline: 300 s"""

import os
import shutil
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from daemon import BUILD, GPUIPCCTL, GPUIPCD, Daemon, script  # noqa: E402
from doctortest import DONE, FAILED, UNREACHABLE, USAGE, DoctorTest, Report, as_root  # noqa: E402
from rawclient import WAIT_S  # noqa: E402
from relay import Relay  # noqa: E402

USER = 2004
PORTABLE = f"{BUILD}/portable"


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

            def answer(words):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(words)

            for words in (b"220 mail.example ESMTP\r\n\0", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"):
                with self.subTest(words):
                    thread = threading.Thread(target=answer, args=(words,))
                    thread.start()
                    self.report(path=f"{self.scratch}/s", expect=UNREACHABLE, codes=("G107",))
                    thread.join()

    @as_root
    def test_processes_that_the_daemon_may_not_look_at(self):
        """Its /proc hides those of other users, but from one group."""
        for gid, expect, codes in ((0, FAILED, ("G206",)), (USER, DONE, ("G100", "G600"))):
            with self.subTest(gid=gid):
                program = script(f"{self.scratch}/hidden", "exec unshare --mount sh -c '"
                                 f"mount -t proc -o hidepid=2{f',gid={gid}' if gid else ''} proc /proc && exec setpriv --reuid {USER} "
                                 f"--regid {USER} --groups {USER} {GPUIPCD} \"$@\"' sh \"$@\" --socket {self.scratch}/h")
                os.chmod(self.scratch, 0o777)
                daemon = Daemon("--isolation=container", program=program, admin=False, socket_path=f"{self.scratch}/h", wait=False)
                try:
                    daemon.wait_notified("READY=1")
                    report = self.report(path=daemon.socket, expect=expect, codes=codes, without=("G201",))
                finally:
                    daemon.kill()
                if expect == FAILED:
                    self.assertIn("cannot read /proc/PID/cgroup of your process", report.find("G206")["cause"])
                    self.assertIn("SupplementaryGroups", report.find("G206")["fix"])

    def test_silent_daemon(self):
        with self.daemon.frozen():
            report = self.report("--wait", "500ms", expect=UNREACHABLE, codes=("G106",))
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
class EventsTest(DoctorTest):
    """The daemon and the command have a /dev/shm to themselves, where CUDA keeps an event of root's."""

    def make_daemon(self):
        return Daemon(program=script(f"{self.scratch}/program", "exec unshare -m sh -ec 'mount -t tmpfs shm /dev/shm; "
                                     f"exec {GPUIPCD} \"$@\"' sh \"$@\""))

    def as_user(self, uid, **looks):
        return self.report(before=["nsenter", "-t", str(self.daemon.pid), "-m", "setpriv", f"--reuid={uid}", "--regid=1000",
                                   "--clear-groups"], expect=DONE, codes=("G310",), without=("G311",), **looks)

    def test_one_user(self):
        """What is there is not opened, but looked at: it is the file that the driver would open."""
        path = f"/proc/{self.daemon.pid}/root/dev/shm/cuda.shm.0.1a2b.1"
        os.close(os.open(path.replace("cuda.shm", "other"), os.O_CREAT, 0o600))
        self.assertEqual(self.as_user(1000).find("G310")["level"], "ok")
        os.close(os.open(path, os.O_CREAT, 0o600))
        finding = self.as_user(1000).find("G310")
        self.assertEqual(finding["level"], "note")
        self.assertIn("also want one user: those of uid 0 are there, and to uid 1000 they are closed", finding["cause"])
        self.assertIn("run both programs as one user", finding["fix"])
        # As it says: its own user's can be used, which root is here.
        self.assertEqual(self.as_user(0).find("G310")["level"], "ok")
        os.chown(path, 1000, 1000)
        self.assertEqual(self.as_user(1000).find("G310")["level"], "ok")


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


if __name__ == "__main__":
    unittest.main()
