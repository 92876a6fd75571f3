"""The differential matrix: the step program as it is now is within the limits of the stored traces,
and these are true now.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator

import pytest
from matrix.cells import Cell, all_cells
from matrix.models import MODELS
from matrix.table import Key, compared, folder, read_tables
from tiny_families import COMPARED_ELSEWHERE

from planner.catalog.models import load_model, model_ids
from tests.extras import import_or_skip

ONE_OF = 12
# (mean, worst) in percent of the trace, by widths, with little room above what the sample shows.
LIMITS = {
    "allocated": {"real": (0.02, 0.1), "small": (0.25, 3.5)},
    "reserved": {"real": (0.03, 0.5), "small": (0.2, 1.0)},
    # Of the trace's peak: the phase, and the group of terms, that differ most.  Where two moments are equally
    # full, either may be the one that terms are counted at.
    "phase": {"real": (0.02, 0.2), "small": (0.35, 4.5)},
    "terms": {"real": (0.2, 1.5), "small": (0.5, 3.5)},
}
# What decided where large blocks lie, and with them a tenth of what was reserved: the alias of a slice of all
# features (Phi), and rows of the table that stay beside the stream that is made of them (Trinity).
BY_ORDER = [
    ("small", "phi-3-mini-4k", "full", "true", "eager", "1", "2048"),
    ("small", "phi-4", "full", "true", "eager", "1", "2048"),
    ("small", "trinity-nano", "qlora", "false", "sdpa", "4", "512"),
]
TABLES = read_tables(folder())
CELLS = {cell.key: cell for cell in all_cells()}


def is_sampled(key: Key) -> bool:
    """Whether a cell is in the fixed sample, which depends on its key alone."""
    return int.from_bytes(hashlib.sha256(" ".join(key).encode()).digest()[:4], "big") % ONE_OF == 0


def test_the_program_is_within_the_limits_of_the_traces() -> None:
    """A fixed sample of all cells is predicted now; ``make differential`` compares all of them."""
    apart = compared({key: row for key, row in TABLES.rows.items() if is_sampled(key)})
    for name, limits in LIMITS.items():
        for widths, (mean, worst) in limits.items():
            sizes = [(abs(getattr(each, name)), key) for key, each in apart.items() if key[0] == widths]
            assert len(sizes) > 60
            assert statistics.fmean(size for size, _ in sizes) <= mean, (name, widths)
            assert max(sizes) <= (worst,), (name, max(sizes))


def test_blocks_lie_where_those_of_the_modules_do() -> None:
    """Reserved peaks that one gradient or one variable that lives longer moves by a tenth."""
    apart = compared({key: TABLES.rows[key] for key in BY_ORDER})
    assert max(abs(each.reserved) for each in apart.values()) < 0.5


def test_nothing_is_left_out_without_a_reason() -> None:
    """A cell that was tried is compared or stands in the other table, and no reason is a crash."""
    assert not set(TABLES.rows) & set(TABLES.missing)
    assert [reason for reason in TABLES.missing.values() if reason.startswith("FAILED")] == []


def test_every_architecture_of_the_catalog_is_in_the_matrix() -> None:
    """Each model_type of the catalog that ships with Transformers has a model in the matrix;
    the others' code is remote.

    Models that see are compared with the dry run (``test_vision_dry_run.py``), layers without attention
    request by request (``test_streams.py``).  So is DBRX, whose experts are chosen by values
    (``test_selected_experts.py``), and some others at two sizes (``test_later_decoders.py``).
    """
    transformers = import_or_skip("transformers")
    in_matrix = {load_model(name).spec.architecture for name in MODELS}
    catalog = {
        spec.architecture
        for spec in (load_model(name).spec for name in model_ids())
        if not spec.remote_code and spec.vision is None and not any(block.mixer for block, _ in spec.blocks())
    }
    shipped = {name for name in catalog if name in transformers.CONFIG_MAPPING}
    assert shipped <= in_matrix | COMPARED_ELSEWHERE
    assert len(in_matrix) >= 25


def quick_cells() -> Iterator[Cell]:
    """Small cells that are traced anew in every test run: a dozen architectures,
    methods and settings in turn.
    """
    rows = [CELLS[key] for key in TABLES.rows if CELLS[key].widths == "small" and CELLS[key].priority == 0]
    for number, model in enumerate(MODELS[::3]):
        of_model = [cell for cell in rows if cell.model == model]
        if of_model:
            yield of_model[5 * number % len(of_model)]


@pytest.mark.every(12)
@pytest.mark.parametrize("cell", list(quick_cells()), ids=lambda cell: "-".join(cell.key))
def test_the_stored_trace_is_what_the_modules_do(cell: Cell) -> None:
    """The trace of a cell, run now, agrees with the stored one: exactly in the versions of the table,
    closely in others.
    """
    import_or_skip("peft")
    from matrix.compare import traced

    stored = TABLES.rows[cell.key]
    assert traced(cell).allocated_bytes == pytest.approx(int(stored["trace_bytes"]), rel=0.01)
