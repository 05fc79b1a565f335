"""The clients against a server that does as the test says, and the wire format that both sides share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import pickle
import re
import socket
import subprocess
import sys
import threading
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sampling import examples
from waiting import until

from graphtide.daemon import errors
from graphtide.daemon.client import AsyncClient, Client, Info, addresses, requests, wire
from graphtide.daemon.client.calls import ClientMethod, ClientMethodOfTwoForms
from graphtide.daemon.client.frames import frame, frame_of_entries
from graphtide.daemon.client.requests import Requests

CLOSE = object()


class Scripted:
    """Answers hello; hands every other request to ``answer``, which gives back messages, bytes or ``CLOSE``."""

    def __init__(self, answer, hello_error=None) -> None:
        self.answer = answer
        self.hello_error = hello_error
        self.hellos: list[dict] = []
        self.requests: list[tuple] = []
        self.gone = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def say(self, message: bytes) -> None:
        """To the first client, though it asks for nothing."""
        self._connections[0].sendall(message)

    def hang_up(self) -> None:
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        unpacker = msgpack.Unpacker(strict_map_key=False)
        # A client may answer a hang-up with a reset: that ends the connection like any other end.
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                unpacker.feed(data)
                for _, msgid, method, params in unpacker:
                    if method == "hello":
                        self.hellos.append(params[0])
                        connection.sendall(msgpack.packb([1, msgid, self.hello_error, stamped({})]))
                        continue
                    self.requests.append((msgid, method, params[0]))
                    for message in self.answer(msgid, method, params[0]):
                        if message is CLOSE:
                            return
                        connection.sendall(message if isinstance(message, bytes) else msgpack.packb(message))
        self.gone += 1


def stamped(result: dict) -> dict:
    return {"epoch": [3, 7], "offsets": {"t": {0: 5}}, **result}


def values_of(values) -> dict:
    column = np.asarray(values, np.float64)
    return {"values": wire.pack_column(column), "null": None, "unknown": wire.pack_column(np.zeros(0, np.int64))}


def ok(msgid, method, params):
    yield [1, msgid, None, stamped(values_of([len(params.get("vertices", b"")) // 8]))]


# -- the blocking client ------------------------------------------------------------------------------------


def test_a_result_carries_its_epoch_and_offsets():
    with Scripted(ok) as server, Client(server.address, token="secret") as client:
        result = client.get("p", [1, 2, 3])
        assert result.epoch == (3, 7) and result.offsets == {"t": {0: 5}}
        assert isinstance(result.values, np.ma.MaskedArray) and result.values.tolist() == [3]
        assert server.hellos == [{"versions": [1], "token": "secret"}]
        assert server.requests[0][1:] == ("get", {"program": "p", "vertices": np.arange(1, 4).tobytes()})


def test_the_rest_of_an_answer_is_a_mapping():
    info = Info((3, 7), {}, {"vertices": 5, "edges": 9})
    assert dict(info) == {"vertices": 5, "edges": 9} and len(info) == 2
    assert "edges" in info and "epoch" not in info and info.get("lag") is None
    with pytest.raises(KeyError, match="lag"):
        info["lag"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([1, -2], np.array([1, -2]).tobytes()),
        (np.array([7, 8], np.uint32), np.array([7, 8]).tobytes()),
        ([np.int64(5)], [5]),
        (["a", "b"], ["a", "b"]),
        (np.array(["a"]), ["a"]),
        (("x",), ["x"]),
        ([], b""),
    ],
)
def test_vertices_travel_as_columns_or_strings(given, sent):
    with Scripted(ok) as server, Client(server.address) as client:
        client.get("p", given)
        assert server.requests[0][2]["vertices"] == sent


def test_an_id_out_of_range_never_leaves():
    with Scripted(ok) as server, Client(server.address) as client:
        with pytest.raises(errors.RequestError, match="64-bit"):
            client.get("p", [2**63])
        assert server.requests == []


@pytest.mark.parametrize("code", sorted(wire._ERRORS))
def test_errors_come_back_as_their_classes(code):
    def refuse(msgid, method, params):
        yield [1, msgid, {"code": code, "message": "why", "detail": {"k": 1}}, None]

    with Scripted(refuse) as server, Client(server.address) as client:
        with pytest.raises(wire._ERRORS[code]) as caught:
            client.stats()
        assert type(caught.value) is wire._ERRORS[code]
        assert (caught.value.message, caught.value.detail) == ("why", {"k": 1})
        assert len(server.hellos) == 1  # the connection is still good


@pytest.mark.parametrize("wrong", [{"code": "from-the-future", "message": "why"}, "text", {"code": 5}])
def test_unknown_errors_are_errors_too(wrong):
    with Scripted(lambda msgid, *_: [[1, msgid, wrong, None]]) as server, Client(server.address) as client:
        with pytest.raises(errors.GraphtideError) as caught:
            client.stats()
        assert type(caught.value) is errors.GraphtideError


def test_a_refused_hello_is_raised_and_tried_again_by_the_next_call():
    with Scripted(ok, {"code": "unauthorized", "message": "no"}) as server, Client(server.address) as client:
        for _ in range(2):
            with pytest.raises(errors.Unauthorized):
                client.get("p", [1])
        server.hello_error = None
        assert client.get("p", [1]).values.tolist() == [1]
        assert len(server.hellos) == 3


def test_a_connection_that_died_while_idle_is_opened_again():
    with Scripted(ok) as server, Client(server.address) as client:
        client.get("p", [1])
        server.hang_up()
        assert client.get("p", [1, 2]).values.tolist() == [2]
        assert len(server.hellos) == 2


def test_a_connection_that_breaks_under_a_request_is_an_error_and_the_next_call_opens_another():
    calls = iter(range(100))

    def break_twice(msgid, method, params):
        if next(calls) < 2:
            yield b"\x94\x01"  # the beginning of a response
            yield CLOSE
        yield from ok(msgid, method, params)

    with Scripted(break_twice) as server, Client(server.address) as client:
        for _ in range(2):
            with pytest.raises(errors.Unavailable, match="broke"):
                client.get("p", [1])
        assert client.get("p", [1]).values.tolist() == [1]


def test_calls_of_several_threads_follow_each_other():
    with Scripted(ok) as server, Client(server.address, timeout=60) as client:
        wrong = []

        def ask(n: int) -> None:
            try:
                wrong.extend(got for _ in range(50) if (got := client.get("p", [7] * n).values.tolist()) != [n])
            except errors.GraphtideError as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (wrong, len(server.hellos)) == ([], 1)


FORKS = """
import os, sys
from graphtide import Client

