"""What the engine's process answers a query server: questions about edges, and what takes a while.

``engine_calls`` is the end that asks.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from ...gpma.edges import Vertices
from ...gpma.threads import start_thread
from ...partition.graph import RowsLost
from ..client.wire import NOTIFICATION, RECEIVE_BYTES, RESPONSE, encode_notification, error_to_wire, plain
from ..errors import GraphtideError, NotSupported, RequestError, Unavailable
from ..records.asked import Answer, AnswerAside, Unwanted
from ..records.stream import Partition
from ..records.topology import Topology
from .engine_calls import BESIDE, COMPILING
from .exploring import exploration_answer
from .held import Held
from .server_process import ServerProcess

log = logging.getLogger(__name__)

TOGETHER_SECONDS_MAX = 0.001
"""After so long answers wait for no further ones, to what was asked together with them."""
SETTLED = "edge_weights"
"""The question that may wait until results belong to the storage: no answer that is there waits with it."""
ASIDE = ("compute", "keep", "drop", "placement", "rebalance", "freeze", "device")
"""Questions that take a while."""


class EngineAnswers:
    """The questions of one server, for the thread that answers them."""

    def __init__(
        self,
        process: ServerProcess,
        topology: Topology,
        asked: Mapping[str, AnswerAside],
        send_index: Callable[[], int],
    ) -> None:
        """``asked``: what answers each of ``ASIDE``; none of it where the daemon stays as it is. ``send_index``:
        sends the vertex index, if the server does not have it yet, and tells its generation; any thread may call
        it."""
        self._process = process
        self._topology = topology
        self._asked = asked
        self._send_index = send_index
        self._given_up: dict[int, threading.Event] = {}  # by msgid, of questions that are being answered aside
        self._held = Held()
        self._beside: list[threading.Thread] = []
        self._ready: list[bytes] = []
        self._begun = 0.0

    def run(self) -> None:
        """Answer questions until the server is gone; it bounds how many are open.

        Those about edges one by one, but for those that nobody is to wait for; each of these, and of those about
        programs, has a thread of its own, for they take a while. Answers to what came together go together, unless
        they take long: with each of them the interpreter is let go, and others have it for a while.
        """
        unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1)
        calls = self._process.calls
        try:
            with calls, contextlib.suppress(OSError):
                while data := calls.recv(RECEIVE_BYTES):
                    unpacker.feed(data)
                    self._begun = time.monotonic()
                    for kind, *message in unpacker:
                        if kind == NOTIFICATION:
                            self._note(*message)
                        else:
                            self._take(*message)
                    self._send()
        finally:
            for one in list(self._given_up.values()):
                one.set()
            for thread in self._beside:
                thread.join()

    def _note(self, what: str, contents: Sequence[Any]) -> None:
        (content,) = contents
        if what == "given_up":  # nobody waits for an answer any more
            self._given_up.get(content["msgid"], threading.Event()).set()
        else:
            self._held.note(what, content)

    def _take(self, msgid: int, method: str, given: Sequence[Any]) -> None:
        params = self._held.whole(given[0])
        if method not in ASIDE and BESIDE not in params:
            self._answer(msgid, method, params)
            return
        thread = self._answer_aside(msgid, method, params)
        if method not in ASIDE and thread is not None:  # it reads the storage until it ends
            self._beside = [one for one in self._beside if one.is_alive()] + [thread]

    def _answer(self, msgid: int, method: str, params: Mapping[str, Any]) -> None:
        if method == SETTLED:
            self._send()
        self._ready.append(self._response(msgid, method, params))
        if time.monotonic() - self._begun > TOGETHER_SECONDS_MAX:
            self._send()

    def _send(self) -> None:
        """Send the answers that are there."""
        if self._ready:
            self._process.answer(b"".join(self._ready))
            self._ready.clear()
        self._begun = time.monotonic()

    def _answer_aside(self, msgid: int, method: str, params: Mapping[str, Any]) -> threading.Thread | None:
        """The thread that answers, if there is one."""
        process, given_up = self._process, self._given_up

        def compiles(going_on: bool) -> None:
            with contextlib.suppress(OSError):
                process.answer(encode_notification(COMPILING, {"msgid": msgid, "going_on": going_on}))

        unwanted = given_up[msgid] = Unwanted(compiles)

        def answer() -> None:
            response = self._response(msgid, method, params, unwanted)
            del given_up[msgid]
            with contextlib.suppress(OSError):
                process.answer(response)

        thread = threading.Thread(target=answer, name="asked-aside", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:  # the system grants no thread now
            del given_up[msgid]
            failed = error_to_wire(Unavailable(f"the engine is busy: {error}"))
            process.answer(msgpack.packb([RESPONSE, msgid, failed, None]))
            return None
        return thread

    def _response(
        self, msgid: int, method: str, params: Mapping[str, Any], unwanted: threading.Event | None = None
    ) -> bytes:
        error: GraphtideError
        try:
            if unwanted is None or method not in ASIDE:
                state, answer = self._ask(method, params)
            elif method in self._asked:
                state, answer = self._asked[method](params, unwanted)
            else:
                raise NotSupported("this daemon stays as it is")
            # Sent before the answer, so that the server can name every vertex in it.
            answer |= {"epoch": state.epoch, "offsets": state.offsets}
            answer["index_generation"] = self._send_index()
        except GraphtideError as failure:
            error = failure
        except TimeoutError as failure:
            error = Unavailable(f"the storage is busy: {failure}")
        except RowsLost as failure:
            error = Unavailable(f"the daemon starts again without its device: {failure}")
        except Exception as failure:
            if type(failure) is LookupError:  # not its subclasses: those are mistakes, not answers
                error = NotSupported(str(failure))
            else:
                log.exception("answering %s failed", method)
                error = GraphtideError("the engine failed to answer; its log says why")
        else:
            packed: bytes = msgpack.packb([RESPONSE, msgid, None, answer], default=plain)
            return packed
        packed_error: bytes = msgpack.packb([RESPONSE, msgid, error_to_wire(error), None], default=plain)
        return packed_error

    def _ask(self, method: str, params: Mapping[str, Any]) -> Answer:
        timeout_s = params["timeout_s"]

        def column(name: str) -> Vertices:
            return np.frombuffer(params[name], np.uint32)

        match method:
            case "standing":
                wanted = {Partition(name, number): offset for name, number, offset in params["wanted"]}
                standing = self._topology.standing(wanted)
                return self._topology.current_epoch(), {"standing": [standing[partition] for partition in wanted]}
            case "neighbors":
                page = self._topology.neighbors(
                    params["vertex"], params["direction"], params["limit"], params.get("cursor"), timeout_s
                )
                weights = None if page.weights is None else page.weights.astype(np.float32).tobytes()
                neighbors = page.neighbors.astype(np.uint32).tobytes()
                answer = {"known": page.known, "neighbors": neighbors, "weights": weights, "cursor": page.cursor}
                return page.state, answer
            case "degree":
                degrees = self._topology.degree(column("vertices"), timeout_s)
                in_ = None if degrees.in_ is None else degrees.in_.astype(np.int64).tobytes()
                out = degrees.out.astype(np.int64).tobytes()
                return degrees.state, {"known": degrees.known.tobytes(), "out": out, "in": in_}
            case "degree_counts":
                found_degrees = self._topology.degree_counts(
                    params["direction"], params["first"], params["limit"], timeout_s
                )
                parts = {"degrees": found_degrees.degrees, "counts": found_degrees.counts}
                columns = {name: part.astype(np.int64).tobytes() for name, part in parts.items()}
                return found_degrees.state, {"n_vertices": found_degrees.n_vertices, **columns}
            case "has_edge":
                found = self._topology.has_edge(column("src"), column("dst"), timeout_s)
                return found.state, {"exists": found.exists.astype(np.bool_).tobytes()}
            case "edge_weights":
                epoch = (params["epoch"][0], params["epoch"][1])
                path = self._topology.edge_weights(epoch, column("src"), column("dst"), timeout_s)
                packed = None if path is None else path.astype(np.float32).tobytes()
                return self._topology.current_epoch(), {"weights": packed}
            case "reach" | "edges_between" | "ego":
                return exploration_answer(self._topology, method, params)
            case "checkpoint":
                at, since = (
                    (params[name][0], params[name][1]) if params.get(name) else None for name in ("at", "since")
                )
                wish = self._topology.checkpoint(at, since, params.get("failures"))
                answer = {name: getattr(wish, name) for name in ("status", "since", "failures", "path", "reason")}
                return wish.state, {**answer, "kept": list(wish.kept)}
        raise RequestError(f"unknown question {method!r}")
