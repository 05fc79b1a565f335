"""What is told of the daemon itself: metrics and logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ...client.addresses import TcpAddress, is_loopback
from ..addresses import parse_tcp
from .section import Problem, Section
from .server import TlsConfig


def _checked_metrics_address(text: str) -> str:
    if text != "off":
        try:
            parse_tcp(text)
        except ValueError as error:
            raise ValueError(f"{error}, or `off`") from None
    return text


class MetricsConfig(Section):
    """Prometheus metrics, and the endpoints /live and /ready."""

    listen: Annotated[str, AfterValidator(_checked_metrics_address)] = Field(
        default="127.0.0.1:9420", description="HOST:PORT to serve them on (port 0: any free one), or `off`."
    )
    stuck_after: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds that the engine may take for one turn of its loop (an epoch, or a program computed "
        "from scratch) before `/live` says no and systemd's watchdog is told nothing more.",
    )
    insecure: bool = Field(default=False, description="Allow an address beyond loopback without TLS.")
    tls: TlsConfig = Field(default_factory=TlsConfig, description="TLS: metrics are served by HTTPS then.")

    def problems(self) -> Iterator[Problem]:
        for key, allowed in self.tls.problems():
            yield f"tls.{key}", allowed
        address = self.address()
        if address is not None and not is_loopback(address) and self.tls.certificate is None and not self.insecure:
            yield "listen", f"{self.listen} is beyond loopback: set metrics.tls, or metrics.insecure = true"

    def address(self) -> TcpAddress | None:
        """Where to listen, or None when metrics are off."""
        return None if self.listen == "off" else parse_tcp(self.listen)


class LogConfig(Section):
    """What is logged, to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is logged."
    )
    format: Literal["auto", "human", "plain", "json"] = Field(
        default="auto",
        description="`auto` is `human` on a terminal and `plain` elsewhere; `json` is one object a line.",
    )