client = Client(sys.argv[1], timeout=60)
client.get("p", [1])
child = os.fork()
n = 3 if child else 5
right = all(client.get("p", [7] * n).values.tolist() == [n] for _ in range(100))
if not child:
    os._exit(0 if right else 1)
sys.exit(not (right and os.waitpid(child, 0)[1] == 0))
"""


def test_a_forked_process_takes_no_answers_from_its_parent():
    with Scripted(ok) as server:
        assert subprocess.run([sys.executable, "-c", FORKS, server.address], timeout=120).returncode == 0
        assert len(server.hellos) == 2


def test_a_copy_of_a_client_has_a_connection_of_its_own():
    with Scripted(ok) as server, Client(server.address, timeout=60) as client:
        client.get("p", [1])
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.get("p", [1, 2]).values.tolist() == [2]
        assert len(server.hellos) == 2


def test_what_cannot_be_asked_costs_no_connection():
    with Scripted(ok) as server, Client(server.address, timeout=60) as client:
        client.get("p", [1])
        with pytest.raises(errors.RequestError):
            client.call("get", {"program": "p", "vertices": [1 << 70]})
        assert client.get("p", [1, 2]).values.tolist() == [2]
        assert len(server.hellos) == 1


def test_what_is_no_list_of_ids_is_told_of_by_its_name():
    with Client("tcp://127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=r"^src must be a list of ids, not 1$"):
            client.has_edge(1, 2)
        with pytest.raises(TypeError, match=r"^dst must be a list of ids, not 2$"):
            client.cross_edges([1], 2)
        with pytest.raises(TypeError, match=r"^vertices must be a list of ids, not the text '1'$"):
            client.degree("1")


@pytest.mark.parametrize("method", ["compute", "keep"])
def test_parameters_of_programs_are_given_in_a_map_or_by_name(method):
    def ran(msgid, method, params):
        answer = {"scalars": {}, "error_bound": None, "seconds": 0.1, "id": "p", "state": ""}
        yield [1, msgid, None, stamped(answer)]

    with Scripted(ran) as server, Client(server.address, timeout=60) as client:
        ask = getattr(client, method)
        ask("bfs", {"source": 2})
        ask("bfs", source=2)
        ask("sssp", {"source": 2}, delta=0.5)
        ask("bfs", {})
        given = [params.get("parameters") for _, _, params in server.requests]
        assert given == [{"source": 2}, {"source": 2}, {"source": 2, "delta": 0.5}, None]
        with pytest.raises(TypeError, match=r"^Requests\.get\(\) missing .* 'vertices'$"):
            client.get("pagerank")  # type: ignore[call-arg, call-overload]
        with pytest.raises(TypeError, match=r"^source given twice"):
            ask("bfs", {"source": 1}, source=2)
        with pytest.raises(TypeError, match=r"^parameters must be a map, such as \{'source': 7\}, not 2$"):
            ask("bfs", 2)


def test_who_is_interrupted_asks_anew():
    """A request of which half was sent would make nonsense of the next one."""

    def interrupts(msgid, method, params):
        if len(server.requests) == 1:
            client._core.feed = interrupted
            yield from ok(msgid, method, params)
        yield from ok(msgid, method, params)

    def interrupted(data):
        raise KeyboardInterrupt

    with Scripted(interrupts) as server, Client(server.address) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get("p", [1])
        assert client.get("p", [1, 2]).values.tolist() == [2] and len(server.hellos) == 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 4_294_967.6])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_timeout_that_is_none_is_refused(client, timeout):
    with pytest.raises(ValueError, match="timeout is"):
        client("unix:/x", timeout=timeout)


def test_nobody_there_is_unavailable(tmp_path):
    with Client(f"unix:{tmp_path}/none") as client, pytest.raises(errors.Unavailable, match="cannot connect"):
        client.stats()


def test_no_answer_in_time_is_a_timeout_and_late_answers_never_mix_up():
    slow = threading.Event()

    def late(msgid, method, params):
        if method == "programs":
            slow.wait(60)
        yield [1, msgid, None, stamped({"method": method})]

    with Scripted(late) as server, Client(server.address, timeout=0.2) as client:

        def answered() -> str | None:
            with contextlib.suppress(errors.TimedOut):  # on a busy machine
                return client.call("stats")["method"]
            return None

        with pytest.raises(errors.TimedOut):
            client.programs()
        assert until(answered) == "stats"
        slow.set()
        assert until(answered) == "stats"


@pytest.mark.parametrize("sent", [b"\xc1\xc1", msgpack.packb("hello?"), msgpack.packb([0, 1, 2])])
def test_a_server_that_talks_nonsense_is_unavailable(sent):
    with Scripted(lambda *_: [sent]) as server:  # noqa: SIM117 - the client must be closed first
        with Client(server.address) as client, pytest.raises(errors.Unavailable):
            client.stats()


@contextlib.contextmanager
def saying(sent, times):
    """The address of a server that answers whatever it hears first with these bytes, so many times."""

    def serve():
        with contextlib.suppress(OSError):
            for _ in range(times):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.recv(1 << 16)
                    connection.sendall(sent)
                    connection.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_http_behind_something_else_is_no_http_server():
    with pytest.raises(ConnectionError, match=r"the server sent what is no response$"):
        wire.ClientCore().feed(b"\x01HTTP/")


@pytest.mark.parametrize("sent", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTT"])
def test_a_server_that_speaks_http_is_told_of_with_the_option_to_look_at(sent):
    async def go(address):
        async with AsyncClient(address, timeout=60) as client:
            await client.stats()

    why = r"an HTTP server answers there; .* of server\.listen .*, not one of server\.http or metrics\.listen"
    with saying(sent, times=2) as address:
        with Client(address) as client, pytest.raises(errors.Unavailable, match=why):
            client.stats()
        with pytest.raises(errors.Unavailable, match=why):
            asyncio.run(go(address))


def test_a_server_that_wants_tls_is_told_of():
    with (
        saying(b"\x15\x03\x03\x00\x02\x02\x46", times=1) as address,
        Client(address) as client,
        pytest.raises(errors.Unavailable, match="TLS is spoken there"),
    ):
        client.stats()


def test_a_path_that_no_unix_socket_can_have_is_told_of(tmp_path):
    address = f"unix:{tmp_path}/{'ä' * 100}"
    why = f"its path has {len(address.encode()) - 5} bytes, .* name a shorter one"
    with Client(address) as client, pytest.raises(errors.Unavailable, match=why):
        client.stats()
    with pytest.raises(errors.Unavailable, match=why):
        asyncio.run(AsyncClient(address).stats())


def test_an_error_of_the_connection_is_raised():
    def full(*_):
        yield [2, "error", [{"code": "limit-exceeded", "message": "too many", "detail": {}}]]
        yield CLOSE

    with Scripted(full) as server, Client(server.address) as client:
        with pytest.raises(errors.LimitExceeded, match="too many"):
            client.stats()
        server.answer = ok
        assert client.get("p", [1]).values.tolist() == [1]


def test_notifications_of_newer_servers_are_passed_over():
    def chatty(msgid, method, params):
        yield [2, "news", [{"x": 1}]]
        yield from ok(msgid, method, params)

    with Scripted(chatty) as server, Client(server.address) as client:
        assert client.get("p", [1]).values.tolist() == [1]


@pytest.mark.parametrize(
    "address", ["", "localhost:1", "tcp://", "tcp://host", "tcp://h:99999", "unix:", "http://x:1"]
)
def test_wrong_addresses_are_refused(address):
    with pytest.raises(ValueError, match="expected unix:PATH or tcp://HOST:PORT"):
        Client(address)


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("127.0.0.1:7420", "; did you mean 'tcp://127.0.0.1:7420'?"),
        ("[::1]:7420", "; did you mean 'tcp://[::1]:7420'?"),
        ("/run/graphtide.sock", "; did you mean 'unix:/run/graphtide.sock'?"),
        ("~/s", "; did you mean 'unix:~/s'?"),
        ("http://127.0.0.1:7421", "another door, which graphtide's clients do not use)"),
        ("graphtide", "expected unix:PATH or tcp://HOST:PORT"),
    ],
)
def test_wrong_addresses_are_told_what_was_meant(address, meant):
    with pytest.raises(ValueError, match=f"{re.escape(meant)}$"):
        Client(address)


def test_a_client_shows_where_it_asks():
    assert repr(Client("unix:/x")) == "Client('unix:/x')"
    assert (
        repr(AsyncClient(["tcp://a:1", "tcp://b:2"], token="secret")) == "AsyncClient(['tcp://a:1', 'tcp://b:2'])"
    )


def test_addresses_are_read_and_shown():
    for text in ("unix:/run/x.sock", "tcp://127.0.0.1:7420", "tcp://[::1]:80", "tcp://host.example:1"):
        assert str(addresses.parse_address(text)) == text


def test_importing_the_client_imports_no_compiler():
    code = (
        "import sys; from graphtide import AsyncClient, Client; "
        "heavy = {'numba', 'pydantic', 'kafka', 'uvloop', 'graphtide.gpma'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


MADE = (ClientMethod, ClientMethodOfTwoForms)
METHODS = [name for name, item in vars(Requests).items() if isinstance(item, MADE)]


@pytest.mark.parametrize("name", METHODS)
def test_both_clients_have_each_request_with_one_signature_and_its_documentation(name):
    blocking, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.iscoroutinefunction(asynchronous) and not inspect.iscoroutinefunction(blocking)
    assert inspect.signature(blocking) == inspect.signature(asynchronous)
    assert inspect.getdoc(blocking) == inspect.getdoc(asynchronous) != ""
    assert (blocking.__qualname__, asynchronous.__qualname__) == (f"Client.{name}", f"AsyncClient.{name}")


def public(client):
    return {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}


def test_the_asynchronous_client_has_every_method_of_the_other():
    assert public(AsyncClient).keys() == public(Client).keys() > {"get", "khop", "subscribe", "close", "call"}


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_each_method_says_what_it_does_takes_and_gives(client):
    for name, method in public(client).items():
        if not callable(method):
            continue
        signature = inspect.signature(method)
        assert inspect.getdoc(method), name
        assert signature.return_annotation is not inspect.Signature.empty, name
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.annotation is not inspect.Parameter.empty, (name, parameter.name)


def test_a_client_shows_its_requests_as_methods_that_return_what_answers_mean():
    with Client("unix:/nowhere.sock") as client:
        top = str(inspect.signature(client.top))
        get = inspect.signature(client.get)
    waiting = "min_offsets: 'WireOffsets | None' = None, timeout_ms: 'int | None' = None"
    top_params = "program: 'str', k: 'int' = 10, *, order: 'str' = 'desc', vertices: 'VertexIds | None' = None"
    assert top == f"({top_params}, {waiting}) -> 'Top'"
    assert get.parameters["program"].annotation == "str | list[str] | tuple[str, ...]"
    assert get.return_annotation == "Values | ValuesByProgram"
    assert "get" in dir(AsyncClient)


# -- the asynchronous client --------------------------------------------------------------------------------


def test_requests_are_pipelined_and_answers_may_come_in_any_order():
    waiting: list = []

    def reversed_in_fives(msgid, method, params):
        waiting.append((msgid, method, params))
        if len(waiting) == 5:
            for request in reversed(waiting):
                yield from ok(*request)
            waiting.clear()

    async def go(address):
        async with AsyncClient(address) as client:
            results = await asyncio.gather(*(client.get("p", range(n)) for n in range(10)))
            return [result.values.tolist() for result in results]

    with Scripted(reversed_in_fives) as server:
        assert asyncio.run(go(server.address)) == [[n] for n in range(10)]
        assert len(server.hellos) == 1


def test_the_asynchronous_client_opens_a_broken_connection_again():
    async def go(server):
        async with AsyncClient(server.address) as client:
            await client.get("p", [1])
            server.answer = lambda *_: [CLOSE]
            results = await asyncio.gather(client.stats(), client.stats(), return_exceptions=True)
            assert all(isinstance(result, errors.Unavailable) for result in results)
            server.answer = ok
            assert (await client.get("p", [1, 2])).values.tolist() == [2]

    with Scripted(ok) as server:
        asyncio.run(go(server))


def test_the_asynchronous_client_raises_the_same_errors():
    def refuse(msgid, method, params):
        yield [1, msgid, {"code": "unknown-program", "message": "why"}, None]

    async def go(server):
        async with (
            AsyncClient(server.address, timeout=60) as client,
            AsyncClient(server.address, timeout=0.1) as impatient,
        ):
            with pytest.raises(errors.UnknownProgram):
                await client.top("p")
            server.answer = lambda *_: []
            with pytest.raises(errors.TimedOut):
                await impatient.stats()
            server.answer = lambda *_: [[2, "error", [{"code": "limit-exceeded", "message": "no"}]], CLOSE]
            with pytest.raises(errors.LimitExceeded):
                await client.stats()

    with Scripted(refuse) as server:
        asyncio.run(go(server))


@contextlib.contextmanager
def deaf():
    """The address of a server that answers hello and then reads nothing."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(msgpack.packb([1, 0, None, stamped({})]))
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


