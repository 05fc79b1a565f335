"""Which programs are kept, on how many threads, and how they are audited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ....gpma.cores import usable_cores
from .section import Section, Words


class ProgramConfig(Section):
    """One vertex program to keep up to date. Further keys are the program's parameters."""

    name: str = Field(
        min_length=1, description="Which program: one of the table below, or of `compute.python_modules`."
    )
    id: str = Field(
        default="",
        max_length=128,
        description="What queries name. Default: the name, with its parameters where that would be ambiguous.",
        examples=["hops"],
    )
    place: Literal["auto", "host", "device"] | None = Field(
        default=None,
        description="Where it runs, as in `compute.place`; default: what that says.",
        examples=["device"],
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Every other key of the table: the program's own parameters."
    )
    OWN: ClassVar = ("name", "id", "place")

    @model_validator(mode="before")
    @classmethod
    def _gather_parameters(cls, table: object) -> object:
        if not isinstance(table, Mapping) or "parameters" in table:
            return table
        own = {key: value for key, value in table.items() if key in cls.OWN}
        return {**own, "parameters": {key: value for key, value in table.items() if key not in own}}


class ComputeConfig(Section):
    """The processor."""

    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = Field(
        default="auto",
        description="Threads that programs share, and programs side by side: a number, or `auto` for our cores.",
    )
    nice: int = Field(
        default=5,
        ge=0,
        le=19,
        description="By how much the niceness (as of the command `nice`, on Linux) of threads that ingest and "
        "compute is above that of the rest of the daemon: where cores are short, they give way to answers, and "
        "to other processes. 0: they do not.",
    )

    place: Literal["auto", "host", "device"] = Field(
        default="auto",
        description="Where programs run that can run on a device, if there is one. `auto`: where epochs take less "
        "time, which is measured; programs move when that changes. `host` or `device`: always there. A program's "
        "own `place` takes precedence.",
    )
    python_modules: Words = Field(
        default=(),
        description="Python modules to import first, which register programs of their own; see docs/programs.md.",
        examples=["company.graph_programs"],
    )

    def thread_count(self) -> int:
        """The number of threads."""
        return usable_cores() if self.threads == "auto" else self.threads


class AuditConfig(Section):
    """The check of published results, and of the storage, against the graph, in the background and without end."""

    share: float = Field(
        default=0.02,
        ge=0,
        le=0.5,
        description="The share of the engine thread's time that the audit may take; 0: none. It goes over "
        "everything slice by slice; what contradicts the graph is logged with its evidence, and counted by "
        "the metric `graphtide_audit_violations_total`.",
    )
    repair: Literal["off", "restart"] = Field(
        default="off",
        description="What to do about a program that contradicts the graph: nothing, or compute it from scratch. "
        "A storage that contradicts itself is never repaired, nor are programs from then on.",
    )
    full_every_epoch: bool = Field(
        default=False,
        description="Check everything after every epoch. For tests: it costs far more than the epoch.",
    )
