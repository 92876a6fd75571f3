"""Records whose readings are predictions under known coefficients, with seeded noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.calibration.fit.problem import Problem, make_problem
from planner.calibration.fit.screen import screen
from planner.calibration.fit.targets import targets_of
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.hierarchy import FREEDOM
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.predicting import estimate
from planner.units import MIB

MACHINES = {"doc-a": "a100-80-sxm", "doc-b": "a100-40-sxm", "doc-c": "h100-sxm", "doc-d": "rtx4090"}
SHAPES = ((1, 256), (1, 512), (1, 1024), (2, 1024), (1, 2048), (2, 2048))


TRUTH = replace(
    Coefficients(),
    context_bytes=380.0 * MIB,
    matmul_efficiency=0.6,
    memory_efficiency=0.7,
)
EVERYWHERE = dict.fromkeys(MACHINES, TRUTH)


def blank(group: str, gpu: str, method: str, shape: tuple[int, int]) -> RunRecord:
    """A configuration without readings."""
    micro_batch, seq_len = shape
    return RunRecord(
        id=f"{group}-{method}-{micro_batch}x{seq_len}",
        source=group,
        source_group=group,
        model="qwen2.5-1.5b",
        gpu=gpu,
        method="lora" if method == "lora" else "qlora",
        micro_batch=micro_batch,
        seq_len=seq_len,
        padding="packed",
        gradient_checkpointing=True,
        # Without reentry the host would decide the short ones, which then tell no rate of the card.
        checkpoint_reentrant=True,
        memory_kind="driver",
        outcome="ok",
    )


def simulate(
    record: RunRecord, truth: Coefficients, noise: float, generator: np.random.Generator
) -> RunRecord:
    """``record`` with the memory and step time that ``truth`` predicts,
    each with log-normal noise of ``noise``.
    """
    prediction = estimate(resolve(from_record(record), force=True), truth)
    assert prediction.time is not None
    memory, step = (float(np.exp(generator.normal(0.0, noise))) for _ in range(2))
    return replace(
        record,
        peak_memory_mib=float(prediction.memory.driver_peak_bytes) / MIB * memory,
        step_time_s=float(prediction.time.step_s) * step,
    )


def simulated(
    truths: Mapping[str, Coefficients],
    noise: float = 0.01,
    seed: int = 7,
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> list[RunRecord]:
    """Records of all machines that ``truths`` names, each under its own coefficients."""
    generator = np.random.default_rng(seed)
    return [
        simulate(blank(group, MACHINES[group], method, shape), truth, noise, generator)
        for group, truth in truths.items()
        for method in ("lora", "qlora")
        for shape in shapes
    ]


def problem_of(records: list[RunRecord], quantity: str = "memory") -> Problem:
    """The least-squares problem of one quantity."""
    targets = [target for record, scenario in screen(records).used for target in targets_of(record, scenario)]
    problem = make_problem(quantity, targets, FREEDOM)  # type: ignore[arg-type]
    assert problem is not None
    return problem