UNREAD = np.arange(3_000_000)
"""More than the buffers of a socket hold."""


def test_closing_waits_for_no_server_that_does_not_read():
    async def go(address):
        client = AsyncClient(address, timeout=0.2)
        with pytest.raises(errors.TimedOut):
            await client.get("p", UNREAD)
        async with asyncio.timeout(60):
            await client.close()

    with deaf() as address:
        asyncio.run(go(address))


def test_a_subscription_that_is_not_read_ends_in_time():
    async def go(address):
        async with asyncio.timeout(60):
            with pytest.raises(errors.TimedOut):
                await anext(AsyncClient(address, timeout=0.2).subscribe("p", UNREAD))

    with deaf() as address:
        asyncio.run(go(address))


def test_who_is_cancelled_while_it_closes_is_cancelled():
    async def go(address):
        client = AsyncClient(address)
        await client.get("p", [1])
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    with Scripted(ok) as server:
        asyncio.run(go(server.address))


@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_under_way_end_with_the_client_and_open_nothing(replicas):
    async def go(server):
        client = AsyncClient([server.address] * replicas)
        await client.get("p", [1])
        server.answer = lambda *_: []
        call = asyncio.create_task(client.stats())
        await asyncio.to_thread(until, lambda: len(server.requests) == 2)
        await client.close()
        with pytest.raises(errors.Unavailable, match="the client was closed"):
            await call
        assert len(server.hellos) == 1

    with Scripted(ok) as server:
        asyncio.run(go(server))


