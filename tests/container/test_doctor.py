# SPDX-License-Identifier: Apache-2.0
"""A newcomer has a container that is broken in one way, gpuipcctl doctor in it, and nothing else to go by. Each case takes the command
that doctor's own words give, types it, and ends with doctor content and bytes shared between two containers. The driver, where there is
one, is the fake one. deadline: 300 s"""

import json
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import podman  # noqa: E402
from daemon import BUILD, GPUIPCD, Daemon, open_fds, wait_for  # noqa: E402
from rawclient import RawClient  # noqa: E402

DONE, FAILED, UNREACHABLE = 0, 1, 3
CTL = f"{podman.HERE}/gpuipcctl"
FAKE = f"{BUILD}/fake"
LIBRARY = "/lib/x86_64-linux-gnu/libcuda.so.1"
NODES = ("nvidiactl", "nvidia-uvm", "nvidia0")
HOST_DIRECTORY, ADMIN_DIRECTORY = "/run/gpuipcd", "/run/gpuipcd-admin"
MOUNT = "docker run -v /run/gpuipcd:/run/gpuipcd:ro ..."
GIVE_GPU = "podman run --device nvidia.com/gpu=all ..."
USER = "1234"
GROUP = "4711"
SHARED = "/bin/cat"  # a file that is passed from container to container


class Report:
    """What doctor found, and how it ended."""

    def __init__(self, done):
        self.text, self.status = done.stdout, done.returncode
        self.findings = json.loads(done.stdout)["findings"]

    def __str__(self):
        return self.text

    def codes(self, *levels):
        return [finding["code"] for finding in self.findings if finding["level"] in levels]

    def find(self, code):
        return next(finding for finding in self.findings if finding["code"] == code)

    def commands(self, code):
        """What its fix says to type, lines that go on in the next one joined."""
        lines = self.find(code)["fix"].replace("\\\n   ", "").split("\n")
        return [line.strip() for line in lines if line.startswith("  ")]


