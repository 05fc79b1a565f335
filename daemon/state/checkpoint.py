"""Checkpoints: the graph, the vertex index, every program's state and the source offsets of one epoch.

A checkpoint is a folder ``checkpoint-<incarnation>-<epoch>`` with one ``.npy`` file an array and a
``manifest.json`` that names each file with its size and CRC32C. The newest one whose checksums hold wins;
the log is replayed from its offsets. The folder that holds them belongs to one process at a time (a lock
file), and counts its starts (``incarnation``), so that one epoch name never means two states.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from ...gpma.memory import Memory
from ..durable import replace_file, sync_folder, write_synced
from ..errors import CheckpointError, NotWritten
from ..failpoints import point
from ..folder_lock import IN_USE, is_in_place, locked
from ..os_errors import why
from ..records.event_time import NO_TIME, EventState

log = logging.getLogger(__name__)

FORMAT = 1
"""Of what is written, and all that is read."""
_CHUNK = 1 << 20
Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
_PREFIX = "checkpoint-"
_DRAFT = "writing-"
"""Instead of it, of what is being written, or deleted."""
_INCARNATION = "incarnation"
_LOCK = "lock"
_NAME = re.compile(rf"{_PREFIX}([0-9]{{1,18}})-([0-9]{{1,18}})")
"""Of a checkpoint's folder. Either number fits into 64 bits, as they do in answers."""
_COUNT = re.compile(rb"[0-9]{1,18}\s*")


def is_out_of_reach(error: BaseException | None) -> bool:
    """Whether a checkpoint may be whole, and the system does not let us read it: rights, descriptors, a disk."""
    gone = FileNotFoundError, NotADirectoryError, IsADirectoryError
    return isinstance(error, OSError) and not isinstance(error, gone)