def test_a_client_that_is_closed_while_it_connects_leaves_no_connection():
    greeted, closed = threading.Event(), threading.Event()
    more = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            greeted.set()
            closed.wait(60)
            connection.sendall(msgpack.packb([1, 0, None, stamped({})]))
            more.append(connection.recv(1 << 16))

    async def go(address):
        client = AsyncClient(address)
        call = asyncio.create_task(client.get("p", [1]))
        await asyncio.to_thread(greeted.wait, 60)
        await client.close()
        closed.set()
        with pytest.raises(errors.Unavailable, match="the client was closed"):
            await call
        await asyncio.to_thread(thread.join, 60)
        assert more == [b""]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        asyncio.run(go(f"tcp://127.0.0.1:{listener.getsockname()[1]}"))


def test_an_event_loop_after_another_has_a_connection_of_its_own():
    with Scripted(ok) as server:
        client = AsyncClient(server.address)
        for n in (1, 2):
            assert asyncio.run(client.get("p", range(n))).values.tolist() == [n]
            gc.collect()  # of a socket that nobody closed a warning would be said here
        assert len(server.hellos) == 2


@pytest.fixture
def left(monkeypatch):
    """Within the block a client has met a server that says nothing; a task, given too, waits on for an answer."""

    @contextlib.asynccontextmanager
    async def leaving(server):
        async def in_vain(method, params):
            raise TimeoutError

        async with AsyncClient(server.address) as client:
            await client.get("p", [1])
            server.answer = lambda *_: []
            patient = asyncio.create_task(client.wait({"t": {0: 9}}, timeout_ms=300_000))
            await asyncio.to_thread(until, lambda: len(server.requests) == 2)
            monkeypatch.setattr(client._link, "exchange", in_vain)
            with pytest.raises(errors.TimedOut):
                await client.stats()
            server.answer = ok
            yield client, patient

    return leaving


