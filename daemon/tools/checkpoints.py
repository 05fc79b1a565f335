"""``graphtide checkpoint``: checkpoints made on request, listed, verified, looked into and copied."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from ..client import Client
from ..errors import CheckpointError, TimedOut
from ..os_errors import why
from ..state.checkpoint import (
    FORMAT,
    Checkpoint,
    CheckpointStore,
    NewerFormat,
    epochs_in,
    folder_of,
    is_out_of_reach,
    put_in_place,
    read_checkpoint,
    read_manifest,
)
from ..terminal import count, output, progress, size, table

Epoch = tuple[int, int]
DAMAGED = (OSError, ValueError, KeyError, EOFError)


def parse_epoch(text: str) -> Epoch | None:
    """``latest`` (None), or an epoch as ``I.N``.

    Raises:
        ValueError: it is neither.
    """
    if text == "latest":
        return None
    incarnation, dot, number = text.partition(".")
    if not (dot and incarnation.isdecimal() and number.isdecimal()):
        raise ValueError(f"{text!r} is no epoch: latest, or INCARNATION.NUMBER, as answers show it (1.42)")
    return int(incarnation), int(number)


def shown(epoch: Epoch) -> str:
    """An epoch as people read it."""
    return f"{epoch[0]}.{epoch[1]}"


# -- of a running daemon --------------------------------------------------------------------------------------


def made_by_daemon(client: Client, at: Epoch | None, timeout_s: float) -> Path:
    """The folder of a checkpoint that the daemon makes: of exactly this epoch, or (None) of the present or later.

    Raises:
        TimedOut: it was not made in time.
        GraphtideError: it cannot be made; the message says which there are.
    """
    deadline = time.monotonic() + timeout_s
    since: Epoch | None = None
    while True:
        try:
            left_ms = 1000 * (deadline - time.monotonic())
            return Path(client.checkpoint(at=at, since=since, timeout_ms=max(1, min(int(left_ms), 1000))).path)
        except TimedOut as error:
            if time.monotonic() >= deadline:
                what = "the checkpoint was not made" if at is None else f"epoch {shown(at)} was not reached"
                raise TimedOut(f"{what} within {timeout_s:g} s", error.detail) from None
            if at is None and (asked := error.detail.get("since")):
                since = asked[0], asked[1]


def make_now(client: Client, timeout_s: float, *, as_json: bool) -> int:
    """Have a checkpoint made, and say where it is."""
    folder = made_by_daemon(client, None, timeout_s)
    epoch = folder.name.removeprefix("checkpoint-").replace("-", ".")
    if as_json:
        print(json.dumps({"epoch": list(map(int, epoch.split("."))), "path": str(folder)}))
    else:
        output().print(f"epoch {epoch} is safe in {folder}", markup=False, soft_wrap=True)
    return 0


# -- on disk --------------------------------------------------------------------------------------------------


def find(path: Path, at: Epoch | None) -> Path:
    """One checkpoint: the path itself, or of a folder of them that of an epoch, or (None) the newest.

    Raises:
        CheckpointError: there is none; the message says which there are.
    """
    if (path / "manifest.json").exists():
        if at is not None and path.name != folder_of(path.parent, at).name:
            raise CheckpointError(f"{str(path)!r} is not the checkpoint of epoch {shown(at)}")
        return path
    there = epochs_in(path)
    for epoch, folder in there:
        if at is None or epoch == at:
            return folder
    if not there:
        raise CheckpointError(f"{str(path)!r} holds no checkpoints")
    listed = ", ".join(shown(epoch) for epoch, _ in there)
    assert at is not None
    raise CheckpointError(f"there is no checkpoint of epoch {shown(at)} in {str(path)!r}; there are: {listed}")


def read(folder: Path) -> Checkpoint:
    """A checkpoint, all of whose checksums hold.

    Raises:
        CheckpointError: it is damaged, cannot be read, or is gone since, or of a newer version.
    """
    with progress() as bar:
        task = bar.add_task(f"reading {folder.name}", total=100)
        try:
            return read_checkpoint(folder, lambda share: bar.update(task, completed=round(100 * share)))
        except DAMAGED as error:
            what = f"{'cannot be read' if is_out_of_reach(error) else 'is damaged'}: {_told(error)}"
            if isinstance(error, NewerFormat):
                what = "was written by a newer version of graphtide, or by one from before the first release"
                what += f": {error}"
            elif not folder.exists():
                what = "was deleted meanwhile, newer ones being kept (checkpoint.keep)"
            raise CheckpointError(f"the checkpoint {str(folder)!r} {what}") from error


def _told(error: BaseException | None) -> str:
    """What is wrong with a checkpoint, in which file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{Path(os.fsdecode(error.filename)).name}: {why(error)}"
    return str(error) or type(error).__name__


