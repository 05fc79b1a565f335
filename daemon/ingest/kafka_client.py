"""What everybody who talks to Kafka needs: clients that leave nothing behind.

Left to themselves, clients of kafka-python leave threads and sockets: a constructor that fails leaves its network
running; ``close`` of a producer gives up at once, everything running, when records are unsent after its timeout;
and the socket of a connection that is refused, was not made yet when its client is closed, or still has something
to send then, is never closed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import (
    IllegalSaslStateError,
    InvalidReceiveError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..config.secrets import FileSecret
from ..errors import ConfigError, GraphtideError
from ..os_errors import said
from .kafka_receiving import Receiver

log = logging.getLogger(__name__)


class TlsRefused(KafkaError):  # type: ignore[misc]
    """One side does not take the other's certificate or way to speak TLS, or the client's files are of no use."""


REFUSALS = (SaslAuthenticationFailedError, IllegalSaslStateError, UnsupportedSaslMechanismError, TlsRefused)
"""What a cluster says to a client whose credentials, or whose way to present them, are not right."""

MISTAKES = (KafkaConfigurationError, *REFUSALS)
"""Errors that the next try will meet again: the settings must change."""

REFUSED_MAX = 3
"""One refusal may be of a broker that does not know the credentials yet; after so many they are wrong."""

COMMAND_CONNECT_MS = 4_000
"""How long a command looks for a cluster: somebody sits before it."""

_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)

_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH, _NOT_YET_VALID, _EXPIRED = 62, 64, 9, 10  # X509_V_ERR_* of OpenSSL
_HINTS = {
    _HOSTNAME_MISMATCH: "brokers must be called, and call themselves, by a name in their certificates",
    _ADDRESS_MISMATCH: "brokers must be called, and call themselves, by a name in their certificates",
    _NOT_YET_VALID: "a clock is wrong",
    _EXPIRED: "the broker needs another one, or a clock is wrong",
}
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")

CLOSE_TIMEOUT_S = 1.0
_END_S = 5.0
"""How long a producer's thread may take to end: it may look up a name, which nothing breaks off."""


class _ClosedSocket(KafkaNetSocket):  # type: ignore[misc]
    """Connects as always, and closes the socket where that fails or is broken off.

    kafka-python takes it for a kind of proxy, which is how it lets others make connections.
    """

    SCHEMES = ("graphtide-direct",)

    async def sock_connect(self, net: Any, sock: socket.socket, *arguments: Any, **options: Any) -> socket.socket:
        try:
            connected: socket.socket = await super().sock_connect(net, sock, *arguments, **options)
        except BaseException:
            sock.close()
            raise
        return connected


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Gives up when it is refused again and again, and knows why: kafka-python tries until its time runs out.

    A broker that refuses says so and hangs up; kafka-python drops the last words of whoever has hung up.
    """

    refusal: KafkaError | None = None
    trouble: KafkaError | None = None
    """Why the newest connection before the first success did not come about; kafka-python only logs it."""
    _refused = 0
    _unread = ""  # what was said of a file of a secret
    _transports: tuple[Any, ...] = ()

    def close_sockets(self) -> None:
        """Close what ``close`` leaves open: a connection that it finds sending closes itself when all is sent, for
        which nobody waits. The network must have ended."""
        for transport in self._transports:
            if transport._sock is not None:
                transport._sock.close()
        self._transports = ()

    def get_connection(self, node_id: Any, *arguments: Any, **options: Any) -> Any:
        if node_id not in self._conns:
            self._read_secrets_again()
        connection = super().get_connection(node_id, *arguments, **options)
        connection.init_future.add_errback(self._note)
        return connection

    def _read_secrets_again(self) -> None:
        """Have another connection present what the files of passwords hold by now, as it has the certificates."""
        for name, value in self.config.items():
            if isinstance(value, FileSecret):
                try:
                    self.config[name] = value.again()
                    self._unread = ""
                except ConfigError as error:  # it is being replaced, say
                    if error.message != self._unread:
                        log.warning("%s; what it held before is presented once more", error.message)
                    self._unread = error.message

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """As kafka-python's, but it knows what is wrong with TLS, and leaves no socket open."""
        place, config = f"{node.host}:{node.port}", self.config
        options, proxy = config["socket_options"], config["proxy_url"]
        sock = await create_connection(
            self._net, node.host, node.port, options, proxy_url=proxy, timeout_at=timeout_at
        )
        try:
            if self.ssl_enabled:
                of_tls = {key: value for key, value in config.items() if key.startswith("ssl_")}
                transport = KafkaSSLTransport(self._net, sock, host=node.host, **of_tls)
            else:
                transport = KafkaTCPTransport(self._net, sock, host=node.host)
        except OSError as error:  # certificates and keys are read for each connection
            sock.close()
            raise TlsRefused(f"no TLS with {place}: {_of_files(error, config)}") from error
        self._transports = (*(other for other in self._transports if other._sock is not None), transport)
        transport._sock_recv = _words_before_the_end(Receiver(transport), place)
        if self.ssl_enabled:
            transport._sock_send = _why_it_ended(transport._sock_send, transport._sock_recv)
        try:
            await transport.handshake()
        except BaseException as error:
            transport._sock.close()
            if isinstance(error, ssl.SSLError):
                raise _of_tls(error, place) from error
            if isinstance(error, Exception):
                raise KafkaConnectionError(f"no handshake with {place}: {error}") from error
            raise
        return transport

    def _note(self, error: BaseException) -> None:
        if isinstance(error, KafkaError) and not self.bootstrapped and not self.closed:
            self.trouble = error
            if isinstance(error, InvalidReceiveError) and not self.ssl_enabled:
                self.trouble = KafkaConnectionError(
                    "what is there does not speak as Kafka does: perhaps it speaks TLS (see security_protocol)"
                )
        if isinstance(error, REFUSALS) and not self.bootstrapped:
            self.refusal = error
            self._refused += 1
            if self._refused == REFUSED_MAX:
                self._net.call_soon(self.close)


