"""Where the query server listens: addresses become sockets, files become TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from ..client.addresses import TcpAddress, UnixAddress, is_loopback, parse_address
from ..errors import ConfigError

SOCKET_MODE = 0o660
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the certificate chain and its private key."""

    certificate: str
    key: str


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """The server's side of TLS.

    Raises:
        OSError: (ssl.SSLError among them) the files cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def check_tls(files: Mapping[str, str] | None) -> None:
    """
    Raises:
        ConfigError: these files cannot be used.
    """
    if files is not None:
        try:
            tls_context(**files)
        except OSError as error:
            raise ConfigError(f"TLS with {files['certificate']} and {files['key']}: {error}") from error


def open_listener(text: str, *, beyond_loopback: bool) -> tuple[socket.socket, str]:
    """A listening socket for an address, and the address as clients reach it (the port is filled in).

    Raises:
        ConfigError: the address is wrong or in use, or reaches beyond loopback and must not.
    """
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        if isinstance(address, UnixAddress):
            return _open_unix(address.path), text
        if not beyond_loopback and not is_loopback(address):
            raise ConfigError(f"{text} is beyond loopback: configure TLS, or allow it as insecure")
        return _open_tcp(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {text}: {error.strerror or error}") from error


def _open_tcp(address: TcpAddress) -> tuple[socket.socket, str]:
    family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    return listener, str(TcpAddress(address.host, listener.getsockname()[1]))


def _open_unix(path: str) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Restricted before it exists: between bind and a later chmod anyone could connect.
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on; anything else stays, and is an error."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the path exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "another process answers there")
