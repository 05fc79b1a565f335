"""Which cases of a test run: all of them with ``--run-long``, a sample else, drawn from the seed of the run.

``@pytest.mark.sample(n)`` keeps n of the cases of a test that is parametrised, and ``sample(n, of="a,b")`` n of
the values of these parameters for each combination of the others. ``sample(among="a name")`` keeps as many of all
tests that say the same, those that try one thing in many places, as ``POOLS`` says. With ``alike="a"`` only cases
are drawn that have one of ``ALIKE`` values of this parameter, and all tests draw the same ones: it is for what is
compiled for each value. Whoever asks for a case by its name gets it, and cases that need a device are never left
out. The seed is shown at the head of a run; ``--sample-seed`` gives it. ``--all-cases`` leaves none out, and each
is as short as in a sample: what another run may draw.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

POOLS = {
    "a card that fails": 6,
    "a card that has rows fails": 3,
    "a daemon dies": 3,
    "a daemon has a device": 3,
    "a daemon starts otherwise": 6,
    "a grace period": 3,
    "a larger graph on a device": 4,
    "a long time": 2,
    "a server process and its template": 6,
    "a small run of a benchmark": 2,
    "a stream through a daemon": 5,
    "a user's path program": 1,
    "all that the cache is for": 1,
    "an array shrinks": 1,
    "awkward graphs on a device": 2,
    "bad records": 2,
    "blocks of a device work together": 4,
    "containers and dashboards": 1,
    "functions three ways": 1,
    "kernels in the cache": 5,
    "lists on a device run over": 3,
    "memory is lacking": 3,
    "much is asked for": 2,
    "residuals over thousands of batches": 1,
    "rows on both sides": 2,
    "rows that passes pack": 4,
    "subscriptions": 6,
    "threads change nothing": 8,
    "who may come in": 5,
    "work is in proportion": 4,
}
"""How many are drawn among those that say so."""

ALIKE = 2
"""How many values of a parameter are drawn for all tests that want the same ones."""

_whole = False


def examples(n: int) -> int:
    """How many examples of n Hypothesis tries: a tenth, but eight at least; it tries others in each run."""
    return n if _whole else max(n // 10, min(n, 8))


def all_cases(config: pytest.Config) -> bool:
    """Whether no case is left out: with ``--all-cases``, and with ``--run-long``."""
    return bool(config.getoption("--run-long") or config.getoption("--all-cases"))


def settle(config: pytest.Config) -> None:
    """Draw the seed, if none is given; one of several processes side by side gets that of the first."""
    global _whole
    _whole = bool(config.getoption("--run-long"))
    if config.option.sample_seed is None:
        drawn_here = int(np.random.SeedSequence().generate_state(1)[0])
        config.option.sample_seed = getattr(config, "workerinput", {}).get("sample_seed", drawn_here)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist the seed."""
    node.workerinput["sample_seed"] = node.config.option.sample_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """What repeats this run's sample."""
    return None if all_cases(config) else f"sampled tests: --sample-seed {config.option.sample_seed}"


@pytest.hookimpl(trylast=True)  # of what ``-k`` and ``-m`` have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are not drawn."""
    if all_cases(config):
        return
    left_out = _unlike(items, config.option.sample_seed)
    cases: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    kept_of: dict[tuple[object, ...], int] = {}
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is None or item.get_closest_marker("gpu") is not None or item in left_out:
            continue
        group, n = _drawn_from(item, *mark.args, **mark.kwargs)
        cases[group].append(item)
        kept_of[group] = n
    for group, its in cases.items():
        if len(its) > kept_of[group]:
            left_out |= set(its) - set(drawn(its, kept_of[group], config.option.sample_seed))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _unlike(items: Sequence[pytest.Item], seed: int) -> set[pytest.Item]:
    """The cases with other values than those that all tests draw, of the values that a test has here."""
    tests: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None and (name := mark.kwargs.get("alike")) is not None:
            assert isinstance(item, pytest.Function)
            tests[item.nodeid.partition("[")[0]][str(item.callspec.params[name])].append(item)
    return {
        item
        for cases in tests.values()
        for value in cases.keys() - favourites(cases, seed)
        for item in cases[value]
    }


def favourites(values: Iterable[str], seed: int) -> set[str]:
    """``ALIKE`` of these; of other values beside the same, as far as they are there."""

    def place(value: str) -> float:
        return float(np.random.default_rng([seed, zlib.crc32(value.encode())]).random())

    return set(sorted(values, key=place)[:ALIKE])


def drawn(cases: Sequence[pytest.Item], n: int, seed: int) -> list[pytest.Item]:
    """n of the cases of a test; for other tests and other seeds others."""
    rng = np.random.default_rng([seed, zlib.crc32(cases[0].nodeid.encode())])
    return [cases[i] for i in rng.choice(len(cases), n, replace=False)]


def _drawn_from(
    item: pytest.Item, n: int = 0, of: str = "", among: str = "", alike: str = ""
) -> tuple[tuple[object, ...], int]:
    """What a case is drawn from, and how many of that are: the test, and the values of its parameters that are not
    drawn (all cases have the same objects of them), or a pool.
    """
    assert isinstance(item, pytest.Function)
    test = item.nodeid.partition("[")[0]
    assert (n > 0) is not (among in POOLS), f"{test} names no number and no pool, or both: {n}, {among!r}"
    if among:
        return (among,), POOLS[among]
    if not of:
        return (test,), n
    values, names = item.callspec.params, of.split(",")
    assert set(names) <= set(values), f"{test} has no parameter of {names}"
    return (test, *sorted((name, id(value)) for name, value in values.items() if name not in names)), n
