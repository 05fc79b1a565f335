"""Crews for arrays under test: of one team, which lives as long as a module's tests.

A module says ``from crews import crews as crews``, and its tests ask for ``crew(5)``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphtide.gpma.team import Crew, Team

THREADS = (1, 2, 5)

_teams: list[Team] = []


@pytest.fixture(scope="module", autouse=True)
def crews() -> Iterator[None]:
    team = Team(max(THREADS))
    _teams.append(team)
    yield
    _teams.remove(team)
    team.close()


def crew(threads: int) -> Crew:
    """So many threads of the team."""
    return _teams[-1].crew(threads)
