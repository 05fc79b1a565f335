"""What ``ops/docker`` and ``ops/kubernetes`` say is so, without containers (see ``test_image``)."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import brokers
import pytest
from conftest import needed
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from running import Daemon
from test_dashboards import tool
from typer.main import get_command
from waiting import until

from graphtide import __version__
from graphtide.daemon import cli
from graphtide.daemon.client import Client, Values
from graphtide.daemon.client.blocking import Subscription
from graphtide.daemon.config.addresses import default_socket_path
from graphtide.daemon.config.load import load
from graphtide.daemon.config.settings import Config
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.tools import portable
from graphtide.gpma import runtime
from graphtide.gpma.edges import Op
from graphtide.ops import dashboards
from graphtide.ops.kafka import DevKafka

yaml = needed("yaml", "the files of deployment are YAML: yamllint brings PyYAML")
linter = needed("yamllint.linter", "yamllint is missing")
lint_config = needed("yamllint.config", "yamllint is missing")

ROOT = Path(__file__).resolve().parents[1]
DOCKER, KUBERNETES = ROOT / "ops" / "docker", ROOT / "ops" / "kubernetes"
FILES = sorted([*DOCKER.rglob("*.y*ml"), *KUBERNETES.rglob("*.y*ml")])
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
COMPILED_S = 250
"""A first start compiles kernels."""
LINT = """
extends: default
rules:
  line-length: {max: 150}
  document-start: disable
  truthy: {check-keys: false}
  comments: {min-spaces-from-content: 1}
"""


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def parsed(words: list[str]) -> dict[str, Any]:
    """A command line of ``graphtide`` as the command line itself reads it."""
    name, *arguments = words
    command = get_command(cli.app)
    return command.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined,no-any-return]


def configured(folder: Path, **environ: str) -> Config:
    """A folder's settings as the daemon loads them."""
    return load(folder / "graphtide.toml", environ=environ).config


def port(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "ops")))
def test_yaml_has_no_lint(path: Path) -> None:
    problems = linter.run(path.read_text("utf-8"), lint_config.YamlLintConfig(LINT), str(path))
    assert [str(problem) for problem in problems] == []


def test_the_dockerfile_has_no_lint(tmp_path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint comes with the extra `test` on x86-64 alone")

    def lint(text: str) -> list[str]:
        (tmp_path / "Dockerfile").write_text(text)
        done = subprocess.run(
            [hadolint, "--format", "json", tmp_path / "Dockerfile"], capture_output=True, text=True, timeout=60
        )
        return [problem["code"] for problem in json.loads(done.stdout)]

    text = (DOCKER / "Dockerfile").read_text("utf-8")
    assert lint(text) == []
    assert "DL3003" in lint(f"{text}\nRUN cd /tmp\n")


# -- the image ----------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, as (name, rest)."""
    lines = (DOCKER / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    whole = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in whole) if name]


def said(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for line in said("ENV") for word in shlex.split(line))


def test_the_image_runs_the_command_as_somebody_without_rights() -> None:
    (entry,), (command,) = map(json.loads, said("ENTRYPOINT")), map(json.loads, said("CMD"))
    assert entry == list(PYPROJECT["project"]["scripts"]) and parsed(command)["config"] is None
    (user,) = said("USER")
    made = next(line for line in said("RUN") if "useradd" in line)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) and f"--uid {user.split(':')[0]} " in made
    assert {name for name, _ in instructions()[:1]} == {"ARG"}
    stages = {words[2] for words in map(str.split, said("FROM")) if len(words) == 3}
    assert {words.split()[0] for words in said("FROM")} - stages == {"${BASE}"}
    assert re.fullmatch(r"BASE=[\w/]+:[\w.-]*\d[\w.-]*", said("ARG")[0]), "a base of a pinned tag"


def test_the_folders_of_the_image_are_those_that_graphtide_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = next(line for line in said("RUN") if "useradd" in line)
    volumes = json.loads(said("VOLUME")[0])
    (state,) = said("WORKDIR")
    run, cache = variables()["RUNTIME_DIRECTORY"], variables()["NUMBA_CACHE_DIR"]
    assert state in volumes and any(cache.startswith(f"{volume}/") for volume in volumes)
    assert all(folder in made.split() for folder in (*volumes, run))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert runtime.cache_directory() == tmp_path / "cache"
    (health,) = said("HEALTHCHECK")
    words = json.loads(health.partition(" CMD ")[2])
    asked = parsed(words[1:])
    assert words[0] == "graphtide" and asked["method"] == "hello"
    assert asked["address"] == f"unix:{default_socket_path({'RUNTIME_DIRECTORY': run})}"
    ports = {port(address) for address in Config().server.listen if address.startswith("tcp:")}
    assert {int(text) for text in said("EXPOSE")[0].split()} == ports | {port(Config().metrics.listen)}