def _listed(folder: Path) -> dict[str, Any]:
    """What a list says of one checkpoint."""
    made: dict[str, Any] = {"path": str(folder)}
    try:
        manifest = read_manifest(folder)
        return {
            **made,
            "written": _time(manifest.get("written")),
            "format": manifest["format"],
            "vertices": manifest["facts"]["n_vertices"] - _deleted(folder, manifest),
            "updates": manifest["facts"]["updates"],
            "programs": list(manifest["programs"]),
            "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        }
    except DAMAGED as error:
        return {**made, "damaged": _told(error)}


def _time(written: int | None) -> str | None:
    """As people read it; checkpoints from before the first release do not say it."""
    return None if written is None else datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def _deleted(folder: Path, manifest: dict[str, Any]) -> int:
    """How many of its vertices are deleted ones whose places nobody else has yet.

    Raises:
        OSError, ValueError, EOFError: that cannot be read.
    """
    entry = manifest["files"]["graph/dead"]
    try:
        return int(np.load(folder / entry["file"], mmap_mode="r").size)
    except (SyntaxError, TokenError) as error:  # Python's own, where the header is damaged
        raise ValueError(f"{entry['file']} is no array: {error}") from error


def list_all(path: Path, *, as_json: bool) -> int:
    """List the checkpoints in a folder, newest first, by what they say of themselves."""
    there = [{"epoch": list(epoch), **_listed(folder)} for epoch, folder in epochs_in(path)]
    if as_json:
        print(json.dumps(there))
        return 0
    if not there:
        output().print(f"{path} holds no checkpoints", markup=False)
        return 0
    rows = [
        (
            shown((item["epoch"][0], item["epoch"][1])),
            item.get("written", item.get("damaged")),
            *(None if item.get(name) is None else count(item[name]) for name in ("vertices", "updates")),
            None if "bytes" not in item else size(item["bytes"]),
            ", ".join(item.get("programs", ())) or None,
        )
        for item in there
    ]
    output().print(table(("epoch", "written", "vertices", "updates", "size", "programs"), rows))
    return 0


def verify(path: Path, *, as_json: bool) -> int:
    """Compare every checksum, of one checkpoint or of all in a folder; 5 if one does not hold or cannot be read.

    One that is deleted meanwhile, newer ones being kept, is left out.
    """
    is_one = (path / "manifest.json").exists()
    folders = [path] if is_one else [folder for _, folder in epochs_in(path)]
    if not folders:
        raise CheckpointError(f"{str(path)!r} holds no checkpoints")
    found = []
    for folder in folders:
        try:
            read(folder)
        except CheckpointError as error:
            if is_one or os.path.lexists(folder):
                cause = error.__cause__
                kind = "cannot be read" if is_out_of_reach(cause) else "damaged"
                kind = "newer version" if isinstance(cause, NewerFormat) else kind
                found.append({"path": str(folder), "good": False, "reason": f"{kind}: {_told(cause)}"})
        else:
            found.append({"path": str(folder), "good": True, "reason": None})
    if as_json:
        print(json.dumps(found))
    else:
        rows = [(Path(str(item["path"])).name, "good" if item["good"] else item["reason"]) for item in found]
        output().print(table(("checkpoint", ""), rows))
    return 0 if all(item["good"] for item in found) else 5


def inspect(path: Path, at: Epoch | None, *, as_json: bool) -> int:
    """Show what one checkpoint holds, after its checksums."""
    checkpoint = read(find(path, at))
    about = {
        "epoch": list(checkpoint.epoch),
        "format": FORMAT,
        "identity": checkpoint.identity,
        "offsets": checkpoint.offsets,
        "facts": checkpoint.facts,
        "programs": checkpoint.programs,
    }
    if as_json:
        arrays = {
            name: {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": array.nbytes}
            for name, array in checkpoint.arrays.items()
        }
        print(json.dumps({**about, "arrays": arrays}))
        return 0
    console = output()
    console.print(table(("", ""), [(name, json.dumps(value)) for name, value in about.items()]))
    rows = [
        (name, str(array.dtype), "x".join(map(str, array.shape)), size(array.nbytes))
        for name, array in checkpoint.arrays.items()
    ]
    console.print(table(("array", "type", "shape", "size"), rows))
    return 0


def copy(path: Path, target: Path, at: Epoch | None, *, as_json: bool) -> int:
    """Copy one checkpoint into another folder of checkpoints, which ``graphtide run --checkpoints`` starts from.

    It is written under another name, which the next start there takes away, compared, and renamed, so that a copy
    that is there is whole.

    Raises:
        CheckpointError: it is damaged, or the target has one of this epoch or a newer one, or is in use.
    """
    folder = find(path, at)
    checkpoint = read(folder)
    _check_older(target, checkpoint.epoch)
    with closing(CheckpointStore(target)):
        _check_older(target, checkpoint.epoch)
        final = folder_of(target, checkpoint.epoch)
        draft = target / final.name.replace("checkpoint-", "writing-")
        try:
            shutil.copytree(folder, draft, copy_function=_copy_synced)
            read_checkpoint(draft)
            put_in_place(draft, final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    if as_json:
        print(json.dumps({"epoch": list(checkpoint.epoch), "path": str(final)}))
    else:
        output().print(f"epoch {shown(checkpoint.epoch)} is in {final}", markup=False, soft_wrap=True)
    return 0


def _check_older(target: Path, than: Epoch) -> None:
    for epoch, there in epochs_in(target):
        if epoch >= than:
            raise CheckpointError(
                f"{str(target)!r} has {there.name}, and a start takes the newest: copy to an empty folder"
            )


def _copy_synced(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    return target
