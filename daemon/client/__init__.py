"""What a user of the socket installs: two clients, their results, and the protocol without its sockets.

It imports the daemon's errors, NumPy and MessagePack, and nothing else of graphtide. Of the daemon's other
rooms only ``tools`` use the clients; the server uses ``wire`` and ``addresses``.
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "AsyncClient",
    "Change",
    "Checkpoint",
    "Client",
    "Component",
    "Computed",
    "Degree",
    "DegreeDistribution",
    "EdgeFlags",
    "Edges",
    "Egonet",
    "Histogram",
    "Info",
    "Kept",
    "Neighbors",
    "Path",
    "Reach",
    "Result",
    "Top",
    "Values",
]

if TYPE_CHECKING:
    from .asynchronous import AsyncClient
    from .blocking import Client
    from .results import (
        Change,
        Checkpoint,
        Component,
        Computed,
        Degree,
        DegreeDistribution,
        EdgeFlags,
        Edges,
        Egonet,
        Histogram,
        Info,
        Kept,
        Neighbors,
        Path,
        Reach,
        Result,
        Top,
        Values,
    )


def __getattr__(name: str) -> Any:
    """Loaded on first use: whoever wants a socket's address needs neither NumPy nor asyncio."""
    if name == "Client":
        from . import blocking as module
    elif name == "AsyncClient":
        from . import asynchronous as module  # type: ignore[no-redef]
    elif name in __all__:
        from . import results as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
