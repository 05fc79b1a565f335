"""The CUDA device itself: whether there is one, what it is, and how much of its memory this process may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from .module import import_cupy
from .pool import memory_pool, release_blocks, spare_bytes

CAPABILITY_MIN = 80
"""The oldest compute capability, 8.0, for which kernels are compiled in tests."""


class NoDevice(Exception):
    """There is no device that can be used; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Card:
    """A device that can be used. ``name``: the maker's; ``capability``: 90 for 9.0; ``memory_bytes``: in all."""

    name: str
    capability: int
    memory_bytes: int

    def limit(self, n_bytes: int | None) -> None:
        """Let arrays of this process take so much memory; None: all there is."""
        memory_pool().set_limit(size=n_bytes or 0)

    @property
    def limit_bytes(self) -> int | None:
        """What ``limit`` set."""
        return int(memory_pool().get_limit()) or None

    @property
    def held_bytes(self) -> int:
        """Memory that this process has taken for arrays, free blocks that it keeps included."""
        return int(memory_pool().total_bytes())

    @property
    def used_bytes(self) -> int:
        """Memory that arrays of this process have, without the free blocks that it keeps for others."""
        return int(memory_pool().used_bytes())

    @property
    def spare_bytes(self) -> int:
        """What of that goes as soon as other arrays find no memory."""
        return spare_bytes()

    @property
    def available_bytes(self) -> int:
        """Memory that arrays of this process may take in all now, by the limit and by what others have left."""
        free = int(import_cupy().cuda.Device().mem_info[0]) + self.held_bytes
        return free if self.limit_bytes is None else min(free, self.limit_bytes)

    def release(self) -> None:
        """As ``release_blocks``."""
        release_blocks()

    def __str__(self) -> str:
        major, minor = divmod(self.capability, 10)
        return f"{self.name} (compute capability {major}.{minor}, {self.memory_bytes / 2**30:.0f} GiB)"


def is_installed() -> bool:
    """Whether CuPy is there; it is not imported."""
    return find_spec("cupy") is not None


def require_any() -> None:
    """Nothing is taken of a device: one that others have for themselves counts, too.

    Raises:
        NoDevice: there is none, or CuPy is not installed.
    """
    with _as_no_device():
        if not import_cupy().cuda.runtime.getDeviceCount():
            raise NoDevice("CuPy finds no CUDA device")


@contextmanager
def _as_no_device() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise NoDevice(str(error)) from error
    except NoDevice:
        raise
    except Exception as error:  # CuPy's own types, which cannot be named without it
        raise NoDevice(f"CuPy finds no CUDA device: {error}") from error


def find_card() -> Card:
    """The current device; the first one, unless ``CUDA_VISIBLE_DEVICES`` says otherwise.

    Raises:
        NoDevice: there is none, CuPy is not installed, or the device is too old.
    """
    require_any()
    with _as_no_device():
        cuda = import_cupy().cuda
        device = cuda.Device()
        name = cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        capability, memory_bytes = int(device.compute_capability), int(device.mem_info[1])
    if capability < CAPABILITY_MIN:
        had, least = (f"{number // 10}.{number % 10}" for number in (capability, CAPABILITY_MIN))
        raise NoDevice(f"{name} has compute capability {had}, and {least} is the least")
    return Card(name, capability, memory_bytes)
