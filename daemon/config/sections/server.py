"""The query server: its addresses, its tokens and TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from ...client.addresses import (
    TcpAddress,
    UnixAddress,
    UnknownHome,
    is_loopback,
    parse_address,
    parse_http_address,
)
from ...errors import ConfigError
from ..addresses import default_socket_path
from ..secrets import read_secret
from .limits import LimitsConfig
from .section import Problem, Section, Words, split_commas, whole

TOKENS_MAX = 16
TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 8, 512

_EVERY_IPV4 = "0.0.0.0"
_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")


def _checked_address(text: str) -> str:
    try:
        parse_address(text)
    except UnknownHome:
        raise
    except ValueError:
        raise ValueError("must be unix:PATH or tcp://HOST:PORT") from None
    return text


def _checked_http_address(text: str) -> str:
    try:
        parse_http_address(text)
    except UnknownHome:
        raise
    except ValueError:
        raise ValueError("must be http://HOST:PORT, https://HOST:PORT or unix:PATH") from None
    return text


Address = Annotated[str, AfterValidator(_checked_address)]
HttpAddress = Annotated[str, AfterValidator(_checked_http_address)]


class TlsConfig(Section):
    """TLS for what is served over TCP; both files or neither. SIGHUP reads them again."""

    certificate: Path | None = Field(default=None, description="PEM file with the certificate chain.")
    key: Path | None = Field(default=None, description="PEM file with the private key.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file with the authorities of clients' certificates; with it, clients must present one.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.client_ca is not None and self.certificate is None:
            yield "client_ca", "must be left out without certificate and key"
        if (self.certificate is None) != (self.key is None):
            missing = "certificate" if self.certificate is None else "key"
            yield missing, "must be given too: certificate and key belong together"


def _default_listen() -> tuple[str, ...]:
    return (f"unix:{default_socket_path()}", "tcp://127.0.0.1:7420")


class ServerConfig(Section):
    """The query server."""

    listen: Annotated[tuple[Address, ...], BeforeValidator(split_commas)] = Field(
        default_factory=_default_listen,
        description="Addresses to listen on: `unix:PATH` and `tcp://HOST:PORT`. The default is a Unix socket in "
        "`$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR`, `/run` (root) or the working directory (not where others may "
        "write it), and TCP port 7420 on loopback.",
    )
    http: Annotated[tuple[HttpAddress, ...], BeforeValidator(split_commas)] = Field(
        default=(),
        description="Addresses of the HTTP door, which answers the same requests as JSON and has a page for "
        "people: `http://HOST:PORT`, `https://HOST:PORT` (with `server.tls`) and `unix:PATH`. `http` beyond "
        "loopback needs `insecure = true`. Default: none.",
    )
    http_hosts: Words = Field(
        default=(),
        description="Names by which browsers may call the HTTP door over `http`, beside addresses and `localhost` "
        "(a page elsewhere can make its own name mean your address).",
    )
    socket_group: str | None = Field(
        default=None,
        min_length=1,
        description="The group whose members may connect to the Unix sockets, beside the daemon's user, who must "
        "be in it. Default: the daemon's own group.",
    )
    token: SecretStr | None = Field(
        default=None,
        min_length=TOKEN_LENGTH_MIN,
        max_length=TOKEN_LENGTH_MAX,
        description="What clients must present; none: no token.",
    )
    token_file: Path | None = Field(
        default=None,
        description="A file that holds the token, or several, one a line, all of them right: so clients can "
        "change over to a new one. SIGHUP reads it again, and ends connections whose token is gone.",
    )
    admin_token: SecretStr | None = Field(
        default=None,
        min_length=TOKEN_LENGTH_MIN,
        max_length=TOKEN_LENGTH_MAX,
        description="What clients must present to change anything (`keep`, `drop`, `checkpoint`, `admin.*`); it "
        "is right wherever `token` is. None: whoever may ask may do so.",
    )
    admin_token_file: Path | None = Field(
        default=None, description="A file with that token, or several, as `token_file`."
    )
    tls: TlsConfig = Field(default_factory=TlsConfig, description="TLS for the TCP addresses.")
    insecure: bool = Field(default=False, description="Allow addresses beyond loopback without TLS.")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="What one client may ask for.")

    def problems(self) -> Iterator[Problem]:
        if not self.listen:
            yield "listen", "must name at least one address"
        if self.token is not None and self.token_file is not None:
            yield "token_file", "must not be given together with server.token"
        if self.admin_token is not None and self.admin_token_file is not None:
            yield "admin_token_file", "must not be given together with server.admin_token"
        for name, table in (("tls", self.tls), ("limits", self.limits)):
            for key, allowed in table.problems():
                yield f"{name}.{key}", allowed
        taken: list[TcpAddress | UnixAddress] = []
        for key, text, place in self.places():
            if any(clash(place, other) for other in taken):
                yield key, f"must be an address that is given once ({text})"
            taken.append(place)
        for text in self.http:
            address, tls = parse_http_address(text)
            if tls and self.tls.certificate is None:
                yield "http", f"{text} needs server.tls"
            if not tls and not is_loopback(address) and not self.insecure:
                yield (
                    "http",
                    f"{text} is beyond loopback: take https and server.tls, or server.insecure = true",
                )
        if self.tls.certificate is None and not self.insecure:
            for text in self.listen:
                address = parse_address(text)
                if not is_loopback(address):
                    yield "listen", f"{text} is beyond loopback: set server.tls, or server.insecure = true"

    def places(self) -> Iterator[tuple[str, str, TcpAddress | UnixAddress]]:
        """All places to listen at: the key, the text, and what it says."""
        for text in self.listen:
            yield "listen", text, parse_address(text)
        for text in self.http:
            yield "http", text, parse_http_address(text).place

    def read_tokens(self) -> tuple[str, ...]:
        """The clients' tokens, none when none is asked for.

        Raises:
            ConfigError: their file cannot be read, or holds what is no token.
        """
        return _tokens("server.token_file", self.token, self.token_file)

    def read_admin_tokens(self) -> tuple[str, ...]:
        """The tokens of those who may change something; none when whoever may ask may do so.

        Raises:
            ConfigError: their file cannot be read, or holds what is no token.
        """
        return _tokens("server.admin_token_file", self.admin_token, self.admin_token_file)


def clash(one: TcpAddress | UnixAddress, other: TcpAddress | UnixAddress) -> bool:
    """Whether nobody can listen on both. (A name may stand for any address, so it is taken for another one.)"""
    if isinstance(one, UnixAddress) and isinstance(other, UnixAddress):
        return whole(one.path) == whole(other.path)
    if isinstance(one, UnixAddress) or isinstance(other, UnixAddress):
        return False
    hosts = {one.host, other.host}
    everywhere = _EVERY_IPV4 in hosts and all(map(_IPV4.fullmatch, hosts))
    return one.port == other.port != 0 and (len(hosts) == 1 or everywhere)  # port 0: any that is free


def _tokens(key: str, token: SecretStr | None, path: Path | None) -> tuple[str, ...]:
    """Of a setting, or of the file that another one (``key``) names."""
    if path is None:
        return () if token is None else (token.get_secret_value(),)
    lines = read_secret(key, path).splitlines()
    tokens = tuple(line.strip() for line in lines if line.strip())
    wrong = [n for n, line in enumerate(lines, 1) if line.strip() and not _is_token(line.strip())]
    if wrong or not 0 < len(tokens) <= TOKENS_MAX:
        where = f"line {wrong[0]}" if wrong else f"it has {len(tokens)} lines that are not empty"
        raise ConfigError(
            f"{key} = {str(path)!r}: must hold 1 to {TOKENS_MAX} tokens, one a line, "
            f"of {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} characters each ({where})"
        )
    return tokens


def _is_token(text: str) -> bool:
    return TOKEN_LENGTH_MIN <= len(text) <= TOKEN_LENGTH_MAX
