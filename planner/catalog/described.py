"""A model whose architecture no reader knows, as ``measure describe`` counts it on its own modules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

from pydantic import TypeAdapter

from planner.domain.model import BlockGroup, EmbeddingSpec, LinearSpec, ModelSpec, NormSpec

DESCRIPTION_SCHEMA_ID: Final = "measure/description@1"
Family = Literal["dense", "mixture", "recurrent"]
"""What a layer has beside attention and matrices that compute every token: nothing, experts,
or parts that are neither (convolutions, states), with experts or without.
"""


@dataclass(frozen=True, slots=True)
class Description:
    """Every parameter of a model, by the modules that hold it; blocks say nothing of how they compute.

    Fields are those of :class:`ModelSpec`, and: ``family``; ``attention``: the kernels that the code has.
    """

    architecture: str
    hidden_size: int
    vocab_size: int
    groups: tuple[BlockGroup, ...]
    token_embedding: EmbeddingSpec
    head: LinearSpec
    tied: bool
    max_position_tokens: int | None
    final_norms: tuple[NormSpec, ...]
    family: Family
    attention: tuple[str, ...]
    schema: Literal["measure/description@1"] = DESCRIPTION_SCHEMA_ID

    @property
    def model(self) -> ModelSpec:
        """The model, named like its architecture."""
        own = ("family", "attention", "schema")
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in own}
        return ModelSpec(id=self.architecture, hub_id="", **known)


_DOCUMENT: Final = TypeAdapter(Description)


def description_json(description: Description) -> str:
    """``description`` as one line of JSON."""
    return _DOCUMENT.dump_json(description).decode() + "\n"
