"""Comparing records with predictions: each rule of `plan validate` on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from planner.calibration.score.metrics import average, count_verdicts, summarise, summarise_bounds
from planner.calibration.score.rows import (
    Comparison,
    compare_host,
    compare_host_bound,
    compare_memory,
    compare_throughput,
    judge_verdict,
    score_record,
)
from planner.calibration.score.validate import validate
from planner.domain.prediction import HostPrediction, MemoryPrediction, PhasePeak, Prediction, TimePrediction
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError
from planner.records import RecordSet
from planner.report.validation.row_words import amount, quantity_label, signed_percent
from planner.units import GIB, MIB

RECORD = RunRecord(
    id="r1",
    source="s",
    source_group="g",
    model="llama-2-7b",
    gpu="rtx4090",
    method="qlora",
    seq_len=512,
    outcome="ok",
)
PHASES = (
    PhasePeak("load", 10 * GIB, 11 * GIB, 12 * GIB),
    PhasePeak("adapters", 8 * GIB, 9 * GIB, 10 * GIB),
    PhasePeak("forward", 14 * GIB, 16 * GIB, 17 * GIB),
    PhasePeak("backward", 20 * GIB, 23 * GIB, 25 * GIB),
)
MEMORY = MemoryPrediction(
    terms=(),
    phases=PHASES,
    limiting_phase="backward",
    allocated_peak_bytes=20 * GIB,
    reserved_peak_bytes=22 * GIB,
    driver_peak_bytes=24 * GIB,
    uncapped_driver_bytes=25 * GIB,
    must_have_bytes=22 * GIB,
    state_bytes=6 * GIB,
    limit_bytes=24 * GIB,
)
TIME = TimePrediction(
    terms=(),
    step_s=2.0,
    samples_per_s=4.0,
    tokens_per_s=2048.0,
    padded_tokens_per_s=4096.0,
    model_flop_per_step=1.0,
    mfu=None,
    run_time_s=250.0,
    cost_usd=None,
)
HOST = HostPrediction((), 10 * GIB, 40 * GIB, 9 * GIB, 24 * GIB, 8 * GIB, 32 * GIB, 40 * GIB, None)
PREDICTION = Prediction(MEMORY, HOST, TIME, "fits", "", None, "uncalibrated")


def record_set(*records: RunRecord) -> RecordSet:
    """Records as if read from the lines 2, 3, ... of ``rows.csv``."""
    places = {record.id: f"rows.csv:{line}" for line, record in enumerate(records, 2)}
    return RecordSet(records, ("rows.csv",), MappingProxyType(places))


def memory_of(**columns: object) -> Comparison:
    """The memory comparison of a record of 20 GiB with these columns."""
    found = compare_memory(replace(RECORD, peak_memory_mib=20 * 1024.0, **columns), MEMORY, world_size=4)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "predicted"), [("allocated", 20 * GIB), ("reserved", 22 * GIB), ("driver", 24 * GIB)]
)
def test_memory_is_compared_at_the_level_of_the_record(kind: str, predicted: int) -> None:
    """Allocated with allocated, reserved with reserved, driver with driver; nothing is assumed."""
    found = memory_of(memory_kind=kind)
    assert (found.quantity, found.measured, found.predicted, found.note) == (
        f"{kind}_bytes",
        20 * GIB,
        predicted,
        "",
    )


def test_a_meter_without_a_name_is_taken_as_the_driver_and_said() -> None:
    """A blank `memory_kind` means nvidia-smi, and the comparison says that this is assumed."""
    found = memory_of()
    assert (found.quantity, found.predicted, found.note) == ("driver_bytes", 24 * GIB, "assumed")


def test_a_total_over_all_gpus_is_one_gpu_times_the_processes() -> None:
    """`all_gpus` on four processes is four times the prediction of one."""
    found = memory_of(memory_kind="driver", memory_scope="all_gpus")
    assert (found.predicted, found.note) == (4 * 24 * GIB, "of 4 GPUs")
    assert memory_of(memory_kind="driver", memory_scope="per_gpu").predicted == 24 * GIB


@pytest.mark.parametrize(
    ("phase", "predicted"), [("load", 10 * GIB), ("adapters", 8 * GIB), ("forward", 14 * GIB)]
)
def test_a_run_that_ended_early_is_compared_with_the_phases_it_saw(phase: str, predicted: int) -> None:
    """Loading and adding adapters are phases on their own;
    a run up to the forward pass had at most the peak until there.
    """
    assert memory_of(memory_kind="allocated", phase_reached=phase).predicted == predicted


def test_a_phase_cannot_show_more_than_the_card() -> None:
    """The peak of a phase on an unlimited card (25 GiB) is capped as the overall peak is (24 GiB)."""
    assert memory_of(memory_kind="driver", phase_reached="save").predicted == 24 * GIB


@pytest.mark.parametrize(
    ("columns", "quantity", "error"),
    [
        ({"step_time_s": 4.0, "samples_per_s": 1.0, "run_time_s": 1.0}, "step_time_s", -0.5),
        ({"samples_per_s": 2.0, "tokens_per_s": 1.0}, "samples_per_s", 1.0),
        ({"tokens_per_s": 1024.0, "run_time_s": 1.0}, "tokens_per_s", 1.0),
        ({"run_time_s": 200.0}, "run_time_s", 0.25),
    ],
)
def test_throughput_is_scored_on_the_first_number_present(
    columns: dict[str, float], quantity: str, error: float
) -> None:
    """Step time, samples/s, tokens/s, run time, in that order; the error is that of the printed quantity."""
    found, reason = compare_throughput(replace(RECORD, **columns), TIME)
    assert found is not None
    assert (found.quantity, found.error, reason) == (quantity, pytest.approx(error), "")


def test_a_time_that_cannot_be_predicted_is_said() -> None:
    """A card without rates, or a run time without a number of samples,
    gives a reason instead of a comparison.
    """
    run = replace(RECORD, run_time_s=100.0)
    assert compare_throughput(run, None) == (None, "run_time_s: the rates of this card are unknown")
    assert compare_throughput(run, replace(TIME, run_time_s=None)) == (
        None,
        "run_time_s: the number of samples is not said",
    )
    assert compare_throughput(RECORD, None) == (None, "")


@pytest.mark.parametrize(
    ("columns", "quantity", "predicted", "note"),
    [
        ({"host_memory_kind": "rss_peak", "host_memory_scope": "process"}, "process_bytes", 10 * GIB, ""),
        ({"host_memory_kind": "rss_mark", "host_memory_scope": "node"}, "node_bytes", 40 * GIB, ""),
        ({"host_memory_kind": "cgroup"}, "node_bytes", 40 * GIB, "assumed"),
        ({"host_memory_kind": "rss_peak"}, "process_bytes", 10 * GIB, "assumed"),
        (
            {"host_memory_kind": "rss_mark", "phase_reached": "optimizer_step"},
            "process_bytes",
            8 * GIB,
            "assumed",
        ),
        (
            {"host_memory_kind": "rss_peak", "phase_reached": "backward_2"},
            "process_bytes",
            9 * GIB,
            "assumed",
        ),
        ({"host_memory_kind": "rss_peak", "phase_reached": "save"}, "process_bytes", 10 * GIB, "assumed"),
        ({"host_memory_kind": "cgroup", "phase_reached": "backward_2"}, "node_bytes", 32 * GIB, "assumed"),
    ],
)
def test_host_memory_is_compared_at_its_scope(
    columns: dict[str, str], quantity: str, predicted: int, note: str
) -> None:
    """A process with a process, a node with the node; marks of steps with steps,
    and what never saved without a save.

    A blank scope follows the meter and is said.
    """
    found = compare_host(replace(RECORD, host_memory_mib=1024.0, **columns), HOST)
    assert found == Comparison(quantity, GIB, predicted, note)


def test_installed_memory_is_a_bound_and_no_measurement() -> None:
    """Installed memory is in no error; it is compared with the node as an upper bound."""
    record = replace(
        RECORD, host_memory_mib=32 * 1024.0, host_memory_kind="installed_min", host_memory_scope="node"
    )
    assert compare_host(record, HOST) is None
    bound = compare_host_bound(record, HOST)
    assert bound == Comparison("installed_bytes", 32 * GIB, 40 * GIB)
    roomy = replace(bound, measured=80 * GIB)
    summary = summarise_bounds([("a", bound), ("b", roomy)])
    assert summary is not None
    assert (summary.n, summary.ok, summary.max_excess, summary.worst_row) == (2, 1, pytest.approx(0.25), "a")
    kept = summarise_bounds([("b", roomy)])
    assert kept is not None
    assert kept.max_excess == 0


@pytest.mark.parametrize(
    ("outcome", "verdict", "result"),
    [
        ("ok", "fits", "right"),
        ("oom", "does_not_fit", "right"),
        ("oom", "fits", "false_fit"),
        ("ok", "does_not_fit", "false_oom"),
        ("ok", "uncertain", "uncertain_ok"),
        ("oom", "uncertain", "uncertain_oom"),
        ("ok", "no_verdict", "no_verdict"),
        ("oom", "host_memory_short", "false_fit"),
        ("host_oom", "fits", None),
        ("crash", "does_not_fit", None),
    ],
)
def test_each_verdict_is_judged_by_the_outcome(outcome: str, verdict: str, result: str | None) -> None:
    """A false fit and a false out-of-memory are told apart;
    a run that ended otherwise says nothing about GPU memory.
    """
    assert judge_verdict(replace(RECORD, outcome=outcome), replace(PREDICTION, verdict=verdict)) == result


def test_a_run_that_only_loaded_does_not_judge_the_verdict() -> None:
    """That the model could be loaded does not mean that the job runs;
    running out while loading means that it does not.
    """
    assert judge_verdict(replace(RECORD, phase_reached="load"), PREDICTION) is None
    assert judge_verdict(replace(RECORD, phase_reached="load", outcome="oom"), PREDICTION) == "false_fit"


def test_a_mark_of_steps_does_not_judge_the_verdict_again() -> None:
    """The run itself is another record; a run of our own, which names the last phase that it went through,
    is judged.
    """
    mark = replace(RECORD, host_memory_mib=1.0, host_memory_kind="rss_mark", phase_reached="optimizer_step")
    assert judge_verdict(mark, PREDICTION) is None
    assert judge_verdict(replace(RECORD, phase_reached="save"), PREDICTION) == "right"


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
        ({"optimizer": "galore_adamw"}, "galore_adamw"),
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


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"method": "full", "quantization": "nf4"}, "[quantized-full]"),
        ({"lora_targets": ("nosuch",)}, "[targets-match-nothing]"),
        ({"precision": "fp16", "sharding": "zero3"}, "[zero-without-masters]"),
        ({"peak_memory_mib": 90_000.0}, "more memory than the card has"),
    ],
)
def test_what_plan_refuses_is_reported_and_not_scored(columns: dict[str, object], reason: str) -> None:
    """A row that plan would refuse, or that no such card can show, does not say what ran:
    it is in no error.
    """
    score = score_record(replace(RECORD, **{"peak_memory_mib": 8000.0, **columns}), Coefficients())
    assert reason in score.not_modelled
    assert (score.prediction, score.memory, score.oom) == (None, None, None)


def test_a_longer_table_of_positions_is_no_reason_to_leave_a_run_out() -> None:
    """A program may lengthen the table, and a run that took place shows that it did."""
    score = score_record(
        replace(RECORD, model="mpt-7b", method="full", seq_len=65_536, step_time_s=1.0), Coefficients()
    )
    assert score.not_modelled == ""
    assert score.throughput is not None


def test_an_unknown_name_is_listed_with_file_and_line_and_the_rest_is_scored() -> None:
    """One model that no catalog knows does not stop the others; where nothing is left, it does."""
    unknown = replace(RECORD, id="r2", model="lama-2-7b")
    validation = validate(record_set(RECORD, unknown))
    assert [row.record.id for row in validation.rows] == ["r1"]
    (place,) = validation.unread
    assert place.startswith("rows.csv:3: unknown model 'lama-2-7b'; nearest: ")
    with pytest.raises(InputFileError, match=r"^rows\.csv: no row can be used: line 2: unknown model"):
        validate(record_set(unknown))


def test_a_row_that_ran_out_has_no_memory_error() -> None:
    """What a failed run held when it failed is no peak of the job."""
    score = score_record(
        replace(RECORD, outcome="oom", peak_memory_mib=24000.0, step_time_s=1.0), Coefficients()
    )
    assert (score.memory, score.throughput, score.oom) == (None, None, "false_fit")


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
