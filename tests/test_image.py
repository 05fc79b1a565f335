"""A container of the image, as ops/docker/compose.yaml runs it but for what it reads: asked, killed, stopped.

``make image-test`` builds the image and runs this, where there is a container engine: ``GRAPHTIDE_ENGINE`` is its
command, with options of its own, and ``GRAPHTIDE_RUN_OPTIONS`` are more options of ``run``.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import needed
from waiting import until

yaml = needed("yaml", "compose.yaml is YAML: yamllint brings PyYAML")

ENGINE = shlex.split(os.environ.get("GRAPHTIDE_ENGINE", ""))
MORE = shlex.split(os.environ.get("GRAPHTIDE_RUN_OPTIONS", ""))
IMAGE = "graphtide"
NAME = f"graphtide-test-{os.getpid()}"
VOLUMES = {"state": f"{NAME}-state", "kernels": f"{NAME}-kernels"}
DOCKER = Path(__file__).resolve().parents[1] / "ops" / "docker"
SOCKET = "unix:/run/graphtide/graphtide.sock"
SETTINGS = """
[source]
kind = "spool"
path = "spool"
[[program]]
name = "bfs"
source = 1
id = "hops"
[metrics]
listen = "0.0.0.0:9420"
insecure = true
"""

pytestmark = pytest.mark.skipif(not ENGINE, reason="make image-test runs this, where there is a container engine")


def engine(*words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ENGINE, *words], capture_output=True, text=True, check=check, timeout=300, **options)


def inside(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return engine("exec", NAME, *words, check=check)


def as_compose_says(settings: Path) -> list[str]:
    """Options of ``run`` for its service ``graphtide``, with other settings and no network."""
    service = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))["services"]["graphtide"]
    assert service["read_only"] and service["init"]
    options = ["--init", "--read-only", "--network", "none"]
    options += [word for name in service["cap_drop"] for word in ("--cap-drop", name)]
    options += [
        word for name in service["security_opt"] for word in ("--security-opt", name.removesuffix(":true"))
    ]
    for mount in service["tmpfs"]:
        folder, _, how = mount.partition(":")
        if how and Path(ENGINE[0]).name == "podman":  # which has an option of its own for whose it is
            mode = dict(word.split("=") for word in how.split(","))["mode"]
            options += ["--mount", f"type=tmpfs,destination={folder},tmpfs-mode={mode},chown=true"]
        else:
            options += ["--tmpfs", mount]
    for mount in service["volumes"]:
        source, target, *mode = mount.split(":")
        source = str(settings) if source == "./graphtide.toml" else VOLUMES[source]
        options += ["--volume", ":".join([source, target, *mode])]
    return [*options, *MORE, IMAGE, *service["command"]]


def is_healthy() -> bool:
    """As the HEALTHCHECK of the image asks."""
    return inside("graphtide", "query", SOCKET, "hello", check=False).returncode == 0


def stage() -> Any:
    told = inside("graphtide", "query", SOCKET, "stats", "--json", check=False)
    return json.loads(told.stdout)["stage"] if told.returncode == 0 else None


def hops() -> dict[int, float]:
    asked = ["graphtide", "query", SOCKET, "get", "--program", "hops", "--vertices", "[1,2,3,5]", "--json"]
    told = json.loads(inside(*asked).stdout)
    return dict(zip([1, 2, 3, 5], told["values"], strict=True))


@pytest.fixture
def container(tmp_path: Path) -> Iterator[None]:
    settings = tmp_path / "graphtide.toml"
    settings.write_text(SETTINGS)
    settings.chmod(0o644)
    for volume in VOLUMES.values():
        engine("volume", "create", volume)
    try:
        engine("run", "--detach", "--name", NAME, *as_compose_says(settings))
        yield
    finally:
        engine("rm", "--force", NAME, check=False)
        engine("volume", "rm", *VOLUMES.values(), check=False)


@pytest.mark.timeout(900)
def test_a_container_is_killed_and_stopped_and_answers_as_before(container: None) -> None:
    assert until(is_healthy, 300), engine("logs", NAME).stderr[-3000:]
    assert inside("id", "-u").stdout.strip() == "10001"
    assert inside("touch", "/opt/graphtide/x", check=False).returncode != 0, "its file system is read-only"
    compiled = engine("logs", NAME)
    assert "compil" not in compiled.stdout + compiled.stderr, "its kernels came compiled"
    inside("sh", "-c", r"printf 'src,dst\n1,2\n2,3\n5,6\n' > /tmp/edges.csv")
    produced = inside("graphtide", "produce", "--spool", "spool", "--json", "/tmp/edges.csv")
    offsets = json.dumps(json.loads(produced.stdout)["offsets"])
    inside("graphtide", "query", SOCKET, "wait", "--min_offsets", offsets)
    expected = {1: 0, 2: 1, 3: 2, 5: None}
    assert hops() == expected
    engine("kill", "--signal", "KILL", NAME)
    engine("start", NAME)
    assert until(lambda: stage() == "running", 120)
    assert hops() == expected
    engine("stop", "--time", "60", NAME)
    code = engine("inspect", "--format", "{{.State.ExitCode}}", NAME).stdout.strip()
    assert code == "0", "SIGTERM drains, and writes a last checkpoint"
    engine("start", NAME)
    assert until(lambda: stage() == "running", 120)
    assert hops() == expected