class NewerFormat(ValueError):
    """Whole perhaps, but written by a version that is newer than this one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One epoch, ready to be written or just read.

    ``arrays`` are named ``graph/...`` (``keys``, ``weights``, and ``dead``, the dense ids of deleted vertices),
    ``index/...``, ``program/<id>/...``, ``source/state`` (bytes that belong to ``offsets``), and, where edges
    expire, ``window/keys`` (between dense vertices) and what belongs to them, and, where keys of records stand for
    edges, ``keyed/rows``, ``keyed/edges`` (between dense vertices) and ``keyed/secret``; ``programs`` maps each
    program id to what it was made from, so that a state is only given to the same program again; ``identity`` is
    what must be the same at restart (source and graph settings); ``offsets`` are in wire form.
    """

    epoch: tuple[int, int]
    offsets: dict[str, Any]
    identity: dict[str, Any]
    programs: dict[str, dict[str, Any]]
    facts: dict[str, Any]
    arrays: Arrays

    @property
    def is_empty(self) -> bool:
        """Nothing was applied before it, and no update told the time: it holds only where reading begins."""
        event = self.facts.get("window", {}).get("event", EventState().to_wire())
        is_timed = bool(event["newest"]) or event["time_ms"] > NO_TIME
        return bool(self.facts["n_vertices"] == 0 and self.facts["updates"] == 0) and not is_timed

    def part(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays under ``prefix/``, with the prefix taken off."""
        start = f"{prefix}/"
        return {name[len(start) :]: array for name, array in self.arrays.items() if name.startswith(start)}


def epochs_in(path: Path) -> list[tuple[tuple[int, int], Path]]:
    """The finished checkpoints in a folder of them, newest first: their epochs, and where they are."""
    folders = [(_NAME.fullmatch(folder.name), folder) for folder in path.glob(f"{_PREFIX}*-*")]
    return sorted((((int(name[1]), int(name[2])), folder) for name, folder in folders if name), reverse=True)


def folder_of(path: Path, epoch: tuple[int, int]) -> Path:
    """Where the checkpoint of an epoch is, or would be."""
    return path / f"{_PREFIX}{epoch[0]}-{epoch[1]}"


class CheckpointStore:
    """The folder of checkpoints, locked for this process."""

    def __init__(self, path: Path, *, keep: int = 2) -> None:
        """
        Raises:
            CheckpointError: the folder cannot be used, or another process holds it.
        """
        self.path = path
        self._damaged: set[Path] = set()
        self._incarnation = 0
        self.keep = keep
        self.made_anew: Callable[[], None] = lambda: None
        """Called where the folder was taken away and there is another one: for what else was in it."""
        self._requiring = threading.Lock()
        try:
            self._lock = locked(path / _LOCK, _make)
        except BlockingIOError as error:
            raise CheckpointError(f"checkpoint.path = {str(path)!r} {IN_USE}") from error
        except OSError as error:
            what = " cannot be used"
            if error.filename is None:
                what = " cannot be locked"
            elif str(error.filename) == str(path / _LOCK):
                what = f": its file {_LOCK!r} cannot be opened"
            raise CheckpointError(f"checkpoint.path = {str(path)!r}{what}: {why(error)}") from error
        self._delete_drafts()

    def next_incarnation(self) -> int:
        """Count this start, durably, and return its number (1 for the first).

        A folder that a checkpoint was copied into has not counted what went on from there elsewhere: the seconds
        since 1970 are larger than any such number, so that no epoch is named as another one was. So they are where
        the count cannot be read.

        Raises:
            NotWritten: the disk does not take it (it is full).
        """
        counter = self.path / _INCARNATION
        newest = max((epoch[0] for epoch, _ in self._folders()), default=0)
        try:
            said = counter.read_bytes()
        except FileNotFoundError:
            written = int(time.time()) if newest else 0
        else:
            is_count = _COUNT.fullmatch(said)
            written = int(said) if is_count else int(time.time())
            if not is_count:
                log.warning("the count of starts in %s is damaged: it goes on from the time of day", counter)
        incarnation = max(written, newest) + 1
        try:
            replace_file(counter, b"%d\n" % incarnation)
        except OSError as error:
            raise NotWritten(
                f"checkpoint.path = {str(self.path)!r}: the number of this start cannot be written to "
                f"{_INCARNATION!r}: {why(error)}"
            ) from error
        self._incarnation = incarnation
        return incarnation

    def write(self, checkpoint: Checkpoint, in_pieces: Mapping[str, Sequence[Array]] | None = None) -> int:
        """Write a checkpoint durably; return its bytes.

        ``in_pieces``: further arrays of it, each as its pieces (at least one) of one dimension and one dtype; they
        are read back as one array each.

        0. Where the folder was taken away, make another one.
        1. Write every array, synced, with its checksum, into a folder of another name.
        2. Write the manifest, synced; sync that folder.
        3. Rename it to its real name; sync the parent: from here on the checkpoint exists.
        4. Delete all but the newest ``keep``, each by another name: one of which some files are gone is none.

        Raises:
            OSError: it could not be written (a full disk); what was written of it is taken away again.
        """
        self.require_folder()
        incarnation, number = checkpoint.epoch
        draft = self.path / f"{_DRAFT}{incarnation}-{number}"
        target = folder_of(self.path, checkpoint.epoch)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            size = self._draft(draft, checkpoint, in_pieces or {})
            point("checkpoint.before_rename")
            shutil.rmtree(target, ignore_errors=True)  # of a try that failed after the renaming
            put_in_place(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        point("checkpoint.after_rename")
        self._prune()
        point("checkpoint.pruned")
        return size

    def require_folder(self) -> None:
        """Have the folder whose lock this process holds; where somebody took it away or emptied it, another. For
        any thread, before it makes a file there.

        Raises:
            OSError: there can be none, or another process has it by now.
        """
        with self._requiring:
            if is_in_place(self._lock, self.path / _LOCK):
                return
            try:
                lock = locked(self.path / _LOCK, _make)
            except BlockingIOError as error:
                raise OSError(errno.EBUSY, IN_USE, str(self.path / _LOCK)) from error
            try:
                if self._incarnation:
                    replace_file(self.path / _INCARNATION, b"%d\n" % self._incarnation)
                self.made_anew()
            except BaseException as error:
                os.close(lock)
                if isinstance(error, NotWritten):
                    raise OSError(errno.EIO, error.message) from error
                raise
            os.close(self._lock)
            self._lock = lock
            log.error(
                "the checkpoint folder %s was taken away or emptied under this daemon, and is made anew with a "
                "whole checkpoint; checkpoints that are left there: %s",
                *(self.path, ", ".join(self.names()) or "none"),
            )

    def has(self, epoch: tuple[int, int]) -> bool:
        """Whether the checkpoint of this epoch is there, as far as can be seen."""
        try:
            os.stat(folder_of(self.path, epoch) / "manifest.json")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # may not be looked at now
            pass
        return True

    def _draft(self, draft: Path, checkpoint: Checkpoint, in_pieces: Mapping[str, Sequence[Array]]) -> int:
        draft.mkdir()
        files = {}
        arrays: dict[str, Sequence[Array]] = {name: [array] for name, array in checkpoint.arrays.items()}
        for i, (name, pieces) in enumerate({**arrays, **in_pieces}.items()):
            files[name] = _write_array(draft / f"{i:04}.npy", pieces)
            point("checkpoint.array_written")
        manifest = {
            "format": FORMAT,
            "written": int(time.time()),  # seconds since 1970, for people
            "epoch": list(checkpoint.epoch),
            "offsets": checkpoint.offsets,
            "identity": checkpoint.identity,
            "programs": checkpoint.programs,
            "facts": checkpoint.facts,
            "files": files,
        }
        body = json.dumps(manifest, indent=1).encode()
        write_synced(draft / "manifest.json", json.dumps({"crc32c": crc32c.crc32c(body)}).encode() + b"\n" + body)
        return sum(int(file["bytes"]) for file in files.values()) + len(body)

    def _prune(self) -> None:
        folders = [folder for _, folder in self._folders()]
        good = [folder for folder in folders if folder not in self._damaged]
        last = folders.index(good[self.keep - 1]) if len(good) >= self.keep else len(folders)
        for folder in folders[last + 1 :]:
            try:
                os.rename(folder, folder.with_name(folder.name.replace(_PREFIX, _DRAFT)))
            except OSError as error:  # the new checkpoint stands all the same
                log.error("the old checkpoint %s cannot be deleted: %s", folder.name, error)
        self._delete_drafts()

    def _delete_drafts(self) -> None:
        """None is being written now."""
        for draft in self.path.glob(f"{_DRAFT}*"):
            try:
                shutil.rmtree(draft)
            except OSError as error:  # checkpoints stand all the same
                log.error("what is left of a checkpoint in %s cannot be deleted: %s", draft.name, error)

    def names(self) -> list[str]:
        """The checkpoints that there are, newest first, whether they can be read or not."""
        return [folder.name for _, folder in self._folders()]

    def newest_good(
        self, advance: Callable[[float], None] = lambda share: None, memory: Memory | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint whose checksums all hold, or None when there is none at all.

        ``advance`` is told how much of the one that is being read is read, from 0 to 1. ``memory``: who is asked
        before; None: the system's.

        Raises:
            CheckpointError: there are checkpoints, but every one is damaged, cannot be read, or is of a newer
                version.
            MemoryError: there is not enough for its arrays; an older one would be of another state.
        """
        damaged, newer, out_of_reach = list[str](), list[str](), False
        for _, folder in self._folders():
            try:
                return read_checkpoint(folder, advance, memory)
            except NewerFormat as error:
                log.error(
                    "checkpoint %s was written by a newer version (%s); trying an older one", folder.name, error
                )
                newer.append(f"{folder.name}: {error}")
            except (OSError, ValueError, KeyError) as error:
                how = "cannot be read" if is_out_of_reach(error) else "is damaged"
                log.error("checkpoint %s %s (%s); trying an older one", folder.name, how, error)
                out_of_reach |= is_out_of_reach(error)
                self._damaged.add(folder)
                damaged.append(f"{folder.name}: {error}")
        if newer:
            rest = f". Besides, there are damaged ones: {'; '.join(damaged)}" if damaged else ""
            raise CheckpointError(
                f"the checkpoints in {str(self.path)!r} were written by a newer version of graphtide, or by one "
                f"from before the first release: {'; '.join(newer)}. Start that version again, or give this one "
                f"another checkpoint.path{rest}"
            )
        if out_of_reach:
            raise CheckpointError(
                f"no checkpoint in {str(self.path)!r} can be read: {'; '.join(damaged)}. They may be good: see "
                f"what keeps this process (of user {os.geteuid()}) from reading them"
            )
        if damaged:
            raise CheckpointError(
                f"every checkpoint in {str(self.path)!r} is damaged: {'; '.join(damaged)}. To rebuild from the "
                f"start of the source, move that folder away"
            )
        return None

    def newest_identity(self) -> dict[str, Any] | None:
        """What the newest checkpoint says that it belongs to, its arrays unread.

        None when there is none, or it says nothing of it.
        """
        for _, folder in self._folders()[:1]:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if (folder / "manifest.json").is_file():  # nobody waits here for what is none
                    return dict(read_manifest(folder)["identity"])
        return None

    def oldest_offsets(self, identity: Mapping[str, Any]) -> dict[str, Any] | None:
        """The offsets (in wire form) of the oldest checkpoint of this identity that is kept.

        None when there is none, or one cannot be read.
        """
        same = json.loads(json.dumps(identity))
        for _, folder in reversed(self._folders()):
            try:
                manifest = read_manifest(folder)
                if manifest["identity"] == same:
                    return dict(manifest["offsets"])
            except (OSError, ValueError, KeyError):
                return None
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def discard(self) -> None:
        """Take the folder away again, which was made for checkpoints of which none came; ``close`` comes after."""
        with contextlib.suppress(OSError):
            if {entry.name for entry in self.path.iterdir()} <= {_LOCK, _INCARNATION}:
                shutil.rmtree(self.path)

    def _folders(self) -> list[tuple[tuple[int, int], Path]]:
        """Finished checkpoints, newest first."""
        return epochs_in(self.path)


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def require_same(saved: Mapping[str, Any], present: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on from a checkpoint that means something else.

    Raises:
        CheckpointError: some fact differs; the message lists each.
    """
    differences = list(_differences(saved, present, ""))
    if differences:
        raise CheckpointError(
            f"the checkpoint in {str(path)!r} is of another source, or was made under other settings, so its "
            f"offsets and results would be wrong here: {'; '.join(differences)}. Set settings back, give this "
            f"daemon another checkpoint.path, or start anew without it (checkpoint.on_mismatch = 'discard')"
        )


def _differences(saved: Mapping[str, Any], present: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in sorted({*saved, *present}):
        old, new = saved.get(key), present.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new and prefix == "source.topics." and None not in (old, new):  # by its id in the cluster
            yield f"topic {key} is another one, made again under that name (its id was {old}, and is now {new})"
        elif old != new:
            yield f"{prefix}{key} was {old!r} and is now {new!r}"


def _write_array(path: Path, pieces: Sequence[Array]) -> dict[str, Any]:
    """Write one array: a single piece of any shape, or several of one dimension.

    Entries that mean nothing may change meanwhile: what is written is what the checksum is of.
    """
    first = pieces[0]
    shape = first.shape if len(pieces) == 1 else (sum(piece.size for piece in pieces),)
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    beginning = io.BytesIO()
    np.lib.format.write_array_header_1_0(beginning, header)
    checksum = crc32c.crc32c(beginning.getvalue())
    with open(path, "wb") as file:
        file.write(beginning.getvalue())
        for piece in pieces:
            assert piece.dtype == first.dtype
            content = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            for begin in range(0, content.size, _CHUNK):
                chunk = content[begin : begin + _CHUNK].tobytes()
                checksum = crc32c.crc32c(chunk, checksum)
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"file": path.name, "bytes": path.stat().st_size, "crc32c": checksum}


def _checksum(path: Path, advance: Callable[[int], None]) -> int:
    """``advance`` is told the size of each piece that was read."""
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            value = crc32c.crc32c(chunk, value)
            advance(len(chunk))
    return value


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        OSError, ValueError, KeyError: it is damaged.
    """
    head, _, body = (folder / "manifest.json").read_bytes().partition(b"\n")
    try:
        checksum = json.loads(head)["crc32c"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("manifest.json does not begin with its checksum") from None
    if checksum != crc32c.crc32c(body):
        raise ValueError("the manifest's checksum does not hold")
    return dict(json.loads(body))


def read_checkpoint(
    folder: Path, advance: Callable[[float], None] = lambda share: None, memory: Memory | None = None
) -> Checkpoint:
    """A checkpoint, all of whose checksums hold. ``advance`` as in ``CheckpointStore.newest_good``;
    ``memory``: who is asked before anything is read; None: the system's.

    Raises:
        OSError, ValueError, KeyError: it is damaged, or of a format that this version does not read.
        MemoryError: there is not enough for its arrays.
    """
    manifest = read_manifest(folder)
    written = manifest["format"]
    if written != FORMAT:
        newer = isinstance(written, int) and written > FORMAT
        raise (NewerFormat if newer else ValueError)(f"format {written!r}; this version reads {FORMAT}")
    arrays = {}
    done, total = 0, sum(entry["bytes"] for entry in manifest["files"].values())

    try:
        (memory or Memory()).require(total)
    except MemoryError as error:
        raise MemoryError(f"the checkpoint {str(folder)!r} cannot be read: {error}") from error

    def read(size: int) -> None:
        nonlocal done
        done += size
        advance(done / (2 * total))  # each file is read twice: to be checked, and to be used

    for name, entry in manifest["files"].items():
        path = folder / entry["file"]
        if path.stat().st_size != entry["bytes"] or _checksum(path, read) != entry["crc32c"]:
            raise ValueError(f"the checksum of {entry['file']} ({name}) does not hold")
        arrays[name] = np.load(path, allow_pickle=False)
        read(entry["bytes"])
    incarnation, number = manifest["epoch"]
    return Checkpoint(
        epoch=(incarnation, number),
        offsets=manifest["offsets"],
        identity=manifest["identity"],
        programs=manifest["programs"],
        facts=manifest["facts"],
        arrays=arrays,
    )


def put_in_place(draft: Path, target: Path) -> None:
    """Rename a folder whose files are synced, durably.

    Raises:
        OSError: it is not sure to be there after a loss of power; now it is not.
    """
    sync_folder(draft)
    os.rename(draft, target)
    try:
        sync_folder(target.parent)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise
