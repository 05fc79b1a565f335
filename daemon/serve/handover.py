"""How soon threads hand the interpreter over, in a process that answers questions now and then.

To answer one takes a twentieth of a millisecond. Before that the interpreter must be had from whoever runs
Python, who is asked for it after the switch interval, and perhaps from several, one after the other: that is most
of what a question takes. So the interval is short while questions come, and only then, since handing over costs.
"""

from __future__ import annotations

import sys

ASKED_SECONDS = 0.0002
"""The interval while questions come."""
FEW = 20
"""Of fewer questions a second none is worth it."""


class Handover:
    """Sets the switch interval of this process by the questions that come. Any thread may call it."""

    def __init__(self, usual_s: float) -> None:
        """``usual_s``: the interval while few questions come, if any."""
        self._usual_s = usual_s
        self._asked = 0

    def asked(self) -> None:
        """A question came, or several at once."""
        self._asked += 1
        if self._asked == FEW:
            sys.setswitchinterval(min(ASKED_SECONDS, self._usual_s))

    def look(self) -> None:
        """A second is over."""
        if self._asked < FEW:
            sys.setswitchinterval(self._usual_s)
        self._asked = 0
