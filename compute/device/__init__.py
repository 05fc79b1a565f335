"""Programs on a CUDA device: twins of the host's, by family.

A twin is a ``Program`` with the id and the columns of the host's program that it is made from, and reads the rows
of ``graph.device`` instead of the host's. Its results are those of the host bit for bit, where the family promises
the same for any history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...partition.graph import Graph
from ..forest.components import Components
from ..paths.program import PathProgram
from ..program import Program

if TYPE_CHECKING:
    from .program import DeviceProgram


class NoTwin(LookupError):
    """A program runs on the host only; the message says why."""


def twin(program: Program, graph: Graph) -> Program:
    """What is to be run in the place of a program of the host, on the graph's device; its kernels are compiled.

    Raises:
        NoTwin: there is none for its family, or its functions cannot be printed or compiled.
    """
    # Not on machines without a device: what they import takes a while.
    made = _path_program(program) if isinstance(program, PathProgram) else _of_another_family(program)
    try:
        made.compile(graph)
    except MemoryError as error:
        raise NoTwin(f"the device has no memory for it: {error}") from error
    except Exception as error:  # whatever compilers say, or a card
        raise NoTwin(f"its kernels do not compile: {type(error).__name__}: {error}") from error
    return made


def _path_program(program: PathProgram) -> DeviceProgram:
    from .functor import Unprintable, cuda_text
    from .paths import DevicePathProgram

    try:
        cuda_text(program.form)
    except Unprintable as error:
        raise NoTwin(str(error)) from error
    return DevicePathProgram(program)


def _of_another_family(program: Program) -> DeviceProgram:
    if type(program) is not Components:
        raise NoTwin(f"programs of the family {program.family!r} have no twin on a device")
    from .components import DeviceComponents

    return DeviceComponents(program)
