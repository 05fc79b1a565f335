"""Every error that graphtide raises on purpose.

One base class; each error carries the code that goes over the wire and says whether trying again can help.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GraphtideError(Exception):
    """Base of all; ``detail`` holds whatever helps a program to react (it must be MessagePack-able)."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, detail: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail or {}


class ConfigError(GraphtideError):
    """A setting is wrong; the message names the key, the value and what is allowed."""

    code = "bad-config"


class SourceError(GraphtideError):
    """The source cannot go on without losing or repeating records (truncated file, missing offsets, ...)."""

    code = "source"


class SourceReplaced(SourceError):
    """What the offsets belong to is gone, and another source has its name (a topic that was made anew)."""


class RecordsLost(SourceError):
    """Records that were read, or are to be, are not in the source any more (retention, a log that was cut)."""


class SourceUnavailable(GraphtideError):
    """The source cannot be reached just now; it is tried again."""

    code = "source-unavailable"
    retriable = True


class CheckpointError(GraphtideError):
    """No usable checkpoint, or one that belongs to another source or configuration."""

    code = "checkpoint"


class DeadLettersError(GraphtideError):
    """Bad records cannot be kept, for a reason that does not go away by waiting."""

    code = "dead-letters"


class NotWritten(GraphtideError):
    """The disk does not take what must be kept: it is full, or fails."""

    code = "not-written"
    retriable = True


class IdSpaceFull(GraphtideError):
    """More vertices than dense ids: a clear stop."""

    code = "id-space-full"


class RequestError(GraphtideError):
    """A request that cannot be answered as it stands."""

    code = "bad-request"


class NotSupported(RequestError):
    """A method or option of the protocol that this server does not offer."""

    code = "not-supported"


class UnknownProgram(RequestError):
    code = "unknown-program"


class UnknownVertex(RequestError):
    code = "unknown-vertex"


class LimitExceeded(RequestError):
    """The request asks for more than a configured limit."""

    code = "limit-exceeded"


class Unauthorized(RequestError):
    code = "unauthorized"


class TimedOut(RequestError):
    """Nothing was wrong but time."""

    code = "timeout"
    retriable = True


class Unavailable(RequestError):
    """The part of the process that could answer is busy or starting."""

    code = "unavailable"
    retriable = True