class _Network(KafkaNetClient):  # type: ignore[misc]
    """Leaves no socket open when it is closed."""

    def close(self, node_id: Any = None) -> None:
        try:
            super().close(node_id)
        finally:
            if node_id is None:
                self._manager.close_sockets()


def _words_before_the_end(
    receive: Callable[[], tuple[memoryview, Exception | None]], place: str
) -> Callable[[], tuple[memoryview, Exception | None]]:
    """What was received before the connection ended is given first; the end comes again with the next call.

    It is only there that a client hears that its own certificate is not taken (TLS 1.3).
    """

    def received() -> tuple[memoryview, Exception | None]:
        data, error = receive()
        if data:
            return data, None
        said = error.args[0] if error is not None and error.args else None
        return data, _of_tls(said, place) if isinstance(said, ssl.SSLError) else error

    return received


def _why_it_ended(
    send: Callable[[], tuple[int, Exception | None]], receive: Callable[[], tuple[memoryview, Exception | None]]
) -> Callable[[], tuple[int, Exception | None]]:
    """Who finds the other end gone when it sends reads what that said last, if it said why."""

    def sent() -> tuple[int, Exception | None]:
        count, error = send()
        if error is not None:
            _, said = receive()
            if isinstance(said, TlsRefused):
                return count, said
        return count, error

    return sent


