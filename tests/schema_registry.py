"""A schema registry that speaks Confluent's interface over real HTTP, as far as consumers need it."""

from __future__ import annotations

import itertools
import json
import ssl
import struct
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


def framed(number: int, body: bytes, message: bytes = b"") -> bytes:
    """A record in the wire format; ``message``: which type, in Protobuf."""
    return struct.pack(">bI", 0, number) + message + body


class SchemaRegistry:
    """``url``: where it listens. ``answer``: what it says to every request instead, as (status, body)."""

    def __init__(self, *, user: str = "", context: ssl.SSLContext | None = None, port: int = 0) -> None:
        """``user``: the header that clients must send."""
        self.user = user
        self.answer: tuple[int, bytes] | None = None
        self.asked: list[str] = []
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[tuple[str, int], int] = {}
        self._numbers = itertools.count(1)
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = registry._answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                posted = self.rfile.read(int(self.headers["Content-Length"]))
                status, body = registry._taken(self.path, self.headers.get("Authorization", ""), posted)
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
        *,
        number: int | None = None,
    ) -> int:
        """A version of a subject; its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        number = next(self._numbers) if number is None else number
        named = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        entry: dict[str, Any] = {"schema": text} | ({"references": named} if named else {})
        self._schemas[number] = entry if kind == "AVRO" else entry | {"schemaType": kind}
        version = 1 + max((known for name, known in self._subjects if name == subject), default=0)
        self._subjects[subject, version] = number
        return number

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> SchemaRegistry:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _answer(self, path: str, user: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.answer is not None:
            return self.answer
        if user != self.user:
            return _error(401, 401, "Unauthorized")
        match path.split("/")[1:]:
            case ["schemas", "types"]:
                return 200, b'["JSON","PROTOBUF","AVRO"]'
            case ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                return (
                    _error(404, 40403, "Schema not found") if found is None else (200, json.dumps(found).encode())
                )
            case ["subjects", subject, "versions", version]:
                id = self._subjects.get((subject.replace("%2F", "/"), int(version)))
                if id is None:
                    return _error(404, 40401, "Subject not found")
                about = {"subject": subject, "version": int(version), "id": id}
                return 200, json.dumps(about | self._schemas[id]).encode()
        return _error(404, 404, "HTTP 404 Not Found")

    def _taken(self, path: str, user: str, posted: bytes) -> tuple[int, bytes]:
        """A schema that a producer registers; what a subject has already keeps its id."""
        if self.answer is not None:
            return self.answer
        if user != self.user:
            return _error(401, 401, "Unauthorized")
        match path.split("/")[1:]:
            case ["subjects", subject, "versions"]:
                given = json.loads(posted)
                kind = given.get("schemaType", "AVRO")
                entry = {"schema": given["schema"]} | ({} if kind == "AVRO" else {"schemaType": kind})
                for (name, _), number in self._subjects.items():
                    if name == subject and self._schemas[number] == entry:
                        return 200, json.dumps({"id": number}).encode()
                return 200, json.dumps({"id": self.register(subject, given["schema"], kind)}).encode()
        return _error(404, 404, "HTTP 404 Not Found")


def _error(status: int, code: int, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"error_code": code, "message": message}).encode()
