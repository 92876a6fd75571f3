"""Seconds of a pass by term of the report: its operators' work over rates, each kind of kernel by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from planner.domain.recipes.recipe import Number
from planner.program.ops.tensors import Unit
from planner.program.ops.work import FusedAttention, Kind, Product, SummedInPlace, ToHost, Unpacking
from planner.throughput.counted import SCORES, Cost, Counted, Pass, by_structure
from planner.throughput.kernel_time import (
    attention_seconds,
    expansion_seconds,
    moving_seconds,
    product_seconds,
    start_seconds,
)
from planner.throughput.time_inputs import TimedJob

# What is counted in operators of the host, not in seconds.
_COUNTS = ("launches", "waits")


def pass_seconds(job: TimedJob, passes: Pass) -> dict[str, Number]:
    """Seconds of the kernels of a micro-step's ``passes`` by term,
    and under ``launches`` and ``waits`` counts of operators.

    Source: :mod:`planner.program`; :mod:`planner.throughput.kernel_time`.
    """
    return by_structure(job.scenario, job.micro, passes, partial(_read, job))


def passes_aside(job: TimedJob) -> Number:
    """Forward passes of language models that train nothing, for each micro-step of training."""
    return by_structure(job.scenario, job.micro, "aside", lambda counted: {"asked": counted.asked})["asked"]


def tower_seconds(job: TimedJob) -> Number:
    """Kernels of a vision tower and its projector in one micro-step; seconds.

    Formula: those of its products, attention and other operators over their rates, as for the language model.
    Expanded weights and casts are in their own terms.
    Source: :mod:`planner.program.vision.tower`, which names the code; :mod:`planner.throughput.kernel_time`.
    """
    return pass_seconds(job, "training").get("vision_tower", 0.0)


def aside_seconds(job: TimedJob) -> Number:
    """Forward passes beside the trained one that train nothing (DPO, KTO, compared logits); seconds per
    micro-step.

    Formula: all kernels of these passes; those of the model as it was run without adapters.
    Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss;
    :mod:`planner.program.head.preferences`, :mod:`planner.program.head.weighted`.
    """
    return kernel_seconds(pass_seconds(job, "aside"))


def kernel_seconds(found: Mapping[str, Number]) -> Number:
    """All terms together, without the counts beside them."""
    return sum((seconds for name, seconds in found.items() if name not in _COUNTS), 0.0)


def _read(job: TimedJob, counted: Counted) -> dict[str, Number]:
    values, sums = job.values, dict[tuple[str, Kind], Number]()
    for cost in counted.costs:
        # What a kernel of attention computes of all pairs is its own affair.
        value = 1.0 if isinstance(cost.kind, FusedAttention) else values[cost.unit]
        for key in _keys(cost):
            sums[key] = sums.get(key, 0.0) + cost.amount * value
    found: dict[str, Number] = {}
    for (term, kind), amount in sums.items():
        taken = amount if term in _COUNTS else _seconds(job, kind, amount, values)
        found[term] = found.get(term, 0.0) + taken
    if "dequantization" in found:
        found["dequantization"] = found["dequantization"] / job.coefficients.dequantize_relative_speed
    return found


def _keys(cost: Cost) -> Iterator[tuple[str, Kind]]:
    """Where some work counts: its term and kind; a launch is host time,
    and a start of a kernel in the term of its operators.
    """
    term = term_of(cost)
    if term is None:
        return
    yield term, cost.kind
    started = term_of(replace(cost, kind="bytes")) if cost.kind == "launches" else None
    if started is not None:
        yield started, "launches"


def _seconds(job: TimedJob, kind: Kind, amount: Any, values: Mapping[Unit, Number]) -> Number:
    if isinstance(kind, Product):
        return product_seconds(job, kind, amount, values)
    if isinstance(kind, FusedAttention):
        return attention_seconds(job, kind, amount, values)
    if isinstance(kind, Unpacking):
        return expansion_seconds(job, kind, amount)
    return moving_seconds(job, amount) if kind == "bytes" else start_seconds(job, amount)


def term_of(cost: Cost) -> str | None:
    """The term that some work counts to; ``None`` where a rate of another kind holds it."""
    if cost.kind in ("launches", "calls", "waits"):
        return "waits" if cost.kind == "waits" else "launches"
    if isinstance(cost.kind, ToHost | SummedInPlace):
        return None
    if cost.share in ("weight_casts", "dequantization"):
        return cost.share
    if cost.place == "tower":
        return "vision_tower"
    if isinstance(cost.kind, FusedAttention) or (cost.unit in SCORES and cost.share == "elementwise"):
        return "attention"
    if cost.share == "int8":
        return "matmul" if isinstance(cost.kind, Product) else None
    if cost.share == "elementwise" and cost.place == "head":
        return "logits_and_loss"
    return cost.share
