"""Where a server listens and clients connect: ``unix:PATH`` or ``tcp://HOST:PORT``."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple


class TcpAddress(NamedTuple):
    """A host (name or address, IPv6 without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """The path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """``unix:PATH`` or ``tcp://HOST:PORT`` (an IPv6 host in brackets).

    Raises:
        ValueError: the text is something else.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(text.removeprefix("unix:"))
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if text.startswith("tcp://") and colon and host and port.isascii() and port.isdigit() and int(port) <= 65535:
        return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))
    raise ValueError(f"{text!r} is no address; expected unix:PATH or tcp://HOST:PORT")


def is_loopback(address: TcpAddress | UnixAddress) -> bool:
    """True where only this machine can reach the address."""
    if isinstance(address, UnixAddress) or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False
