"""Which rows the host keeps beside a device: all, or, where it has no room for them, those that it owns."""

from __future__ import annotations

from typing import Any

import pytest

from graphtide.compute import registry
from graphtide.compute.program import Program
from graphtide.daemon.config.load import from_tables
from graphtide.daemon.config.settings import Config
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


BIG = Extent(10**9, 1 << 30)
"""A graph that is larger than a device."""


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


def test_auto_keeps_all_rows_where_the_device_has_room_for_them(hops: Program) -> None:
    found = host_rows_of(config(), [hops])
    assert found == ("all", "partition.host_rows is auto, and nothing is known of the graph yet")
    fits = int(0.8 * (1 << 30) / bytes_of_entry(weighted=False))
    for extent in (Extent(fits, 1 << 30), Extent(10**15, None)):  # there is no limit
        found = host_rows_of(config(), [hops], extent)
        assert found == ("all", "partition.host_rows is auto, and the device has room for the graph")
    for extent in (Extent(fits + 1, 1 << 30), Extent(fits, 1 << 30, weighted=True)):
        found = host_rows_of(config(), [hops], extent)
        assert found.rows == "owned" and f"{extent.entries:,} entries" in found.reason


def test_auto_gives_each_row_to_one_side_where_the_device_lacks_room(hops: Program) -> None:
    several = [hops, program("sssp", "way", source=1), program("components"), program("pagerank", tolerance=1e-3)]
    assert host_rows_of(config(), several, BIG).rows == "owned"
    assert host_rows_of(config(), [], BIG) == ("all", "no program needs the device")
    found = host_rows_of(config(audit={"full_every_epoch": True}), [hops], BIG)
    assert found.rows == "all" and "full_every_epoch" in found.reason


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
    found = host_rows_of(config(), [hops, program(kind, **parameters)], BIG)
    assert found.rows == "all" and "'it' needs all rows" in found.reason and why in found.reason


def test_auto_heeds_places(hops: Program) -> None:
    found = host_rows_of(config(compute={"place": "host"}), [hops], BIG)
    assert found.rows == "all" and "its place is the host" in found.reason
    wanted = config(compute={"place": "device"})
    assert host_rows_of(wanted, [program("triangles")], BIG).rows == "owned"
    assert host_rows_of(wanted, [program("kcore")], BIG).rows == "all"


def test_kernels_that_move_rows_are_there_where_rows_may_move() -> None:
    for rows, moves in (("all", False), ("auto", False), ("owned", True)):
        steps = [name for name, _ in Needs.of(config(partition={"host_rows": rows})).steps()]
        assert ("classes of rows" in steps) == moves
