"""The schema registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from ..secrets import read_secret
from .section import Problem, Section


class RegistryConfig(Section):
    """The schema registry of records whose encoding is `registry` or `debezium-registry`."""

    url: str | None = Field(
        default=None,
        description="Where it is: http://HOST:PORT or https://HOST:PORT, with the path of Confluent's interface, "
        "if it has one (Apicurio: `/apis/ccompat/v7`).",
        examples=["https://registry:8081"],
    )
    username: str | None = Field(default=None, min_length=1, description="The user, for basic authentication.")
    password: SecretStr | None = Field(
        default=None, description="That user's password; better in a file: `password_file`."
    )
    password_file: Path | None = Field(default=None, description="A file with that password.")
    ca_file: Path | None = Field(
        default=None, description="https: the certificates (PEM) to trust, in place of the system's."
    )
    certificate_file: Path | None = Field(
        default=None, description="https: our own certificate (PEM), where the registry asks for one."
    )
    key_file: Path | None = Field(
        default=None, description="https: the private key of that certificate, if it is not in the same file."
    )
    timeout: float = Field(
        default=5.0,
        ge=0.1,
        le=600,
        description="Seconds after which a registry is away that has not given a schema with all that it "
        "refers to. What came is kept for the next try.",
    )
    schema_bytes_max: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=16 << 20,
        description="The most characters of a schema with all that it refers to; records of a larger one are bad.",
    )

    def problems(self) -> Iterator[Problem]:
        if self.url is not None:
            yield from self._url_problems(self.url)
        if self.password is not None and self.password_file is not None:
            yield "password_file", "must not be given together with source.registry.password"
        if (self.username is None) != (self.password is None and self.password_file is None):
            yield "username", "must be given together with source.registry.password or password_file"
        if self.key_file is not None and self.certificate_file is None:
            yield "key_file", "must be left out without source.registry.certificate_file"

    def _url_problems(self, url: str) -> Iterator[Problem]:
        allowed = "must be http://HOST[:PORT][/PATH] or https://..., without a user, a query or a fragment"
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            yield "url", allowed
            return
        if not whole or parts.username is not None or parts.query or parts.fragment or not url.isascii():
            yield "url", allowed
        elif parts.scheme == "http" and (self.ca_file or self.certificate_file):
            yield "url", "must begin with https:// where there are certificates"

    def read_password(self) -> str:
        """The password; empty where none is given.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.password_file is not None:
            return read_secret("source.registry.password_file", self.password_file)
        return "" if self.password is None else self.password.get_secret_value()
