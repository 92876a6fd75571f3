"""``data/refused_models.toml``: models that no prediction covers, and what they are."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from planner.catalog.location import data_dir
from planner.files.checking import validate
from planner.files.structured import read_toml

DRY_RUN: Final = "the dry run of your own program counts it: measure trace --gpu CARD -- python train.py"
"""The way out that is always there."""
Text = Annotated[str, Field(min_length=1)]


class Kind(BaseModel):
    """One kind of models as it stands; ``model_types`` are those of what is no decoder."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    what: Text
    names: Text
    model_types: list[Text] = []

    @field_validator("names")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    kinds: list[Kind]


def what_is(hub_id: str) -> str:
    """What the model is that ``hub_id`` names, where the table knows it; else empty.

    Raises:
        InputFileError: the table cannot be read, or is malformed.
    """
    name = hub_id.rpartition("/")[2].lower()
    return next((each.what for each in kinds() if re.fullmatch(each.names, name)), "")


def what_has(model_type: str) -> str:
    """What a model of ``model_type`` is, where it is no decoder; else empty.

    Raises:
        InputFileError: the table cannot be read, or is malformed.
    """
    return next((each.what for each in kinds() if model_type in each.model_types), "")


@cache
def kinds() -> tuple[Kind, ...]:
    """Every entry.

    Raises:
        InputFileError: the table cannot be read, or is malformed.
    """
    path = data_dir() / "refused_models.toml"
    return tuple(validate(_Table, read_toml(path), path).kinds)
