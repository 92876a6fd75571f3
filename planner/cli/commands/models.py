"""``plan models``: the models of the catalog."""

from __future__ import annotations

from typing import Any

from planner.catalog.index import fold_name
from planner.catalog.models import ModelEntry, model_entry, model_ids, model_sizes, spec_of
from planner.cli.listing import listing, table
from planner.cli.outcome import Outcome
from planner.domain.model import ModelSpec
from planner.report.render.layout import Column
from planner.units import format_count

_COLUMNS = (Column("id"), Column("Hub id"), Column("parameters", "right"), Column("count"))
_NOTE = (
    "count: how closely the count from shapes agrees with the published one.  published-exact: equal; "
    "published-bytes: equal after named buffers; meta-device: equal to Transformers' own module; "
    "published-rounded: within rounding."
)


_SIZE_COLUMNS = (Column("size"), Column("model"), Column("reason"))


def list_models(name: str | None, output_format: str) -> Outcome:
    """All models, or those whose names hold ``name``: parameter counts, how these were checked,
    and what a bare size stands for.

    Raises:
        UnknownNameError: no model's name holds ``name``; says the nearest.
    """
    entries = [model_entry(each) for each in model_ids()]
    if name is not None:
        entries = [each for each in entries if _is_named(each, name)] or [model_entry(name)]
    models = [(entry, spec_of(entry)) for entry in entries]
    rows = [(spec.id, spec.hub_id, format_count(spec.param_count), spec.params_origin) for _, spec in models]
    sizes = [
        (size, each.model, each.reason)
        for size, each in model_sizes().items()
        if each.model in {spec.id for _, spec in models}
    ]
    document = {
        "models": [_document(entry, spec) for entry, spec in models],
        "sizes": [dict(zip(("size", "model", "reason"), each, strict=True)) for each in sizes],
    }
    sections = (
        table("Models", _COLUMNS, rows, _NOTE),
        table("What a size alone stands for", _SIZE_COLUMNS, sizes),
    )
    return listing("models", document, sections, output_format)


def _is_named(entry: ModelEntry, name: str) -> bool:
    return any(
        fold_name(name) in fold_name(spelling) for spelling in (entry.id, entry.hub_id or "", *entry.aliases)
    )


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
