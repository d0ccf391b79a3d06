# SPDX-License-Identifier: Apache-2.0
"""Stands for a server that knows only classic CUDA handles, as Triton's shared memory does: for each line "HANDLE OFFSET SIZE" it opens the
memory, says what its bytes add up to, and closes it.
"""

import ctypes
import sys


class Handle(ctypes.Structure):  # by value
    _fields_ = [("reserved", ctypes.c_char * 64)]


runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), Handle, ctypes.c_uint]
runtime.cudaIpcCloseMemHandle.argtypes = [ctypes.c_void_p]
runtime.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LAZY_PEER_ACCESS, DEVICE_TO_HOST = 1, 2


def check(result):
    if result:
        sys.exit(f"the CUDA runtime says {result}")


for line in sys.stdin:
    handle, offset, size = line.split()
    base, copy = ctypes.c_void_p(), (ctypes.c_ubyte * int(size))()
    check(runtime.cudaIpcOpenMemHandle(ctypes.byref(base), Handle.from_buffer_copy(bytes.fromhex(handle)), LAZY_PEER_ACCESS))
    check(runtime.cudaMemcpy(copy, base.value + int(offset), int(size), DEVICE_TO_HOST))
    check(runtime.cudaIpcCloseMemHandle(base))
    print(sum(copy), flush=True)
