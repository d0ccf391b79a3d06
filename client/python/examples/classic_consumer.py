# SPDX-License-Identifier: Apache-2.0
"""The other side of classic_producer.py.

classic_consumer.py HANDLE OFFSET ELEMENTS

PyTorch has no call that makes a storage of an address; what it takes is an object with __cuda_array_interface__.
"""

import ctypes
import sys

import torch

LAZY_PEER_ACCESS = 1


class Memory:
    def __init__(self, pointer, elements):
        self.__cuda_array_interface__ = {"shape": (elements,), "typestr": "<f4", "data": (pointer, False), "version": 3}


class Handle(ctypes.Structure):  # by value
    _fields_ = [("reserved", ctypes.c_char * 64)]


driver = ctypes.CDLL("libcuda.so.1")
driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), Handle, ctypes.c_uint]
driver.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]

handle, offset, elements = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.zeros(1, device="cuda")  # a context
base = ctypes.c_uint64()
failed = driver.cuIpcOpenMemHandle_v2(ctypes.byref(base), Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
if failed:
    sys.exit(f"the driver says {failed}")
tensor = torch.as_tensor(Memory(base.value + offset, elements), device="cuda")
print(f"checksum {tensor.double().sum().item():.6f}", flush=True)
del tensor
driver.cuIpcCloseMemHandle(base)  # nobody else will
