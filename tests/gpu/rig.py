# SPDX-License-Identifier: Apache-2.0
"""What the steps of the GPU tier work with: agents, a meter of the GPU's memory, daemons, sandboxes. Standard library only."""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from daemon import BUILD, Daemon
from rawclient import RawClient

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HANDLES = ("cuda-fd", "cuda-ipc")
SANDBOX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox.py")
DOCKER_LIKE = ("--pid", "--mount", "--ipc", "--net", "--uts", "--shm", "own")


class AgentError(Exception):
    """What an agent was refused: the name of the error, the doctor's code (or "-"), the words."""

    def __init__(self, name, code, text):
        super().__init__(f"{name} {code}: {text}")
        self.name, self.code, self.text = name, code, text


class Meter:
    """The memory of the GPUs, asked of NVML."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.ask("nvmlInit_v2")
        count = ctypes.c_uint()
        self.ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self.ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            self.devices.append(device)

    def ask(self, name, *arguments):
        result = getattr(self.nvml, name)(*arguments)
        if result != 0:
            raise OSError(f"{name}: NVML says {result}")

    def text(self, name, index=0):
        buffer = ctypes.create_string_buffer(96)
        self.ask(name, self.devices[index], buffer, ctypes.c_uint(96))
        return buffer.value.decode()

    def driver(self):
        buffer = ctypes.create_string_buffer(96)
        self.ask("nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(96))
        return buffer.value.decode()

    def cuda(self):
        number = ctypes.c_int()
        self.ask("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def memory(self, index=0):
        memory = Meter.Memory()
        self.ask("nvmlDeviceGetMemoryInfo", self.devices[index], ctypes.byref(memory))
        return memory

    def free(self, index=0):
        return self.memory(index).free

    def wait_free(self, wanted, seconds=20):
        """Seconds until so much is free; None when it did not come."""
        started = time.monotonic()
        while self.free() < wanted:
            if time.monotonic() - started > seconds:
                return None
        return time.monotonic() - started

    def settled_free(self):
        """What is free once that stands still for a tenth of a second."""
        same, last = 0, -1
        for _ in range(300):
            now = self.free()
            same = same + 1 if now == last else 0
            last = now
            if same >= 10:
                break
            time.sleep(0.01)
        return last


class Process:
    """A program of the bundle with a pipe to talk over; perhaps in a sandbox."""

    def __init__(self, rig, program, *words, sandbox=(), environment=None):
        command = [program, *words]
        if sandbox:
            command = [sys.executable, "-B", SANDBOX, *sandbox, "--", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=rig.log, bufsize=0,
                                        env={**os.environ, **(environment or {})}, cwd="/")
        self.received = b""
        self.words = " ".join(command)

    def line(self, timeout=60):
        deadline = time.monotonic() + timeout
        while b"\n" not in self.received:
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no answer within {timeout} s: {self.words}")
            data = self.process.stdout.read(65536)
            if not data:
                raise EOFError(f"ended with {self.process.wait(timeout=10)}: {self.words}")
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        return line.decode(errors="replace")

    def answer(self, timeout=60):
        """The words after "ok"."""
        words = self.line(timeout).split(" ")
        if words[0] == "ok":
            return words[1:]
        raise AgentError(words[1], words[2], " ".join(words[3:]))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)

    def end(self, seconds=20):
        """It is told to stop and does; or else it is killed."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Agent(Process):
    """tests/gpu/agent.c."""

    def __init__(self, rig, socket=None, **options):
        super().__init__(rig, f"{rig.tools}/agent", **options)
        try:
            self.answer()
            self.gpu = self.ask("connect", socket)[0] if socket else None
        except BaseException:
            self.end(1)
            raise

    def tell(self, *words):
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def ask(self, *words, timeout=60):
        self.tell(*words)
        return self.answer(timeout)

    def make(self, key, size, handle, device="-", name="-", mode="-", seed=None):
        """Allocates, maps, and fills when there is a seed."""
        made = self.ask("allocate", key, size, handle, device, name, mode)
        self.ask("map", key)
        if seed is not None:
            self.ask("fill", key, seed)
        return made

    def count(self, *words):
        return int(self.ask(*words)[0])


