"""The HTTP endpoint for operators: /metrics for Prometheus, /live and /ready for orchestrators (200 or 503, and
JSON that says why).

Requests run on threads, ``CONNECTIONS_MAX`` at once. For a connection past that the one that has been without a
request for longest is closed: who connects and asks nothing keeps no probe from its answer. Where all are being
answered, it is itself closed. A client that stops talking is dropped after ``TIMEOUT_SECONDS``.
"""

from __future__ import annotations

import gzip
import logging
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

import orjson
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from ...ops.text_format import TextFormat
from ..client.addresses import TcpAddress
from ..errors import ConfigError
from ..health import Verdict
from ..os_errors import why
from .listening import TlsFiles, checked_tls

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
TIMEOUT_SECONDS = 10.0
GZIP_LEVEL = 1
"""Higher ones take up to several times as long, for some per cent."""
HASTE_SWITCH_SECONDS = 0.0002
"""So long may other threads keep the interpreter from those that answer here, which let it go again and again."""
HASTE_SECONDS = 0.05
"""So long after the last request came that is so, at least."""
_NO_HTTP = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    b"this is no HTTP; queries are answered at the addresses of server.listen\n"
)
_STRANGE = re.compile("escaping=(dots|values)")


class _Haste:
    """Has all threads of the process hand over the interpreter sooner for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usual: float | None = None
        self._ends = 0.0

    def begin(self) -> None:
        with self._lock:
            self._ends = time.monotonic() + HASTE_SECONDS
            if self._usual is None:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(HASTE_SWITCH_SECONDS, self._usual))

    def end(self, *, only_if_over: bool = False) -> None:
        """As it was before; ``only_if_over``: if it has lasted long enough, which is to be asked now and then."""
        with self._lock:
            if self._usual is not None and (not only_if_over or time.monotonic() > self._ends):
                sys.setswitchinterval(self._usual)
                self._usual = None


_haste = _Haste()


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_SECONDS
    wbufsize = 1 << 16
    """An answer is one write: after each, the interpreter's lock is another thread's for a while."""

    def handle(self) -> None:
        first = self.rfile.peek(1)[:1]  # type: ignore[attr-defined]
        if first and not first.isalpha():  # it would be waited for until a line ends
            self.wfile.write(_NO_HTTP)
        else:
            super().handle()

    def get_environ(self) -> WSGIEnvironment:
        assert isinstance(self.server, _Server)
        self.server.has_asked(self.request)
        return super().get_environ()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.address_string(), format % args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS_MAX
    block_on_close = False

    tls: ssl.SSLContext | None = None

    def __init__(self, address: TcpAddress) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._silent: dict[socket.socket, None] = {}  # without a whole request so far; the oldest first
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        # The inherited one looks the host name up, which can take seconds where DNS is away.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.tls is not None:
            # The handshake is the first read's, on the request's own thread and within its time.
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def service_actions(self) -> None:
        _haste.end(only_if_over=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        _haste.begin()
        if not self._has_room(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system grants no thread now
            self._is_over(request)
            raise

    def _has_room(self, request: socket.socket) -> bool:
        with self._lock:
            if self._connections >= CONNECTIONS_MAX:
                if not self._silent:
                    return False
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                with suppress(OSError):  # its thread reads the end, and is over soon
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._connections += 1
            self._silent[request] = None
            return True

    def _is_over(self, request: socket.socket) -> None:
        with self._lock:
            self._connections -= 1
            self._silent.pop(request, None)

    def has_asked(self, request: socket.socket) -> None:
        """A whole request has come."""
        with self._lock:
            self._silent.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._is_over(request)

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
        tls: TlsFiles | None = None,
    ) -> None:
        """Listen and serve, over HTTPS with ``tls``. Port 0 takes a free port: see ``address``.

        Raises:
            ConfigError: the address cannot be listened on, or the files for TLS cannot be used.
        """
        self._tls = tls
        self._checks = {"/live": live, "/ready": ready}
        self._text = TextFormat(registry)
        self._anything = make_wsgi_app(registry)
        try:
            self._server = _Server(address)
        except OSError as error:
            raise ConfigError(f"metrics.listen = {address.host}:{address.port}: {why(error)}") from error
        try:
            self.renew_tls()
        except ConfigError:
            self._server.server_close()
            raise
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

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"http{'s' if self._tls else ''}://{host}:{self.address.port}/metrics"

    def renew_tls(self) -> None:
        """Use the files for TLS as they are now.

        Raises:
            ConfigError: they cannot be used; all stays as it was.
        """
        if self._tls is not None:
            self._server.tls = checked_tls(self._tls)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        _haste.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path in self._checks:
            verdict = self._checks[path]()
            status = "200 OK" if verdict.good else "503 Service Unavailable"
            start_response(status, [("Content-Type", "application/json")])
            return [orjson.dumps(verdict.facts, option=orjson.OPT_APPEND_NEWLINE)]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"/metrics, /live or /ready\n"]

    def _metrics(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """What is asked for seldom (chosen names, other ways to escape them, other verbs) the library answers."""
        try:
            _, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):  # a version that is no number: anybody may send one, which is no news
            environ["HTTP_ACCEPT"] = ""
            _, content_type = choose_encoder("")
        if environ["REQUEST_METHOD"] != "GET" or environ.get("QUERY_STRING") or _STRANGE.search(content_type):
            page: Iterable[bytes] = self._anything(environ, start_response)
            return page
        text = self._text.text(open_metrics=content_type.startswith("application/openmetrics-text"))
        headers = [("Content-Type", content_type)]
        encodings = environ.get("HTTP_ACCEPT_ENCODING", "").lower().split(",")
        if "gzip" in {encoding.partition(";")[0].strip() for encoding in encodings}:
            text = gzip.compress(text, GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [text]
