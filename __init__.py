"""graphtide keeps graph analytics true while the graph changes.

``from graphtide import Client, AsyncClient`` is all that a query client needs; both are loaded on first
use, so that importing the package stays cheap.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__", "errors"]

if TYPE_CHECKING:
    from .daemon import errors
    from .daemon.client import AsyncClient, Client


def __getattr__(name: str) -> Any:
    if name in ("Client", "AsyncClient"):
        from .daemon import client

        return getattr(client, name)
    if name == "errors":
        from .daemon import errors

        return errors
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