class ContainerTest(unittest.TestCase):
    """A daemon on the host with a socket in `run`, which is /run/gpuipcd to the newcomer, and a machine to make containers on."""

    config = ""
    daemon_args = ("--backend", "host")
    daemon_environment = {}

    def setUp(self):
        reason = podman.unavailable()
        if reason:
            self.skipTest(reason)
        self.directory = tempfile.mkdtemp(prefix="container.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        os.chmod(self.directory, 0o755)
        self.run_directory = f"{self.directory}/run"
        os.mkdir(self.run_directory)
        self.podman = podman.Podman(self.directory)
        self.addCleanup(self.podman.close)
        self.fds_before = open_fds()
        self.daemon = None
        self.prepare()
        self.start_daemon()

    def prepare(self):
        """Before the daemon starts."""

    def start_daemon(self):
        self.daemon = Daemon(*self.daemon_args, config=self.config, environment=self.daemon_environment,
                             socket_path=f"{self.run_directory}/gpuipcd.sock", memory="host")
        self.addCleanup(self.daemon.kill)

    def stop_daemon(self):
        if self.daemon:
            self.daemon.stop()
            self.daemon = None

    def tearDown(self):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            return
        self.podman.remove("-a")
        if self.daemon:
            self.daemon.wait_idle()
        self.stop_daemon()
        self.assertEqual(len(self.fds_before), len(open_fds()))

    def on_host(self, option):
        """The newcomer's paths are the machine's own."""
        for path, place in ((ADMIN_DIRECTORY, self.daemon and self.daemon.directory), (HOST_DIRECTORY, self.run_directory)):
            if option == path or option.startswith((f"{path}:", f"{path}/")):
                return f"{place}{option[len(path):]}"
        return option

    def typed(self, report, code, command, **words):
        """The options of a `docker run` that the fix of a finding says to type, with its words in capitals filled in."""
        self.assertIn(command, report.commands(code), report)
        for word, value in words.items():
            command = command.replace(word, value)
        engine, verb, *options = shlex.split(command)
        self.assertIn((engine, verb), (("docker", "run"), ("podman", "run")))
        return [self.on_host(option) for option in options if option != "..."]

    def looked_at(self, done, status, *failures):
        self.assertTrue(done.stdout, done.stderr)
        report = Report(done)
        self.assertEqual(done.stderr, "")
        self.assertEqual((report.status, report.codes("fail")), (status, list(failures)), report)
        return report

    def doctor(self, *options, status=DONE, failures=(), arguments=()):
        """Doctor as the only process of a new container."""
        return self.looked_at(self.podman.run(*options, command=[CTL, "doctor", "--json", *arguments]), status, *failures)

    def doctor_in(self, name, status=DONE, failures=()):
        """Doctor in a container that runs."""
        return self.looked_at(self.podman.call("exec", name, CTL, "doctor", "--json", check=False), status, *failures)

    def assert_shares(self, *options):
        """What one container puts, another gets."""
        self.podman.start("producer", *options, command=[CTL, "put", "--seal", "--device", "host", "weights", SHARED])
        done = self.podman.run(*options, command=[CTL, "get", "--wait", "10s", "--sealed", "weights", "-"], text=False)
        with open(f"{self.podman.root}{SHARED}", "rb") as file:
            self.assertEqual(done.stdout, file.read(), done.stderr)
        self.podman.remove("producer")

    def assert_well(self, *options, codes=("G100", "G600"), warnings=()):
        """Doctor is content and bytes are shared."""
        report = self.doctor(*options)
        self.assertEqual(report.codes("warn"), list(warnings), report)
        for code in codes:
            self.assertIn(code, report.codes("ok"), report)
        self.assert_shares(*options)
        return report


class SocketTest(ContainerTest):
    def test_nothing_mounted(self):
        report = self.doctor(status=UNREACHABLE, failures=["G101"])
        self.assertEqual(report.codes("warn"), [], report)
        self.assertIn("nothing of the host's is mounted at /run/gpuipcd", report.find("G101")["cause"])
        self.assert_well(*self.typed(report, "G101", MOUNT))

    def test_mount_point_in_the_image(self):
        os.mkdir(f"{self.podman.root}/run/gpuipcd")
        report = self.doctor(status=UNREACHABLE, failures=["G101"])
        self.assertIn("nothing of the host's is mounted at /run/gpuipcd", report.find("G101")["cause"])
        self.assert_well(*self.typed(report, "G101", MOUNT))

    def test_dead_socket_in_the_image(self):
        """As where a container's root is a copy of the host's: the daemon runs, and is not to be reached by that."""
        os.mkdir(f"{self.podman.root}/run/gpuipcd")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{self.podman.root}/run/gpuipcd/gpuipcd.sock")
        report = self.doctor(status=UNREACHABLE, failures=["G103"])
        self.assertIn("nothing of the host's is mounted at /run/gpuipcd", report.find("G103")["cause"])
        self.assert_well(*self.typed(report, "G103", MOUNT))

    def test_looked_for_elsewhere(self):
        options = ["-e", "GPUIPC_SOCKET=/sockets/gpuipcd.sock"]
        report = self.doctor(*options, status=UNREACHABLE, failures=["G101"])
        self.assert_well(*options, *self.typed(report, "G101", "docker run -v /run/gpuipcd:/sockets:ro ..."))

    def test_daemon_not_started(self):
        self.stop_daemon()
        mount = ["-v", f"{self.run_directory}:/run/gpuipcd"]
        report = self.doctor(*mount, status=UNREACHABLE, failures=["G101"])
        self.assertIn("the daemon does not run", report.find("G101")["cause"])
        self.assertIn("gpuipcd", report.commands("G101"))
        self.assertNotIn(MOUNT, report.commands("G101"))
        self.start_daemon()
        self.assert_well(*mount)

    def test_stale_mount_of_the_socket(self):
        self.podman.start("app", "-v", f"{self.daemon.socket}:/run/gpuipcd/gpuipcd.sock", command=["sleep", "600"])
        self.assertEqual(self.doctor_in("app").codes("warn"), ["G109"])
        self.stop_daemon()
        self.start_daemon()
        report = self.doctor_in("app", UNREACHABLE, ["G102"])
        options = self.typed(report, "G102", MOUNT)
        self.podman.remove("app")
        self.podman.start("app", *options, command=["sleep", "600"])
        self.doctor_in("app")
        self.stop_daemon()
        self.start_daemon()
        self.assertEqual(self.doctor_in("app").codes("warn"), [])
        self.assert_shares(*options)

    def test_stale_mount_of_a_directory(self):
        mount = ["-v", f"{self.run_directory}:/run/gpuipcd"]
        self.podman.start("app", *mount, command=["sleep", "600"])
        self.stop_daemon()
        os.rmdir(self.run_directory)
        os.mkdir(self.run_directory)
        self.start_daemon()
        report = self.doctor_in("app", UNREACHABLE, ["G102"])
        self.assertEqual(report.commands("G102"), ["docker restart CONTAINER"])
        self.podman.call("restart", "-t", "0", "app")
        self.doctor_in("app")
        self.assert_shares(*mount)

    def test_directory_in_the_sockets_place(self):
        """As Docker leaves it when the container was started before the daemon."""
        path = f"{self.run_directory}/gpuipcd.sock"
        self.stop_daemon()
        os.mkdir(path)
        report = self.doctor("-v", f"{path}:/run/gpuipcd/gpuipcd.sock", status=UNREACHABLE, failures=["G105"])
        self.assertEqual(report.commands("G105"), ["rmdir /run/gpuipcd/gpuipcd.sock", "systemctl start gpuipcd", MOUNT])
        os.rmdir(self.on_host("/run/gpuipcd/gpuipcd.sock"))
        self.start_daemon()
        self.assert_well(*self.typed(report, "G105", MOUNT))


class AccessTest(ContainerTest):
    config = f"[Access]\nAllowUsers=0\nAllowGroups={GROUP}\n"  # the test itself is root

    def mount(self, user):
        return ["-v", f"{self.run_directory}:/run/gpuipcd", "--user", f"{user}:{user}"]

    def reload(self, line):
        with open(f"{self.daemon.directory}/conf", "a", encoding="ascii") as file:
            file.write(f"{line}\n")
        os.kill(self.daemon.pid, signal.SIGHUP)
        self.daemon.wait_notified("READY=1")

    def test_user_is_not_admitted(self):
        report = self.doctor(*self.mount(USER), status=FAILED, failures=["G201"])
        self.assertEqual(report.codes("warn"), [], report)
        self.assertNotIn("G312", report.codes("note"))
        self.assertIn("[Access] of /etc/gpuipcd/gpuipcd.conf", report.find("G201")["fix"])
        for command in (f"AllowUsers={USER}", "systemctl reload gpuipcd", "pkill -HUP -x gpuipcd"):
            self.assertIn(command, report.commands("G201"))
        self.reload(f"AllowUsers={USER}")
        self.assert_well(*self.mount(USER))

    def test_group_is_admitted(self):
        report = self.doctor(*self.mount(USER), status=FAILED, failures=["G201"])
        options = self.typed(report, "G201", "docker run --group-add GROUP ...", GROUP=GROUP)
        self.assert_well(*self.mount(USER), *options)

    def test_root_of_a_user_namespace_is_not_admitted(self):
        """Its number is the one the daemon knows it by."""
        self.podman.give_to(100000)
        mount = ["-v", f"{self.run_directory}:/run/gpuipcd", "--uidmap", "0:100000:65536"]
        report = self.doctor(*mount, status=FAILED, failures=["G201"])
        self.assertIn("AllowUsers=100000", report.commands("G201"))
        self.reload("AllowUsers=100000")
        self.assert_well(*mount)

    def test_administrators_socket(self):
        self.reload(f"AllowUsers={USER}")
        os.chown(self.daemon.admin_socket, 0, int(GROUP))
        os.rename(self.daemon.admin_socket, f"{self.daemon.directory}/admin.sock")
        mount = ["-v", f"{self.daemon.directory}:{ADMIN_DIRECTORY}", "--user", f"{USER}:{USER}"]
        variable = ["-e", f"GPUIPC_SOCKET={ADMIN_DIRECTORY}/admin.sock"]
        report = self.doctor(*mount, *variable, status=UNREACHABLE, failures=["G104"])
        self.assertIn(f"0:{GROUP}, mode 0660", report.find("G104")["cause"])
        self.assertNotIn(f"docker run --group-add {GROUP} ...", report.commands("G104"))
        self.assertIn("unset GPUIPC_SOCKET", report.commands("G104"))
        os.rename(f"{self.daemon.directory}/admin.sock", self.daemon.admin_socket)
        self.assert_well("--user", f"{USER}:{USER}", *self.typed(report, "G104", MOUNT))

    def test_socket_of_a_group(self):
        self.reload(f"AllowUsers={USER}")
        os.chown(self.daemon.socket, 0, int(GROUP))
        os.chmod(self.daemon.socket, 0o660)
        report = self.doctor(*self.mount(USER), status=UNREACHABLE, failures=["G104"])
        self.assert_well(*self.mount(USER), *self.typed(report, "G104", f"docker run --group-add {GROUP} ..."))


class GpuTest(ContainerTest):
    """The machine has a GPU, a fake one, and a CDI file that gives it to containers."""

    daemon_args = ("--backend", "auto")

    def prepare(self):
        if not os.path.exists(f"{FAKE}/libcuda.so.1"):
            self.skipTest("built without CUDA")
        machine = f"{self.directory}/gpu"
        os.mkdir(machine)
        os.chmod(machine, 0o1777)
        with open(f"{machine}/params", "w", encoding="ascii") as file:
            file.write('RegistryDwords: ""\n')
        self.script = f"state {machine}/state; devices 1; log no"
        self.daemon_environment = {"LD_LIBRARY_PATH": FAKE, "GPUIPC_FAKE_CUDA": self.script,
                                   "GPUIPC_NVIDIA_PARAMS": f"{machine}/params"}
        for name in NODES:
            os.mknod(f"{self.directory}/{name}", 0o20666, os.makedev(1, 3))
            os.chmod(f"{self.directory}/{name}", 0o666)
        mounts = [(machine, machine, "rw"), (f"{FAKE}/libcuda.so.1", LIBRARY, "ro")]
        with open(f"{self.podman.cdi}/nvidia.json", "w", encoding="ascii") as file:
            json.dump({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {
                "env": [f"GPUIPC_FAKE_CUDA={self.script}"],
                "deviceNodes": [{"path": f"/dev/{name}", "hostPath": f"{self.directory}/{name}"} for name in NODES],
                "mounts": [{"hostPath": there, "containerPath": here, "options": ["rbind", mode]} for there, here, mode in mounts],
            }}]}, file)

    def mount(self):
        return ["-v", f"{self.run_directory}:/run/gpuipcd"]

    def library(self):
        """The driver's library without the rest of it: what was to be a GPU's state is not there."""
        return ["-v", f"{FAKE}/libcuda.so.1:{LIBRARY}:ro", "-e", "GPUIPC_FAKE_CUDA=state /tmp/none; on cuInit fail=100; log no"]

    def node(self, name):
        return ["--device", f"{self.directory}/{name}:/dev/{name}"]

    def assert_lends_gpu(self, report):
        handles = [finding["figures"]["handle"] for finding in report.findings if finding["code"] == "G600"]
        self.assertEqual(sorted(handles), ["cuda-fd", "cuda-ipc", "memfd"], report)

    def assert_gpu_well(self, *options, warnings=()):
        self.assert_lends_gpu(self.assert_well(*options, codes=("G100", "G400", "G402", "G600"), warnings=warnings))


