"""Clients of a graphtide daemon: ``Client``, ``AsyncClient``, what they answer, and the ``errors`` they raise."""

from . import client, errors
from .client import *  # noqa: F403 - all that the daemon's package has, which says what that is

__version__ = "0.1.0"
__all__ = ["errors", *client.__all__]
