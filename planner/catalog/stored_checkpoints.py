"""Checkpoints whose matrices are packed: ``data/models/stored.toml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.location import data_dir
from planner.files.checking import validate
from planner.files.structured import read_toml

NonEmpty = Annotated[str, Field(min_length=1)]
STORED_FILE = "models/stored.toml"
# unsloth/phi-4-unsloth-bnb-4bit keeps the feed-forward of 3 of its 40 layers whole.
_PARTLY_PACKED, _WHOLE_SHARE = "-unsloth-bnb-4bit", 3 / 40


class StoredKind(BaseModel):
    """What is known of the ``config.json`` of packed checkpoints.

    ``dtype``: of what is not packed, where that is not the model's own.  ``config``: fields that differ from
    the model's: Qwen made the matrices of 72B wider.  ``assumed``: what of it no source states.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dtype: Literal["float16", "bfloat16"] | None = None
    config: dict[str, int] = {}
    quantization_config: dict[str, Any]
    source: NonEmpty
    assumed: str = ""


class StoredEntry(StoredKind):
    """A checkpoint whose matrices are packed, and which ``model`` was quantised.

    ``size_gb``: of its files, 10^9 bytes, as the Hub lists them.
    """

    model: NonEmpty
    size_gb: Annotated[float, Field(gt=0)] | None = None

    def fields(self) -> dict[str, Any]:
        """The fields as a ``config.json`` would hold them."""
        # TOML has no null.
        table = {name: None if value == "null" else value for name, value in self.quantization_config.items()}
        given = {"quantization_config": table}
        return given if self.dtype is None else {**given, "dtype": self.dtype}


class StoredSeries(StoredKind):
    """Checkpoints of one maker that are stored alike: ``models`` names those of each model."""

    models: dict[str, list[NonEmpty]]

    def checkpoints(self) -> dict[str, StoredEntry]:
        """Each checkpoint as an entry of its own."""
        kind = {name: getattr(self, name) for name in StoredKind.model_fields}
        return {
            checkpoint: StoredEntry(model=model, **kind)
            for model, checkpoints in self.models.items()
            for checkpoint in checkpoints
        }


class StoredTable(BaseModel):
    """``data/models/stored.toml``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    checkpoints: dict[str, StoredEntry]
    series: list[StoredSeries] = []


def stored_checkpoints() -> Mapping[str, StoredEntry]:
    """Checkpoints by their Hub ids whose matrices are known to be packed."""
    path = data_dir() / STORED_FILE
    table = validate(StoredTable, read_toml(path), path)
    return table.checkpoints | {
        name: entry for series in table.series for name, entry in series.checkpoints().items()
    }


def stored_entry(hub_id: str) -> StoredEntry | None:
    """The entry of a checkpoint, by its id in any case, or by its name alone where one owner has one."""
    from planner.catalog.same_shape import QUANTISED, RELEASED_IN_FP8

    if QUANTISED.search(hub_id) is None and not RELEASED_IN_FP8.fullmatch(hub_id.rpartition("/")[2]):
        return None
    wanted, known = hub_id.lower(), {each.lower(): entry for each, entry in stored_checkpoints().items()}
    found = [each for each in known if wanted in (each, each.rpartition("/")[2])]
    return known[found[0]] if len(found) == 1 else None


def assumed_entry(hub_id: str, n_layers_of: Callable[[str], int]) -> StoredEntry | None:
    """A checkpoint of Unsloth's that keeps some matrices whole, where its list of them cannot be read: as
    many as in the one whose list is known, of the known checkpoint of the same model that keeps none.
    ``n_layers_of``: layers of a catalog entry.
    """
    plain = hub_id.lower().replace(_PARTLY_PACKED, "-bnb-4bit")
    found = {each.lower(): entry for each, entry in stored_checkpoints().items()}
    entry = found.get(plain) if plain != hub_id.lower() else None
    if entry is None:
        return None
    n_layers = n_layers_of(entry.model)
    whole = [f"model.layers.{number}.mlp" for number in range(ceil(_WHOLE_SHARE * n_layers))]
    table = {**entry.quantization_config, "llm_int8_skip_modules": ["lm_head", *whole]}
    text = f"its config.json was not read: the feed-forward of {len(whole)} of {n_layers} layers is counted "
    text += "in 16 bits, the share of unsloth/phi-4-unsloth-bnb-4bit"
    return entry.model_copy(update={"quantization_config": table, "assumed": text})
