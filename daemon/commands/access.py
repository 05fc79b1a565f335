"""How commands are let in by a running daemon: six options, said once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from .flags import Misused, checked

if TYPE_CHECKING:
    import ssl

    from ..client import Client


@dataclass(frozen=True)
class Access:
    """The options, each a field, and what a client takes of them."""

    token: Annotated[
        str | None, typer.Option(envvar="GRAPHTIDE_TOKEN", help="The token that the daemon asks for.")
    ] = None
    token_file: Annotated[Path | None, typer.Option(help="A file that holds the token.")] = None
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS.")] = False
    tls_ca: Annotated[
        Path | None, typer.Option(help="Use TLS and trust this PEM file only.", exists=True, dir_okay=False)
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Use TLS and present this certificate (PEM, its key in it).", exists=True, dir_okay=False
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(help="The key of the certificate, if it has a file of its own.", exists=True, dir_okay=False),
    ] = None

    def read_token(self) -> str | None:
        """The token that a client presents.

        Raises:
            ConfigError: its file has none.
        """
        from ..config.secrets import read_secret

        return self.token if self.token_file is None else read_secret("--token-file", self.token_file)

    def trust(self) -> ssl.SSLContext | None:
        """How a client uses TLS; None: not at all.

        Raises:
            Misused: a key without a certificate.
            BadParameter: a file that is not what its option says.
        """
        import ssl

        if self.tls_key is not None and self.tls_cert is None:
            raise Misused("--tls-key belongs to --tls-cert")
        if not (self.tls or self.tls_ca or self.tls_cert):
            return None
        try:
            trust = ssl.create_default_context(cafile=self.tls_ca)
        except OSError as error:
            wrong = f"{self.tls_ca} has no certificates in PEM: {error}"
            raise typer.BadParameter(wrong, param_hint="--tls-ca") from None
        if self.tls_cert is not None:
            try:
                trust.load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as error:
                key = self.tls_key or "in it"
                wrong = f"{self.tls_cert}, and {key}, are no certificate with its key in PEM: {error}"
                raise typer.BadParameter(wrong, param_hint="--tls-cert") from None
        return trust

    def client(self, address: str) -> Client:
        """A client of the daemon there, let in as the options say.

        Raises:
            Misused: that is no address; and as ``read_token`` and ``trust``.
        """
        from ..client import Client

        trust = self.trust()
        return Client(checked(address), token=self.read_token(), ssl_context=trust)


def let_in(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the options of ``Access`` in place of its parameter ``access``, which is named only."""
    hints = get_type_hints(Access, include_extras=True)
    own = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(Access)
    ]
    parameters = [parameter for name, parameter in own.parameters.items() if name != "access"] + options

    @wraps(command)
    def called(**given: Any) -> None:
        access = Access(**{option.name: given.pop(option.name) for option in options})
        command(**given, access=access)

    # What typer reads a command's options of: the one and the other.
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called