def test_a_connection_that_says_nothing_is_left_to_those_who_wait(left):
    async def go(server):
        async with left(server) as (client, patient):
            assert (await client.get("p", [1, 2])).values.tolist() == [2]
            assert len(server.hellos) == 2
            server.say(msgpack.packb([1, server.requests[1][0], None, stamped({})]))
            assert (await patient).epoch == (3, 7)
            await asyncio.to_thread(until, lambda: server.gone == 1)
            assert (await client.get("p", [1])).values.tolist() == [1]

    with Scripted(ok) as server:
        asyncio.run(go(server))


def test_closing_ends_those_who_wait_on_a_connection_that_was_left(left):
    async def go(server):
        async with left(server) as (client, patient):
            await client.close()
            with pytest.raises(errors.Unavailable, match="the client was closed"):
                await patient

    with Scripted(ok) as server:
        asyncio.run(go(server))


def test_two_event_loops_at_once_are_refused():
    async def other(client):
        with pytest.raises(RuntimeError, match="make one for each"):
            await client.stats()
        with pytest.raises(RuntimeError, match="make one for each"):
            await client.close()

    async def go(address):
        async with AsyncClient(address) as client:
            await client.get("p", [1])
            await asyncio.to_thread(asyncio.run, other(client))
            assert (await client.get("p", [1, 2])).values.tolist() == [2]

    with Scripted(ok) as server:
        asyncio.run(go(server.address))


