"""Triangles, clustering and cores over many seeded histories, against NetworkX after every epoch.

A sample that is drawn anew runs by default; ``--run-long`` runs four hundred histories at 40 vertices and twenty
at 2^12. What fails names its seed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import test_cores
import test_triangles
from histories import Epoch, mixed_sizes, random_history, rmat_history

SMALL, LARGE = (400, 4), (20, 1)
"""How many histories there are in all, and how many of them the sample has."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(36_000)]


def chosen(counts: tuple[int, int], run_long: bool, seed: int) -> Iterable[int]:
    whole, sample = counts
    return range(whole) if run_long else np.random.default_rng(seed).choice(whole, sample, replace=False).tolist()


def follow(epochs: Iterable[Epoch], directed: bool, seed: int) -> None:
    of_triangles, of_cores = test_triangles.Run(directed), test_cores.Run(directed)
    for k, epoch in enumerate(epochs):
        for run in (of_triangles, of_cores):
            try:
                run.step(epoch)
                run.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, epoch {k}, directed {directed}: {error}") from error
    of_triangles.close()
    of_cores.close()


def test_at_40_vertices(run_long: bool, seed: int) -> None:
    """With deletions of vertices in every third history."""
    for number in chosen(SMALL, run_long, seed):
        directed = number % 2 == 0
        share = 0.08 if number % 3 == 0 else 0.0
        history = random_history(number, directed=directed, vertices=40, updates_max=90, vertex_share=share)
        follow(history.epochs, directed, number)


def test_at_4096_vertices(run_long: bool, seed: int) -> None:
    """Batches of one to five thousand updates."""
    for number in chosen(LARGE, run_long, seed):
        directed = number % 2 == 0
        updates = mixed_sizes(number, 12 if run_long else 2, 5_000)
        follow(
            rmat_history(number, directed=directed, scale=12, degree=6, updates=updates).epochs, directed, number
        )
