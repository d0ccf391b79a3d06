# SPDX-License-Identifier: Apache-2.0
"""A tensor between two containers: the examples for PyTorch, each in one of its own, with podman's namespaces and the machine's own root
under a throw-away copy. deadline: 300 s"""

import importlib.util
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from containertest import main  # noqa: E402
from daemon import BUILD, ROOT, wait_for  # noqa: E402
from overroot import OverRootTest  # noqa: E402

EXAMPLES = f"{ROOT}/client/python/examples"


class TorchTest(OverRootTest):
    def missing(self):
        return None if importlib.util.find_spec("torch") else "needs PyTorch (make deps)"

    def options(self, *more):
        return super().options("-e", f"PYTHONPATH={ROOT}/client/python", "-e", f"GPUIPC_LIBRARY={BUILD}/libgpuipc.so.0", *more)

    def test_two_containers(self):
        self.podman.start("producer", *self.options("-i"), root="/:O",
                          command=["sh", "-c", f"sleep 600 | /usr/bin/python3 {EXAMPLES}/torch_producer.py shared"])
        done = self.podman.run(*self.options(), root="/:O", command=["/usr/bin/python3", f"{EXAMPLES}/torch_consumer.py", "shared"])
        self.assertRegex(done.stdout, r"^shared: checksum -?\d+\.\d{6}\n$", done.stderr)
        wait_for(lambda: done.stdout.strip() in self.podman.call("logs", "producer").stdout, "the producer to say so too")
        self.assert_in_containers()
        self.podman.remove("producer")
        wait_for(lambda: self.daemon.status()["buffers"] == 0, "the tensor to go with its container")


if __name__ == "__main__":
    main()