def test_a_connection_that_does_not_come_about_says_why():
    async def go(address):
        await AsyncClient(address, timeout=0.2).stats()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as waiting:
        for _ in range(4):  # as many as wait to be accepted; whoever comes then is not answered
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        with pytest.raises(errors.Unavailable, match=r"cannot connect to .*: timed out$"):
            asyncio.run(go(f"tcp://127.0.0.1:{listener.getsockname()[1]}"))


# -- the wire -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from([np.int64, np.uint32, np.float32, np.float64, np.bool_, np.dtype(">i8")]).flatmap(
        lambda dtype: npst.arrays(dtype, st.integers(0, 50))
    )
)
def test_columns_survive_the_wire(column):
    back = wire.unpack_column(msgpack.unpackb(msgpack.packb(wire.pack_column(column))))
    np.testing.assert_array_equal(back, column)


@settings(deadline=None, max_examples=examples(60))
@given(npst.arrays(np.bool_, st.integers(0, 70)))
def test_bitmaps_survive_the_wire(flags):
    packed = wire.pack_bitmap(flags)
    assert (packed is None) == (not flags.any())
    np.testing.assert_array_equal(wire.unpack_bitmap(packed, flags.size), flags)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=10,
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=5), st.data())
def test_requests_are_read_alike_however_they_are_cut(params, data):
    stream = b"".join(wire.encode_request(i, "m", given) for i, given in enumerate(params))
    reader = wire.FrameReader(1 << 20)
    seen = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:cut])
        stream = stream[cut:]
        while (frame := reader.next_frame()) is not None:
            seen.append(wire.decode_request(frame, 1000))
    expected = [wire.Request(i, "m", given) for i, given in enumerate(params)]
    assert repr(seen) == repr(expected)  # repr: a NaN is not equal to itself
    assert reader.buffered_bytes == 0


