"""Who may see the storage after a change that was never finished."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphtide.daemon import service
from graphtide.daemon.engine.shown import IS_SHOWN
from graphtide.daemon.engine.storage import StorageGate
from graphtide.daemon.errors import Unavailable


class Gate(StorageGate):
    """It shows something, as the engine's does."""

    def __init__(self) -> None:
        super().__init__()
        self.show = self._shows

    def _shows(self) -> None:
        self.shown.words[IS_SHOWN] = 1

    @property
    def is_shown(self) -> bool:
        return bool(self.shown.words[IS_SHOWN])

    def fails(self, error: Exception, *, writes: bool) -> None:
        with self.change() as begin_writing:
            if writes:
                begin_writing()
            raise error

    def reads(self) -> bool:
        try:
            with self.read(settled=False, timeout_s=5):
                return True
        except Unavailable:
            return False


def test_a_change_that_was_not_finished_is_for_nobodys_eyes() -> None:
    """It is of no epoch, and no restart would show it again."""
    gate = Gate()
    with gate.apply():
        pass
    assert gate.is_shown and gate.reads()
    with pytest.raises(RuntimeError):
        gate.fails(RuntimeError("half written"), writes=True)
    assert not gate.is_shown and not gate.reads()


@pytest.mark.parametrize("began", [False, True])
def test_where_nothing_was_changed_everybody_reads_on(began: bool) -> None:
    gate = Gate()
    with gate.apply():
        pass
    error = MemoryError() if began else RuntimeError("before anything was written")
    with pytest.raises(type(error)):
        gate.fails(error, writes=began)
    assert gate.is_shown and gate.reads()


def test_who_writes_results_asks_nothing_about_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the next epoch away where these are too fast for it, which is no reason for the host to take
    batches beside a device at once."""
    monkeypatch.setattr(service, "make_writer", lambda config, link, index, hold, resume: hold)
    gate, itself = (
        StorageGate(),
        SimpleNamespace(config=None, link=None, index=None, _contents=SimpleNamespace(resume=None)),
    )
    hold: Any = service.Service._make_results(cast(Any, itself), cast(Any, SimpleNamespace(gate=gate)))
    with hold():
        assert gate.questions == 0
    with gate.read(settled=True, timeout_s=5):
        assert gate.questions == 1
