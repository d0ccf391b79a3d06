# SPDX-License-Identifier: Apache-2.0
"""The Python package with the Python and the NumPy of Debian 13: its suites, on host memory. deadline: 300 s"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from newer import NewerTest  # noqa: E402


class NewerPythonTest(NewerTest):
    def test_it_is_newer(self):
        told = self.inside("python3", "-c", "import sys, numpy; print(sys.version_info[:2], numpy.__version__[0])")
        self.assertEqual(told, "(3, 13) 2\n")

    def test_arrays(self):
        self.suite("arrays")

    def test_channel(self):
        self.suite("channel")

    def test_client(self):
        self.suite("client")

    def test_dlpack(self):
        self.suite("dlpack")

    def test_layout(self):
        self.suite("layout")

    def test_lifetime(self):
        self.suite("lifetime")

    def test_given(self):
        self.suite("given")

    def test_misuse(self):
        self.suite("misuse")


if __name__ == "__main__":
    unittest.main()
