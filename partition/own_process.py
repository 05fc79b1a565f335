"""Which process this is. To ask the system at each batch would cost small ones a fiftieth, and those that find
cold caches no less."""

from __future__ import annotations

import os


class OwnProcess:
    """``id``: that of this process, also after a fork."""

    id = os.getpid()


def _was_forked() -> None:
    OwnProcess.id = os.getpid()


os.register_at_fork(after_in_child=_was_forked)
