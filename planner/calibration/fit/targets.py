"""What a fit compares: one reading of one record, and its prediction under many coefficient sets at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.calibration.score.percentile import at_percentile
from planner.calibration.score.rows import (
    SETUP_PHASES,
    host_bytes,
    lengths_untold,
    level_bytes,
    level_read,
    predicted_throughput,
    read_bytes,
    throughput_column,
)
from planner.domain.recipes.recipe import Number
from planner.domain.run_record import NOT_ITS_MEMORY, NOT_ITS_TIME, RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.hierarchy import moved
from planner.memory.host import predict_host
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from planner.throughput.rates import reached_share
from planner.throughput.step_time import predict_time
from planner.units import MIB

Floats = npt.NDArray[np.float64]
Quantity = Literal["memory", "throughput", "host_memory"]
QUANTITIES: tuple[Quantity, ...] = ("memory", "throughput", "host_memory")
Bound = Literal["both", "at_least", "at_most"]
"""Whether the reading is the value, or the true value is only known to be at least or at most that."""

# One standard deviation of the logarithm of a reading around a right model: runs of one recipe on two cards
# differ by 8-10 % in memory in document 001, and by 15 % in one of its cells; times follow clocks, hosts and
# the lengths of samples.
NOISE: Mapping[Quantity, float] = {"memory": 0.05, "throughput": 0.12, "host_memory": 0.15}
# No training step sustains more of the dense peak than this where the card's best product is an A100's share:
# the configuration must be another than the record says.
MAX_SHARE_OF_PEAK = 0.75
# A reading whose configuration had to be inferred says less: weights by grade.
GRADE_WEIGHT: Mapping[str | None, float] = {"A": 1.0, "B": 0.6, "C": 0.25, None: 1.0}


@dataclass(frozen=True, slots=True)
class Target:
    """One reading.  ``measured`` in bytes, or as a time (the inverse of a rate,
    so that more is always slower).

    ``scenario`` has no memory limit where the reading is compared with what an unlimited card would show;
    ``card_bytes`` is then that of the card that it was read on.
    """

    record: RunRecord
    scenario: Scenario
    quantity: Quantity
    measured: float
    bound: Bound = "both"
    card_bytes: int | None = None

    @property
    def group(self) -> str:
        """What is held out together with it."""
        return self.record.source_group

    @property
    def host(self) -> str:
        """The machine: the host, or, where none is described, one document's machine with this GPU."""
        hardware = self.scenario.hardware
        described = hardware.host.cores is not None
        return hardware.host.id if described else f"{self.record.source_group}:{hardware.gpu.id}"

    @property
    def weight(self) -> float:
        """How much the reading counts beside others of its group."""
        return GRADE_WEIGHT[self.record.grade]


def targets_of(record: RunRecord, scenario: Scenario) -> tuple[Target, ...]:
    """All readings of one record that a fit can use."""
    found = (_memory_target(record, scenario), _time_target(record, scenario), _host_target(record, scenario))
    return tuple(each for each in found if each is not None)


def _memory_target(record: RunRecord, scenario: Scenario) -> Target | None:
    """The peak; above 93 % of the card it is a ceiling, because the allocator returns its cache there,
    so only a lower bound.
    """
    if record.use in NOT_ITS_MEMORY:
        return None
    limit = scenario.hardware.gpu.visible_memory_bytes
    if record.outcome == "oom":
        if limit is None or record.phase_reached in SETUP_PHASES:
            return None
        return Target(record, scenario, "memory", limit - scenario.hardware.gpu_reserved_bytes, "at_least")
    if record.peak_memory_mib is None:
        return None
    bound: Bound = "at_least" if record.censored else "both"
    step, card = at_percentile(record, scenario), scenario.hardware.gpu.visible_memory_bytes
    count = scenario.hardware.world_size if record.memory_scope == "all_gpus" else 1
    measured = read_bytes(record, count, scenario.hardware.gpu.driver_keeps_bytes)
    return Target(record, on_card(step, None), "memory", measured, bound, card)


def on_card(scenario: Scenario, visible_bytes: int | None) -> Scenario:
    """The scenario on a card with so much visible memory; ``None``: without a limit."""
    gpu = replace(scenario.hardware.gpu, visible_memory_bytes=visible_bytes)
    return replace(scenario, hardware=replace(scenario.hardware, gpu=gpu))


def _time_target(record: RunRecord, scenario: Scenario) -> Target | None:
    column = throughput_column(record) if record.outcome == "ok" else None
    if column is None or record.use in NOT_ITS_TIME or lengths_untold(record):
        return None
    measured = float(getattr(record, column))
    target = Target(record, scenario, "throughput", 1 / measured if column.endswith("_per_s") else measured)
    return None if predicted(target, Coefficients()) is None or is_impossible(target) else target


def is_impossible(target: Target) -> bool:
    """Whether a time means more than :func:`most_of_peak` of the dense peak: kept and scored,
    but no lesson for the fit.
    """
    time = predict_time(target.scenario, Coefficients())
    value = predicted(target, Coefficients())
    if time is None or value is None or time.mfu is None:
        return False
    return bool(time.mfu * value / target.measured > most_of_peak(target))


def most_of_peak(target: Target) -> float:
    """The largest share of its card's dense peak that a step may have sustained; more where the card's best
    product reaches more of the peak than an A100's.
    """
    return MAX_SHARE_OF_PEAK * max(1.0, reached_share(target.scenario.hardware.gpu))


def _host_target(record: RunRecord, scenario: Scenario) -> Target | None:
    if record.outcome != "ok" or record.host_memory_mib is None or record.phase_reached in SETUP_PHASES:
        return None
    bound: Bound = "at_most" if record.host_memory_kind == "installed_min" else "both"
    return Target(record, scenario, "host_memory", record.host_memory_mib * MIB, bound)


def predicted(target: Target, coefficients: Coefficients) -> Number | None:
    """Prediction for the reading of ``target``: bytes or seconds; an array where coefficients are arrays."""
    record, scenario = target.record, target.scenario
    if target.quantity == "throughput":
        column = throughput_column(record)
        time = predict_time(scenario, coefficients)
        value = None if time is None or column is None else predicted_throughput(time, column)
        return value if value is None or column is None or not column.endswith("_per_s") else 1 / value
    job = job_of(scenario, coefficients)
    if target.quantity == "host_memory":
        host = predict_host(job)
        return host.per_node_bytes if target.bound == "at_most" else host_bytes(record, host)
    memory = predict_replayed(job, minimum_too=record.outcome == "oom")
    if record.outcome == "oom":
        return memory.must_have_bytes
    count = scenario.hardware.world_size if record.memory_scope == "all_gpus" else 1
    return count * level_bytes(memory, level_read(record), record)


def log_errors(target: Target, offsets: Mapping[str, Floats], count: int) -> Floats:
    """``log(predicted / measured)`` at ``count`` points, with the offsets of each coefficient at all of them
    (in the unit of the prior's spread).
    """
    values = {name: moved(name, each) for name, each in offsets.items()}
    value = predicted(target, replace(Coefficients(), **values))
    if value is None:
        raise ValueError(f"{target.record.id} has no prediction of {target.quantity}")
    logs: Floats = np.log(np.broadcast_to(np.asarray(value, dtype=np.float64), count)) - math.log(
        target.measured
    )
    return logs
