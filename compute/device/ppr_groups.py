"""Personalised PageRanks that go through passes together: whose numbers lie side by side, who is launched when."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from ...gpma.device.calling import Caller
from ...gpma.device.state import address, allocate, zeros
from ...partition.device_side import DeviceSide
from .kernels import Calls, RowParameters, Variant
from .packed_rows import ASKED_EVERY_S
from .ppr_numbers import PPR_JOB, Numbers

SWEEP: Final = 8
"""How many programs go through passes together at most."""
SWEEP_LEAST: Final = 5
"""So many make a group: fewer take as long one after another, as passes of several cost the same however many of
them are there."""
ASKING_LEAST: Final = 2
"""So many of a group go together: one by itself takes twice as long as it would with numbers of its own."""

_SIDE_BY_SIDE = ("values", "sums", "shares", "listed", "n_listed", "holders", "sources", "nobody")
PPR_SWEEP: Final = np.dtype(
    [
        ("jobs", PPR_JOB, SWEEP),
        ("side", np.uint64, len(_SIDE_BY_SIDE)),
        ("there", np.uint32),
        ("is_known", np.uint32),
    ]
)
"""struct PprSweep of ``ppr.cuh``."""


class Member(Protocol):
    """What a program has on the device (``PprRuns``), as groups know it."""

    seat: tuple[Group, int] | None
    """Where its numbers are, if they are beside those of others."""

    @property
    def group(self) -> Group | None: ...

    @property
    def room(self) -> int:
        """For how many vertices."""
        ...

    @property
    def calls(self) -> Calls:
        """Of kernels, the next of which is prepared where passes are asked for."""
        ...

    def sit(self, group: Group, place: int, numbers: Numbers) -> None:
        """Have the numbers there from now on."""
        ...

    def stand_alone(self) -> None:
        """Have them apart from those of others from now on.

        Raises:
            MemoryError: the device has not enough; they stay where they are.
        """
        ...

    def copy_made(self, device: DeviceSide) -> None:
        """Copy the estimates that passes make to the host as soon as all that was launched is done."""
        ...


M = TypeVar("M", bound=Member)


class Group:
    """Programs that go through passes together, SWEEP at most, on graphs of up to ``room`` vertices.

    Their numbers lie side by side, vertex by vertex, as long as they are members.
    """

    def __init__(self, room: int, n_threads: int) -> None:
        """On the current stream. ``n_threads``: of a launch.

        Raises:
            MemoryError: the device has not enough.
        """
        self.room = room
        self.members: list[weakref.ref[Member] | None] = [None] * SWEEP
        # Whether that is up to date of all members.
        self.knows_holders = False
        self._columns = (
            *(zeros(SWEEP * (room + 1), np.int64) for _ in range(3)),
            zeros(SWEEP * room, np.uint8),
        )
        self._holders = zeros(-(-room // 4) * 4, np.uint8)
        # What the first part of a run leaves to the second one: a list of vertices, and how many of each warp.
        self._listed = allocate(room + n_threads, np.uint64), allocate(n_threads // 32, np.uint32)
        own = np.zeros(1, np.dtype(f"V{PPR_SWEEP.itemsize}"))
        self.fields: Any = own.view(PPR_SWEEP)
        """PPR_SWEEP: the run."""
        self.parameters = RowParameters(own)
        *columns, sources = map(address, self._columns)
        self.fields["side"] = [*columns, *map(address, self._listed), address(self._holders), sources, room]

    @property
    def is_kept(self) -> bool:
        """Whether enough are left."""
        return SWEEP - len(self._free()) >= SWEEP_LEAST

    @property
    def is_full(self) -> bool:
        return not self._free()

    def _free(self) -> list[int]:
        return [place for place, member in enumerate(self.members) if member is None or member() is None]

    def take(self, those: Iterable[Member]) -> None:
        """Give places to these, as many as are free; on the current stream."""
        for place, runs in zip(self._free(), those, strict=False):
            values, sums, shares, is_source = (column[place::SWEEP] for column in self._columns)
            runs.sit(self, place, Numbers(values, sums, shares, is_source, SWEEP))
            self.knows_holders = False
            self.members[place] = weakref.ref(runs)


class _Rest(NamedTuple):
    """The second part of a run of these, which holds all that it works in."""

    group: Group
    those: Sequence[Member]
    variant: Variant


class Sweeps:
    """Who goes through passes with whom, once for all programs of a device's side.

    Second parts of runs wait until all groups have had their first: what these leave crosses a bus, for which all
    wait.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._refused_at = -math.inf
        self._caller = Caller(1, stream)
        # What was launched in part, in that order.
        self._begun: deque[_Rest] = deque()

    def divided(self, those: Sequence[M], variant: Variant | None) -> list[list[M]]:
        """Those that go together, by groups of which enough ask.

        ``variant``: of the kernel for several; None: there is none.

        Whoever is in none, or in one that most have left, is given a place first, as long as there is memory; or,
        where there is none with enough others, is let go of by such a group.
        """
        if time.monotonic() - self._refused_at > ASKED_EVERY_S:
            try:
                with self._stream:
                    self._seat(those, variant)
            except MemoryError:
                self._refused_at = time.monotonic()
        if variant is None:
            return []
        asking: dict[Group, list[M]] = {}
        for runs in those:
            if runs.group is not None:
                asking.setdefault(runs.group, []).append(runs)
        return [some for some in asking.values() if len(some) >= ASKING_LEAST]

    def _seat(self, those: Sequence[Member], variant: Variant | None) -> None:
        if variant is None:
            for runs in those:
                runs.stand_alone()
            return
        groups = {runs.group: None for runs in those if runs.group is not None and runs.group.is_kept}
        loose = [runs for runs in those if runs.group not in groups]
        for group in groups:
            group.take(runs for runs in loose if runs.room <= group.room)
            loose = [runs for runs in loose if runs.group is not group]
        for begin in range(0, len(loose), SWEEP):
            some = loose[begin : begin + SWEEP]
            if len(some) >= SWEEP_LEAST:
                Group(max(runs.room for runs in some), variant.blocks * variant.threads).take(some)
                continue
            for runs in some:
                runs.stand_alone()

    def launch(self, those: Sequence[Member], variant: Variant, device: DeviceSide) -> None:
        """Launch the first part of passes of these, of one group, with their jobs as they are, and copies; waits
        for nothing. ``launch_rest`` is to follow.

        Raises:
            RuntimeError: the device, as CuPy says it.
        """
        there = 0
        for runs in those:
            assert runs.seat is not None
            group, place = runs.seat
            there |= 1 << place
            group.fields["jobs"][0, place] = runs.calls.job[0]
            runs.calls.caller.expect()
        group.fields["there"], group.fields["is_known"] = there, group.knows_holders
        group.knows_holders = False  # if this fails
        group.parameters.take(device.states())
        self._launch(_Rest(group, those, variant))
        for runs in those:
            runs.copy_made(device)
        self._begun.append(_Rest(group, those, variant))
        group.knows_holders = True

    def launch_rest(self) -> None:
        """Launch the second parts of all that was begun; waits for nothing.

        Raises:
            RuntimeError: the device, as CuPy says it; others may be left.
        """
        while self._begun:
            rest = self._begun.popleft()
            rest.group.fields["jobs"]["part"] = 1
            self._launch(rest)

    def _launch(self, part: _Rest) -> None:
        group, variant = part.group, part.variant
        self._caller.aim(variant.handle, variant.blocks, variant.threads, group.parameters)
        self._caller.launch()


def sweeps_on(device: DeviceSide) -> Sweeps:
    sweeps: Sweeps | None = device.shared.get(Sweeps)
    if sweeps is None:
        sweeps = device.shared[Sweeps] = Sweeps(device.stream)
    return sweeps
