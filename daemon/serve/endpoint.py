"""The HTTP endpoint for operators: /metrics for Prometheus, /live and /ready for orchestrators (200 or 503, and
JSON that says why).

Requests run on threads, at most ``CONNECTIONS_MAX`` at once; a connection past that is closed unanswered.
A client that stops talking is dropped after ``TIMEOUT_SECONDS``.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

import orjson
from prometheus_client import CollectorRegistry, make_wsgi_app

from ..client.addresses import TcpAddress
from ..errors import ConfigError
from ..health import Verdict

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
TIMEOUT_SECONDS = 10.0


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.address_string(), format % args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS_MAX
    block_on_close = False

    def __init__(self, address: TcpAddress) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        # The inherited one looks the host name up, which can take seconds where DNS is away.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a metrics client at %s went away", client_address, exc_info=True)


class Exposition:
    """Serves a registry until closed.

    ``live`` says no when the process should be restarted, ``ready`` when it should get no requests.
    """

    def __init__(
        self,
        address: TcpAddress,
        registry: CollectorRegistry,
        *,
        live: Callable[[], Verdict],
        ready: Callable[[], Verdict],
    ) -> None:
        """Listen and serve. Port 0 takes a free port: see ``address``.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        self._checks = {"/live": live, "/ready": ready}
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = _Server(address)
        except OSError as error:
            raise ConfigError(f"metrics.listen = {address.host}:{address.port}: {error}") from error
        self._server.set_app(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> TcpAddress:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return TcpAddress(str(host), int(port))

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if path in self._checks:
            verdict = self._checks[path]()
            status = "200 OK" if verdict.good else "503 Service Unavailable"
            start_response(status, [("Content-Type", "application/json")])
            return [orjson.dumps(verdict.facts, option=orjson.OPT_APPEND_NEWLINE)]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"/metrics, /live or /ready\n"]
