"""Where the query server listens: addresses become sockets, files become TLS."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

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
from .shared_memory import anonymous_file

if TYPE_CHECKING:
    from ..config.sections.server import TlsConfig

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

    @classmethod
    def of(cls, tls: TlsConfig) -> Self | None:
        """Those that settings name; None: they name none."""
        if tls.certificate is None or tls.key is None:
            return None
        return cls(str(tls.certificate), str(tls.key), None if tls.client_ca is None else str(tls.client_ca))

    @property
    def paths(self) -> list[str]:
        """Of those that there are."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of TLS, of the files as they are now.

    Raises:
        OSError: (ssl.SSLError among them) the files cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs a server more than a client
    context.load_cert_chain(files.certificate, files.key, _no_password)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    # Without this OpenSSL would ask for it at the terminal, and wait.
    raise ssl.SSLError("the key is encrypted; it must lie there without a password, readable by the daemon alone")


def checked_tls(files: TlsFiles) -> ssl.SSLContext:
    """As ``tls_context``.

    Raises:
        ConfigError: these files cannot be used.
    """
    with contextlib.closing(HeldTls(files)) as held:
        return held.context


class HeldTls:
    """The files for TLS as they were when they were read, in memory that no path leads to.

    Servers that begin later are sent its descriptors, so that files which are being replaced meanwhile concern
    nobody.
    """

    def __init__(self, files: TlsFiles) -> None:
        """
        Raises:
            ConfigError: the files cannot be used.
        """
        self.fds: list[int] = []
        try:
            for path in files.paths:
                content = Path(path).read_bytes()
                self.fds.append(anonymous_file("tls", len(content)))
                os.pwrite(self.fds[-1], content, 0)
            self.context = tls_context(held_files(self.fds))
        except OSError as error:
            self.close()
            if error.filename is None or error.filename not in files.paths:  # ``ssl`` names none
                raise ConfigError(f"TLS with {' and '.join(files.paths)}: {error}") from error
            raise ConfigError(f"TLS with {error.filename}: {why(error)}") from error

    def close(self) -> None:
        """Forget them; harmless to repeat."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def held_files(fds: Sequence[int]) -> TlsFiles:
    """The files behind the descriptors of a ``HeldTls``, for as long as these are open."""
    return TlsFiles(*(f"/proc/self/fd/{fd}" for fd in fds))


def bind_socket(text: str, *, beyond_loopback: bool, socket_group: str | None = None) -> tuple[socket.socket, str]:
    """A socket at an address, and the address as clients reach it (the port is filled in). It does not listen yet.

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
            return _bind_unix(address.path, socket_group), text
        if not beyond_loopback and not is_loopback(address):
            raise ConfigError(f"{text} is beyond loopback: configure TLS, or allow it as insecure")
        return _bind_tcp(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {text}: {why(error)}") from error


def bind_http_socket(
    text: str, *, has_tls: bool, insecure: bool, socket_group: str | None = None
) -> tuple[socket.socket, str]:
    """As ``bind_socket``, for the HTTP door: ``http://`` beyond loopback only where that is ``insecure``.

    Raises:
        ConfigError: as ``bind_socket``, or ``https://`` without files for TLS.
    """
    try:
        address = parse_http_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if address.tls and not has_tls:
        raise ConfigError(f"{text} needs TLS: configure server.tls")
    beyond = address.tls or insecure
    bound, place = bind_socket(str(address.place), beyond_loopback=beyond, socket_group=socket_group)
    return bound, str(address._replace(place=parse_address(place)))


class Doors:
    """The sockets at which a server is reached.

    They are bound when they are made, so that an address in use is told of before anything is computed, and closed
    to clients until they ``listen``.
    """

    def __init__(
        self,
        *,
        listen: Sequence[str],
        http: Sequence[str] = (),
        tls: TlsFiles | None = None,
        insecure: bool = False,
        socket_group: str | None = None,
    ) -> None:
        """``listen`` and ``http``: addresses of the socket and of the HTTP door.

        Raises:
            ConfigError: an address, or the files for TLS, cannot be used; nothing is left bound.
        """
        self._bound: list[_Bound] = []
        self._files = tls
        self._held: HeldTls | None = None
        has_tls = tls is not None
        try:
            self.renew_tls()
            for text in listen:
                bound = bind_socket(text, beyond_loopback=has_tls or insecure, socket_group=socket_group)
                self._bound.append(_Bound(*bound, "socket"))
            for text in http:
                bound = bind_http_socket(text, has_tls=has_tls, insecure=insecure, socket_group=socket_group)
                self._bound.append(_Bound(*bound, parse_http_address(text).door))
        except BaseException:
            self.close()
            raise

    def renew_tls(self) -> None:
        """Read the files for TLS again.

        Raises:
            ConfigError: they cannot be used; those of before still are.
        """
        if self._files is not None:
            before, self._held = self._held, HeldTls(self._files)
            if before is not None:
                before.close()

    @property
    def tls_fds(self) -> list[int]:
        """Descriptors of the files for TLS as they were read last (``held_files``); none where there is no TLS."""
        return [] if self._held is None else self._held.fds

    @property
    def kinds(self) -> list[str]:
        """What is spoken at each: ``socket``, ``http`` or ``https``."""
        return [bound.kind for bound in self._bound]

    @property
    def addresses(self) -> list[str]:
        """Where clients connect to the socket, with the ports that were given."""
        return [bound.address for bound in self._bound if bound.kind == "socket"]

    @property
    def http_addresses(self) -> list[str]:
        """Where the HTTP door is, with the ports that were given."""
        return [bound.address for bound in self._bound if bound.kind != "socket"]

    def listen(self) -> None:
        """Let clients in; they wait until somebody accepts them.

        Raises:
            ConfigError: another process took an address meanwhile.
        """
        for bound in self._bound:
            try:
                if bound.path is not None and not bound.has_its_path:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                bound.socket.listen(BACKLOG)
            except OSError as error:
                raise ConfigError(f"cannot listen on {bound.address}: {why(error)}") from error

    def filenos(self) -> list[int]:
        """The descriptors, in the order of ``kinds``."""
        return [bound.socket.fileno() for bound in self._bound]

    def close(self) -> None:
        """Close the sockets and remove their paths, unless they are others' now; harmless to repeat."""
        for bound in self._bound:
            if bound.path is not None and bound.has_its_path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(bound.path)
            bound.socket.close()
        self._bound.clear()
        if self._held is not None:
            self._held.close()


class _Bound:
    """A socket, its address as clients reach it, and what is spoken there.

    ``path``: of a Unix socket.
    """

    def __init__(self, bound: socket.socket, address: str, kind: str) -> None:
        self.socket, self.address, self.kind = bound, address, kind
        self.path: str | None = bound.getsockname() if bound.family == socket.AF_UNIX else None
        self._inode = self._inode_there()

    @property
    def has_its_path(self) -> bool:
        """Nobody removed it, or has put another one there."""
        return self._inode is not None and self._inode == self._inode_there()

    def _inode_there(self) -> int | None:
        # While the socket is open its number is given to no other file.
        with contextlib.suppress(OSError):
            return None if self.path is None else os.stat(self.path).st_ino
        return None


def others_may_write(folder: Path) -> bool:
    """Whether another user than root and ourselves may make files in a folder that exists, sticky or not."""
    status = folder.stat()
    return bool(status.st_mode & stat.S_IWOTH) or status.st_uid not in (0, os.geteuid())


def _bind_tcp(address: TcpAddress) -> tuple[socket.socket, str]:
    family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(place)
    except BaseException:
        bound.close()
        raise
    return bound, str(TcpAddress(address.host, bound.getsockname()[1]))


def _bind_unix(path: str, group: str | None) -> socket.socket:
    """Only we may connect until the group has it: between bind and a later chmod anyone else could."""
    group_id = None if group is None else group_id_of(group)
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), 0o600)  # Linux makes the path with the mode that the socket has
        bound.bind(path)
        try:
            if group_id is not None:
                _give_to_group(path, group, group_id)
            os.chmod(path, SOCKET_MODE)
        except BaseException:
            os.unlink(path)
            raise
    except BaseException:
        bound.close()
        raise
    return bound


def _give_to_group(path: str, name: str | None, id: int) -> None:
    try:
        os.chown(path, -1, id)
    except PermissionError:
        raise ConfigError(f"server.socket_group = {name!r}: user {os.geteuid()} is not in that group") from None


def group_id_of(name: str) -> int:
    """The group of Unix sockets.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"server.socket_group = {name!r}: there is no such group on this machine") from None


def _remove_stale(path: str) -> None:
    if is_stale(path):
        os.unlink(path)


def is_stale(path: str) -> bool:
    """Whether a socket is there on which nobody listens; False where nothing is.

    Raises:
        OSError: somebody listens there, it is something else than a socket, or no socket can have that path.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the path exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return False
        except ConnectionRefusedError:
            return True
        else:
            raise OSError(errno.EADDRINUSE, "another process answers there")
