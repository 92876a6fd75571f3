"""One record against its prediction, on numbers worked out by hand: memory, time, host RAM and verdict."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, signature

import pytest

from planner.calibration.score.metrics import summarise_bounds
from planner.calibration.score.plausible import NOT_KEPT, above_card, scenario_of
from planner.calibration.score.rows import (
    Comparison,
    compare_host,
    compare_host_bound,
    compare_memory,
    compare_throughput,
    judge_verdict,
    score_record,
)
from planner.domain.uncertainty.coefficients import Coefficients
from planner.units import GIB, MIB
from tests.planner.calibration.score.made import HOST, MEMORY, PREDICTION, RECORD, TIME


def memory_of(**columns: object) -> Comparison:
    """The memory comparison of a record of 20 GiB with these columns."""
    record = replace(RECORD, peak_memory_mib=20 * 1024.0, **columns)
    found = compare_memory(record, MEMORY, world_size=4, driver_keeps_bytes=GIB)
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


def test_a_reading_of_the_board_counts_what_the_driver_keeps() -> None:
    """nvidia-smi shows less by as much, on each card; the same holds for what is fitted.

    Nobody may forget to say how much that is.
    """
    record = replace(RECORD, peak_memory_mib=20 * 1024.0, memory_kind="board", memory_scope="all_gpus")
    found = compare_memory(record, MEMORY, world_size=4, driver_keeps_bytes=GIB)
    assert found is not None
    assert (found.quantity, found.measured, found.predicted) == ("driver_bytes", 16 * GIB, 4 * 24 * GIB)
    assert found.note == "less what the driver keeps, of 4 GPUs"
    assert signature(compare_memory).parameters["driver_keeps_bytes"].default is Parameter.empty


def test_a_reading_of_the_board_needs_to_know_what_the_driver_keeps() -> None:
    """A card whose total is not known is left out with a sentence; an A100 keeps 922 MiB."""
    record = replace(RECORD, gpu="a100-80-sxm", peak_memory_mib=20 * 1024.0, memory_kind="board")
    scenario, _ = scenario_of(record)
    gpu = scenario.hardware.gpu
    assert gpu.driver_keeps_bytes == 922 * MIB
    assert above_card(record, scenario) == ""
    unknown = replace(scenario.hardware, gpu=replace(gpu, driver_keeps_bytes=None))
    assert NOT_KEPT in above_card(record, replace(scenario, hardware=unknown))


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


def test_a_row_that_ran_out_has_no_memory_error() -> None:
    """What a failed run held when it failed is no peak of the job."""
    score = score_record(
        replace(RECORD, outcome="oom", peak_memory_mib=24000.0, step_time_s=1.0), Coefficients()
    )
    assert (score.memory, score.throughput, score.oom) == (None, None, "false_fit")
