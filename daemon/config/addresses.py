"""Addresses as settings and flags write them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from ..client.addresses import SOCKET_HERE, TcpAddress, parse_address


def parse_tcp(text: str) -> TcpAddress:
    """``HOST:PORT``, an IPv6 host in brackets.

    Raises:
        ValueError: the text is something else.
    """
    host = text.rpartition(":")[0]
    with contextlib.suppress(ValueError):
        address = parse_address(f"tcp://{text}")
        if isinstance(address, TcpAddress) and "/" not in host and (":" not in host or host.startswith("[")):
            return address
    raise ValueError("must be HOST:PORT, an IPv6 address in brackets")


def default_socket_path(environ: Mapping[str, str] | None = None) -> str:
    """The Unix socket to listen on: in the folder that systemd or the session gave, else in /run (root) or here.

    The first ones are folders that others may not write: nobody else can be first to take the name. Whether it is
    so here, who listens looks (``serve.listening``).
    """
    given = os.environ if environ is None else environ
    if folder := given.get("RUNTIME_DIRECTORY", "").split(":")[0] or given.get("XDG_RUNTIME_DIR"):
        return f"{folder}/graphtide.sock"
    return "/run/graphtide.sock" if os.geteuid() == 0 else SOCKET_HERE
