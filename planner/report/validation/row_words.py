"""What validation puts into words: the recipe of a row in short, quantities and errors with their units."""

from __future__ import annotations

from planner.calibration.score.rows import Comparison, RowScore
from planner.domain.recipes.job_line import job_cell
from planner.domain.run_record import RunRecord
from planner.report.render.numbers import duration, gib, rate


def recipe_label(row: RowScore) -> str:
    """The recipe of a row in short:
    ``qlora nf4 r=64 zero3 offload:opt+par 2x rtx4090 4x1024`` (micro-batch x length).
    """
    return job_cell(row.scenario) if row.scenario else _record_label(row.record)


def _record_label(record: RunRecord) -> str:
    """What the record itself says, for a row without a scenario."""
    words = (record.method, record.quantization, record.gpu, record.sharding, record.offload)
    return " ".join(part for part in words if part is not None and part != "none")


def amount(quantity: str, value: float) -> str:
    """A number in the unit that its quantity's name ends in; memory as GiB without unit."""
    if quantity.endswith("_bytes"):
        return gib(value)
    return rate(value) if quantity.endswith("_per_s") else duration(value)


def quantity_label(quantity: str) -> str:
    """Name of a quantity as people say it: ``driver``, ``step time``, ``samples/s``."""
    return quantity.removesuffix("_bytes").replace("_per_s", "/s").removesuffix("_s").replace("_", " ")


def signed_percent(fraction: float) -> str:
    """A fraction as per cent with sign and one decimal: ``+12.3 %``."""
    return f"{100 * fraction:+.1f} %"


def compared_label(row: RowScore, comparison: Comparison) -> str:
    """What was compared, with what the reading suffers from: ``driver full``,
    ``driver x4`` (a total), ``driver assumed``.
    """
    note = comparison.note.replace("of ", "x").replace(" GPUs", "")
    full = "full" if row.record.censored and row.memory is comparison else ""
    return " ".join(part for part in (quantity_label(comparison.quantity), note, full) if part)
