"""One record against its prediction: GPU memory, time, host RAM, and whether it was predicted to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.arrays import maximum, minimum
from planner.calibration.score.percentile import at_percentile
from planner.calibration.score.plausible import above_card, scenario_of
from planner.domain.prediction import (
    HostPrediction,
    MemoryLevel,
    MemoryPrediction,
    Prediction,
    TimePrediction,
)
from planner.domain.recipes.recipe import Number
from planner.domain.run_record import TIME_NOT_SCORED, HostMemoryScope, RunRecord
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES, Phase
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError
from planner.predicting import predict_with
from planner.units import MIB

# Errors are kept apart by these: a row may be right in one and wrong in another.
QUANTITIES = ("memory", "throughput", "host_memory")
OomResult = Literal["right", "false_fit", "false_oom", "uncertain_ok", "uncertain_oom", "no_verdict"]
"""What a verdict was worth: ``false_fit`` = predicted to fit, ran out of GPU memory;
``false_oom`` = predicted not to fit, but ran.
"""

# Throughput is scored on the first of these that a row has.
THROUGHPUT_COLUMNS = ("step_time_s", "samples_per_s", "tokens_per_s", "run_time_s")
# A row that got no further measured no training: its peak is compared with that of the phase itself.
SETUP_PHASES: frozenset[Phase] = frozenset({"load", "adapters"})
KIND_WHEN_BLANK: MemoryLevel = "driver"
_CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured number and what was predicted for it, in the same unit.

    ``quantity`` ends in the unit: ``driver_bytes``, ``step_time_s``, ``samples_per_s``.  ``note``:
    ``assumed`` where the record does not name its meter or scope, ``of n GPUs`` for a total.
    """

    quantity: str
    measured: float
    predicted: float
    note: str = ""

    @property
    def error(self) -> float:
        """Relative error of the quantity as it was printed: (predicted - measured) / measured, a fraction."""
        return self.predicted / self.measured - 1

    @property
    def is_rate(self) -> bool:
        """Whether more of the quantity means faster."""
        return self.quantity.endswith("_per_s")


@dataclass(frozen=True, slots=True)
class RowScore:
    """One record with its prediction and comparisons; ``None`` where the record has no such number.

    ``not_modelled`` is why there is no prediction, ``not_timed`` why a measured time or rate could not be
    compared.  ``host_bound`` compares with installed memory, which is only an upper bound on what a job used.
    ``has_random_weights``: they were made on the GPU, so host RAM, where a checkpoint would have been, is not
    compared.
    """

    record: RunRecord
    scenario: Scenario | None = None
    prediction: Prediction | None = None
    not_modelled: str = ""
    not_timed: str = ""
    memory: Comparison | None = None
    throughput: Comparison | None = None
    host_memory: Comparison | None = None
    host_bound: Comparison | None = None
    oom: OomResult | None = None
    has_random_weights: bool = False

    @property
    def why_left_out(self) -> str:
        """Why nothing, or no time, of it was compared; empty where everything was."""
        return self.not_modelled or self.not_timed


def is_cpu(record: RunRecord) -> bool:
    """Whether the run had no GPU: it tries the harness, and is in no number of a GPU."""
    return record.gpu == _CPU


def score_record(record: RunRecord, model: Coefficients | Calibration, *, quick: bool = False) -> RowScore:
    """Predict the configuration of ``record`` with plain coefficients or a calibration, and compare.

    What ``plan`` refuses, and a reading above the card, is not compared: the record does not say what ran.
    ``quick``: memory is not replayed, where it is not what one asks for.

    Raises:
        UsageError: a name that no catalog knows, or a value outside its range.
    """
    try:
        scenario, wrong = scenario_of(record)
        if wrong := wrong or above_card(record, scenario):
            return RowScore(record, not_modelled=wrong)
        prediction = predict_with(scenario, model, quick=quick)
    except NotModelledError as error:
        return RowScore(record, not_modelled=str(error))
    world = scenario.hardware.world_size
    measured = record.outcome == "ok"
    throughput, not_timed = compare_throughput(record, prediction.time) if measured else (None, "")
    return RowScore(
        record=record,
        scenario=scenario,
        prediction=prediction,
        not_timed=not_timed,
        memory=compare_memory(
            record,
            _memory_of_reading(record, scenario, prediction, model),
            world,
            scenario.hardware.gpu.driver_keeps_bytes,
        )
        if measured
        else None,
        throughput=throughput,
        host_memory=compare_host(record, prediction.host) if measured else None,
        host_bound=compare_host_bound(record, prediction.host) if measured else None,
        oom=judge_verdict(record, prediction),
    )


def _memory_of_reading(
    record: RunRecord, scenario: Scenario, prediction: Prediction, model: Coefficients | Calibration
) -> MemoryPrediction:
    """The prediction that the record's peak is compared with:
    of a shorter batch where it is a percentile over the steps.
    """
    step = at_percentile(record, scenario)
    return prediction.memory if step is scenario else predict_with(step, model).memory


def compare_memory(
    record: RunRecord, memory: MemoryPrediction, world_size: int, driver_keeps_bytes: int | None
) -> Comparison | None:
    """Peak GPU memory at the level and scope of the record, in bytes.

    ``per_gpu`` is the fullest GPU; ``all_gpus`` is one GPU times the number of processes, as all ranks are
    alike.  A meter that the record does not name is taken as the driver's (nvidia-smi), which is what people
    look at.
    """
    if record.peak_memory_mib is None:
        return None
    kind = level_read(record)
    notes = [] if record.memory_kind else ["assumed"]
    if record.memory_kind == "board":
        notes.append("less what the driver keeps")
    count = 1
    if record.memory_scope == "all_gpus":
        count = world_size
        notes.append(f"of {world_size} GPUs")
    predicted = float(count * level_bytes(memory, kind, record))
    measured = round(read_bytes(record, count, driver_keeps_bytes))
    return Comparison(f"{kind}_bytes", measured, round(predicted), ", ".join(notes))


def level_read(record: RunRecord) -> MemoryLevel:
    """The level of a prediction that the record's peak is compared with."""
    kind = record.memory_kind or KIND_WHEN_BLANK
    return "driver" if kind == "board" else kind


def read_bytes(record: RunRecord, count: int, driver_keeps_bytes: int | None) -> float:
    """The record's peak on ``count`` cards at :func:`level_read`: a reading of the board less what the driver
    keeps.
    """
    kept = (driver_keeps_bytes or 0) * count if record.memory_kind == "board" else 0
    return (record.peak_memory_mib or 0.0) * MIB - kept


def level_bytes(memory: MemoryPrediction, kind: MemoryLevel, record: RunRecord) -> Number:
    """Peak of one GPU at one level, over the phases that the run went through.

    A run that only set up is compared with that phase itself;
    one that ended before a whole step with the phases up to there; a reading over the steps with these.
    """
    peak: Number = getattr(memory, f"{kind}_peak_bytes")
    reached = record.phase_reached
    seen: frozenset[Phase | None] = frozenset({reached})
    if record.peak_memory_percentile is not None:
        seen = frozenset(PHASES) - SETUP_PHASES
    elif reached is None:
        return peak
    elif reached not in SETUP_PHASES:
        seen = frozenset(PHASES[: PHASES.index(reached) + 1])
    levels = [getattr(phase, f"{kind}_bytes") for phase in memory.phases if phase.phase in seen]
    # Peaks of phases are those of an unlimited card, the overall peak is what this card can show.
    return minimum(maximum(levels[0], *levels[1:]), peak)


def compare_throughput(record: RunRecord, time: TimePrediction | None) -> tuple[Comparison | None, str]:
    """The first of step time, samples/s, tokens/s and run time that the record has,
    and why it could not be compared.

    The error is that of the printed quantity, so a prediction twice too fast is -50 % of a time and +100 % of
    a rate.  Where a record says that samples have natural lengths and not how long they are, no time can be
    compared.
    """
    column = throughput_column(record)
    if column is None:
        return None, ""
    if record.use is not None and record.use in TIME_NOT_SCORED:
        return None, f"{column}: {TIME_NOT_SCORED[record.use]} is not known"
    if lengths_untold(record):
        return None, f"{column}: the mean length of the samples is not said"
    if time is None:
        return None, f"{column}: the rates of this card are unknown"
    predicted = predicted_throughput(time, column)
    if predicted is None:
        return None, f"{column}: the number of samples is not said"
    return Comparison(column, float(getattr(record, column)), float(predicted)), ""


