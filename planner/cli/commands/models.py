"""``plan models``: the models of the catalog."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any

from planner.catalog.models import ModelEntry, model_entry, model_ids, model_sizes, spec_of
from planner.cli.listing import list_schema, listing, table
from planner.cli.outcome import Outcome
from planner.domain.model import ModelSpec, ParamsOrigin
from planner.errors import name_pattern
from planner.report.render.layout import Column
from planner.units import format_count

_OTHERS = "--model takes any other Hub id, too."
_ALL = f"With their Hub ids: plan models qwen3 lists the models with that in their names.  {_OTHERS}"


def _columns(*, of_all: bool) -> tuple[Column, ...]:
    """Hub ids are long: of all models they stand on wide terminals only."""
    return (
        Column("id", whole=True),
        Column("params", "right"),
        Column("Hub id", wide_only=of_all),
    )


_SIZE_COLUMNS = (Column("size"), Column("model"), Column("reason"))


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as JSON has it; ``params_origin``: how closely its count was checked."""

    id: str
    name: str
    hub_id: str | None
    aliases: list[str]
    architecture: str
    params: int
    active_params: int
    published_params: int | None
    params_origin: ParamsOrigin
    params_source: str
    source: str


@dataclass(frozen=True, slots=True)
class ListedSize:
    """What a size alone stands for."""

    size: str
    model: str
    reason: str


def list_models(name: str | None, output_format: str) -> Outcome:
    """All models, or those whose names hold ``name``: parameter counts, and what a bare size stands for.

    Raises:
        UnknownNameError: no model's name holds ``name``; says the nearest.
    """
    entries = [model_entry(each) for each in model_ids()]
    if name is not None:
        entries = [each for each in entries if _is_named(each, name)] or [model_entry(name)]
    models = [(entry, spec_of(entry)) for entry in entries]
    rows = [(spec.id, format_count(spec.param_count), spec.hub_id or "") for _, spec in models]
    sizes = [
        ListedSize(size, each.model, each.reason)
        for size, each in model_sizes().items()
        if each.model in {spec.id for _, spec in models}
    ]
    document = {
        "models": [asdict(_listed(entry, spec)) for entry, spec in models],
        "sizes": [asdict(each) for each in sizes],
    }
    sections = [table("Models", _columns(of_all=name is None), rows, _ALL if name is None else _OTHERS)]
    by_size = [astuple(each) for each in sizes]
    sections += [table("What a size alone stands for", _SIZE_COLUMNS, by_size)] if sizes else []
    return listing("models", document, sections, output_format)


def _is_named(entry: ModelEntry, name: str) -> bool:
    return any(map(name_pattern(name).search, (entry.id, entry.hub_id or "", *entry.aliases)))


def _listed(entry: ModelEntry, spec: ModelSpec) -> ListedModel:
    return ListedModel(
        id=spec.id,
        name=entry.name,
        hub_id=spec.hub_id,
        aliases=entry.aliases,
        architecture=spec.architecture,
        params=spec.param_count,
        active_params=spec.active_param_count,
        published_params=spec.published_params,
        params_origin=spec.params_origin,
        params_source=entry.params_source,
        source=spec.source,
    )


def models_json_schema() -> dict[str, Any]:
    """JSON Schema of the list."""
    return list_schema("models", models=ListedModel, sizes=ListedSize)