class Rig:
    """One run of the tier."""

    def __init__(self, part, dry, log):
        self.part, self.dry, self.log = part, dry, log
        self.tools = f"{BUILD}/{'dry' if self.dry else 'tools'}"
        self.doctor_program = f"{BUILD}/portable/gpuipcctl"
        self.big = 32 * MIB if self.dry else 8 * GIB
        self.middle = 4 * MIB if self.dry else 64 * MIB
        self.meter = Meter()
        self.things = []

    def agent(self, *arguments, **options):
        return self.owned(Agent(self, *arguments, **options))

    def program(self, name, *words, **options):
        return self.owned(Process(self, f"{self.tools}/{name}", *words, **options))

    def daemon(self, *arguments, **options):
        daemon = Daemon(*arguments, memory=options.pop("memory", "cuda"), **options)
        self.things.append(daemon)
        return daemon

    def owned(self, thing):
        self.things.append(thing)
        return thing

    def stop(self, daemon):
        """Stops a daemon that must be idle and well."""
        self.things.remove(daemon)
        try:
            daemon.wait_idle()
        except BaseException:
            self.keep_log(daemon)
            daemon.kill()
            raise
        self.keep_log(daemon)
        daemon.stop()

    def keep_log(self, daemon):
        self.log.write(f"---- gpuipcd {daemon.pid}\n{daemon.log()[-8000:]}\n")
        self.log.flush()

    def clean(self):
        """Whatever a step left behind, agents first."""
        for thing in reversed(self.things):
            try:
                if isinstance(thing, Daemon):
                    self.keep_log(thing)
                    thing.kill()
                else:
                    thing.end(5)
            except Exception as error:  # pylint: disable=broad-except
                print(f"cleaning up: {error}", file=self.log, flush=True)
        self.things = []

    def raw(self, daemon):
        return self.owned(Raw(daemon.socket))

    def doctor(self, socket, *sandbox, environment=None):
        """(exit status, findings) of gpuipcctl doctor --json."""
        command = [self.doctor_program, "doctor", "--json", "--socket", socket]
        if sandbox:
            command = [sys.executable, "-B", SANDBOX, *sandbox, "--", *command]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90,
                              env={**os.environ, **(environment or {})}, cwd="/", check=False, text=True, errors="replace")
        self.log.write(f"---- doctor {' '.join(sandbox)}: {done.returncode}\n{done.stdout}{done.stderr}\n")
        self.log.flush()
        try:
            return done.returncode, json.loads(done.stdout)["findings"]
        except (ValueError, KeyError):
            raise AssertionError(f"doctor ended with {done.returncode} and says {done.stdout[-300:]!r} {done.stderr[-300:]!r}") from None

    def smi_used(self):
        """MiB in use as nvidia-smi says; NVML's figure where there is none."""
        if self.dry or not shutil.which("nvidia-smi"):
            return self.meter.memory().used // MIB
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                              stdout=subprocess.PIPE, timeout=30, check=True, text=True).stdout
        return int(said.split()[0])


class Raw(RawClient):
    """end(), as the other things have; and memory is on the first GPU where no device is named, as of an agent."""

    def call(self, method, parameters=None, **members):
        if method == "Allocate" and "device" not in parameters:
            parameters = {**parameters, "device": on_gpu(super().call("GetStatus"))}
        return super().call(method, parameters, **members)

    def end(self, _seconds=0):
        self.close()


def on_gpu(status):
    """The daemon's first GPU. Its own choice is that only where it has no other."""
    return next(device["uuid"] for device in status["devices"] if device["kind"] == "cuda")


def codes(findings, *levels):
    return [finding["code"] for finding in findings if not levels or finding["level"] in levels]


def size_text(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.0f} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} B"
