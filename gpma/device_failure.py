"""What a device raises that fails, told from mistakes of code on the host. CuPy is not imported here."""

from __future__ import annotations

# The packages whose own exceptions say what the driver, the runtime or a compiler said.
_CUPY = ("cupy", "cupy_backends")


class DeviceFailed(RuntimeError):
    """A device, or its driver, did not do what it was asked for; the message says what."""


def is_of_device(error: BaseException) -> bool:
    """Whether an exception is a device's: ``DeviceFailed``, or of a class of CuPy's own."""
    kinds = type(error).__mro__
    return DeviceFailed in kinds or any(kind.__module__.partition(".")[0] in _CUPY for kind in kinds)