@settings(deadline=None, max_examples=examples(200))
@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_but_nothing_else(garbage):
    reader = wire.FrameReader(100)
    try:
        reader.feed(garbage)
        while (frame := reader.next_frame()) is not None:
            wire.decode_request(frame, 50)
    except errors.RequestError:
        return
    assert reader.buffered_bytes <= 100


def test_long_requests_are_decoded_in_pieces_like_short_ones():
    params = {"vertices": list(range(100_000)), "text": "x" * 200_000}
    frame = wire.encode_request(1, "m", params)
    assert len(frame) > 3 * wire.PIECE_BYTES
    assert wire.decode_request(frame, 100_000).params == params
    with pytest.raises(errors.RequestError):
        wire.decode_request(frame, 99_000)


def test_readers_of_frames_hold_little_and_nothing_of_what_was_taken():
    """Also MessagePack's own buffers, which come from Python's allocator."""
    short, long = (wire.encode_request(1, "m", {"data": bytes(size)}) for size in (10, 4 << 20))
    tracemalloc.start()
    try:
        readers = [wire.FrameReader(1 << 13) for _ in range(10)]
        for reader in readers:
            reader.feed(short)
            assert reader.next_frame() == short
            reader.allow(8 << 20)
            for start in range(0, len(long), 1 << 18):
                reader.feed(long[start : start + (1 << 18)])
            reader.feed(short[:5])
            assert reader.next_frame() == long
        assert tracemalloc.get_traced_memory()[0] < 10 * 60_000
        for reader in readers:
            reader.feed(short[5:])
            assert reader.next_frame() == short and reader.next_frame() is None
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 70_000])
def test_entries_that_are_encoded_already_are_sent_as_they_are(size: int) -> None:
    content = {f"k{number}": {"n": number} for number in range(size)}
    entries = wire.entries_of(msgpack.packb(content))
    assert entries == wire.encode_entries(content)
    stamp = wire.encode_stamp((1, 2), {})
    packed = wire.encode_result(9, stamp, {"own": [1]}, entries)
    _, msgid, error, result = msgpack.unpackb(packed, strict_map_key=False)
    assert (msgid, error) == (9, None) and result == {"epoch": [1, 2], "offsets": {}, "own": [1], **content}


def test_a_result_begins_with_its_stamp():
    stamp = wire.encode_stamp((1, 2), {"t": {0: 5}})
    message = msgpack.unpackb(wire.encode_result(9, stamp, {"value": np.float64(0.5)}), strict_map_key=False)
    assert message == [1, 9, None, {"epoch": [1, 2], "offsets": {"t": {0: 5}}, "value": 0.5}]


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1, "\ud800"])
def test_what_cannot_travel_is_an_error_of_the_request(wrong: object) -> None:
    with pytest.raises(errors.RequestError, match=r"64 bits|UTF-8"):
        wire.encode_request(1, "khop", {"vertex": wrong})


def test_ids_that_would_silently_be_others_are_refused() -> None:
    """Letters of a text, and what is beyond 64 bits with a sign."""
    with pytest.raises(TypeError, match="not the text 'alice'"):
        requests._wire_vertices("alice")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not the text b'alice'"):
        requests._wire_vertices(b"alice")  # type: ignore[arg-type]
    for one in (7, np.int64(7), np.array(7), np.array([[1, 2], [3, 4]]), (id for id in (1, 2))):
        with pytest.raises(TypeError, match="must be a list of ids, not "):
            requests._wire_vertices(one)  # type: ignore[arg-type]
    with pytest.raises(errors.RequestError, match="64-bit signed"):
        requests._wire_vertices(np.array([2**63], np.uint64))
    with pytest.raises(errors.RequestError):
        requests._wire_vertices(np.array([2**63], ">u8"))
    assert requests._wire_vertices(np.array([2**63 - 1], np.uint64)) == (2**63 - 1).to_bytes(8, "little")


def test_frames_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not there
    for asked in (lambda: frame({"degree": np.array([1, 2])}), lambda: frame_of_entries({"edges": 3})):
        with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
            asked()
