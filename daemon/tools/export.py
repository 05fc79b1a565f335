"""``graphtide export``: the graph of one epoch as a file, precisely the one that its results belong to."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...gpma.edges import EdgeList, Vertices, destinations, sources
from ...gpma.index.ids import IdColumn, StringColumn
from ...gpma.index.vertex_index import VertexIndex
from ..durable import Replaced, put_all_in_place, sync_file
from ..errors import ConfigError, GraphtideError, NotWritten, RequestError
from ..os_errors import why
from ..state.checkpoint import Checkpoint
from ..terminal import count, output, progress, size
from .tables import ARROW

PARQUET, NPZ, EDGE_LIST = (".parquet",), (".npz",), (".txt", ".el", ".edges")
CSV = (".csv",)
SUFFIXES = (*ARROW, *PARQUET, *NPZ, *CSV, *EDGE_LIST)
METADATA = "graphtide"
"""The key of what a file says of itself: JSON, in the metadata of the schema (Arrow, Parquet), an array of that
name (npz), or behind a ``#`` in the first line (edge lists). CSV has no place for it."""

_LINES = 1 << 16
_TAKE_ALL = ".npz, .arrow and .parquet take all"
_IS_PLAIN = re.compile(r"[\w.:/@+-]+").fullmatch
Columns = dict[str, IdColumn | npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph by external ids: ``vertices``, and edges (``src``, ``dst``, perhaps ``weight``), each once."""

    vertices: IdColumn
    edges: Columns
    about: Mapping[str, Any]


def exported(checkpoint: Checkpoint) -> Exported:
    """The graph of a checkpoint. Of an undirected one each edge comes once, whichever end first.

    Raises:
        GraphtideError: it does not hold together.
    """
    graph = checkpoint.identity["graph"]
    n = checkpoint.facts["n_vertices"]
    part = checkpoint.part("graph")
    dead = part["dead"]
    index = VertexIndex.create(graph["vertex_ids"])
    try:
        index.restore(checkpoint.part("index"), dead)
    except (ValueError, OverflowError) as error:
        raise GraphtideError(f"the checkpoint's index of vertices: {error}") from error
    alive = np.setdiff1d(np.arange(n, dtype=np.uint32), dead)
    ids = index.external(alive)
    place = np.zeros(n, np.uint32)
    place[alive] = np.arange(alive.size, dtype=np.uint32)
    arcs = EdgeList(part["keys"], part.get("weights"))
    if not graph["directed"]:
        arcs = arcs.each_once()
    keys, weights = arcs.keys, arcs.weights
    edges: Columns = {"src": _named(ids, place[sources(keys)]), "dst": _named(ids, place[destinations(keys)])}
    if weights is not None:
        edges["weight"] = weights
    about = {
        "epoch": list(checkpoint.epoch),
        "offsets": checkpoint.offsets,
        "directed": graph["directed"],
        "weights": graph["weights"],
        "vertex_ids": graph["vertex_ids"],
        "vertices": int(alive.size),
        "edges": int(keys.size),
    }
    return Exported(ids, edges, about)


def _named(ids: IdColumn, places: Vertices) -> IdColumn:
    return ids[places.astype(np.int64)]


def check_target(path: Path) -> None:
    """See before a checkpoint is made whether a file can be written there.

    Raises:
        ConfigError: nothing is written under such a name, or not without pyarrow; or in that folder.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path.name!r}: the name must end in one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{str(path)!r}: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; it must be a file to write, or to replace")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{str(path)!r}: no file can be made in the folder {str(path.parent)!r}")
    if path.suffix in (*ARROW, *PARQUET):
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ConfigError(
                f"{path.suffix} files need pyarrow: pip install 'graphtide[arrow]'; .npz, .csv and .txt do not"
            ) from None


def export(graph: Exported, path: Path, vertices: Path | None) -> None:
    """Write the edges, and where it is wanted the vertices, those without edges included.

    Each file appears whole, in the place of one that was there, or not at all.

    Raises:
        RequestError: ids do not fit into lines of text, or into the strings of NumPy.
        NotWritten: it is there, and not sure to outlast a loss of power.
        OSError: it cannot be written.
    """
    write(path, graph.edges, graph.about)
    if vertices is not None:
        write(vertices, {"id": graph.vertices}, graph.about)


