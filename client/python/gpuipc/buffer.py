# SPDX-License-Identifier: Apache-2.0
"""A buffer: shared memory and this process's lease on it."""

from __future__ import annotations

import contextlib
import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from . import _copy, _native
from ._lifetime import Facts, Lease, OfThisProcess
from .array import Array, Memory, _View
from .errors import Error, InvalidParameterError
from .layout import Layout, parse_meta

if TYPE_CHECKING:
    from .client import Client
    from .fence import Fence


class Buffer(OfThisProcess):
    """Shared memory, with a lease on it. Made by `Client.allocate()`, `Client.open()` and `Client.put()`.

        with client.allocate(1 << 20, name="frames") as buffer:
            numpy.asarray(buffer)[:] = 7

    `close()`, which leaving `with` does, says that this object is done with it. What was made of its memory (arrays, tensors,
    memoryviews) stays good: the lease ends with the last of them. `release()` ends the lease now, or says that it cannot. A Buffer that
    is collected is closed.

    Attributes below are of the time when the lease was made, and can be read after close().
    """

    def __init__(self, client: Client, lease: Lease) -> None:
        self._client = client
        self._lease: Optional[Lease] = lease
        self._facts: Facts = lease.facts

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        closed = ", closed" if self._lease is None else ""
        return f"<gpuipc.Buffer {self.id}{name}, {self.size} bytes on {self.device}, {self.access}{closed}>"

    def __enter__(self) -> Buffer:
        self._held()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]) -> None:
        self.close()

    def _held(self) -> Lease:
        lease = self._lease
        if lease is None:
            raise ValueError("the buffer is closed")
        return lease

    # ---- facts ----

    @property
    def id(self) -> str:
        """The daemon's name for it, "b17"."""
        return self._facts.id

    @property
    def name(self) -> Optional[str]:
        """The name it was given; None: none."""
        return self._facts.name

    @property
    def lease(self) -> str:
        """The lease's id."""
        return self._facts.lease

    @property
    def size(self) -> int:
        """Bytes asked for."""
        return self._facts.size

    @property
    def allocated(self) -> int:
        """Bytes that it takes."""
        return self._facts.allocated

    @property
    def device(self) -> str:
        """The UUID of the GPU that holds it, or "host"."""
        return self._facts.device

    @property
    def handle(self) -> str:
        """"memfd", "cuda-fd" or "cuda-ipc"."""
        return self._facts.handle

    @property
    def access(self) -> str:
        """"rw" or "ro"."""
        return "ro" if self._facts.read_only else "rw"

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata; {} where it has none."""
        return parse_meta(self._facts.meta)

    @property
    def closed(self) -> bool:
        """Whether close() or release() was called. Views may hold the lease still."""
        return self._lease is None

    @property
    def views(self) -> int:
        """How many views of its memory live; 0 once this object is closed, although they may."""
        lease = self._lease
        return len(lease.views) if lease else 0

    @property
    def pointer(self) -> int:
        """The address of its first byte, in this process: a host pointer or a device pointer. Maps it if it was not. Good while the Buffer
        is open or a view lives.

        Raises:
            MapError: with the driver's own words.
        """
        return self._held().map()

    @property
    def is_peer(self) -> bool:
        """Whether the memory is reached over peer access from another GPU (correct, slower). Once mapped."""
        with self._held().used() as pointer:
            return bool(_native.library().gpuipc_buffer_is_peer(pointer))

    @property
    def cuda_device(self) -> int:
        """The number, in this process, of the GPU that it is mapped for; −1: host memory, or not mapped yet."""
        with self._held().used() as pointer:
            return int(_native.library().gpuipc_buffer_cuda_device(pointer))

    def fileno(self) -> int:
        """The handle's descriptor, borrowed: to be used while the Buffer is open, and not to be closed.

        Raises:
            ValueError: the handle has none ("cuda-ipc").
        """
        with self._held().used() as pointer:
            fd = int(_native.library().gpuipc_buffer_fd(pointer))
        if fd < 0:
            raise ValueError(f"a buffer with a {self.handle} handle has no descriptor")
        return fd

    @property
    def offset(self) -> int:
        """Where it starts in what its handle opens, in bytes."""
        return self._facts.offset

    @property
    def ipc_handle(self) -> bytes:
        """The 64 bytes of a cudaIpcMemHandle_t, for a program that knows nothing else; the buffer begins `offset` bytes into what it opens.
        What it is given to is outside the books: keep the lease for as long as that has it open.

        Raises:
            HandleUnsupportedError: the handle is of another kind than "cuda-ipc".
        """
        memory = ctypes.create_string_buffer(_native.IPC_HANDLE_SIZE)
        with self._held().used() as pointer:
            _native.call("gpuipc_buffer_ipc_handle", pointer, memory)
        return memory.raw

    def check(self) -> None:
        """Asks nobody, and raises LeaseLostError when the lease is known to have ended by itself, as with a daemon that did not come
        back."""
        with self._held().used() as pointer:
            _native.call("gpuipc_buffer_check", pointer)

    # ---- bytes ----

    def read(self, n: int = -1, offset: int = 0) -> bytes:
        """A copy of `n` bytes from `offset` on (−1: to the end), whatever the memory lies on.

        Raises:
            InvalidParameterError: the range is not inside the buffer.
            MapError: with the driver's own words.
        """
        n = _native.integer(n, "n", least=-1)
        offset, n = self._range(offset, n if n >= 0 else self.size - _native.integer(offset, "offset", most=self.size), "n")
        memory = (ctypes.c_ubyte * n)()
        with self._held().used() as pointer:
            _native.call("gpuipc_buffer_read", pointer, offset, memory, n)
        return bytes(memory)

    def readinto(self, into: Any, offset: int = 0) -> int:
        """Fills a writable object of the buffer protocol from `offset` on; how many bytes that were. Errors as of read()."""
        view = _copy.view_of(into, "into")
        if view.readonly or not view.c_contiguous:
            raise TypeError(f"into: it is {'read-only' if view.readonly else 'not contiguous'}")
        offset, n = self._range(offset, view.nbytes, "into")
        with self._held().used() as pointer:
            if n:
                _native.call("gpuipc_buffer_read", pointer, offset, ctypes.addressof(ctypes.c_ubyte.from_buffer(view.cast("B"))), n)
        return n

    def write(self, data: Any, offset: int = 0) -> int:
        """Copies bytes (of the buffer protocol) there; how many. Whoever opens a lease afterwards sees them.

        Raises:
            InvalidParameterError: the range is not inside the buffer, or it was opened read-only.
            MapError: with the driver's own words.
        """
        source = _copy.bytes_of(data)
        offset, n = self._range(offset, source.shape[0], "data")
        with self._held().used() as pointer:
            _native.call("gpuipc_buffer_write", pointer, offset, source.pointer or None, n)
        return n

    def _range(self, offset: int, n: int, what: str) -> tuple[int, int]:
        offset = _native.integer(offset, "offset", most=self.size)
        if n > self.size - offset:
            raise InvalidParameterError(f"{what}: {n} bytes at {offset} are not inside the buffer, which has {self.size}.", subject=what)
        return offset, n

    # ---- views ----

    def _memory(self) -> Memory:
        lease = self._held()
        pointer = lease.map()
        return Memory(lease, pointer, self.size, self.device, self.cuda_device, self._facts.read_only, self._facts)

    def layout(self) -> Layout:
        """What the metadata says of a tensor in it; without such, all of its bytes as uint8.

        Raises:
            LayoutError: the metadata describes one that cannot be, or that is larger than the buffer.
        """
        meta = self.meta
        return Layout.from_meta(meta, self.size) if "tensor" in meta else Layout.of("uint8", (self.size,))

    def array(self, shape: Any = None, dtype: Any = None, strides: Any = None, offset: Optional[int] = None) -> Array:
        """A view of the memory as an array, which copies nothing.

        Args:
            shape: elements along each dimension; None: as the metadata says, or all bytes where it says nothing. With a dtype alone: one
                dimension, as long as fits.
            dtype: a name such as "float32", or NumPy's or PyTorch's object. None: the metadata's, else uint8.
            strides: elements, not bytes, none negative; None: row-major.
            offset: bytes from the buffer's first.

        Raises:
            LayoutError: it cannot be, or does not lie inside the buffer.
        """
        if shape is None and dtype is None and strides is None and offset is None:
            return Array(self._memory(), self.layout())
        kind = dtype if dtype is not None else self.layout().dtype
        return Array(self._memory(), Layout.within(self.size, kind, shape, strides, 0 if offset is None else offset))

    def __dlpack__(self, **how: Any) -> Any:
        """As of `Array`, of array() without arguments."""
        return self.array().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array().__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """For numpy.asarray(buffer): array().numpy()."""
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"the buffer holds {array.dtype}, and {dtype} would be a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def memoryview(self) -> _View:
        """All of its bytes, of host memory. `memoryview(buffer)`, on Python 3.12 and later, is array().memoryview(): with the shape and
        dtype of the metadata. BufferError: it is on a GPU."""
        if self.device != "host":
            raise BufferError("the buffer is on a GPU, where a memoryview cannot reach: use array(), or read() and write()")
        return self.array((self.size,), "uint8").memoryview()

    @property
    def buf(self) -> _View:
        """memoryview(), under the name that multiprocessing.shared_memory has for it; a new one each time."""
        return self.memoryview()

    def __buffer__(self, flags: int) -> _View:
        if flags & 1 and self._facts.read_only:
            raise BufferError("the buffer was opened read-only")
        return self.array().memoryview()

    def numpy(self) -> Any:
        """array().numpy()."""
        return self.array().numpy()

    def tensor(self) -> Any:
        """array().torch(): a torch.Tensor of the same memory, with shape and dtype from the metadata."""
        return self.array().torch()

    def cupy(self) -> Any:
        """array().cupy()."""
        return self.array().cupy()

    def jax(self) -> Any:
        """array().jax()."""
        return self.array().jax()

    def fence(self, offset: int) -> Fence:
        """A fence in the eight bytes at `offset`; see `Fence`.

        Raises:
            InvalidParameterError: the offset is not inside the buffer or not a multiple of 8.
        """
        from .fence import Fence

        return Fence(self, offset)

    # ---- the end ----

    def seal(self) -> None:
        """Refuses further leases for writing, which tells readers that it is complete. The owner only; this lease stays as it is.

        Raises:
            AlreadySealedError, AccessDeniedError.
        """
        if not self._facts.read_only:
            self._held().map()  # host memory that is sealed cannot be mapped for writing any more
        self._client.seal(self.id)

    def close(self) -> None:
        """This object is done with the memory: the lease ends now, or with the last view. Never raises, and may be called again."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(Error):
                lease.leave()

    def release(self) -> None:
        """Ends the lease now and waits for the daemon to say so.

        Raises:
            BufferError: views of its memory live; says how many. The buffer stays as it is.
            LeaseLostError, DisconnectedError: it had ended before. TimedOutError, UnreachableError: it ends when the daemon answers again.
        """
        lease = self._held()
        lease.end(in_earnest=True)
        self._lease = None
