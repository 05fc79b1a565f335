"""The query server: a process of its own, so that neither ingest nor queries make the other wait.

``python -m graphtide.daemon.serve.server --control FD --calls FD`` is started by ``supervisor``. Over ``control``
(sequenced packets) come the settings, the listening sockets, the shared memory of results and vertex index, and a
notice of every published epoch; statistics go back once a second, and word of the end of requests that the engine
waits for (``Serving.begin_grace``). Over ``calls`` (a stream of MessagePack-RPC) the server asks the engine about
edges. When ``control`` ends the engine is gone, and so is this process. It never compiles while it serves: kernels
are loaded before it accepts anyone.
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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack
import numpy as np

from ...compute.program import Program
from ...gpma.index.ids import IdColumn, StringColumn
from . import shared_memory
from .connection import Connection
from .handlers import METHODS
from .listening import tls_context
from .serving import Serving
from .shared_memory import CONTROL_BYTES_MAX

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
            _load_kernels(serving)
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


def _load_kernels(serving: Serving) -> None:
    """Look something up, so that kernels come from the cache now and not in the first request."""
    ids: IdColumn = np.zeros(1, np.int64) if serving.id_kind == "int" else StringColumn.of([""])
    serving.lookup(ids, 0)
    serving.external(np.zeros(0, np.uint32))


def run(
    control: socket.socket,
    calls: socket.socket,
    kinds: Mapping[str, type[Program]],
    load_modules: Callable[[Iterable[str]], None],
) -> None:
    """Receive the settings and serve."""
    message, fds = shared_memory.receive_with_fds(control, CONTROL_BYTES_MAX)
    if not message:
        return
    settings = msgpack.unpackb(message)
    assert settings["kind"] == "configure"
    load_modules(settings["python_modules"])
    listeners = [socket.socket(fileno=fd) for fd in fds]
    sys.setswitchinterval(SWITCH_SECONDS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    import uvloop  # only this process needs it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(control, calls, settings, listeners, kinds))


def main() -> None:
    """The command line that ``supervisor`` uses."""
    parser = argparse.ArgumentParser(description="graphtide's query server; started by the daemon.")
    parser.add_argument("--control", type=int, required=True, help="socket of settings, memory and notices")
    parser.add_argument("--calls", type=int, required=True, help="socket of questions to the engine")
    options = parser.parse_args()
    # The engine decides when to end, by closing the control socket; signals to the group are its affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    from ...compute.registry import KINDS, load_modules

    with socket.socket(fileno=options.control) as control, socket.socket(fileno=options.calls) as calls:
        run(control, calls, KINDS, load_modules)


if __name__ == "__main__":
    main()
