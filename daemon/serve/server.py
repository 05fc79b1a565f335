"""The query server: a process of its own, so that neither ingest nor queries make the other wait.

``python -m graphtide.daemon.serve.server --door FD --ids KIND`` is the ``template``: it loads everything, kernels,
too, and forks a server whenever the daemon asks for one, with two sockets. Over ``control`` (sequenced packets)
come the settings, the listening sockets, the shared memory of results and vertex index, and a notice of published
epochs; statistics go back once a second, and word of the end of requests that the engine waits for
(``Serving.begin_grace``). Over ``calls`` (a stream of MessagePack-RPC) the server asks the engine about edges.
When ``control`` ends the engine is gone, and so is this process. It never compiles while it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Mapping
from typing import Any, Literal

import msgpack
import numpy as np
import uvloop

from ...compute.program import Program
from ...compute.registry import KINDS, load_modules
from ...gpma.index.ids import IdColumn, StringColumn
from ...gpma.index.vertex_index import VertexIndex, VertexIndexReader
from . import shared_memory
from .connection import Connection
from .handlers import METHODS
from .listening import tls_context
from .serving import Serving
from .shared_memory import CONTROL_BYTES_MAX
from .template import serve_forks

HANDSHAKE_SECONDS_MAX = 10.0
SWITCH_SECONDS = 0.0005
"""How long a worker thread may hold the interpreter while the event loop waits for it."""


async def serve(
    control: socket.socket,
    calls: socket.socket,
    settings: Mapping[str, Any],
    listeners: list[socket.socket],
    kinds: Mapping[str, type[Program]],
) -> None:
    """Serve until the engine is gone. Clients are accepted once there is an epoch to answer from."""
    loop = asyncio.get_running_loop()
    serving = Serving(control=control, settings=settings, kinds=kinds, methods=METHODS, loop=loop)
    control.setblocking(False)
    calls.setblocking(False)
    await loop.create_unix_connection(lambda: serving.engine, sock=calls)
    loop.add_reader(control.fileno(), serving.drain)
    stopped = loop.create_task(serving.stopped.wait())
    first = loop.create_task(serving.has_memory.wait())
    servers: list[asyncio.Server] = []
    tick = loop.create_task(serving.tick())
    try:
        await asyncio.wait((stopped, first), return_when=asyncio.FIRST_COMPLETED)
        if not serving.stopped.is_set():
            context = None if settings["tls"] is None else tls_context(**settings["tls"])
            servers.extend([await _listen(loop, serving, listener, context) for listener in listeners])
            gc.freeze()
            control.send(msgpack.packb({"kind": "ready"}))
            await stopped
    finally:
        loop.remove_reader(control.fileno())
        for server in servers:
            server.close()
        serving.close()
        for task in (tick, first, stopped):
            task.cancel()


async def _listen(
    loop: asyncio.AbstractEventLoop, serving: Serving, listener: socket.socket, context: ssl.SSLContext | None
) -> asyncio.Server:
    def connection() -> Connection:
        return Connection(serving)

    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(connection, sock=listener)
    handshake_s = None if context is None else HANDSHAKE_SECONDS_MAX
    return await loop.create_server(connection, sock=listener, ssl=context, ssl_handshake_timeout=handshake_s)


def _load_kernels(id_kind: Literal["int", "string"]) -> None:
    """Look something up, so that kernels come from the cache now and not in the first request."""
    ids: IdColumn = np.zeros(1, np.int64) if id_kind == "int" else StringColumn.of([""])
    index = VertexIndex.create(id_kind)
    VertexIndexReader(id_kind, index.arrays()).lookup(ids, 0)


def run(control: socket.socket, calls: socket.socket, kinds: Mapping[str, type[Program]]) -> None:
    """Receive the settings and serve."""
    message, fds = shared_memory.receive_with_fds(control, CONTROL_BYTES_MAX)
    if not message:
        return
    settings = msgpack.unpackb(message)
    assert settings["kind"] == "configure"
    listeners = [socket.socket(fileno=fd) for fd in fds]
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(control, calls, settings, listeners, kinds))


def main() -> None:
    """The command line that ``template`` uses."""
    parser = argparse.ArgumentParser(description="graphtide's query server; started by the daemon.")
    parser.add_argument("--door", type=int, required=True, help="socket over which servers are asked for")
    parser.add_argument("--ids", choices=["int", "string"], required=True, help="of which kind vertex ids are")
    parser.add_argument("--module", action="append", default=[], help="to be imported, for programs in it")
    options = parser.parse_args()
    # The engine decides when to end, by closing the sockets; signals to the group are its affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=options.door) as door:
        load_modules(options.module)
        _load_kernels(options.ids)
        gc.freeze()  # what all servers share is not touched
        serve_forks(door, lambda control, calls: run(control, calls, KINDS))


if __name__ == "__main__":
    main()
