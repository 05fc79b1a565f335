"""Anonymous shared memory: arrays that another process maps after it was sent their file descriptor.

The memory has no name, so nothing is left behind when every process that maps it is gone, however it went.
Pages are taken when they are first written: room to grow costs nothing until it is used.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import resource
import socket
import tempfile
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma import address_space
from ...gpma.index.id_table import Allocate
from ...gpma.memory import Memory

FDS_PER_MESSAGE_MAX = 250
"""Linux passes at most 253 descriptors in one message (SCM_MAX_FD)."""
CONTROL_BYTES_MAX = 1 << 17
"""Of a message between the daemon and its query server."""

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_FDS_BYTES = socket.CMSG_LEN(FDS_PER_MESSAGE_MAX * array("i").itemsize)
_received = threading.local()
_pass = threading.Lock()


def _fence() -> None:
    # A release, then an acquire of the same lock orders both sides (C11, 7.17.3).
    with _pass:
        pass
    with _pass:
        pass


def _no_fence() -> None:
    pass


fence: Callable[[], None] = _no_fence if platform.machine() in ("x86_64", "AMD64") else _fence
"""Keep memory accesses before this line before those after it, on processors that reorder them: x86-64 keeps reads
in order, and writes, and what reads here after a write does not depend on it."""


class SharedMap(mmap.mmap):
    """A mapping that keeps its descriptor open, to be sent on. It ends with the last array on it."""

    fd: int = -1

    def __del__(self) -> None:
        with contextlib.suppress(BufferError):
            self.close()  # releases the interpreter, which the end of a mapping otherwise does not
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Where an array lies: the descriptor of its memory, and its place in there."""

    fd: int
    byte_offset: int
    n_items: int
    dtype: str

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> SharedArray:
        """Find the memory of an array made by ``allocate`` or of a contiguous view of one.

        Raises:
            ValueError: the array does not lie in shared memory, or is not contiguous.
        """
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        owner = owner.obj if isinstance(owner, memoryview) else owner
        if not isinstance(owner, SharedMap) or not array.flags.c_contiguous:
            raise ValueError("not a contiguous array in shared memory")
        base = np.frombuffer(owner, np.uint8).ctypes.data
        return cls(owner.fd, array.ctypes.data - base, array.size, array.dtype.str)


def anonymous_file(name: str, size: int) -> int:
    """A descriptor of ``size`` zero bytes that no path leads to."""
    try:
        fd = os.memfd_create(f"graphtide:{name}"[:200], os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS:
            raise  # a file would need one, too, and be said to find no folder
        with tempfile.TemporaryFile(prefix="graphtide-") as file:
            fd = os.dup(file.fileno())
        try:
            os.posix_fallocate(fd, 0, size)  # a full disk must fail here, not as SIGBUS at a later write
        except OSError:
            os.close(fd)
            raise
    else:
        try:
            os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            raise
    return fd


def _mapped(fd: int, size: int, protection: int) -> SharedMap:
    """Map ``size`` bytes of ``fd``; the mapping owns the descriptor, which is closed on failure too."""
    try:
        mapping = SharedMap(fd, size, mmap.MAP_SHARED, protection)
    except (OSError, ValueError):
        os.close(fd)
        raise
    mapping.fd = fd
    return mapping


def reservable_bytes() -> int:
    """How much may be allocated ahead of its use; 0: none, since address space or the size of files is limited."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    free = unlimited and hasattr(os, "memfd_create") and address_space.is_free()
    return address_space.memory_bytes() if free else 0


def allocate(name: str, n_items: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A zeroed array of ``n_items`` in new shared memory; ``name`` shows in /proc/PID/maps.

    Raises:
        OSError, MemoryError: there is not enough memory.
    """
    item = np.dtype(dtype)
    size = max(n_items * item.itemsize, mmap.PAGESIZE)
    mapping = _mapped(anonymous_file(name, size), size, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(mapping, item, count=n_items)


def allocate_within(memory: Memory) -> Allocate:
    """``allocate`` for arrays that fill up by and by: it asks for all of their memory before, since nobody is
    asked when pages are written."""

    def asked(name: str, n_items: int, dtype: Any) -> npt.NDArray[Any]:
        memory.require(n_items * np.dtype(dtype).itemsize)
        return allocate(name, n_items, dtype)

    return asked


def attach(place: SharedArray) -> npt.NDArray[Any]:
    """The array at ``place``, read-only; takes over the descriptor.

    Raises:
        ValueError: the memory is smaller than the array.
    """
    item = np.dtype(place.dtype)
    size = os.fstat(place.fd).st_size
    if place.byte_offset + place.n_items * item.itemsize > size:
        os.close(place.fd)
        raise ValueError(f"{place.n_items} items of {place.dtype} do not fit into {size} bytes")
    mapping = _mapped(place.fd, size, mmap.PROT_READ)
    return np.frombuffer(mapping, item, count=place.n_items, offset=place.byte_offset)


def receive_with_fds(channel: socket.socket, message_bytes_max: int) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; an empty message means that the other end is gone.

    Raises:
        OSError: (BlockingIOError) there is none yet; or this process may have no more descriptors, and the message
            is lost.
        ValueError: the message was longer than ``message_bytes_max``.
    """
    # Into memory that is there: to map some for each message, and to give it back, takes longer than all else.
    buffer: bytearray | None = getattr(_received, "buffer", None)
    if buffer is None or len(buffer) < message_bytes_max:
        buffer = _received.buffer = bytearray(message_bytes_max)
    size, ancillary, flags, _ = channel.recvmsg_into(
        [memoryview(buffer)[:message_bytes_max]], _FDS_BYTES, socket.MSG_CMSG_CLOEXEC
    )
    fds = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        if not flags & socket.MSG_TRUNC:  # there is room for all descriptors that a message may have
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise ValueError(f"a message was longer than {message_bytes_max} bytes")
    return bytes(memoryview(buffer)[:size]), list(fds)