def _of_tls(error: BaseException, place: str) -> KafkaError:
    """What an error of TLS means: ``TlsRefused``, or that the other end went away in the midst of it."""
    if isinstance(error, _ENDS):
        return KafkaConnectionError(
            f"{place} ended the connection in the handshake of TLS ({error}): it goes down, or speaks none there"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = _HINTS.get(error.verify_code, "see ssl_cafile")
        return TlsRefused(f"the certificate of {place} is not taken: {error.verify_message} ({hint})")
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        hint = "see ssl_certfile and ssl_keyfile"
        return TlsRefused(
            f"no TLS with {place}, which takes no client without a certificate it trusts: {error} ({hint})"
        )
    return TlsRefused(f"no TLS with {place}: {error}")


def _of_files(error: OSError, config: Mapping[str, Any]) -> str:
    """What is wrong with the files of certificates and keys, of which ``ssl`` names none."""
    for option in _FILES:
        if config[option] is not None:
            try:
                with open(config[option], "rb"):
                    pass
            except OSError as unreadable:
                return f"{option} = {str(config[option])!r}: {unreadable.strerror}"
    given = [option for option in _FILES if config[option] is not None]
    return f"{error} (see {', '.join(given)})" if given else str(error)


def require_files(key: str, client: Mapping[str, Any]) -> None:
    """See whether TLS can be spoken with the files that a client's options name, before any broker is asked.

    Raises:
        ConfigError: it cannot; ``key`` is where the options stand.
    """
    if client.get("security_protocol") in ("SSL", "SASL_SSL"):
        config = {**KafkaSSLTransport.DEFAULT_CONFIG, **client}
        try:
            KafkaSSLTransport._build_ssl_context(config)
        except OSError as error:
            raise ConfigError(f"{key}: {_of_files(error, config)}") from error


def connect(
    kind: Any,
    client: Mapping[str, Any],
    *,
    on_start: Callable[[Callable[[], object]], None] = lambda give_up: None,
    **options: Any,
) -> Any:
    """One of kafka-python's clients, with those options of ``client`` that it knows, and ours over them.

    Args:
        on_start: is given what makes this connecting fail soon, to be called in any thread.

    Raises:
        KafkaError: the cluster cannot be reached, it refuses the client (one of ``REFUSALS``), or an option is
            wrong. Nothing of the client stays.
    """
    made: list[_Network] = []
    managers: list[_Manager] = []

    def network(**settings: Any) -> _Network:
        if settings.get("proxy_url") is None and settings.get("socks5_proxy") is None:
            settings["proxy_url"] = f"{_ClosedSocket.SCHEMES[0]}://"
        selector = NetworkSelector(**settings)
        try:
            manager = _Manager(selector, **settings)
        except BaseException:
            selector.close()
            raise
        managers.append(manager)
        made.append(_Network(selector, manager))
        on_start(lambda: selector.call_soon_threadsafe(manager.close))
        return made[-1]

    known = {key: value for key, value in client.items() if key in kind.DEFAULT_CONFIG}
    try:
        return kind(**{**known, **options, "kafka_client": network})
    except BaseException as error:
        for leftover in made:
            leftover.close()
        refusal = next((manager.refusal for manager in managers if manager.refusal is not None), None)
        if refusal is not None and isinstance(error, KafkaError):
            raise refusal from error
        trouble = next((manager.trouble for manager in managers if manager.trouble is not None), None)
        if trouble is not None and isinstance(error, KafkaTimeoutError):
            raise KafkaTimeoutError(f"{error.args[0] if error.args else error}: {said(trouble)}") from error
        raise


def send_batch(producer: KafkaProducer, place: TopicPartition, records: bytes, number: int) -> Any:
    """Send so many records, packed as in a batch of message format 2, in the producer's transaction.

    Returns a future of the last of them, as ``send`` does.
    """
    accumulator = producer._accumulator
    batch_records = MemoryRecordsBuilder(2, accumulator.config["compression_attrs"], len(records))
    builder = batch_records._builder
    builder._buffer += records
    builder._num_records, builder._last_offset = number, number - 1
    builder._first_timestamp = builder._max_timestamp = time.time_ns() // 10**6
    batch_records._next_offset = number
    producer._transaction_manager.maybe_add_partition_to_transaction(place)
    batch = ProducerBatch(place, batch_records)
    with accumulator._tp_lock(place):
        accumulator._batches[place].append(batch)
        accumulator._incomplete.add(batch)
    producer._sender.wakeup()
    return FutureRecordMetadata(batch.produce_future, number - 1, builder._max_timestamp, None, -1, -1, -1)


def commit(producer: KafkaProducer, *, timeout_s: float, given_up: Callable[[], bool]) -> None:
    """Commit a producer's transaction; its own ``commit_transaction`` waits for ever.

    Raises:
        KafkaError: it failed, or it is not known whether it did: there was no answer in time, or ``given_up``.
    """
    committing = producer._transaction_manager.begin_commit()
    producer._sender.wakeup()
    ends = time.monotonic() + timeout_s
    while not committing.wait(timeout_ms=100):
        if given_up() or time.monotonic() > ends:
            raise KafkaTimeoutError("nobody answers whether the transaction is committed")


def fault_of(producer: KafkaProducer) -> BaseException | None:
    """Why a producer's transactions go on no more; None: they do."""
    error: BaseException | None = producer._transaction_manager.last_error
    return error


def records_until(
    consumer: KafkaConsumer,
    ends: Mapping[TopicPartition, int],
    *,
    silent_s: float,
    records_max: int | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> Iterator[Any]:
    """What a consumer finds from where it stands until it is at these offsets; records behind them may come along.

    ``records_max``: of one look; None: as many as the client likes.

    Raises:
        KafkaTimeoutError: nothing came for so long (not counting the time in which records are dealt with), or
            ``given_up``.
    """
    heard = time.monotonic()
    while any(consumer.position(part) < end for part, end in ends.items()):
        found = consumer.poll(timeout_ms=200, max_records=records_max)
        for records in found.values():
            yield from records
        if found:
            heard = time.monotonic()
        elif given_up() or time.monotonic() > heard + silent_s:
            raise KafkaTimeoutError(f"topic {', '.join({part.topic for part in ends})} cannot be read to its end")


def seek(consumer: KafkaConsumer, tp: TopicPartition, offset: int, leader_epoch: int | None) -> None:
    """Read from this offset next. ``leader_epoch``: under which what stands before it was read (None: not known);
    where the broker knows of another end of that, ``poll`` raises a ``LogTruncationError``."""
    consumer.seek(tp, offset)
    if leader_epoch is not None:
        consumer._subscription.seek(tp, OffsetAndMetadata(offset, "", leader_epoch))


def epoch_at_position(consumer: KafkaConsumer, tp: TopicPartition) -> tuple[int, int] | None:
    """Where a consumer stands in a partition, and under which leader's epoch what stands before that was written
    (-1: not known)."""
    position = consumer._subscription.assignment[tp].position
    return None if position is None else (position.offset, position.leader_epoch)


def disconnect(client: Any, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close a consumer, a producer or an admin client; what a producer has not sent by then is given up."""
    with contextlib.suppress(KafkaError, OSError, RuntimeError):  # the last: its network was closed already
        if isinstance(client, KafkaProducer):
            _close_producer(client, timeout_s)
        elif isinstance(client, KafkaConsumer):
            try:
                client.close(autocommit=False, timeout_ms=int(timeout_s * 1000))
            finally:  # it is not reached when taking leave of the group fails
                client._client.close()
        else:
            client.close()


def _close_producer(producer: KafkaProducer, timeout_s: float) -> None:
    sender = producer._sender
    try:
        producer.close(timeout=timeout_s)
    except KafkaTimeoutError:
        sender.force_close()
        sender.join(_END_S)
        producer.close(timeout=0)
    sender.join(_END_S)  # it may have been told to stop only just now


def command_options(servers: str) -> dict[str, Any]:
    """How a command connects to these brokers (commas between)."""
    return {"bootstrap_servers": servers.split(","), "bootstrap_timeout_ms": COMMAND_CONNECT_MS}


def command_error(
    servers: str, error: KafkaError, otherwise: type[GraphtideError], hint: str = ""
) -> GraphtideError:
    """What a command says where it cannot use a cluster: ``ConfigError`` where the settings must change; else the
    other one, with a hint."""
    if isinstance(error, MISTAKES):
        return ConfigError(f"Kafka at {servers}: {said(error)}")
    return otherwise(f"Kafka at {servers}: {said(error)}{hint}")


class KafkaLink:
    """One of kafka-python's clients, made when it is needed. One thread uses it; any may break it off."""

    def __init__(self, kind: Any, client: Mapping[str, Any], **options: Any) -> None:
        """The arguments of ``connect``."""
        self._kind, self._settings, self._options = kind, client, options
        self._client: Any = None
        self._give_up: Callable[[], object] | None = None
        self._broken = False
        self._lock = threading.Lock()

    def client(self) -> Any:
        """The client; connects when there is none.

        Raises:
            KafkaError: the cluster cannot be reached, an option is wrong, or the link was broken off.
        """
        if self._client is None:
            made = connect(self._kind, self._settings, on_start=self._holds, **self._options)
            try:
                self._holds(made._sender.force_close if isinstance(made, KafkaProducer) else made.close)
            except KafkaConnectionError:
                disconnect(made)
                raise
            self._client = made
        return self._client

    def close(self) -> None:
        """Close the client, if there is one; the next call of ``client`` makes another."""
        with self._lock:
            self._give_up = None
        made, self._client = self._client, None
        if made is not None:
            disconnect(made)

    def break_off(self) -> None:
        """Make what the other thread waits for fail soon, and whatever it asks for after that."""
        with self._lock:
            self._broken = True
            if self._give_up is not None:
                with contextlib.suppress(Exception):  # the client is closed already, or its network failed
                    self._give_up()

    def _holds(self, give_up: Callable[[], object]) -> None:
        with self._lock:
            if self._broken:
                raise KafkaConnectionError("the link was broken off")
            self._give_up = give_up
