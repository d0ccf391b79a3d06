# SPDX-License-Identifier: Apache-2.0
"""A buffer on a GPU, mapped by hand through the driver: by its descriptor, or by its classic handle. For one process each, as a
driver that was used does not survive fork(). Standard library only."""

import base64
import ctypes

DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ, READ_WRITE = 1, 3
LAZY_PEER_ACCESS = 1


class Access(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("ordinal", ctypes.c_int), ("flags", ctypes.c_int)]


class Classic(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Driver:
    """libcuda.so.1, with the first GPU's primary context current."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise OSError(f"{name}: {result}")


class GpuMap:
    def __init__(self, driver, handle, size, fd=-1, writable=True):
        self.driver, self.size = driver, size
        self.start = self.open_classic(handle) if fd < 0 else self.map_descriptor(fd, writable)
        self.start += handle["offset"]

    def open_classic(self, handle):
        start, classic = ctypes.c_uint64(), Classic()
        ctypes.memmove(ctypes.byref(classic), base64.b64decode(handle["ipc"]), 64)
        self.driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(start), classic, ctypes.c_uint(LAZY_PEER_ACCESS))
        return start.value

    def map_descriptor(self, fd, writable):
        call, handle, start = self.driver.call, ctypes.c_uint64(), ctypes.c_uint64()
        size = ctypes.c_size_t((self.size + (2 << 20) - 1) // (2 << 20) * (2 << 20))
        access = Access(1, 0, READ_WRITE if writable else READ)
        call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), ctypes.c_int(DESCRIPTOR))
        call("cuMemAddressReserve", ctypes.byref(start), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        call("cuMemMap", start, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        call("cuMemSetAccess", start, size, ctypes.byref(access), ctypes.c_size_t(1))
        call("cuMemRelease", handle)
        return start.value

    def write(self, data):
        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.start), data, ctypes.c_size_t(len(data)))

    def read(self, n):
        data = ctypes.create_string_buffer(n)
        self.driver.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(self.start), ctypes.c_size_t(n))
        return data.raw
