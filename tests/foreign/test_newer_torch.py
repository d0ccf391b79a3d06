# SPDX-License-Identifier: Apache-2.0
"""gpuipc.torch with the PyTorch of Debian 13: its suites, on host memory. deadline: 300 s"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from newer import NewerTest  # noqa: E402


class NewerTorchTest(NewerTest):
    def test_it_is_newer(self):
        told = self.inside("python3", "-c", "import torch; print(torch.__version__, torch.cuda.is_available())")
        self.assertRegex(told, r"^2\.6\.\d.* False\n$")

    def test_channel(self):
        self.suite("torch_channel")

    def test_multiprocessing(self):
        self.suite("torch_multiprocessing")

    def test_pool(self):
        self.suite("torch_pool")

    def test_share(self):
        self.suite("torch_share")


if __name__ == "__main__":
    unittest.main()
