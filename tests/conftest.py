"""What all tests share: options, the seed, and a real Apache Kafka."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

import cuda_emulator
import numpy as np
import pytest
import sampling
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from leaks import nothing_is_left_behind as nothing_is_left_behind  # for every test
from path_runs import PathRun
from sampling import pytest_collection_modifyitems as pytest_collection_modifyitems
from sampling import pytest_configure_node as pytest_configure_node
from sampling import pytest_report_header as pytest_report_header

from graphtide.daemon.config.sections import programs as program_settings
from graphtide.ops.kafka import DevKafka, KafkaUnavailable, missing_tools
from graphtide.partition import graph as partition_graph
from graphtide.partition.graph import Graph

# How long an example takes says how busy the machine is, and nothing of the example.
hypothesis_settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("graphtide")
    group.addoption("--run-long", action="store_true", help="run sampled tests whole")
    group.addoption("--all-cases", action="store_true", help="run every case of sampled tests")
    group.addoption("--kills", type=int, default=8, metavar="N", help="how often the kill test kills (8)")
    group.addoption("--attacks", metavar="N", help="how many attacks are tried, or their names (each once)")
    group.addoption("--threads", type=int, metavar="N", help="threads of a graph's team (the machine's cores)")
    group.addoption("--seed", type=int, metavar="S", help="the seed of random tests (else drawn and printed)")
    group.addoption("--sample-seed", type=int, metavar="S", help="the seed of the sample (else drawn and printed)")


def pytest_configure(config: pytest.Config) -> None:
    sampling.settle(config)
    threads: int | None = config.getoption("--threads")
    if threads is not None:
        vars(partition_graph)["usable_cores"] = vars(program_settings)["usable_cores"] = lambda: threads


def pytest_collection_finish() -> None:
    """None of what collecting thousands of tests has made is garbage: looking through it over and over is a
    seventh of the time of tests in Python.
    """
    gc.freeze()


def fail_in_ci(reason: str) -> None:
    """Fail in CI (``CI=true``) where a part of a test is left out: what never runs there proves nothing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; in CI that is a failure", pytrace=False)


def skip_or_fail(reason: str, *, allow_module_level: bool = False) -> NoReturn:
    """Skip, but fail in CI."""
    fail_in_ci(reason)
    pytest.skip(reason, allow_module_level=allow_module_level)


def needed(module: str, reason: str) -> Any:
    """A module without which a test, or a file of tests, has nothing to do: see ``skip_or_fail``."""
    try:
        return importlib.import_module(module)
    except ImportError:
        skip_or_fail(reason, allow_module_level=True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed; shown with a failure, so that ``--seed`` can repeat it."""
    given: int | None = request.config.getoption("--seed")
    drawn = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
    print(f"\nto repeat: --seed {drawn}")
    return drawn


@pytest.fixture
def run_long(request: pytest.FixtureRequest) -> bool:
    """Whether sampled tests run whole."""
    return bool(request.config.getoption("--run-long"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[DevKafka]:
    """A real broker, one for all tests: each makes topics of its own, and leaves it running."""
    if reason := missing_tools():
        skip_or_fail(reason)
    broker = DevKafka()
    try:
        broker.start()
    except KafkaUnavailable as error:
        broker.close()
        skip_or_fail(str(error))
    yield broker
    broker.close()


@pytest.fixture
def graphs() -> Iterator[list[Graph]]:
    """A list for the graphs that a test makes; they are closed at its end."""
    made: list[Graph] = []
    yield made
    for graph in made:
        graph.close()


@pytest.fixture
def emulated_cupy() -> Iterator[ModuleType]:
    """The emulated CUDA device as the module ``cupy``, while the test runs."""
    if cuda_emulator.compiler() is None:
        skip_or_fail("g++ not found (Debian: g++)")
    with cuda_emulator.emulated() as cupy:
        yield cupy


@pytest.fixture(params=["host", "device"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the programs of a ``PathRun`` run: the test is for both processors, the device being emulated."""
    home: str = request.param
    if home == "device":
        request.getfixturevalue("emulated_cupy")
        monkeypatch.setattr(PathRun, "on_device", True)
    return home


def needs_device() -> ModuleType:
    """The module ``cupy`` with a CUDA device behind it; skips the test where there is none, in CI too."""
    cupy = pytest.importorskip("cupy", exc_type=ImportError)
    try:
        cupy.cuda.Device(0).compute_capability  # noqa: B018
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no CUDA device: {error}")
    return cupy


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
def cupy(request: pytest.FixtureRequest) -> ModuleType:
    """The module ``cupy`` with an emulated or a real device behind it."""
    return request.getfixturevalue("emulated_cupy") if request.param == "emulated" else needs_device()
