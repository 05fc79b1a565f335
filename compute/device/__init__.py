"""Programs on a CUDA device: twins of the host's, by family.

A twin is a ``Program`` with the id and the columns of the host's program that it is made from, and reads the rows
of ``graph.device`` instead of the host's. Its results are those of the host bit for bit, where the family promises
the same for any history; else they are within the same bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...partition.graph import Graph
from ..counts.sspaths import SSPaths
from ..forest.components import Components
from ..paths.program import PathProgram
from ..program import Program
from ..rounds import Cdlp
from ..triangles import LocalClustering, Triangles
from ..walks.pagerank import PageRank
from ..walks.ppr import PersonalisedPageRank

if TYPE_CHECKING:
    from .program import DeviceProgram


class NoTwin(LookupError):
    """A program runs on the host only; the message says why."""


def twin(program: Program, graph: Graph) -> Program:
    """What is to be run in the place of a program of the host, on the graph's device; its kernels are compiled.

    It takes no room there yet. Any thread may call.

    Raises:
        NoTwin: there is none for its kind or its parameters, or its functions cannot be printed or compiled; or
            there is no device any more.
    """
    made, device = _made(program), graph.device
    if device is None:
        raise NoTwin("there is no device any more")
    try:
        made.compile(device)
    except Exception as error:  # whatever compilers say, or a card
        raise NoTwin(f"its kernels do not compile: {type(error).__name__}: {error}") from error
    return made


def require_twin(program: Program) -> None:
    """
    Raises:
        NoTwin: there is none for the program's kind or its parameters; nothing was compiled.
    """
    _made(program)


def _made(program: Program) -> DeviceProgram:
    """The twin, nothing of it compiled.

    Raises:
        NoTwin: there is none, or its functions cannot be printed.
    """
    # What twins import takes a while, and is not for machines without a device.
    if isinstance(program, PathProgram):
        from .functor import Unprintable, cuda_text
        from .paths import DevicePathProgram

        try:
            cuda_text(program.form)
        except Unprintable as error:
            raise NoTwin(str(error)) from error
        return DevicePathProgram(program)
    if type(program) is Components:
        from .components import DeviceComponents

        return DeviceComponents(program)
    if type(program) is SSPaths:
        from .counts import DeviceSSPaths

        return DeviceSSPaths(program)
    if type(program) is PageRank:
        from .pagerank import TOLERANCE_MIN, DevicePageRank

        _require_tolerance(program.tolerance, TOLERANCE_MIN)
        return DevicePageRank(program)
    if type(program) is PersonalisedPageRank:
        from .ppr import TOLERANCE_MIN, DevicePersonalisedPageRank

        _require_tolerance(program.tolerance, TOLERANCE_MIN)
        return DevicePersonalisedPageRank(program)
    if type(program) is Triangles:
        from .tally import DeviceTriangles

        return DeviceTriangles(program)
    if type(program) is LocalClustering:
        from .tally import DeviceLocalClustering

        return DeviceLocalClustering(program)
    if type(program) is Cdlp:
        from .cdlp import DeviceCdlp

        return DeviceCdlp(program)
    raise NoTwin(f"programs of the kind {program.kind!r} have no twin on a device")


def _require_tolerance(tolerance: float, least: float) -> None:
    """
    Raises:
        NoTwin: numbers of a device are too coarse for it.
    """
    if tolerance < least:
        raise NoTwin(f"a tolerance below {least:g} is beyond what a device keeps of numbers")
