"""Configurations of models that no prediction covers (``data/encoders.toml``), for dry runs of programs:
encoders, those with an encoder and a decoder, and image models.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planner.catalog.location import data_dir
from planner.files.checking import validate
from planner.files.structured import read_toml

Text = Annotated[str, Field(min_length=1)]


class Encoder(BaseModel):
    """One entry as it stands.  ``params`` is a published number of parameters of the module that AutoModel
    makes, where one was found.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    names: Annotated[list[Text], Field(min_length=1)]
    source: Text
    config: dict[str, Any]
    params: Annotated[int, Field(ge=1)] | None = None
    params_source: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if "model_type" not in self.config:
            raise ValueError("its 'config' has no 'model_type'")
        if (self.params is None) != (self.params_source is None):
            raise ValueError("'params' and 'params_source' come together")
        return self


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    models: list[Encoder]


def encoder_config(hub_id: str) -> dict[str, Any] | None:
    """Fields of the ``config.json`` of ``hub_id``; ``None`` for a model that is not in the table.

    Raises:
        InputFileError: the table cannot be read, or is malformed.
    """
    found = next((each for each in encoders() if hub_id in each.names), None)
    return None if found is None else dict(found.config)


@cache
def encoders() -> tuple[Encoder, ...]:
    """Every entry.

    Raises:
        InputFileError: the table cannot be read, or is malformed.
    """
    path = data_dir() / "encoders.toml"
    return tuple(validate(_Table, read_toml(path), path).models)
