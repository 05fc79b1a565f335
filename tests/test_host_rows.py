"""Which rows the host keeps beside a device: all, or, where nothing speaks against it, those that it owns."""

from __future__ import annotations

from typing import Any

import pytest

from graphtide.compute import registry
from graphtide.compute.program import Program
from graphtide.daemon.config import settings
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.config.settings import Config
from graphtide.daemon.engine import host_rows
from graphtide.daemon.engine.host_rows import Extent, bytes_of_entry, host_rows_of
from graphtide.daemon.errors import ConfigError
from graphtide.daemon.kernels import Needs
from graphtide.gpma.index.vertex_index import VertexIndex

HOPS: dict[str, Any] = {"name": "bfs", "source": 1, "id": "hops"}


def config(**tables: Any) -> Config:
    return from_tables({"program": [HOPS], **tables})


def program(kind: str, id: str = "it", **parameters: Any) -> Program:
    return registry.make_program(kind, id, parameters, order=VertexIndex.create("int"))


@pytest.fixture
def hops() -> Program:
    return program("bfs", "hops", source=1)


@pytest.fixture
def owns(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` is ``owned`` where nothing speaks against it."""
    for module in (settings, host_rows):
        monkeypatch.setattr(module, "AUTO_HOST_ROWS", "owned")


def test_what_is_said_is_done_or_refused(hops: Program) -> None:
    cores = program("kcore", "deep")
    assert host_rows_of(config(partition={"host_rows": "all"}), [hops, cores]).rows == "all"
    owned = {"host_rows": "owned"}
    assert host_rows_of(config(partition=owned), [hops]) == ("owned", "partition.host_rows is owned")
    with pytest.raises(ConfigError, match=r"program 'deep' needs all rows .*'kcore' have no twin"):
        host_rows_of(config(partition=owned), [hops, cores])
    with pytest.raises(ConfigError, match=r"program 'hops' needs all rows .*its place is the host"):
        host_rows_of(config(partition=owned, compute={"place": "host"}), [hops])
    # Whether the graph fits is the affair of who says so.
    big = Extent(10**12, 1 << 30)
    assert host_rows_of(config(partition=owned), [program("triangles")], big).rows == "owned"
    assert host_rows_of(config(partition=owned), []).rows == "owned"


def test_auto_keeps_all_rows_as_long_as_it_is_so_set(hops: Program) -> None:
    assert settings.AUTO_HOST_ROWS == "all"
    found = host_rows_of(config(), [hops])
    assert found.rows == "all" and "auto" in found.reason
    assert not config().partition.may_be_owned
    assert config(partition={"host_rows": "owned"}).partition.may_be_owned


@pytest.mark.usefixtures("owns")
def test_auto_gives_each_row_to_one_side_where_nothing_needs_all(hops: Program) -> None:
    several = [hops, program("sssp", "way", source=1), program("components"), program("pagerank", tolerance=1e-3)]
    found = host_rows_of(config(), several)
    assert found.rows == "owned" and found.reason.startswith("all programs run on the device")
    assert found.reason.endswith("of which nothing is known yet")
    assert host_rows_of(config(), several, Extent(1000, 1 << 30)).reason.endswith("the whole graph")
    assert host_rows_of(config(), several, Extent(10**15, None)).rows == "owned", "there is no limit"


@pytest.mark.usefixtures("owns")
@pytest.mark.parametrize(
    ("kind", "parameters", "why"),
    [
        ("kcore", {}, "'kcore' have no twin"),
        ("pagerank", {"tolerance": 1e-7}, "a tolerance below"),
        ("ppr", {"sources": [1], "tolerance": 1e-8}, "a tolerance below"),
    ],
)
def test_auto_keeps_all_rows_for_a_program_that_needs_them(
    hops: Program, kind: str, parameters: dict[str, Any], why: str
) -> None:
    found = host_rows_of(config(), [hops, program(kind, **parameters)])
    assert found.rows == "all" and "'it' needs all rows" in found.reason and why in found.reason


@pytest.mark.usefixtures("owns")
def test_auto_heeds_places(hops: Program) -> None:
    found = host_rows_of(config(compute={"place": "host"}), [hops])
    assert found.rows == "all" and "its place is the host" in found.reason
    wanted = config(compute={"place": "device"})
    assert host_rows_of(wanted, [program("triangles")]).rows == "owned"
    assert host_rows_of(wanted, [program("kcore")]).rows == "all"


@pytest.mark.usefixtures("owns")
def test_auto_keeps_all_rows_where_the_graph_is_large_or_all_is_read_all_the_time(hops: Program) -> None:
    found = host_rows_of(config(audit={"full_every_epoch": True}), [hops])
    assert found.rows == "all" and "full_every_epoch" in found.reason
    fits = int(0.8 * (1 << 30) / bytes_of_entry(weighted=False))
    assert host_rows_of(config(), [hops], Extent(fits, 1 << 30)).rows == "owned"
    for extent in (Extent(fits + 1, 1 << 30), Extent(fits, 1 << 30, weighted=True)):
        found = host_rows_of(config(), [hops], extent)
        assert found.rows == "all" and f"{extent.entries:,} entries" in found.reason
    assert host_rows_of(config(), []) == ("all", "no program needs the device")


@pytest.mark.usefixtures("owns")
def test_kernels_that_move_rows_are_there_where_rows_may_move() -> None:
    assert "classes of rows" in [name for name, _ in Needs.of(config()).steps()]
    assert "classes of rows" not in [name for name, _ in Needs.of(config(partition={"host_rows": "all"})).steps()]
