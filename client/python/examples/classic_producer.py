# SPDX-License-Identifier: Apache-2.0
"""The same as torch_producer.py with CUDA's own handles and nothing else, to see what it takes. Prints what classic_consumer.py needs:
a handle, where in it the tensor begins, its size.

A handle is of a whole allocation, and PyTorch puts many tensors into one, so the tensor's address alone does not say where it is: the
offset from the allocation's first byte goes along. Whoever has the handle has all of the allocation, other tensors in it included; when
this process ends, nobody is told.
"""

import ctypes
import sys

import torch

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemGetAddressRange_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_size_t), ctypes.c_uint64]
driver.cuIpcGetMemHandle.argtypes = [ctypes.c_char * 64, ctypes.c_uint64]

tensor = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(1)).cuda()
torch.cuda.synchronize()
base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), (ctypes.c_char * 64)()
for failed in (driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), tensor.data_ptr()),
               driver.cuIpcGetMemHandle(handle, base)):
    if failed:
        sys.exit(f"the driver says {failed}")
print(handle.raw.hex(), tensor.data_ptr() - base.value, tensor.numel(), flush=True)
print(f"checksum {tensor.double().sum().item():.6f}", flush=True)
sys.stdin.readline()
