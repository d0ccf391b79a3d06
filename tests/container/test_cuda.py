# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU shared between real containers, with the fake driver (tests/fake) mounted as a container toolkit mounts the real one.
deadline: 300 s"""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import FAKE, for_each, main  # noqa: E402
from daemon import Daemon  # noqa: E402

ALICE, BOB = 1001, 1002


class Gpu:
    """The daemon has one GPU; containers see it too. What one puts there another gets."""

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(f"{FAKE}/libcuda.so.1"):
            raise unittest.SkipTest("built without CUDA, since there is no cuda.h")
        super().setUpClass()

    def setUp(self):
        self.state = tempfile.mkdtemp(prefix="gpu.", dir=os.environ.get("TMPDIR", "/tmp"))
        self.addCleanup(shutil.rmtree, self.state)
        os.chmod(self.state, 0o777)
        super().setUp()

    @staticmethod
    def driver(state):
        return {"GPUIPC_FAKE_CUDA": f"state {state}; devices 1; log no"}

    def make_daemon(self, **more):
        with open(f"{self.state}.params", "w", encoding="ascii") as file:
            file.write('RegistryDwords: ""\n')
        self.addCleanup(os.unlink, f"{self.state}.params")
        return Daemon(config=self.config, socket_path=f"{self.shared}/gpuipcd.sock", memory="cuda",
                      environment={**self.driver(self.state), "LD_LIBRARY_PATH": FAKE, "GPUIPC_NVIDIA_PARAMS": f"{self.state}.params"}, **more)

    def with_gpu(self, how):
        return {**how, "mounts": {FAKE: "/opt:ro", self.state: "/state"}, "env": {"LD_LIBRARY_PATH": "/opt", **self.driver("/state")}}

    def test_doctor(self):
        """It makes, maps, writes and reads a buffer of each kind; with the machine's IPC and without."""
        for how in ({}, {"host_ipc": True}, {"user": (ALICE, ALICE)}, {"mapped": True}, {"hardened": True}):
            done = self.inside("gpuipcctl", "doctor", "--json", **self.with_gpu(how))
            self.works(done)
            self.assertIn('"G600"', done.said)

    def test_by_default(self):
        with self.producer("--seal", **self.with_gpu({})):
            self.assertEqual(self.leases()[0]["device"][:4], "GPU-")
            done = self.inside("gpuipcctl", "get", "--wait", "10s", "--sealed", "w", **self.with_gpu({}))
            self.works(done, self.original())
        self.daemon.wait_idle()

    def test_other_users(self):
        with self.producer("--mode", "0644", **self.with_gpu({"user": (ALICE, ALICE)})):
            for how in ({"user": (BOB, BOB)}, {"mapped": True}, {"hardened": True}, {"host_ipc": True}):
                self.works(self.inside("gpuipcctl", "get", "--owner", "any", "w", **self.with_gpu(how)), self.original())
        with self.producer("--mode", "0600", **self.with_gpu({"user": (ALICE, ALICE)})):
            self.refused(self.inside("gpuipcctl", "get", "--owner", "any", "w", **self.with_gpu({"user": (BOB, BOB)})), "No such buffer")

    def test_removed_by_force(self):
        box = self.box("gpuipcctl", "alloc", "64M", **self.with_gpu({}))
        box.line()
        self.assertEqual(self.bytes_of_gpu(), 64 << 20)
        box.remove()
        self.daemon.wait_idle()

    def bytes_of_gpu(self):
        return next(device["brokered_bytes"] for device in self.daemon.status()["devices"] if device["kind"] == "cuda")


for_each(globals(), Gpu)

if __name__ == "__main__":
    main()
