"""What all sections are: tables of settings that refuse what they do not know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from ...client.addresses import from_home

INT64_MAX = 2**63 - 1
INT64_DIGITS = len(str(INT64_MAX))

Problem = tuple[str, str]
"""A key within its section ("" for the section itself) and what is allowed there."""


def _kinds(annotation: Any) -> set[Any]:
    """The types that a value may have: of those within a list or table, none."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, arguments))
    return {annotation}


def _is_longer_than_64_bits(value: object) -> bool:
    """Of a whole number, or of a text that stands for one; what is neither is for others to refuse."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return len(value.lstrip("0")) > INT64_DIGITS or int(value) > INT64_MAX
    return isinstance(value, int) and value > INT64_MAX


def split_commas(value: object) -> object:
    """Let ``a,b`` stand for ["a", "b"], as environment variables and flags give it."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _named(value: object) -> object:
    if value == "":
        raise ValueError("must name a folder")
    return value


def whole(path: Path | str) -> str:
    """A path as it is compared with others; one that is relative stays so where the working directory is gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        return os.path.normpath(path)


Folder = Annotated[Path, BeforeValidator(_named)]
Words = Annotated[tuple[str, ...], BeforeValidator(split_commas)]


class Section(BaseModel):
    """A table of settings. Unknown keys are refused; values do not change once validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Refuse what pydantic would take: a switch for the number 1, a number that no counter or message holds
        (they have 64 bits), and paths and names that no system call takes. A path may begin with ``~``."""
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("must be a whole number" if int in kinds else "must be a number")
        if int in kinds and _is_longer_than_64_bits(value):
            raise ValueError(f"must be a whole number of at most {INT64_MAX:,}")
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError(f"must be {'a path' if Path in kinds else 'text'} without a zero byte")
        return from_home(value) if Path in kinds and isinstance(value, str) else value

    def problems(self) -> Iterator[Problem]:
        """What is wrong between keys that are each fine by themselves."""
        return iter(())
