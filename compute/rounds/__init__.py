"""Rounds: a fixed number of them, in each of which every vertex takes what its neighbours had in the round before.

The family promises: after every epoch the values of all rounds are those of a fresh start. Nothing is propagated
that a deletion could leave behind: a vertex is looked at again in those rounds in which what it hears may have
changed, and its row is read again only where that could have turned its vote.

There is one member, ``Cdlp``. Read ``cdlp.py`` first, then ``hearing.py`` (a round after a change) and ``vote.py``
(the vote of a row).
"""

from .cdlp import Cdlp

__all__ = ["Cdlp"]