class DriverTest(GpuTest):
    def test_no_library(self):
        report = self.doctor(*self.mount(), status=FAILED, failures=["G001"])
        self.assertIn("docker run --gpus all ...", report.commands("G001"))
        self.assertIn("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", report.commands("G001"))
        self.assert_gpu_well(*self.mount(), *self.typed(report, "G001", GIVE_GPU))

    def test_nodes_without_the_library(self):
        nodes = [word for name in NODES for word in self.node(name)]
        report = self.doctor(*self.mount(), *nodes, "-e", "NVIDIA_DRIVER_CAPABILITIES=utility", status=FAILED, failures=["G001"])
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=utility", report.find("G001")["cause"])
        self.assertTrue(any("NVIDIA_DRIVER_CAPABILITIES=compute,utility" in line for line in report.commands("G001")), report)
        self.assert_gpu_well(*self.mount(), *self.typed(report, "G001", GIVE_GPU))

    def test_library_without_nodes(self):
        report = self.doctor(*self.mount(), *self.library(), status=FAILED, failures=["G022"])
        self.assertIn("Missing: /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0.", report.find("G022")["cause"])
        self.assertIn("docker run --gpus all ...", report.commands("G022"))
        self.assert_gpu_well(*self.mount(), *self.typed(report, "G022", GIVE_GPU))

    def test_one_node_of_three(self):
        report = self.doctor(*self.mount(), *self.library(), *self.node("nvidia0"), status=FAILED, failures=["G022"])
        self.assertIn("Missing: /dev/nvidiactl, /dev/nvidia-uvm.", report.find("G022")["cause"])
        self.assert_gpu_well(*self.mount(), *self.typed(report, "G022", GIVE_GPU))

    def test_private_shm(self):
        gpu = ["--device", "nvidia.com/gpu=all"]
        report = self.doctor(*self.mount(), *gpu)
        self.assertEqual(report.find("G311")["level"], "note")
        options = self.typed(report, "G311", "docker run --ipc=host ...")
        self.assertNotIn("G311", self.doctor(*self.mount(), *gpu, *options).codes("note"))
        self.assertIn("G310", self.doctor(*self.mount(), *gpu, *options).codes("ok"))
        # Or they share the first one's, as by the other two commands.
        first = self.typed(report, "G311", "docker run --ipc=shareable --name FIRST ...", FIRST="first")
        second = self.typed(report, "G311", "docker run --ipc=container:FIRST ...", FIRST="first")
        self.podman.start(first.pop(), *first[:-1], command=["sleep", "600"])
        self.podman.call("exec", "first", "touch", "/dev/shm/seen")
        self.assertEqual(self.podman.run(*second, command=["ls", "/dev/shm"]).stdout, "seen\n")
        self.assert_gpu_well(*self.mount(), *gpu, *second)


