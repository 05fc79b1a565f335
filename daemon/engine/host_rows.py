"""Which rows the host keeps beside a device, and why: decided at the start, before there is a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ...compute.device import NoTwin, require_twin
from ...compute.program import Program
from ...partition.division import SPARE
from ..config.settings import Config
from ..errors import ConfigError

BYTES_OF_EDGE, BYTES_OF_WEIGHT, DENSITY = 8, 4, 0.7
"""What is thought that an edge takes of each array of a device."""


class HostRows(NamedTuple):
    """All rows, or those that it owns; ``reason``: in words."""

    rows: Literal["all", "owned"]
    reason: str


class Extent(NamedTuple):
    """What is known of the graph: ``entries`` of all arrays (None: nothing), whether they have weights, and bytes
    for them on the device (None: there is no limit)."""

    entries: int | None = None
    device_bytes: int | None = None
    weighted: bool = False

    @property
    def fits(self) -> bool:
        """Whether all rows are thought to fit the device with some of it to spare; also where nothing is known."""
        if self.entries is None or self.device_bytes is None:
            return True
        return self.entries * bytes_of_entry(weighted=self.weighted) <= (1 - SPARE) * self.device_bytes


def bytes_of_entry(*, weighted: bool) -> float:
    """What is thought that an edge takes of an array of a device."""
    return (BYTES_OF_EDGE + (BYTES_OF_WEIGHT if weighted else 0)) / DENSITY


NOTHING_KNOWN = Extent()


def host_rows_of(config: Config, programs: Iterable[Program], extent: Extent = NOTHING_KNOWN) -> HostRows:
    """What the setting ``partition.host_rows`` comes to where these programs are to run beside a device.

    ``auto`` is ``all`` where the device is thought to have room for all rows: then programs may run on either side
    (those of deep graphs take less time on the host), and the host goes on when a card is lost. Where it has none,
    a device is of use only with some of the rows: ``auto`` is ``owned`` then, if nothing that was asked for needs
    all of them on the host.

    Raises:
        ConfigError: each row is to be on one side only, and a program runs on the host, which needs all.
    """
    wanted = config.partition.host_rows
    if wanted == "all":
        return HostRows("all", "partition.host_rows is all")
    programs = list(programs)
    if wanted == "auto" and extent.fits:
        known = (
            "nothing is known of the graph yet" if extent.entries is None else "the device has room for the graph"
        )
        return HostRows("all", f"partition.host_rows is auto, and {known}")
    if wanted == "auto" and not programs:
        return HostRows("all", "no program needs the device")
    for program in programs:
        try:
            _require_at_device(config, program)
        except NoTwin as error:
            if wanted == "auto":
                return HostRows("all", f"program {program.id!r} needs all rows on the host: {error}")
            raise ConfigError(
                f"partition.host_rows is owned, and program {program.id!r} needs all rows on the host: {error}. "
                f'Set partition.host_rows = "all", or leave the program out'
            ) from error
    if wanted == "owned":
        return HostRows("owned", "partition.host_rows is owned")
    if config.audit.full_every_epoch:
        return HostRows("all", "audit.full_every_epoch reads all rows on the host in every epoch")
    return HostRows("owned", f"the device has no room to spare for {extent.entries:,} entries of rows")


def _require_at_device(config: Config, program: Program) -> None:
    """
    Raises:
        NoTwin: the program runs on the host.
    """
    if config.place_of(program.id) == "host":
        raise NoTwin("its place is the host, by the configuration")
    require_twin(program)
