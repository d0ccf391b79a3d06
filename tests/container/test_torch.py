# SPDX-License-Identifier: Apache-2.0
"""A tensor between two containers: the examples for PyTorch, each in one of its own, with podman's namespaces and the machine's own root
under a throw-away copy. deadline: 300 s"""

import importlib.util
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import main, make_scratch  # noqa: E402
from daemon import BUILD, ROOT, Daemon, wait_for  # noqa: E402
from podman import Podman, unavailable  # noqa: E402

EXAMPLES = f"{ROOT}/client/python/examples"


class TorchTest(unittest.TestCase):
    def setUp(self):
        reason = unavailable() or (None if importlib.util.find_spec("torch") else "needs PyTorch (make deps)")
        if not reason and os.environ.get("GPUIPC_SANITIZER"):
            reason = "what a sanitizer watches cannot be loaded into an interpreter"
        if reason:
            self.skipTest(reason)
        # Podman takes no long names for it.
        self.scratch, self.shared = tempfile.mkdtemp(prefix="gpuipc.", dir="/tmp"), make_scratch("shared.")
        os.chmod(self.scratch, 0o755)
        self.addCleanup(shutil.rmtree, self.scratch)
        self.addCleanup(shutil.rmtree, self.shared)
        self.podman = Podman(f"{self.scratch}/podman")
        self.addCleanup(self.podman.close)
        self.daemon = Daemon(memory="host", socket_path=f"{self.shared}/gpuipcd.sock")
        self.addCleanup(self.daemon.kill)

    def options(self, *more):
        return ("-v", f"{self.shared}:/run/gpuipcd:ro", "-e", f"PYTHONPATH={ROOT}/client/python", "-e", "PYTHONDONTWRITEBYTECODE=1", "-e",
                f"GPUIPC_LIBRARY={BUILD}/libgpuipc.so.0", *more)

    def test_two_containers(self):
        self.podman.start("producer", *self.options("-i"), root="/:O",
                          command=["sh", "-c", f"sleep 600 | /usr/bin/python3 {EXAMPLES}/torch_producer.py shared"])
        done = self.podman.run(*self.options(), root="/:O", command=["/usr/bin/python3", f"{EXAMPLES}/torch_consumer.py", "shared"])
        self.assertRegex(done.stdout, r"^shared: checksum -?\d+\.\d{6}\n$", done.stderr)
        self.assertIn(done.stdout.strip(), self.podman.call("logs", "producer").stdout)
        with self.daemon.client(admin=True) as admin:
            self.assertEqual({lease["container"] is not None for lease in admin.call("List")["leases"]}, {True})
        self.podman.remove("producer")
        wait_for(lambda: self.daemon.status()["buffers"] == 0, "the tensor to go with its container")


if __name__ == "__main__":
    main()
