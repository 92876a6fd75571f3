"""The differential matrix: the closed form as it is now is within the limits of the stored traces, and these are true now."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
from matrix.cells import Cell, all_cells
from matrix.models import MODELS
from matrix.table import Apart, compared, exceptions, folder, read_tables

from planner.catalog.models import load_model, model_ids
from tests.extras import import_or_skip

# Of the trace, by method and kind of checkpointing: peak and terms, and what is reserved.
MEDIAN_PERCENT, NINE_OF_TEN_PERCENT, WORST_PERCENT = 0.2, 1.6, 5.0
# By model, in its real widths: the larger of both.
MODEL_MEDIAN_PERCENT, MODEL_NINE_OF_TEN_PERCENT = 0.9, 2.1
RESERVED_MEDIAN_PERCENT, RESERVED_WORST_PERCENT = 5.0, 30.0
TABLES = read_tables(folder())
CELLS = {cell.key: cell for cell in all_cells()}


def test_the_closed_form_is_within_the_limits_of_every_trace_or_has_a_mechanism() -> None:
    """Each cell is predicted now: peak by peak and term by term, in the middle and at the end; each exception is known.

    One test, because the closed form of all cells takes some seconds.
    """
    apart = compared(TABLES.rows)
    groups: dict[tuple[str, str], list[Apart]] = {}
    for each in apart.values():
        groups.setdefault((each.row["method"], each.row["checkpointing"]), []).append(each)
    for name, some in groups.items():
        for sizes in (sorted(abs(each.allocated) for each in some), sorted(abs(each.terms) for each in some)):
            assert statistics.median(sizes) <= MEDIAN_PERCENT, name
            assert sizes[9 * len(sizes) // 10] <= NINE_OF_TEN_PERCENT, name
        reserved = [abs(each.reserved) for each in some]
        assert statistics.median(reserved) <= RESERVED_MEDIAN_PERCENT, name
        assert max(reserved) <= RESERVED_WORST_PERCENT, name
    models: dict[str, list[float]] = {}
    for each in apart.values():
        if each.row["widths"] == "real":
            models.setdefault(each.row["model"], []).append(max(abs(each.allocated), abs(each.terms)))
    for model, percents in models.items():
        assert statistics.median(percents) <= MODEL_MEDIAN_PERCENT, model
        assert sorted(percents)[9 * len(percents) // 10] <= MODEL_NINE_OF_TEN_PERCENT, model
    listed = exceptions()
    far = {key for key, each in apart.items() if max(abs(each.allocated), abs(each.terms)) > WORST_PERCENT}
    assert [" ".join(key) for key in far if not any(each.covers(TABLES.rows[key]) for each in listed)] == []
    assert [each.mechanism for each in listed if not any(each.covers(TABLES.rows[key]) for key in far)] == []
    assert [each.mechanism for each in listed if "unknown" in each.mechanism.lower()] == []


def test_nothing_is_left_out_without_a_reason() -> None:
    """A cell that was tried is compared or stands in the other table, and no reason is a crash."""
    assert not set(TABLES.rows) & set(TABLES.missing)
    assert [reason for reason in TABLES.missing.values() if reason.startswith("FAILED")] == []


def test_every_architecture_of_the_catalog_is_in_the_matrix() -> None:
    """Each model_type of the catalog that ships with Transformers has a model in the matrix; the others' code is remote."""
    transformers = import_or_skip("transformers")
    in_matrix = {load_model(name).spec.architecture for name in MODELS}
    catalog = {spec.architecture for spec in (load_model(name).spec for name in model_ids()) if not spec.remote_code}
    assert {name for name in catalog if name in transformers.CONFIG_MAPPING} <= in_matrix
    assert len(in_matrix) >= 25


def quick_cells() -> Iterator[Cell]:
    """Small cells that are traced anew in every test run: twenty architectures, methods and settings in turn."""
    rows = [CELLS[key] for key in TABLES.rows if CELLS[key].widths == "small" and CELLS[key].priority == 0]
    for number, model in enumerate(MODELS[::2]):
        of_model = [cell for cell in rows if cell.model == model]
        if of_model:
            yield of_model[5 * number % len(of_model)]


@pytest.mark.parametrize("cell", list(quick_cells()), ids=lambda cell: "-".join(cell.key))
def test_the_stored_trace_is_what_the_modules_do(cell: Cell) -> None:
    """The trace of a cell, run now, agrees with the stored one: exactly in the versions of the table, closely in others."""
    import_or_skip("peft")
    from matrix.compare import traced

    stored = TABLES.rows[cell.key]
    assert traced(cell).allocated_bytes == pytest.approx(int(stored["trace_bytes"]), rel=0.01)
