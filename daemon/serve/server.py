"""The query server: a process of its own, so that neither ingest nor queries make the other wait.

``serve_door`` is the ``template``, in a fork of the daemon or, as ``python -m graphtide.daemon.serve.server --door
FD --stderr FD --ids KIND``, in an interpreter of its own: it loads everything, kernels, too, and forks a server
whenever the daemon asks for one, with two sockets. Over ``control`` (sequenced packets) come the settings, the
listening sockets, the shared memory of results and vertex index, and a notice of published epochs; statistics go
back once a second, and word of the end of requests that the engine waits for (``Serving.begin_grace``). Over
``calls`` (a stream of MessagePack-RPC) the server asks the engine about edges.
When ``control`` ends the engine is gone, and so is this process. It never compiles while it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgpack
import numpy as np
import uvloop

from ...compute.program import Program
from ...compute.registry import KINDS, load_modules
from ...gpma.index.ids import IdColumn, StringColumn
from ...gpma.index.vertex_index import VertexIndex, VertexIndexReader
from ...gpma.kernel_cache import Missing, only_from_cache
from ..errors import GraphtideError
from ..os_errors import why
from ..priority import in_short_slices
from . import shared_memory
from .admission import Guest, origin_of
from .channel import Channel
from .connection import Connection
from .http.connection import HttpConnection
from .methods import METHODS
from .serving import Serving
from .shared_memory import CONTROL_BYTES_MAX
from .telling import Telling
from .template import NAME, ignore_signals, serve_forks, speak_aloud

log = logging.getLogger(__name__)

ACCEPT_AGAIN_SECONDS = 0.1
SHUTDOWN_SECONDS_MAX = 2.0
"""How long a client may take to end TLS."""
FIRST_BYTES = 24
"""So many tell TLS from what clients may speak in plain text."""
_TLS_HANDSHAKE = 0x16
SWITCH_SECONDS = 0.0005
"""How long a worker thread may hold the interpreter while the event loop waits for it."""


@dataclass(frozen=True, slots=True)
class Door:
    """A listening socket, and what becomes of its connections. ``tls``: only over TLS."""

    listener: socket.socket
    tls: bool
    connect: Callable[[Serving, Guest], Channel]

    @classmethod
    def of(cls, listener: socket.socket, kind: str, settings: Mapping[str, Any]) -> Door:
        """``kind``: ``socket`` (which speaks TLS over TCP where it is configured), ``http`` or ``https``."""
        over_tcp = listener.family != socket.AF_UNIX
        if kind == "socket":
            return cls(listener, over_tcp and bool(settings["access"]["tls"]), Connection)
        # Under TLS it is the certificate that says how the server is called.
        hosts = frozenset(settings["http_hosts"]) if over_tcp and kind == "http" else None
        return cls(listener, kind == "https", partial(HttpConnection, hosts=hosts))


async def serve(
    control: socket.socket,
    calls: socket.socket,
    settings: Mapping[str, Any],
    doors: list[Door],
    kinds: Mapping[str, type[Program]],
) -> None:
    """Serve until the engine is gone. Clients are accepted once there is an epoch to answer from."""
    loop = asyncio.get_running_loop()
    serving = Serving(control=control, settings=settings, kinds=kinds, methods=METHODS, loop=loop)
    control.setblocking(False)
    calls.setblocking(False)
    asking, _ = await loop.create_unix_connection(lambda: serving.engine, sock=calls)
    loop.add_reader(control.fileno(), serving.hear)
    stopped = loop.create_task(serving.stopped.wait())
    first = loop.create_task(serving.has_memory.wait())
    greeted: set[asyncio.Task[None]] = set()
    tick = loop.create_task(serving.tick())
    telling = Telling(serving)
    tells = loop.create_task(telling.run())
    try:
        await asyncio.wait((stopped, first), return_when=asyncio.FIRST_COMPLETED)
        if not serving.stopped.is_set():
            for door in doors:
                door.listener.setblocking(False)
                _open_door(serving, door, greeted)
            gc.freeze()
            control.send(msgpack.packb({"kind": "ready"}))
            await stopped
    finally:
        for ear in (control, *(door.listener for door in doors)):
            loop.remove_reader(ear.fileno())
        for task in (*greeted, tick, tells, first, stopped):
            task.cancel()
        telling.close()
        serving.close()
        asking.abort()


def _open_door(serving: Serving, door: Door, greeted: set[asyncio.Task[None]]) -> None:
    """Let connections in from now on; ``greeted``: those that are on their way in."""
    asyncio.get_running_loop().add_reader(door.listener.fileno(), _accept, serving, door, greeted)


def _accept(serving: Serving, door: Door, greeted: set[asyncio.Task[None]]) -> None:
    """Let one connection in that waits, through the door (``Admission``); called again while there are others."""
    loop = asyncio.get_running_loop()
    try:
        client, address = door.listener.accept()
    except BlockingIOError:
        return
    except OSError as error:  # out of descriptors or memory, or the client is gone again
        log.warning("a connection could not be accepted: %s", why(error))
        loop.remove_reader(door.listener.fileno())
        loop.call_later(ACCEPT_AGAIN_SECONDS, _open_door, serving, door, greeted)
        return
    task = loop.create_task(_greet(serving, door, client, address))
    greeted.add(task)
    task.add_done_callback(greeted.discard)


async def _greet(serving: Serving, door: Door, client: socket.socket, address: Any) -> None:
    """Make a connection of what was accepted, with TLS where the door has it, unless it is turned out before."""
    task = asyncio.current_task()
    assert task is not None

    def turn_out(error: GraphtideError | None) -> None:
        if connection.is_made:
            connection.turn_out(error)
        else:  # in the middle of the handshake of TLS
            task.cancel()

    admission, tcp = serving.admission, client.family != socket.AF_UNIX
    guest = Guest(origin_of(client, address), turn_out)
    connection = door.connect(serving, guest)
    admission.enter(guest)
    options: dict[str, Any] = {}
    try:
        if tcp:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = await _first_bytes(client) if door.tls else b""
        if first and first[0] != _TLS_HANDSHAKE:
            admission.refuse(guest, "tls")
            connection.refusal = connection.lacks_tls(first)
        elif door.tls:
            options = {
                "ssl": admission.tls,
                "ssl_handshake_timeout": serving.limits.hello_seconds_max,
                "ssl_shutdown_timeout": SHUTDOWN_SECONDS_MAX,
            }
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client, **options)
    except OSError:  # ssl.SSLError among them
        admission.refuse(guest, "tls")
    finally:
        if not connection.is_made:
            admission.leave(guest)
            client.close()


async def _first_bytes(client: socket.socket) -> bytes:
    """The first bytes that a client sends, once there are any, left for who reads them; none where it hangs up.

    Raises:
        OSError: the connection broke.
    """
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(client.fileno())
    return client.recv(FIRST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)


def _load_kernels(id_kind: Literal["int", "string"]) -> None:
    """Look something up, so that kernels come from the cache now and not in the first request."""
    ids: IdColumn = np.zeros(1, np.int64) if id_kind == "int" else StringColumn.of([""])
    index = VertexIndex.create(id_kind)
    reader = VertexIndexReader(id_kind, index.arrays())
    reader.lookup(ids, 0)
    reader.external(np.zeros(0, np.uint32))


def _load_all(id_kind: Literal["int", "string"], loaded: Callable[[], None]) -> None:
    _load_kernels(id_kind)
    loaded()
    gc.freeze()  # what all servers share is not touched


def run(control: socket.socket, calls: socket.socket, kinds: Mapping[str, type[Program]]) -> None:
    """Receive the settings and serve."""
    message, fds = shared_memory.receive_with_fds(control, CONTROL_BYTES_MAX)
    if not message:
        return
    settings = msgpack.unpackb(message)
    assert settings["kind"] == "configure"
    sys.setswitchinterval(SWITCH_SECONDS)
    in_short_slices()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        n_doors = len(settings["doors"])
        listeners = [stack.enter_context(socket.socket(fileno=fd)) for fd in fds[:n_doors]]
        settings["access"]["tls"] = fds[n_doors:]
        for fd in fds[n_doors:]:
            stack.callback(os.close, fd)
        doors = [Door.of(one, kind, settings) for one, kind in zip(listeners, settings["doors"], strict=True)]
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        runner.run(serve(control, calls, settings, doors, kinds))


def serve_door(
    door: socket.socket,
    id_kind: Literal["int", "string"],
    python_modules: Sequence[str],
    loaded: Callable[[], None] = lambda: None,
) -> None:
    """Be the template: load everything, and fork a server whenever that is asked for through the door.

    ``loaded`` is called once before the first.
    """
    ignore_signals()
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
    load_modules(python_modules)
    with suppress(Missing), only_from_cache():  # what is missing is being compiled by the daemon
        _load_kernels(id_kind)
    serve_forks(door, partial(_load_all, id_kind, loaded), lambda control, calls: run(control, calls, KINDS))


def main() -> None:
    """The command line that ``template`` uses."""
    parser = argparse.ArgumentParser(description="graphtide's query server; started by the daemon.")
    parser.add_argument("--door", type=int, required=True, help="socket over which servers are asked for")
    parser.add_argument("--stderr", type=int, required=True, help="where errors go once everything is loaded")
    parser.add_argument("--ids", choices=["int", "string"], required=True, help="of which kind vertex ids are")
    parser.add_argument("--module", action="append", default=[], help="to be imported, for programs in it")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=options.door) as door:
        serve_door(door, options.ids, options.module, partial(speak_aloud, options.stderr))


if __name__ == "__main__":
    main()
