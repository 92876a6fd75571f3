"""``data/unmodelled.toml``: how far known architectures are from a plain decoder of the same sizes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.described import Family
from planner.catalog.location import data_dir
from planner.domain.recipes.recipe import Recipe
from planner.files.checking import validate
from planner.files.structured import read_toml

FILE: Final = "unmodelled.toml"
Training = Literal["full", "lora", "lora-quantized"]


class Range(BaseModel):
    """How many times as much as its plain decoder an architecture needs beside weights and states.

    ``low`` is of allocated, ``high`` of reserved bytes; ``lowest`` and ``highest``: the architectures at the
    ends, of ``n`` that were compared.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    family: Family
    training: Training
    checkpointing: bool
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]
    lowest: str
    highest: str
    n: Annotated[int, Field(gt=0)]

    @property
    def decides(self) -> bool:
        """Whether enough are known for ends that decide: of dense architectures alone.

        Held out, 96 % of their ends lie within those of the others; 88 % of mixtures and 73 % of recurrent
        ones (``make ranges``).
        """
        return self.family == "dense"

    @property
    def key(self) -> tuple[Family, Training, bool]:
        """What jobs it is for."""
        return self.family, self.training, self.checkpointing


class Ranges(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    source: str
    ranges: list[Range]


def read_ranges() -> Ranges:
    """The file as it stands."""
    path = data_dir() / FILE
    return validate(Ranges, read_toml(path), path)


def training_of(recipe: Recipe) -> Training:
    """Which of the ranges' trainings a recipe is."""
    if recipe.method == "full":
        return "full"
    return "lora" if recipe.numerics.quantization == "none" else "lora-quantized"