class SamePidTest(GpuTest):
    """The daemon is in a container too, and pid 1 there."""

    def start_daemon(self, *options):
        environment = [f"--env={key}={value}" for key, value in self.daemon_environment.items()]
        self.podman.start("daemon", *options, "-v", f"{self.run_directory}:/run/gpuipcd", "-v", f"{BUILD}:{BUILD}:ro",
                          "-v", f"{self.directory}:{self.directory}", *environment, root="/:O",
                          command=[GPUIPCD, "--backend", "auto", "--socket", "/run/gpuipcd/gpuipcd.sock", "--log-target", "stderr"])

        def serves():
            try:
                with RawClient(f"{self.run_directory}/gpuipcd.sock") as client:
                    return client.call("GetStatus")
            except OSError:
                return None

        self.assertEqual(wait_for(serves, "the daemon")["daemon_pid"] == 1, not options)

    def gpu(self):
        # Commands that are run in it later have no part in what CDI puts into its environment.
        return [*self.mount(), "--device", "nvidia.com/gpu=all", "-e", f"GPUIPC_FAKE_CUDA={self.script}"]

    def test_init(self):
        if not shutil.which("catatonit") and not os.path.exists("/usr/libexec/podman/catatonit"):
            self.skipTest("needs catatonit (make deps)")
        report = self.doctor(*self.gpu(), status=FAILED, failures=["G009"])
        self.assertIn("This process is pid 1", report.find("G009")["cause"])
        self.assert_gpu_well(*self.gpu(), *self.typed(report, "G009", "docker run --init ..."))

    def test_seen_from_beside(self):
        self.podman.start("app", *self.gpu(), command=["sleep", "600"])
        report = self.doctor_in("app")
        self.assertEqual(report.codes("warn"), ["G009"], report)
        self.assertIn("so is sleep here", report.find("G009")["cause"])

    def test_daemon_with_the_hosts_numbers(self):
        report = self.doctor(*self.gpu(), status=FAILED, failures=["G009"])
        self.podman.remove("daemon")
        self.start_daemon(*self.typed(report, "G009", "docker run --pid=host ... gpuipcd")[:-1])
        self.assert_gpu_well(*self.gpu())


if __name__ == "__main__":
    unittest.main()