def lengths_untold(record: RunRecord) -> bool:
    """Whether the samples have natural lengths whose mean nobody printed:
    then its time says nothing, because how many tokens it took is not known.
    """
    return record.padding == "longest" and record.tokens_per_sample is None


def throughput_column(record: RunRecord) -> str | None:
    """The one number that a row's time is scored on; ``None`` where it has none."""
    return next((name for name in THROUGHPUT_COLUMNS if getattr(record, name) is not None), None)


def predicted_throughput(time: TimePrediction, column: str) -> Number | None:
    """The prediction for one of :data:`THROUGHPUT_COLUMNS`, in its unit;
    ``None`` for a run time of unknown length.
    """
    value: Number | None = time.step_s if column == "step_time_s" else getattr(time, column)
    return value


def compare_host(record: RunRecord, host: HostPrediction) -> Comparison | None:
    """Host RAM of a process or of the node, in bytes; installed memory is no measurement
    (:func:`compare_host_bound`).
    """
    if (
        record.host_memory_mib is None
        or record.host_memory_kind == "installed_min"
        or record.phase_reached in SETUP_PHASES
    ):
        return None
    # A run on a CPU holds in host RAM what the formulas place on the GPU.
    if is_cpu(record):
        return None
    scope = host_scope(record)
    predicted = host_bytes(record, host)
    note = "" if record.host_memory_scope else "assumed"
    return Comparison(f"{scope}_bytes", round(record.host_memory_mib * MIB), round(float(predicted)), note)


def host_bytes(record: RunRecord, host: HostPrediction) -> Number:
    """What a host reading is compared with at its scope: the peak of a run, or what is there while steps run.

    A run that ended before it saved had the peak of its setup or of its steps.
    """
    of_node = host_scope(record) == "node"
    steps = host.steps_per_node_bytes if of_node else host.steps_per_process_bytes
    if is_mark_of_steps(record):
        return steps
    if record.phase_reached not in (None, "save"):
        return maximum(steps, host.setup_per_node_bytes if of_node else host.setup_per_process_bytes)
    return host.per_node_bytes if of_node else host.per_process_bytes


def is_mark_of_steps(record: RunRecord) -> bool:
    """Whether a host reading is of a moment in the steps of a run, not of its peak;
    of loading there is no such record.
    """
    return record.host_memory_kind == "rss_mark" and record.phase_reached is not None


def host_scope(record: RunRecord) -> HostMemoryScope:
    """What a host reading counts: as the record says,
    else a control group's is the node's and others the process's.
    """
    return record.host_memory_scope or ("node" if record.host_memory_kind == "cgroup" else "process")


def compare_host_bound(record: RunRecord, host: HostPrediction) -> Comparison | None:
    """Host RAM that was installed against the prediction per node, in bytes.

    The run took place, so a prediction above the bound is wrong; one below it may be right or wrong.
    """
    if record.host_memory_mib is None or record.host_memory_kind != "installed_min":
        return None
    return Comparison(
        "installed_bytes", round(record.host_memory_mib * MIB), round(float(host.per_node_bytes))
    )


def judge_verdict(record: RunRecord, prediction: Prediction) -> OomResult | None:
    """What the verdict on GPU memory was worth; ``None`` for outcomes that say nothing about it.

    Nothing happened to the job in a run that only loaded, or that ended for another reason than GPU memory.
    A mark of the steps belongs to a run that another record describes.  A verdict about host RAM is given
    only where the GPU's memory suffices, so it counts as "fits" here.
    """
    ran_out = record.outcome == "oom"
    if not ran_out and (
        record.outcome != "ok" or record.phase_reached in SETUP_PHASES or is_mark_of_steps(record)
    ):
        return None
    if prediction.verdict == "no_verdict":
        return "no_verdict"
    if prediction.verdict == "uncertain":
        return "uncertain_oom" if ran_out else "uncertain_ok"
    said_short = prediction.verdict == "does_not_fit"
    if said_short == ran_out:
        return "right"
    return "false_fit" if ran_out else "false_oom"
