"""A single-node Apache Kafka on loopback, for development and tests.

Maven fetches the pinned version named in ``pom.xml`` once into the user's cache; afterwards nothing is
fetched. The node runs in KRaft mode in a folder of its own, which goes when it is stopped.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

_HERE = Path(__file__).parent
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
_STARTED = "Kafka Server started"
_START_TIMEOUT_S = 180


class KafkaUnavailable(RuntimeError):
    """Kafka cannot be fetched or started here; the message says why."""


def missing_tools() -> str:
    """What must be installed first, in words; empty when nothing is missing."""
    lacking = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if lacking == ["mvn"] and _jars_folder().exists():
        return ""
    return f"{' and '.join(lacking)} not found (Debian: default-jre-headless, maven)" if lacking else ""


def _jars_folder() -> Path:
    """Where the jars of exactly this ``pom.xml`` are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256((_HERE / "pom.xml").read_bytes()).hexdigest()[:16]
    return cache / "graphtide" / f"kafka-{digest}"


def fetch() -> Path:
    """The folder of Kafka's jars, fetched on first use.

    The folder appears by one rename, so an interrupted or concurrent fetch never leaves half of it.

    Raises:
        KafkaUnavailable: a tool is missing, or Maven failed.
    """
    jars = _jars_folder()
    if jars.exists():
        return jars
    if reason := missing_tools():
        raise KafkaUnavailable(reason)
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-fetching-", dir=jars.parent) as scratch:
        pom = Path(scratch, "pom.xml")
        shutil.copyfile(_HERE / "pom.xml", pom)
        draft = Path(scratch, "jars")
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", pom, _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={draft}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise KafkaUnavailable(f"Maven could not fetch Kafka:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
        # Another process may have been faster; its folder holds the same jars.
        with contextlib.suppress(OSError):
            os.rename(draft, jars)
    return jars


class DevKafka:
    """One Kafka node. ``with DevKafka() as kafka: ... kafka.bootstrap ...``"""

    def __init__(self, *, port: int | None = None, tls: tuple[Path, Path] | None = None) -> None:
        """
        Args:
            port: where clients connect, on 127.0.0.1; None picks a free one.
            tls: PEM files of a certificate and its key (PKCS #8): the node listens with TLS, too.
        """
        self._held = contextlib.ExitStack()  # the ports, also while the node is stopped
        self.port = port if port is not None else self._held.enter_context(held_port())
        self.password = uuid.uuid4().hex
        self._sasl_port = self._held.enter_context(held_port())
        self._tls = tls
        self._tls_port = self._held.enter_context(held_port())
        self._sasl_tls_port = self._held.enter_context(held_port())
        self._controller_port = self._held.enter_context(held_port())
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._jars: Path | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_sasl(self) -> str:
        """``host:port`` for clients that log in as ``graphtide`` with ``password`` (SASL_PLAINTEXT, PLAIN)."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def bootstrap_tls(self) -> str:
        """``host:port`` for clients that show the node's own certificate, or one that it has signed (SSL)."""
        return f"127.0.0.1:{self._tls_port}"

    @property
    def bootstrap_sasl_tls(self) -> str:
        """``host:port`` for clients that log in as at ``bootstrap_sasl``, through TLS (SASL_SSL, PLAIN)."""
        return f"127.0.0.1:{self._sasl_tls_port}"

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None, "Kafka is not running"
        return self._process.pid

    @property
    def log(self) -> Path:
        """The node's log file; it survives restarts."""
        assert self._folder is not None, "Kafka was never started"
        return self._folder / "kafka.log"

    def start(self) -> None:
        """Start the node (the first time: fetch it and format its storage) and wait until it is ready.

        Raises:
            KafkaUnavailable: it could not be fetched or did not become ready; the log's tail is shown.
        """
        if self._folder is None:
            self._jars = fetch()
            self._folder = Path(tempfile.mkdtemp(prefix="graphtide-kafka-"))
            self._format()
        seen = self.log.stat().st_size
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the one who asked for this node; it is then stopped in order.
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _STARTED not in self._log_from(seen):
            if self._process.poll() is not None:
                raise KafkaUnavailable(f"Kafka ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise KafkaUnavailable(f"Kafka was not ready in {_START_TIMEOUT_S} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self, *, timeout_s: float = 30) -> None:
        """Shut the node down in order (SIGTERM); the data stays for ``start`` until ``close``."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: the node gets no chance to tidy up."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop the node in order and start it on the same data and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the node, let its ports go and delete its data."""
        self.stop()
        self._held.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Make a topic and wait until every partition has a leader."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            admin.create_topics([NewTopic(name, partitions, 1, topic_configs=dict(config or {}))])
            deadline = time.monotonic() + 60
            while True:
                (topic,) = admin.describe_topics([name])
                led = [part for part in topic["partitions"] if part["leader_id"] >= 0]
                if len(led) == partitions:
                    return
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(f"topic {name} has {len(led)} of {partitions} leaders after 60 s")
                time.sleep(0.05)

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the node's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> DevKafka:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _properties(self) -> Path:
        assert self._folder is not None
        return self._folder / "server.properties"

    def _format(self) -> None:
        assert self._folder is not None
        template = (_HERE / "server.properties").read_text()
        listeners = files = ""
        if self._tls is not None:
            certificate, key = self._tls
            together = self._folder / "node.pem"
            together.write_text(key.read_text() + certificate.read_text())
            listeners = f",SSL://{self.bootstrap_tls},SASL_SSL://{self.bootstrap_sasl_tls}"
            files = f"ssl.keystore.type=PEM\nssl.keystore.location={together}\n"
            files += f"ssl.truststore.type=PEM\nssl.truststore.location={certificate.absolute()}"
        for name, value in {
            "tls_listeners": listeners,
            "tls_files": files,
            "port": self.port,
            "sasl_port": self._sasl_port,
            "password": self.password,
            "controller_port": self._controller_port,
            "data": self._folder / "data",
        }.items():
            template = template.replace(f"{{{name}}}", str(value))
        self._properties.write_text(template)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with open(self.log, "ab") as log:
            # With the id as one word: one that begins with a dash is then not taken for an option.
            done = subprocess.run(
                self._java(
                    "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties)
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )
        if done.returncode != 0:
            raise KafkaUnavailable(f"Kafka's storage could not be formatted:\n{self.log_tail()}")

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *_JVM, *_LOGGING, "-cp", f"{self._jars}/*", main, *arguments]

    def _log_from(self, position: int) -> str:
        with open(self.log, "rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free TCP port of 127.0.0.1, which nobody is given meanwhile who does not ask for it by number.

    It is held by a socket that does not listen: a server that says SO_REUSEADDR may, over and over.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
