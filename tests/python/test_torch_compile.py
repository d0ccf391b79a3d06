# SPDX-License-Identifier: Apache-2.0
"""What torch.compile makes, in a pool. A suite of its own, since it takes the longest. deadline: 300 s"""

import unittest

from torchtest import DEVICE, TorchTest, cuda_only

import gpuipc
import gpuipc.torch
import torch


@cuda_only
class CompileTest(TorchTest):
    def test_compiled(self):
        function = torch.compile(lambda x: torch.relu(x * 2 - 1).t().contiguous())
        source = torch.full((2048, 2048), 3.0, device=DEVICE)
        with gpuipc.torch.pool():
            result = function(source)
        with gpuipc.torch.put(result, "compiled", copy=False):
            child = self.partner()
            child.run("got = gpuipc.torch.get('compiled')")
            self.assertEqual(child.ask("got.unique().tolist()"), [5])
            child.run("got.fill_(2); torch.cuda.synchronize()")
            self.assertEqual(function(result).unique().tolist(), [3])
            child.clear()
        torch.compiler.reset() if hasattr(torch, "compiler") else None


if __name__ == "__main__":
    unittest.main()
