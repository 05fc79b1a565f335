"""Where a daemon begins to read: its checkpoint and its source must belong together, and where settings led once
every restart begins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..ops.metrics import Metrics
from .config.settings import Config
from .errors import CheckpointError, SourceUnavailable
from .health import Health
from .ingest.loop import Ingest
from .kernels import Stopped
from .memory import WithinBudget
from .os_errors import why
from .records.stream import Source, offsets_from_wire
from .state.checkpoint import Checkpoint, CheckpointStore, require_same
from .state.checkpointer import Checkpointer, Newest

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Until what could not be written is tried again, where nothing goes on without it."""
TELL_EVERY_SECONDS = 60.0
"""What goes on to be wrong is said again so often."""

KEYED = "source.keyed"
"""The part of a checkpoint's identity that says that keys of records stand for its edges."""


class _Telling:
    """What goes wrong again and again, to be said once, and now and then while it lasts."""

    def __init__(self) -> None:
        self._told: str | None = None
        self._again = 0.0

    def is_due(self, what: str) -> bool:
        """Whether this is to be said now; then it has been."""
        now = time.monotonic()
        if what == self._told and now < self._again:
            return False
        self._told, self._again = what, now + TELL_EVERY_SECONDS
        return True


class Beginning:
    """``identity``: what checkpoints belong to, of which the source's part is known once there is a checkpoint, or
    the source was reached. ``newest``: the checkpoint that this start goes on from."""

    def __init__(
        self, config: Config, store: CheckpointStore, source: Source, health: Health, stop: threading.Event
    ) -> None:
        self.identity: dict[str, Any] = {"graph": config.graph.identity()}
        if config.source.keyed:
            self.identity[KEYED] = True
        self.newest: Newest | None = None
        self._is_empty = True
        self._config = config
        self._store = store
        self._source = source
        self._source_state = b""
        self._health = health
        self._stop = stop

    def restorable(self, memory: WithinBudget) -> Checkpoint | None:
        """The checkpoint to go on from. Unless one of another source is to be discarded, ``open`` will see whether
        it is of this one.

        Raises:
            CheckpointError: there are checkpoints, and none may be used.
            MemoryError: it does not fit into what is left of the machine, its control group or ``memory.budget``.
            Stopped: we were stopped while it was read, or the source was away.
        """
        checkpoint = self._usable(memory)
        if checkpoint is not None:
            self.identity["source"] = checkpoint.identity["source"]
            self.newest = Newest(checkpoint.epoch, offsets_from_wire(checkpoint.offsets))
            self._is_empty = checkpoint.is_empty
            self._source_state = checkpoint.arrays["source/state"].tobytes()
        return checkpoint

    def foresee(self, memory: WithinBudget) -> None:
        """Where the newest checkpoint says that it is of other settings, try to restore it now: whoever is told so
        only when kernels are compiled has waited a minute for it.

        Raises:
            CheckpointError, MemoryError, Stopped: as ``restorable``.
        """
        identity = self._store.newest_identity()
        if identity is None or "source" not in identity or self._config.checkpoint.on_mismatch == "discard":
            return
        try:
            self._require_settings(identity)
        except CheckpointError:
            self.restorable(memory)  # what is damaged, or empty, keeps nobody from starting

    def _require_settings(self, identity: Mapping[str, Any]) -> None:
        """
        Raises:
            CheckpointError: a checkpoint of this identity is of another graph, or of another source as far as that
                is known before anybody is reached.
        """
        kind = self._config.source.kind
        saved, present = identity["source"], {"kind": kind}
        if saved.get("kind") == kind == "spool":
            present = self._source.identity()
        else:
            saved = {"kind": saved.get("kind")}
        # First, and alone: of another source the graph may be another, too.
        require_same({"source": saved}, {"source": present}, self._store.path)
        require_same(
            {part: is_ for part, is_ in identity.items() if part != "source"},
            {part: is_ for part, is_ in self.identity.items() if part != "source"},
            self._store.path,
        )

    def _usable(self, memory: WithinBudget) -> Checkpoint | None:
        store = self._store
        checkpoint = store.newest_good(self._advance_unless_stopped, memory)
        if checkpoint is None:
            return None
        if checkpoint.is_empty:  # whatever was meant to come of it
            return checkpoint if "source" in checkpoint.identity else None
        discard = self._config.checkpoint.on_mismatch == "discard"
        if discard:
            self._health.enter("waiting")
            present = {"source": self._source_identity(self._health.wait_for)}
        try:
            _require_source(checkpoint, store)
            self._require_settings(checkpoint.identity)
            if discard:
                require_same({"source": checkpoint.identity["source"]}, present, store.path)
        except CheckpointError as error:
            if not discard:
                raise
            log.warning("the checkpoint of epoch %s is not used: %s", checkpoint.epoch, error.message)
            return None
        return checkpoint

    def open(self, checkpoints: Checkpointer, ingest: Ingest, metrics: Metrics) -> None:
        """Have the source begin at the checkpoint's offsets, else where the settings say, and make that durable.

        Raises:
            CheckpointError: the checkpoint is of another source.
            Stopped: we were stopped before.
        """

        def withhold(reason: str | None) -> None:
            ingest.withheld = reason

        offsets = None if self.newest is None else self.newest.offsets
        identity = self._source_identity(withhold)
        if offsets is not None:
            saved = self.identity["source"]
            if not self._is_empty:
                require_same({"source": saved}, {"source": identity}, self._config.checkpoint.path)
            elif saved != identity:  # of which nothing was taken
                offsets = None
        if offsets is None:
            checkpoints.begin_anew()  # before they would be taken for those of this source
        self.identity["source"] = identity
        source = self._source
        source.open(offsets, b"" if offsets is None else self._source_state)
        while (backlog := source.backlog()) is None:
            if self._stop.is_set():
                raise Stopped
            source.poll(0, timeout_s=0.1)
        if backlog:  # else the order of before tells whether there is anything
            self._health.recovery.read(backlog, item=0)
        if offsets is None:
            self._keep(checkpoints, ingest, metrics)

    def _keep(self, checkpoints: Checkpointer, ingest: Ingest, metrics: Metrics) -> None:
        telling = _Telling()
        while True:
            try:
                checkpoints.write_beginning(self._source.position())
            except OSError as error:
                metrics.checkpoint_failed(type(error).__name__)
                folder = str(self._config.checkpoint.path)
                trouble = f"the first checkpoint cannot be written to {folder!r}: {why(error)}"
                if telling.is_due(trouble):
                    log.error("nothing is read, since %s; trying again", trouble)
                ingest.withheld = trouble
                if self._stop.wait(RETRY_S):
                    raise Stopped from None
            else:
                ingest.withheld = None
                return

    def _advance_unless_stopped(self, progress: float) -> None:
        self._health.advance(progress)
        if self._stop.is_set():
            raise Stopped

    def _source_identity(self, show: Callable[[str | None], None]) -> dict[str, Any]:
        """What the source says that it is, as soon as it can be reached. ``show``: why that is waited for.

        Raises:
            Stopped: we were stopped before.
        """
        telling = _Telling()
        while not self._stop.is_set():
            try:
                identity = self._source.identity()
            except SourceUnavailable as error:
                show(error.message)
                if telling.is_due(error.message):
                    log.warning("%s; trying again", error)
                self._stop.wait(1.0)
            else:
                show(None)
                return identity
        raise Stopped


def _require_source(checkpoint: Checkpoint, store: CheckpointStore) -> None:
    """
    Raises:
        CheckpointError: it does not name the source that its offsets belong to.
    """
    if "source" not in checkpoint.identity:
        incarnation, number = checkpoint.epoch
        raise CheckpointError(
            f"checkpoint-{incarnation}-{number} in {str(store.path)!r} does not say of which source its offsets "
            f"are. Delete it to go on from the one before it, or start anew (checkpoint.on_mismatch = 'discard')"
        )
