"""``plan models``: the models of the catalog."""

from __future__ import annotations

from typing import Any

from planner.catalog.models import ModelEntry, model_entry, model_ids, model_sizes, spec_of
from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.domain.model import ModelSpec
from planner.errors import name_pattern
from planner.report.render.layout import Column
from planner.units import format_count

_OTHERS = "--model takes any other Hub id, too."
_ALL = f"With their Hub ids: plan models qwen3 lists the models with that in their names.  {_OTHERS}"


def _columns(*, of_all: bool) -> tuple[Column, ...]:
    """Hub ids are long: of all models they stand on wide terminals only."""
    return (
        Column("id", whole=True),
        Column("parameters", "right"),
        Column("Hub id", wide_only=of_all),
    )


_SIZE_COLUMNS = (Column("size"), Column("model"), Column("reason"))


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
        (size, each.model, each.reason)
        for size, each in model_sizes().items()
        if each.model in {spec.id for _, spec in models}
    ]
    document = {
        "models": [_document(entry, spec) for entry, spec in models],
        "sizes": [dict(zip(("size", "model", "reason"), each, strict=True)) for each in sizes],
    }
    sections = [table("Models", _columns(of_all=name is None), rows, _ALL if name is None else _OTHERS)]
    sections += [table("What a size alone stands for", _SIZE_COLUMNS, sizes)] if sizes else []
    return listing("models", document, sections, output_format)


def _is_named(entry: ModelEntry, name: str) -> bool:
    return any(map(name_pattern(name).search, (entry.id, entry.hub_id or "", *entry.aliases)))


def _document(entry: ModelEntry, spec: ModelSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": entry.name,
        "hub_id": spec.hub_id,
        "aliases": entry.aliases,
        "architecture": spec.architecture,
        "params": spec.param_count,
        "active_params": spec.active_param_count,
        "published_params": spec.published_params,
        "params_origin": spec.params_origin,
        "params_source": entry.params_source,
        "source": spec.source,
    }
