"""A real schema registry, Apicurio, with its schemas in memory; Maven fetches it once into the user's cache."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import until

from graphtide.daemon.ingest.registry import Registry, RegistryAway
from graphtide.ops.kafka import held_port

VERSION = "2.6.13.Final"  # the last for Java 17
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


def _folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "graphtide" / f"apicurio-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="apicurio-fetching-", dir=folder.parent) as scratch:
            command = ["mvn", "-B", "-q", _COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={scratch}"]
            subprocess.run(command, check=True, cwd=scratch)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(Path(scratch, "app"), filter="data")
            with contextlib.suppress(OSError):  # another process may have been faster
                os.rename(Path(scratch, "app"), folder)
    return folder


@contextlib.contextmanager
def apicurio(folder: Path) -> Iterator[str]:
    """Where its interface of Confluent's form listens; ``folder``: for its log."""
    (jar,) = _folder().glob("*-runner.jar")
    with held_port() as port, open(folder / "apicurio.log", "wb") as log:
        place = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
        process = subprocess.Popen(
            ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", *place, "-jar", str(jar)], stdout=log, stderr=log
        )
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

        def answers() -> bool:
            assert process.poll() is None, (folder / "apicurio.log").read_text()[-3000:]
            try:
                return bool(Registry(url).check())
            except RegistryAway:
                return False

        try:
            until(answers)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def register(url: str, subject: str, schema: str, kind: str, references: Any = ()) -> int:
    """A version of a subject; its id."""
    body = {"schema": schema, "schemaType": kind, "references": [*references]}
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.loads(answer.read())["id"])
