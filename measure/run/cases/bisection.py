"""The largest micro-batch or length that runs: bisection,
each probe in a fresh process and each on the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from measure.run.cases.case import CPU, RunOptions, case_key, describe
from measure.run.launcher import Launcher
from measure.run.readings.machine import this_machine
from measure.run.single import Prepared, Say, prepare, run_prepared
from measure.run.store import Store
from planner.domain.run_record import Outcome
from planner.errors import PlannerError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS

Quantity = Literal["batch", "seq"]
QUANTITIES: tuple[Quantity, ...] = ("batch", "seq")
# Lengths are told apart to this many tokens; batches to one sample.
SEQ_STEP_TOKENS = 64
_RAN_OUT: frozenset[Outcome] = frozenset({"oom", "host_oom"})
# A peak shows in the second step, when optimizer states exist; times are not asked for.
_PROBE_STEPS = {"warmup": 1, "steps": 2, "max_steps": 2}


class ProbeFailedError(PlannerError):
    """A probe ended for another reason than memory, so nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """``largest`` ran (``None``: nothing did), ``smallest_short`` ran out of memory (``None``:
    nothing did, up to the limit).
    """

    quantity: Quantity
    largest: int | None
    smallest_short: int | None
    outcome: Outcome
    probes: int


def bisect(runs: Callable[[int], bool], start: int, step: int, highest: int) -> tuple[int | None, int | None]:
    """Largest value that runs and smallest that does not,
    both multiples of ``step`` (the first may be ``start``).

    Doubles from ``start`` while it runs, halves while it does not, then bisects to ``step``.  Assumes that
    more never runs where less did not.
    """
    low: int | None = None
    high: int | None = None
    value = start
    while low is None or high is None:
        if runs(value):
            low = value
            if value >= highest:
                return low, None
            value = min(highest, 2 * value)
        else:
            high = value
            if value <= step:
                return None, high
            value = max(step, value // 2 // step * step)
    while high - low > step:
        middle = low + max(step, (high - low) // 2 // step * step)
        if runs(middle):
            low = middle
        else:
            high = middle
    return low, high


def solve(
    values: Mapping[str, Any], options: RunOptions, quantity: Quantity, *, store: Store, force: bool, say: Say
) -> Boundary:
    """Find the boundary of one job.

    Raises:
        PlannerError: a probe cannot run here, or ended for another reason than memory.
    """
    machine = this_machine()
    first = prepare(values, _for_probe(options), machine, force=force)
    store.prepare()
    if first.scenario.hardware.gpu.id == CPU and options.memory_limit_bytes is None:
        raise UsageError(
            "on a CPU --solve needs --memory-limit, such as --memory-limit 4GiB: without one it would fill "
            "the host's memory"
        )
    step = 1 if quantity == "batch" else SEQ_STEP_TOKENS
    series = f"solve-{quantity}-{case_key(first.case, first.scenario)}"
    outcomes: list[Outcome] = []
    with Launcher(machine.nvml) as launcher:

        def runs(value: int) -> bool:
            prepared = prepare({**values, quantity: value}, _for_probe(options), machine, force=force)
            measured = run_prepared(prepared, machine, launcher)
            measured.attachments["raw"]["probe_of"] = series
            store.add(measured)
            outcome = measured.record.outcome
            say(f"{quantity} {value}: {outcome} ({describe(prepared.scenario, options)})")
            if outcome not in ("ok", *_RAN_OUT):
                reason = measured.attachments["raw"]["error"]
                raise ProbeFailedError(f"the probe with {quantity} {value} ended as {outcome}: {reason}")
            outcomes.append(outcome)
            return outcome == "ok"

        largest, short = bisect(runs, int(values.get(quantity) or step), step, _highest(first, quantity))
    return Boundary(quantity, largest, short, "ok" if largest is not None else outcomes[-1], len(outcomes))


def boundary_text(boundary: Boundary) -> str:
    """The answer in a line."""
    name = {"batch": "micro-batch", "seq": "sequence length"}[boundary.quantity]
    probes = f"{boundary.probes} probes, each on the record"
    if boundary.largest is None:
        return f"no {name} runs: {boundary.smallest_short} is short of memory already; {probes}\n"
    beyond = (
        "which is the limit" if boundary.smallest_short is None else f"{boundary.smallest_short} does not run"
    )
    return f"largest {name} that runs: {boundary.largest}; {beyond}; {probes}\n"


def _for_probe(options: RunOptions) -> RunOptions:
    return replace(options, **_PROBE_STEPS)  # type: ignore[arg-type]


def _highest(first: Prepared, quantity: Quantity) -> int:
    limit = int(REQUEST_FIELDS[quantity].high or 0)
    positions = first.scenario.model.max_position_tokens
    return min(limit, positions) if quantity == "seq" and positions else limit
