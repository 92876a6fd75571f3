"""How often intervals hold readings of a kind of job that no source had: an engine, a family of trainers,
a method, a generation.

Each kind is left out whole, with all other readings of the sources that have it in turn: quantiles are those
of the rest, and what is judged is widened for what the rest never had.  Predictions are those of
fits that did not see its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import TypedDict

from planner.calibration.fit.calibrate import support_of
from planner.calibration.intervals.coverage import Held, judged
from planner.calibration.intervals.spreads import Residual
from planner.calibration.score.cross_validate import CrossValidation
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration, engine_of, method_of, stack_family
from planner.domain.uncertainty.scale import widened

# Families of stacks by whose training loop runs; all others are loops of their own.
_TRAINERS = {
    "hf": ("hf-trainer", "trl", "llama-factory", "axolotl", "swift", "qwen-finetune", "unsloth"),
    "lightning": ("litgpt",),
    "composer": ("composer", "llm-foundry-mpt"),
}
_LOOPS = {family: trainer for trainer, families in _TRAINERS.items() for family in families}
DIMENSIONS: Mapping[str, Callable[[Scenario], str]] = {
    "engine": engine_of,
    "trainer": lambda scenario: _LOOPS.get(stack_family(scenario.stack), "own loop"),
    "method": method_of,
    "generation": lambda scenario: scenario.hardware.gpu.generation,
}
QUANTITIES = ("memory", "time")
# Fewer other sources make no distribution.
_LEAST_SOURCES = 3


class KindCoverage(TypedDict):
    """One kind of job and one quantity; ``half_width`` is the median, a fraction of the prediction."""

    dimension: str
    kind: str
    of: str
    sources: int
    n: int
    inside: float
    half_width: float


def kind_coverage(result: CrossValidation) -> list[KindCoverage]:
    """One line for each kind and quantity: readings, share of them inside, median half-width."""
    scenarios = {row.record.id: row.scenario for row in result.held_out.rows if row.scenario is not None}
    found: list[KindCoverage] = []
    for dimension, kind_of in DIMENSIONS.items():
        for of in QUANTITIES:
            mine = [each for each in result.fitted.residuals if each.key.of == of]
            for kind in sorted({kind_of(scenarios[each.record_id]) for each in mine}):
                held = _held(
                    result, mine, {name: kind_of(each) == kind for name, each in scenarios.items()}, scenarios
                )
                if held:
                    found.append(_line(dimension, kind, of, held))
    return found


def _line(dimension: str, kind: str, of: str, held: Sequence[Held]) -> KindCoverage:
    inside, width = fmean(each.inside for each in held), median(each.half_width for each in held)
    sources = len({each.residual.group for each in held})
    return {
        "dimension": dimension,
        "kind": kind,
        "of": of,
        "sources": sources,
        "n": len(held),
        "inside": round(inside, 3),
        "half_width": round(width, 3),
    }


def _held(
    result: CrossValidation,
    readings: Sequence[Residual],
    is_kind: Mapping[str, bool],
    scenarios: Mapping[str, Scenario],
) -> list[Held]:
    found: list[Held] = []
    for group in dict.fromkeys(each.group for each in readings if is_kind[each.record_id]):
        others = [each for each in readings if each.group != group and not is_kind[each.record_id]]
        if len({each.group for each in others}) < _LEAST_SOURCES:
            continue
        blind = result.fitted.without[group]
        unseen = replace(
            blind, support=support_of([(each.group, scenarios[each.record_id]) for each in others])
        )
        mine = [each for each in readings if each.group == group and is_kind[each.record_id]]
        found += judged([_widened(each, scenarios[each.record_id], blind, unseen) for each in mine], others)
    return found


def _widened(residual: Residual, scenario: Scenario, blind: Calibration, unseen: Calibration) -> Residual:
    seen, left_out = blind.doubt(scenario), unseen.doubt(scenario)
    more = left_out.n_unseen - seen.n_unseen
    rates = residual.key.of == "time" and left_out.generation_unseen and not seen.generation_unseen
    above, below = (
        float(widened(each, more, rates_unseen=rates))
        for each in (residual.scale, residual.scale if residual.below is None else residual.below)
    )
    return replace(residual, scale=above, below=below)
