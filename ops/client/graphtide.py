"""The clients of graphtide where the daemon is not installed: ``from graphtide import Client``.

Where it is, its package of the same name is found before this module, and has them, too.
"""

from graphtide_client import AsyncClient, Client, __version__, errors

__all__ = ["AsyncClient", "Client", "__version__", "errors"]
