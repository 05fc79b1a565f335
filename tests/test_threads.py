"""Two threads for one piece of work."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from unittest import mock

import pytest

from graphtide.gpma.threads import Pair


def test_who_is_interrupted_while_he_waits_goes_on_when_both_have_ended() -> None:
    """Else the other half would go on writing rows that its caller believes to be done with, or loads anew."""
    pair, begun, ended = Pair(2, "test"), threading.Event(), []

    def there() -> None:
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    with mock.patch.object(Future, "result", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        pair.run(begun.wait, there)
    assert ended == [True]
    pair.close()


def test_what_fails_of_both_is_told_when_both_have_ended() -> None:
    pair, begun, ended = Pair(2, "test"), threading.Event(), []

    def here() -> None:
        begun.wait()
        raise ValueError("here")

    def there() -> None:
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    with pytest.raises(ValueError, match="here"):
        pair.run(here, there)
    assert ended == [True]
    pair.close()
