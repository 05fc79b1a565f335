"""Where the query server listens: addresses become sockets, files become TLS."""

from __future__ import annotations

import errno
import grp
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from ..client.addresses import (
    SOCKET_HERE,
    TcpAddress,
    UnixAddress,
    is_loopback,
    parse_address,
    parse_http_address,
)
from ..errors import ConfigError
from ..os_errors import why

SOCKET_MODE = 0o660
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the certificate chain, its private key, and of the authorities for clients' certificates.

    With ``client_ca`` every client must present a certificate that one of these authorities signed.
    """

    certificate: str
    key: str
    client_ca: str | None = None


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of TLS, of the files as they are now.

    Raises:
        OSError: (ssl.SSLError among them) the files cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def checked_tls(files: TlsFiles) -> ssl.SSLContext:
    """As ``tls_context``.

    Raises:
        ConfigError: these files cannot be used.
    """
    try:
        return tls_context(files)
    except OSError as error:
        named = " and ".join(file for file in (files.certificate, files.key, files.client_ca) if file is not None)
        raise ConfigError(f"TLS with {named}: {error}") from error


def open_listener(
    text: str, *, beyond_loopback: bool, socket_group: str | None = None
) -> tuple[socket.socket, str]:
    """A listening socket for an address, and the address as clients reach it (the port is filled in).

    ``socket_group``: the group that may connect to a Unix socket (None: our own).

    Raises:
        ConfigError: the address is wrong or in use, or reaches beyond loopback and must not, or there is no such
            group, or we are not in it; or it is the default in a working directory that others may write.
    """
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        if isinstance(address, UnixAddress):
            if address.path == SOCKET_HERE and others_may_write(Path()):
                raise ConfigError(
                    f"server.listen: the default Unix socket would be {Path(SOCKET_HERE).absolute()}, where "
                    f"others may take its name first. Name one in a folder of your own (server.listen = "
                    f"['unix:/path/to/it', 'tcp://127.0.0.1:7420']), set XDG_RUNTIME_DIR, or start elsewhere"
                )
            return _open_unix(address.path, socket_group), text
        if not beyond_loopback and not is_loopback(address):
            raise ConfigError(f"{text} is beyond loopback: configure TLS, or allow it as insecure")
        return _open_tcp(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {text}: {why(error)}") from error


def open_http_listener(
    text: str, *, has_tls: bool, insecure: bool, socket_group: str | None = None
) -> tuple[socket.socket, str]:
    """As ``open_listener``, for the HTTP door: ``http://`` beyond loopback only where that is ``insecure``.

    Raises:
        ConfigError: as ``open_listener``, or ``https://`` without files for TLS.
    """
    try:
        address = parse_http_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if address.tls and not has_tls:
        raise ConfigError(f"{text} needs TLS: configure server.tls")
    beyond = address.tls or insecure
    listener, opened = open_listener(str(address.place), beyond_loopback=beyond, socket_group=socket_group)
    return listener, str(address._replace(place=parse_address(opened)))


def others_may_write(folder: Path) -> bool:
    """Whether another user than root and ourselves may make files in a folder that exists, sticky or not."""
    status = folder.stat()
    return bool(status.st_mode & stat.S_IWOTH) or status.st_uid not in (0, os.geteuid())


def _open_tcp(address: TcpAddress) -> tuple[socket.socket, str]:
    family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    return listener, str(TcpAddress(address.host, listener.getsockname()[1]))


def _open_unix(path: str, group: str | None) -> socket.socket:
    """Only we may connect until the group has it: between bind and a later chmod anyone else could."""
    group_id = -1 if group is None else _group_id(group)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # Linux makes the path with the mode that the socket has
        listener.bind(path)
        try:
            os.chown(path, -1, group_id)
        except PermissionError:
            raise ConfigError(
                f"server.socket_group = {group!r}: user {os.geteuid()} is not in that group"
            ) from None
        os.chmod(path, SOCKET_MODE)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"server.socket_group = {name!r}: there is no such group on this machine") from None


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
