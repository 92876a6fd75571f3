"""The table of the differential matrix: what it says is true now, and within the limits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
from matrix.cells import Cell, all_cells
from matrix.models import MODELS
from matrix.table import Row, exceptions, folder, read_tables, refreshed

from planner.catalog.models import load_model, model_ids
from tests.extras import import_or_skip

MEDIAN_PERCENT, WORST_PERCENT = 2.0, 5.0
PERCENTAGES = ("difference_percent", "worst_terms_percent")
TABLES = read_tables(folder())
CELLS = {cell.key: cell for cell in all_cells()}


def size(row: Row, column: str) -> float:
    """A percentage of a row without its sign."""
    return abs(float(row[column]))


def test_every_stored_row_is_what_the_closed_form_says_now() -> None:
    """The closed form's half of each row is recomputed: whoever changes a formula sees what it does to the whole matrix."""
    stale = [" ".join(key) for key, row in TABLES.rows.items() if refreshed(CELLS[key], row) != row]
    assert stale == [], "python tests/differential/run_matrix.py --closed-form-only writes the table anew"


def test_the_median_is_within_the_limit() -> None:
    """Half of all cells are closer than two percent, peak by peak and term by term."""
    for column in PERCENTAGES:
        assert statistics.median(size(row, column) for row in TABLES.rows.values()) <= MEDIAN_PERCENT


def test_every_row_is_within_the_limit_or_has_a_mechanism() -> None:
    """No cell is more than five percent off, but for those whose mechanism is known; no entry is in vain, or does not know."""
    listed = exceptions()
    assert [each.mechanism for each in listed if "unknown" in each.mechanism.lower()] == []
    far = {key for key, row in TABLES.rows.items() if max(size(row, column) for column in PERCENTAGES) > WORST_PERCENT}
    unexplained = [" ".join(key) for key in far if not any(each.covers(TABLES.rows[key]) for each in listed)]
    assert unexplained == []
    idle = [each.mechanism for each in listed if not any(each.covers(TABLES.rows[key]) for key in far)]
    assert idle == []


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


@pytest.mark.parametrize("cell", quick_cells(), ids=lambda cell: "-".join(cell.key))
def test_the_stored_trace_is_what_the_modules_do(cell: Cell) -> None:
    """The trace of a cell, run now, agrees with the stored one: exactly in the versions of the table, closely in others."""
    import_or_skip("peft")
    from matrix.compare import traced

    stored = TABLES.rows[cell.key]
    assert traced(cell).allocated_bytes == pytest.approx(int(stored["trace_bytes"]), rel=0.01)