def test_the_image_has_its_kernels_compiled_before_it_is_copied() -> None:
    order = [(name, rest) for name, rest in instructions() if "/opt/graphtide" in rest and name in ("RUN", "COPY")]
    (step,) = [place for place, (_, rest) in enumerate(order) if "graphtide kernels" in rest]
    (installed,) = [place for place, (_, rest) in enumerate(order) if "pip install" in rest]
    (copied,) = [place for place, (name, rest) in enumerate(order) if name == "COPY" and "--from=build" in rest]
    assert installed < step < copied
    machine, command = re.findall(r"= (\w+) \]; then \S+/graphtide (.*); fi", order[step][1])[0]
    assert machine in portable.TARGETS and parsed(command.split())["portable"]


def test_the_extras_that_builds_name_exist() -> None:
    named = re.findall(r"EXTRAS='\[(\w+)\]'", (DOCKER / "Dockerfile").read_text("utf-8"))
    assert named and set(named) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_what_the_image_is_built_from_makes_a_graphtide_that_runs(tmp_path: Path) -> None:
    """The Dockerfile's ``pip install``, of the files that its build is given, and the command that it is for."""
    everything, *patterns = [
        line
        for line in (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert everything == "*"
    source, target = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    for name in (pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    (install,) = [line for line in said("RUN") if "pip install" in line]
    assert shlex.split(install)[-1] == "/src${EXTRAS}" and ". /src" in said("COPY")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile"]
    alone = {**os.environ, "PYTHONPATH": str(target)}
    subprocess.run([*pip, "--target", target, source], check=True, timeout=240)
    done = subprocess.run(
        [sys.executable, "-P", target / "bin" / "graphtide", "version"],
        cwd=tmp_path, env=alone, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip().split()[-1] == __version__
    found = "import graphtide; print(graphtide.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", found], cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(target)


# -- compose ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = document(DOCKER / "compose.yaml")["services"]
    return found


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """What a service sees, by where: files of the checkout, and named volumes."""
    return {target: source for source, target, *_ in (text.split(":") for text in service.get("volumes", []))}


def test_every_image_is_pinned_and_every_port_is_on_loopback(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" not in service:
            assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]), name
        for published in service.get("ports", []):
            assert ipaddress.ip_address(published.split(":")[0]).is_loopback, name
        for other, need in service.get("depends_on", {}).items():
            if need["condition"] == "service_healthy":
                assert "healthcheck" in services[other]
    (pom,) = re.findall(r"<artifactId>kafka_[\d.]+</artifactId>\s*<version>([\d.]+)<", _text("ops/kafka/pom.xml"))
    assert {services[name]["image"] for name in ("kafka", "topic")} == {f"apache/kafka:{pom}"}


def _text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def test_every_mounted_file_is_there_and_every_volume_declared(services: dict[str, Any]) -> None:
    declared = document(DOCKER / "compose.yaml")["volumes"]
    for name, service in services.items():
        for source in mounts(service).values():
            assert (DOCKER / source).is_file() if source.startswith(".") else source in declared, (name, source)
    build = services["graphtide"]["build"]
    context = (DOCKER / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]) == DOCKER / "Dockerfile"


def test_the_daemon_of_compose_reads_and_writes_what_is_there(services: dict[str, Any]) -> None:
    service, config = services["graphtide"], configured(DOCKER)
    settings = str(parsed(service["command"])["config"])
    assert mounts(service)[settings] == "./graphtide.toml"
    listeners = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert all(f"://{server}" in listeners for server in config.source.bootstrap_servers)
    making = services["topic"]["command"]
    assert [making[making.index("--topic") + 1]] == list(config.source.topics)
    assert set(json.loads(said("VOLUME")[0])) <= set(mounts(service))
    folders = {text.partition(":")[0] for text in service["tmpfs"]}
    assert {variables()["RUNTIME_DIRECTORY"], "/tmp"} == folders
    assert f"uid={said('USER')[0].split(':')[0]}" in service["tmpfs"][1]
    inside = {port(address) for address in (*config.server.listen[1:], config.metrics.listen)}
    assert {int(text.split(":")[2]) for text in service["ports"]} == inside
    assert json.loads(said("HEALTHCHECK")[0].partition(" CMD ")[2])[2] in config.server.listen


def test_prometheus_and_grafana_of_compose_find_the_daemon_and_its_dashboard(
    services: dict[str, Any], tmp_path: Path
) -> None:
    prometheus = document(DOCKER / "prometheus.yml")
    (scraped,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped == f"graphtide:{port(configured(DOCKER).metrics.listen)}"
    (source,) = document(DOCKER / "grafana" / "datasource.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["type"] == "prometheus" and source["isDefault"]
    (provider,) = document(DOCKER / "grafana" / "dashboards.yml")["providers"]
    shown = {Path(target): source for target, source in mounts(services["grafana"]).items()}
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (DOCKER / shown[home]).samefile(dashboards.FOLDER / "overview.json")
    for name in dashboards.render():
        assert (DOCKER / shown[home.parent / name]).samefile(dashboards.FOLDER / name)
    for target, file in mounts(services["prometheus"]).items():
        if file.startswith("."):
            shutil.copy(DOCKER / file, tmp_path / Path(target).name)
    check = [tool("promtool"), "check", "config", tmp_path / "prometheus.yml"]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.kafka
def test_the_broker_of_compose_is_given_settings_that_kafka_has(services: dict[str, Any], kafka: DevKafka) -> None:
    given = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in services["kafka"]["environment"]}
    with brokers.client(KafkaAdminClient, kafka.bootstrap) as admin:
        broker = ConfigResource(ConfigResourceType.BROKER, "1")
        described = admin.describe_configs([broker], config_filter="all")
    assert given <= set(described["broker"]["1"])


class Contained(Daemon):
    """A daemon without its container: the settings of a folder of ``ops`` but for where things are."""

    def __init__(self, folder: Path, ops: Path, bootstrap: str, topic: str, **places: dict[str, Any]) -> None:
        """``places``: more of them, by section."""
        settings = tomllib.loads((ops / "graphtide.toml").read_text("utf-8"))
        settings["source"] |= {"bootstrap_servers": [bootstrap], "topics": [topic]}
        settings["metrics"]["listen"] = "127.0.0.1:0"
        del settings["server"]["listen"]
        for section, more in places.items():
            settings[section] |= more
        super().__init__(folder, settings)

    def fetch(self, path: str) -> str:
        """What its metrics' server answers; raises where that is no success."""
        found = re.findall(r"metrics at (\S+)/metrics", self.log.read_text("utf-8"))
        with urllib.request.urlopen(f"{found[-1]}{path}", timeout=60) as answer:
            told: str = answer.read().decode()
        return told


@pytest.mark.sample(among="containers and dashboards")
@pytest.mark.kafka
@pytest.mark.timeout(900)  # where no kernels are cached, the first start compiles them
def test_the_daemon_of_compose_is_healthy_and_answers_as_before_after_a_kill(
    kafka: DevKafka, tmp_path: Path, services: dict[str, Any]
) -> None:
    making = services["topic"]["command"]
    kafka.create_topic("compose", int(making[making.index("--partitions") + 1]))
    words = json.loads(said("HEALTHCHECK")[0].partition(" CMD ")[2])
    with Contained(tmp_path, DOCKER, kafka.bootstrap, "compose") as daemon:
        check = [daemon.address if word.startswith("unix:") else word for word in words[1:]]

        def is_healthy() -> bool:
            """As the image asks."""
            assert daemon.process is not None and daemon.process.poll() is None, daemon.log_tail()
            asked = [sys.executable, "-m", "graphtide", *check]
            return subprocess.run(asked, capture_output=True, timeout=120, check=False).returncode == 0

        daemon.start(ready_s=None)
        assert until(is_healthy, COMPILED_S)
        with brokers.client(KafkaProducer, kafka.bootstrap) as producer:
            records = [encode_msgpack([1, 2], [2, 3]), encode_msgpack([5], [6])]
            sent = [producer.send("compose", value, partition=n) for n, value in enumerate(records)]
            ends = {"compose": {n: each.get(timeout=60).offset + 1 for n, each in enumerate(sent)}}
        before = answers(daemon, ends)
        assert before["hops"].values.tolist() == [0, 1, 2, None, None]
        assert before["components"].values.tolist() == [1, 1, 1, 5, 5]
        with daemon.client() as client:
            assert {*client.programs()["programs"]} == {program.id for program in configured(DOCKER).program}
            assert client.top("pagerank", k=1).ids.tolist() == [3]
        scraped = document(DOCKER / "prometheus.yml")["scrape_configs"][0].get("metrics_path", "/metrics")
        assert "graphtide_edges" in daemon.fetch(scraped)
        daemon.kill()
        daemon.start(ready_s=None)
        assert until(is_healthy, COMPILED_S)
        after = answers(daemon, ends)
        for program in ("hops", "components"):
            assert after[program].values.tolist() == before[program].values.tolist()
            assert after[program].epoch > before[program].epoch, "of another incarnation"
        assert daemon.stop() == 0, daemon.log_tail()


# -- Kubernetes ---------------------------------------------------------------------------------------------


def objects() -> dict[str, Any]:
    """What is applied, by kind."""
    resources = document(KUBERNETES / "kustomization.yaml")["resources"]
    found = [document(KUBERNETES / name) for name in [*resources, "servicemonitor.yaml"]]
    return {item["kind"]: item for item in found}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = objects()["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("version", ["1.30", "newest"])
def test_what_is_applied_is_as_the_schemas_of_kubernetes_say(version: str) -> None:
    """What an operator brings (ServiceMonitor) has none."""
    validating = needed("kubernetes_validate", "kubernetes-validate is missing")
    version = validating.latest_version() if version == "newest" else version
    found = {kind: item for kind, item in objects().items() if kind != "ServiceMonitor"}
    for item in found.values():
        validating.validate(item, version, strict=True)
    container = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    container["livenessProb"] = container.pop("livenessProbe")
    with pytest.raises(validating.ValidationError, match="livenessProb"):
        validating.validate(found["StatefulSet"], version, strict=True)


def test_what_is_applied_belongs_together() -> None:
    found, customized = objects(), document(KUBERNETES / "kustomization.yaml")
    assert found.keys() == {"Service", "StatefulSet", "PodDisruptionBudget", "ServiceMonitor"}
    left_out = {path.name for path in KUBERNETES.glob("*.yaml")} - set(customized["resources"])
    assert left_out == {"kustomization.yaml", "servicemonitor.yaml"}
    spec = found["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == found["Service"]["spec"]["selector"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == found["Service"]["metadata"]["labels"]
    assert spec["serviceName"] == found["Service"]["metadata"]["name"]
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert [image["name"] for image in customized["images"]] == [container()["image"]]
    assert customized["images"][0]["newTag"] == __version__
    (generated,) = customized["configMapGenerator"]
    assert all((KUBERNETES / name).is_file() for name in generated["files"])
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == generated["name"]
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes.keys() | claims
    make = re.findall(r"secret generic (\S+) --from-file=(\w+)=", _text("ops/kubernetes/kustomization.yaml"))
    secret = volumes["token"]["secret"]["secretName"]
    assert [name for name, _ in make] == [secret]
    mounted = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert configured(KUBERNETES).server.token_file == Path(mounted["token"], make[0][1])


def test_a_pod_listens_writes_and_is_named_as_it_should_be() -> None:
    config = configured(KUBERNETES, GRAPHTIDE_SOURCE__NAME="graphtide-1")
    environment = {item["name"]: item for item in container()["env"]}
    assert config.source.name == "graphtide-1"
    assert environment["GRAPHTIDE_SOURCE__NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    mounted = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    assert str(parsed(container()["args"])["config"]) in mounted
    writable = [path for path, mount in mounted.items() if not mount.get("readOnly")]
    used = [
        *(Path(said("WORKDIR")[0], path) for path in (config.checkpoint.path, config.dead_letters.path)),
        *(Path(address.removeprefix("unix:")) for address in config.server.listen if address.startswith("unix:")),
        # Those of the image, which lie in a volume of its own there, but for what the pod says.
        *(
            Path(environment.get(name, {"value": folder})["value"])
            for name, folder in variables().items()
            if name.endswith("_DIR")
        ),
    ]
    assert all(any(path.is_relative_to(folder) for folder in writable) for path in used)
    ports = {item["name"]: item["containerPort"] for item in container()["ports"]}
    assert ports == {"queries": port(config.server.listen[1]), "metrics": port(config.metrics.listen)}
    served = {item["targetPort"]: item["port"] for item in objects()["Service"]["spec"]["ports"]}
    assert served == ports
    assert objects()["ServiceMonitor"]["spec"]["endpoints"][0]["port"] in ports
    user = int(said("USER")[0].split(":")[0])
    assert {pod()["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}


class Pod(Contained):
    """A pod's daemon."""

    def __init__(self, folder: Path, name: str, bootstrap: str, topic: str) -> None:
        self.token = folder.parent / "token"
        self.token.write_text("open-sesame\n")
        super().__init__(
            folder, KUBERNETES, bootstrap, topic, source={"name": name}, server={"token_file": self.token}
        )

    def client(self) -> Client:
        return Client(self.address, token="open-sesame", timeout=360)

    def probe(self, kind: str) -> dict[str, Any]:
        """What the kubelet would be told; raises where it would hear of no success."""
        told: dict[str, Any] = json.loads(self.fetch(container()[f"{kind}Probe"]["httpGet"]["path"]))
        return told

    def is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log_tail()
        try:
            return bool(self.probe("readiness")["ready"])
        except (OSError, IndexError):
            return False


@pytest.fixture
def pods(kafka: DevKafka, tmp_path: Path) -> Iterator[list[Pod]]:
    """As many as the manifest asks for, over one topic."""
    kafka.create_topic("pods", 2)
    made = [
        Pod(tmp_path / f"graphtide-{n}", f"graphtide-{n}", kafka.bootstrap, "pods")
        for n in range(objects()["StatefulSet"]["spec"]["replicas"])
    ]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def answers(daemon: Daemon, offsets: Any) -> dict[str, Values]:
    """By program, of what has been read at least up to these offsets."""
    with daemon.client() as client:
        return client.get(["hops", "components"], [1, 2, 3, 5, 6], min_offsets=offsets, timeout_ms=120_000)


def follow(changes: Subscription, known: dict[int, int], until_known: int) -> dict[int, int]:
    """What a subscriber knows once it has heard of a vertex."""
    while until_known not in known:
        change = next(changes)
        known = {} if change.since is None else known
        known = known | dict(zip(change.ids.tolist(), change.values.tolist(), strict=True))
    return known


@pytest.mark.sample(among="containers and dashboards")
@pytest.mark.kafka
@pytest.mark.timeout(900)  # where no kernels are cached, the first start compiles them
def test_clients_go_on_when_a_pod_is_killed_and_both_agree(kafka: DevKafka, pods: list[Pod]) -> None:
    first, second = pods
    for each in pods:
        each.start(ready_s=None)
    for each in pods:
        assert until(each.is_ready, COMPILED_S) and each.probe("liveness")
    with brokers.client(KafkaProducer, kafka.bootstrap) as producer:
        ends: dict[int, int] = {}

        def write(partition: int, value: bytes) -> dict[str, dict[int, int]]:
            ends[partition] = producer.send("pods", value, partition=partition).get(timeout=60).offset + 1
            return {"pods": ends}

        asking = Client([first.address, second.address], token="open-sesame", timeout=120)
        with asking, asking.subscribe("hops", [2, 3, 4], reconnect=True) as changes:
            write(1, b"\xc1 no record")
            write(1, encode_msgpack([5, 5], [6, 7]))
            written = write(0, encode_msgpack([1, 2], [2, 3]))
            asking.wait(written, timeout_ms=120_000)
            known = follow(changes, {}, until_known=3)
            for each in pods:
                found = answers(each, written)
                assert (found["hops"].offsets, found["hops"].values.tolist()) == (written, [0, 1, 2, None, None])
                assert found["components"].values.tolist() == [1, 1, 1, 5, 5]
            first.kill()
            assert asking.get("hops", [1, 3]).values.tolist() == [0, 2], "the second has read what the first had"
            asking.wait(write(0, encode_msgpack([3], [4])), timeout_ms=120_000)
            known = follow(changes, known, until_known=4)
            assert known == {2: 1, 3: 2, 4: 3}
            first.start(ready_s=None)
            assert until(first.is_ready, COMPILED_S), "the pod that was killed is back"
            missed = {"pods": dict(ends)}
            of_both = [answers(each, missed) for each in pods]
            for program in ("hops", "components"):
                back, other = (found[program] for found in of_both)
                assert back.offsets == other.offsets == missed
                assert back.values.tolist() == other.values.tolist()
            assert second.stop() == 0, second.log_tail()
            assert asking.get("hops", [4]).values.tolist() == [3], "the first has read what it missed"
            asking.wait(write(0, encode_msgpack([3], [4], Op.DELETE)), timeout_ms=120_000)
            while known[4] is not None:
                known = follow(changes, {each: value for each, value in known.items() if each != 4}, until_known=4)
            assert known == {2: 1, 3: 2, 4: None}
    assert first.stop() == 0, first.log_tail()
    for each in pods:
        assert list((each.folder / "dead-letters").iterdir()), "each replica has met the bad record"