def write(path: Path, columns: Columns, about: Mapping[str, Any]) -> None:
    """Write columns of one length in the format that the name says."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix in NPZ:
            with open(draft, "wb") as file:
                arrays = {name: _array(column) for name, column in columns.items()}
                np.savez(file, allow_pickle=False, **{METADATA: np.array(json.dumps(about))}, **arrays)
        elif path.suffix in CSV:
            _write_lines(draft, f"{','.join(columns)}\n", columns, ",", _fields)
        elif path.suffix in EDGE_LIST:
            head = f"# {METADATA} {json.dumps(about)}\n# {' '.join(columns)}\n"
            _write_lines(draft, head, columns, " ", _words)
        else:
            _write_arrow(draft, path.suffix, columns, about)
        sync_file(draft)
        put_all_in_place({path: draft})
    except Replaced as error:
        raise NotWritten(
            f"{str(path)!r} is written, and not sure to outlast a loss of power: {why(error)}"
        ) from error
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a full disk the system names no file
            raise OSError(error.errno, why(error), str(path)) from error
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def _array(column: IdColumn | npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not isinstance(column, StringColumn):
        return column
    texts = column.to_list()
    if (cut := next((text for text in texts if text.endswith("\0")), None)) is not None:
        raise RequestError(f"the id {cut!r} ends in a NUL, which NumPy cuts off; .arrow and .parquet take all")
    return np.array(texts, np.str_)


def _write_arrow(path: Path, suffix: str, columns: Columns, about: Mapping[str, Any]) -> None:
    import pyarrow as arrow

    values = {
        name: arrow.array(column.to_list(), arrow.string())
        if isinstance(column, StringColumn)
        else arrow.array(column)
        for name, column in columns.items()
    }
    made = arrow.table(values).replace_schema_metadata({METADATA: json.dumps(about)})
    if suffix in PARQUET:
        from pyarrow import parquet

        parquet.write_table(made, path, compression="zstd")
    else:
        with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, made.schema) as writer:
            writer.write_table(made)


def _write_lines(
    path: Path, head: str, columns: Columns, between: str, written: Callable[[list[str]], Iterable[str]]
) -> None:
    """``written``: strings as they stand in such a file."""
    n = len(next(iter(columns.values())))
    with open(path, "w", encoding="utf-8") as file, progress() as bar:
        file.write(head)
        task = bar.add_task(f"writing {count(n)} lines", total=n)
        for begin in range(0, n, _LINES):
            part = slice(begin, min(begin + _LINES, n))
            texts = [_texts(column, part, written) for column in columns.values()]
            file.writelines(f"{between.join(row)}\n" for row in zip(*texts, strict=True))
            bar.advance(task, _LINES)


def _texts(
    column: IdColumn | npt.NDArray[Any], part: slice, written: Callable[[list[str]], Iterable[str]]
) -> Iterable[str]:
    if not isinstance(column, StringColumn):
        return map(repr, column[part].tolist())
    return written(column[np.arange(part.start, part.stop)].to_list())


def _words(texts: list[str]) -> Iterable[str]:
    """As an edge list can hold them: without white space, and no comment."""
    for text in texts:
        if text.split() != [text] or text[0] in "#%":
            raise RequestError(f"the id {text!r} does not fit into an edge list; {_TAKE_ALL}")
    return texts


def _fields(texts: list[str]) -> Iterable[str]:
    """Fields of CSV, in quotes where these are needed; each line is an edge, so none goes on in the next."""
    if broken := next((text for text in texts if "\n" in text or "\r" in text), None):
        raise RequestError(f"the id {broken!r} does not fit into a line of CSV; {_TAKE_ALL}")
    return (text if _IS_PLAIN(text) else '"' + text.replace('"', '""') + '"' for text in texts)


def report(graph: Exported, path: Path, *, as_json: bool) -> None:
    """Say what was written."""
    if as_json:
        print(json.dumps({**graph.about, "path": str(path)}))
        return
    about = graph.about
    output().print(
        f"epoch {'.'.join(map(str, about['epoch']))}: {count(about['vertices'])} vertices, "
        f"{count(about['edges'])} edges, {size(path.stat().st_size)} in {path}",
        markup=False,
        soft_wrap=True,
    )
