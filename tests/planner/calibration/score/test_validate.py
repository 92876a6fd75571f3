"""Comparing records with predictions: each rule of `plan validate` on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from planner.calibration.score.metrics import average, count_verdicts, summarise
from planner.calibration.score.rows import (
    Comparison,
    score_record,
)
from planner.calibration.score.validate import validate
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError
from planner.records import RecordSet
from planner.report.validation.row_words import amount, quantity_label, signed_percent
from planner.units import GIB, MIB
from tests.planner.calibration.score.made import RECORD


def record_set(*records: RunRecord) -> RecordSet:
    """Records as if read from the lines 2, 3, ... of ``rows.csv``."""
    places = {record.id: f"rows.csv:{line}" for line, record in enumerate(records, 2)}
    return RecordSet(records, ("rows.csv",), MappingProxyType(places))


def test_verdicts_are_counted() -> None:
    """Counts by kind, and how many ran and ran out."""
    found = count_verdicts(
        [
            (False, "right"),
            (False, "false_oom"),
            (True, "false_fit"),
            (True, "uncertain_oom"),
            (True, "right"),
        ]
    )
    assert (found.n_ok, found.n_oom, found.false_oom, found.false_fit, found.uncertain_oom) == (2, 3, 1, 1, 1)
    assert (found.uncertain_ok, found.no_verdict) == (0, 0)


def test_errors_are_summed_up() -> None:
    """Errors of +10 %, -20 % and +40 %: mean absolute 23.3 %, median +10 %, worst 40 %."""
    rows = [
        ("a", Comparison("x_s", 10, 11)),
        ("b", Comparison("x_s", 10, 8)),
        ("c", Comparison("y_per_s", 10, 14)),
    ]
    found = summarise(rows)
    assert found is not None
    assert (found.n, found.worst_row, found.quantities) == (3, "c", (("x_s", 2), ("y_per_s", 1)))
    assert (found.mape, found.median_signed, found.max_abs) == pytest.approx((0.7 / 3, 0.1, 0.4))
    assert summarise([]) is None


def test_the_average_over_groups_is_unweighted() -> None:
    """A group of one row at 40 % and one of three at 10 % average to 25 %, not to 17.5 %."""
    small = summarise([("a", Comparison("x_s", 10, 14))])
    large = summarise([(name, Comparison("x_s", 10, 9)) for name in "bcd"])
    assert small is not None
    assert large is not None
    found = average([small, large])
    assert found is not None
    assert (found.n, found.groups, found.worst_row, found.quantities) == (4, 2, "a", (("x_s", 4),))
    assert (found.mape, found.median_signed, found.max_abs) == pytest.approx((0.25, 0.15, 0.4))
    assert average([]) is None


def measured(name: str, group: str, factor: float, source: str | None = None) -> RunRecord:
    """A record whose memory reading is the prediction divided by ``factor``,
    so that its error is ``factor - 1``.
    """
    score = score_record(RECORD, Coefficients())
    assert score.prediction is not None
    mib = float(score.prediction.memory.driver_peak_bytes) / MIB / factor
    return replace(
        RECORD,
        id=name,
        source=source or group,
        source_group=group,
        peak_memory_mib=mib,
        memory_kind="driver",
        memory_scope="per_gpu",
    )


def test_overall_is_the_mean_over_groups_with_enough_rows() -> None:
    """Groups of three rows at +10 % and four at -30 % give 20 %;
    a third group of two rows at +90 % is left out of the mean.
    """
    rows = [measured(f"a{i}", "a", 1.1) for i in range(3)] + [measured(f"b{i}", "b", 0.7) for i in range(4)]
    validation = validate(record_set(*rows, *(measured(f"c{i}", "c", 1.9) for i in range(2))))
    overall = validation.overall
    assert [score.source for score in validation.sources] == ["a", "b", "c"]
    assert overall.memory is not None
    assert (overall.memory.groups, overall.memory.n, overall.n_rows) == (2, 7, 9)
    assert overall.memory.mape == pytest.approx(0.2, abs=1e-3)
    assert overall.memory.median_signed == pytest.approx(-0.1, abs=1e-3)
    assert overall.throughput is None


def test_two_documents_of_one_group_count_once() -> None:
    """Documents that share an author are two sources in the table and one group in the mean."""
    rows = [
        measured(f"{doc}{i}", "one", factor, source=doc)
        for doc, factor in (("a", 1.1), ("b", 1.3))
        for i in range(2)
    ]
    validation = validate(record_set(*rows))
    assert len(validation.sources) == 2
    assert validation.overall.memory is not None
    assert (validation.overall.memory.groups, validation.overall.memory.n) == (1, 4)
    assert validation.overall.memory.mape == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"pipeline_parallel": 2}, "pipeline parallel"),
        ({"optimizer": "grokadamw"}, "grokadamw"),
        ({"gradient_checkpointing": "selective"}, "selective"),
        ({"sharding": "none", "offload": "params"}, "loader of the program's own"),
        ({"seq_len": None}, "does not say seq_len"),
    ],
)
def test_what_is_not_modelled_is_counted_with_its_reason(columns: dict[str, object], reason: str) -> None:
    """A row without a formula is kept, with the reason, and is in no error."""
    validation = validate(
        record_set(replace(RECORD, peak_memory_mib=100.0, **columns), measured("r2", "g", 1.0, source="s"))
    )
    (row,) = validation.overall.not_modelled_rows
    assert row.record.id == "r1"
    assert reason in row.not_modelled
    assert validation.sources[0].memory is not None
    assert validation.overall.oom.n_ok == 1


def test_an_unknown_name_is_listed_with_file_and_line_and_the_rest_is_scored() -> None:
    """One model that no catalog knows does not stop the others; where nothing is left, it does."""
    unknown = replace(RECORD, id="r2", model="lama-2-7b")
    validation = validate(record_set(RECORD, unknown))
    assert [row.record.id for row in validation.rows] == ["r1"]
    (place,) = validation.unread
    assert place.startswith("rows.csv:3: unknown model 'lama-2-7b'; nearest: ")
    with pytest.raises(InputFileError, match=r"^rows\.csv: no row can be used: line 2: unknown model"):
        validate(record_set(unknown))


def test_numbers_carry_the_unit_of_their_quantity() -> None:
    """Bytes are printed in GiB, rates as rates, times as times."""
    assert amount("driver_bytes", 3 * GIB) == "3.00"
    assert amount("samples_per_s", 0.4123) == "0.412"
    assert amount("step_time_s", 2.5) == "2.50 s"
    assert [quantity_label(name) for name in ("driver_bytes", "samples_per_s", "step_time_s")] == [
        "driver",
        "samples/s",
        "step time",
    ]
    assert signed_percent(-0.0834) == "-8.3 %"


def test_host_memory_of_random_weights_is_not_compared() -> None:
    """`measure run` makes them on the GPU unless it is given a checkpoint; what is offloaded is compared."""
    read = replace(RECORD, id="read", host_memory_mib=4000.0, host_memory_kind="rss_peak")
    made, moved = replace(read, id="made"), replace(read, id="moved", sharding="zero2", offload="optimizer")
    records = record_set(read, made, moved)
    options = {"read": "a folder", "made": None, "moved": None}
    raw = {
        **dict.fromkeys(("case_key", "environment_key", "started_at", "how"), "x"), "duration_s": 1.0,
        "said": {}, "workload": "loop", "host": {"n_samples": 1, "interval_s": 0.05},
    }  # fmt: skip
    attachments = {id_: {"raw": raw | {"options": {"checkpoint": value}}} for id_, value in options.items()}
    rows = validate(replace(records, attachments=attachments), Coefficients()).rows
    assert [row.host_memory is None for row in rows] == [False, True, False]
    assert [row.has_random_weights for row in rows] == [False, True, False]
