"""Where a server listens and clients connect: ``unix:PATH`` or ``tcp://HOST:PORT``; for HTTP ``http://HOST:PORT``."""

from __future__ import annotations

import ipaddress
import os
from typing import NamedTuple

SOCKET_HERE = "./graphtide.sock"
"""The Unix socket where nobody gave a folder; it is refused where others may write the working directory."""


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


class UnknownHome(ValueError):
    """A path begins with ``~``, and the home that this stands for is not known."""


def from_home(path: str) -> str:
    """A path as a shell reads it: ``~`` at its beginning is our home, ``~NAME`` that of a user. (No shell has read
    what stands in a file or behind a colon.)

    Raises:
        UnknownHome: there is no such user, or no home.
    """
    whole = os.path.expanduser(path)
    if whole.startswith("~"):
        raise UnknownHome(
            f"the home that {path.partition('/')[0]} stands for is not known: write the path whole (or ./~ for a "
            "name that begins so)"
        )
    return whole


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """``unix:PATH`` or ``tcp://HOST:PORT`` (an IPv6 host in brackets).

    Raises:
        UnknownHome: as ``from_home``.
        ValueError: the text is something else.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixAddress(from_home(text.removeprefix("unix:")))
    if text.startswith("tcp://") and (address := _host_and_port(text.removeprefix("tcp://"))) is not None:
        return address
    raise ValueError(f"{text!r} is no address; expected unix:PATH or tcp://HOST:PORT{_meant(text)}")


def _host_and_port(text: str) -> TcpAddress | None:
    host, colon, port = text.rpartition(":")
    if colon and host and port.isascii() and port.isdigit() and int(port) <= 65535:
        return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))
    return None


def _meant(text: str) -> str:
    if text.startswith(("http://", "https://")):
        return " (that of HTTP is another door, which graphtide's clients do not use)"
    if "://" not in text and _host_and_port(text) is not None:
        return f"; did you mean 'tcp://{text}'?"
    if text.startswith(("/", "./", "~")):
        return f"; did you mean 'unix:{text}'?"
    return ""


class HttpAddress(NamedTuple):
    """Where the HTTP door is, and whether it speaks TLS there."""

    place: TcpAddress | UnixAddress
    tls: bool = False

    @property
    def door(self) -> str:
        """Its kind: ``http`` or ``https``."""
        return "https" if self.tls else "http"

    def __str__(self) -> str:
        if isinstance(self.place, UnixAddress):
            return str(self.place)
        return str(self.place).replace("tcp", self.door, 1)


def parse_http_address(text: str) -> HttpAddress:
    """``http://HOST:PORT``, ``https://HOST:PORT`` (an IPv6 host in brackets) or ``unix:PATH``.

    Raises:
        UnknownHome: as ``from_home``.
        ValueError: the text is something else.
    """
    scheme, _, rest = text.partition("://")
    try:
        if scheme in ("http", "https"):
            return HttpAddress(parse_address(f"tcp://{rest}"), scheme == "https")
        if text.startswith("unix:"):
            return HttpAddress(parse_address(text))
    except UnknownHome:
        raise
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no address; expected http://HOST:PORT, https://HOST:PORT or unix:PATH")


def is_loopback(address: TcpAddress | UnixAddress) -> bool:
    """True where only this machine can reach the address."""
    if isinstance(address, UnixAddress) or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False
