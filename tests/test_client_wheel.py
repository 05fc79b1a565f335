"""The wheel with nothing but the clients: what is in it, what it needs, and that it asks a running server."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import needed
from test_server import Chain, serving

import graphtide
from graphtide.daemon import client

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "ops" / "client"

ASK = """
import sys
before = set(sys.modules)
from graphtide import AsyncClient, Client, errors
import graphtide
with Client(sys.argv[1]) as c:
    assert c.get("rank", [100, 101]).values.tolist() == [1, 2]
    assert c.khop(100, 2).ids.tolist() == [100, 101, 102]
    try:
        c.khop(5)
    except errors.UnknownVertex:
        pass
    else:
        raise SystemExit("an unknown vertex is no error")
print(graphtide.__file__)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd="/",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    run("-m", "pip", "wheel", *how, str(folder / "source"))
    return next(folder.glob("graphtide_client-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    chain = Chain()
    chain.grow(20)
    with serving(chain, tmp_path_factory.mktemp("s")) as link:
        yield link.addresses[0]


def test_it_holds_the_clients_and_no_file_of_the_daemon(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as made:
        names = [name for name in made.namelist() if ".dist-info/" not in name]
        metadata = next(made.read(name).decode() for name in made.namelist() if name.endswith("/METADATA"))
        sources = {path.name: path.read_bytes() for path in (ROOT / "daemon" / "client").glob("*.py")}
        for name, text in sources.items():
            assert made.read(f"graphtide_client/client/{name}") == text
    expected = {f"graphtide_client/client/{name}" for name in sources}
    expected |= {f"graphtide_client/{name}" for name in ("__init__.py", "errors.py", "py.typed")}
    assert set(names) == expected | {"graphtide.py"}  # the daemon's are all below graphtide/
    lines = metadata.splitlines()
    assert f"Version: {graphtide.__version__}" in lines
    needs = {line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")}
    assert needs == {"numpy>=2.0", "msgpack>=1.1", 'pandas>=2.2; extra == "pandas"'}


def test_it_asks_a_running_server_with_numpy_and_messagepack_alone(installed: Path, address: str) -> None:
    where, loaded = run("-P", "-c", ASK, address, PYTHONPATH=str(installed)).splitlines()
    assert where == str(installed / "graphtide.py")
    others = {name for name in loaded.split() if not name.startswith("_")}
    # What MessagePack's compiled part brings is no package.
    assert others - {"cython_runtime"} == {"graphtide", "graphtide_client", "msgpack", "numpy"}


def test_beside_the_daemon_the_package_of_the_daemon_counts(installed: Path, address: str, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(installed, both)
    (both / "graphtide").symlink_to(ROOT)
    where, loaded = run("-P", "-c", ASK, address, PYTHONPATH=str(both)).splitlines()
    assert where == str(both / "graphtide" / "__init__.py") and "graphtide_client" not in loaded.split()
    run("-P", "-c", "import graphtide_client; graphtide_client.Client", PYTHONPATH=str(both))


def test_both_packages_have_the_same_names(installed: Path) -> None:
    code = "import graphtide, graphtide_client as c; print(*graphtide.__all__); print(*c.__all__)"
    top, all_ = run("-P", "-c", code, PYTHONPATH=str(installed)).splitlines()
    assert top.split() == graphtide.__all__
    assert {*all_.split()} == {*client.__all__, "errors"}


# -- data frames --------------------------------------------------------------------------------------------


def test_answers_become_data_frames(address: str) -> None:
    pd = needed("pandas", "answers become data frames of pandas")
    with client.Client(address) as c:
        frame = c.get(["rank", "hops", "parts"], [100, 119, 5]).to_frame()
        assert frame.index.name == "vertex" and frame.index.tolist() == [100, 119, 5]
        assert frame["rank"].tolist() == [1.0, 20.0, pd.NA] and frame["hops"].tolist() == [0, pd.NA, pd.NA]
        assert [str(kind) for kind in frame.dtypes] == ["Float64", "UInt32", "Int64"]
        one = c.get("hops", [103], parents=True).to_frame()
        assert one.columns.tolist() == ["hops", "hops parent"] and one.loc[103].tolist() == [3, 102]
        assert c.top("rank", 2).to_frame()["rank"].to_dict() == {119: 20.0, 118: 19.0}
        assert c.khop(100, 2).to_frame()["distance"].to_dict() == {100: 0, 101: 1, 102: 2}
        edges = c.subgraph([100, 101, 102]).to_frame()
        assert edges.to_dict("list") == {"src": [100, 101], "dst": [101, 102], "weight": [0.0, 0.5]}
        assert len(c.egonet(100).to_frame()) == 1
        assert c.neighbors(102).to_frame().loc[103, "weight"] == 1.5
        path = c.path("hops", 102).to_frame()
        assert path["weight"].tolist() == [pd.NA, 0.0, 0.5] and path.index.tolist() == [100, 101, 102]
        assert c.component(100, limit=2).to_frame().index.tolist() == [100, 101]
        degrees = c.degree([100, 5]).to_frame()
        assert degrees["out"].tolist() == [1, pd.NA] and degrees["in"].tolist() == [0, pd.NA]
        assert c.has_edge([100], [101]).to_frame().to_dict("list") == {
            "src": [100],
            "dst": [101],
            "exists": [True],
        }
        assert c.histogram("rank", 2).to_frame()["count"].sum() == 20
        assert c.degree_distribution().to_frame()["count"].sum() == 20
        with c.subscribe("rank", [100, 5]) as changes:
            assert next(changes).to_frame()["rank"].to_dict() == {100: 1.0}
        programs = c.programs().to_frame()
        assert programs.index.name == "entry" and programs.loc["programs.rank.kind", "value"] == "pagerank"


def test_values_computed_once_are_a_data_frame_by_vertex() -> None:
    pd = needed("pandas", "answers become data frames of pandas")
    values = np.ma.MaskedArray([1.5, 0.0], mask=[False, True])
    made = client.Computed((1, 1), {}, [3, 1], values, [], {}, None, 0.1, program="bfs")
    assert made.to_frame().index.tolist() == [3, 1]
    assert made.to_frame()["bfs"].tolist() == [1.5, pd.NA]
    best = dataclasses.replace(made, ids=np.array([7, 8]), values=np.ma.MaskedArray([2.0, 1.0], mask=False))
    assert best.to_frame()["bfs"].to_dict() == {7: 2.0, 8: 1.0}
    named = dataclasses.replace(made, ids=["v3", "v1"]).to_frame()
    assert named.index.tolist() == ["v3", "v1"] and named.index.name == "vertex"
    assert dataclasses.replace(made, ids=None, values=None).to_frame().empty


def test_string_ids_are_strings_in_data_frames(tmp_path: Path) -> None:
    pd = needed("pandas", "answers become data frames of pandas")
    chain = Chain("string")
    chain.grow(5)
    with serving(chain, tmp_path) as link, client.Client(link.addresses[0]) as c:
        frame = c.get("parts", ["v0", "v4", "no"]).to_frame()
        assert frame.index.tolist() == ["v0", "v4", "no"] and frame["parts"].tolist() == ["v0", "v4", pd.NA]
        assert str(frame["parts"].dtype) == "string"
        assert c.subgraph(["v0", "v1"]).to_frame()["src"].tolist() == ["v0"]
