"""What a run has to show for its quality verdict: readings of the case, of its devices and of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from measure.run.cases.case import CPU, RunCase
from measure.run.launcher import Event, RunResult
from measure.run.quality import Evidence
from measure.run.readings.device_watch import DevicePeaks
from measure.run.readings.nvml import POWER_CAP
from planner.domain.scenario import Scenario


def evidence_of(
    case: RunCase, run: RunResult, scenario: Scenario, steps: Sequence[Event], environment: Mapping[str, Any]
) -> Evidence:
    """The evidence of one run; ``steps`` are those of its first rank, ``environment`` what it was made on."""
    counted = [event for event in steps if not event["warmup"]]
    retries = [
        event["counters"]["retries"] for rank in run.events for event in rank if event["event"] == "readings"
    ]
    known = [value for value in retries if value is not None]
    others = [device.other_processes for device in run.devices if device.other_processes is not None]
    limit_bytes = case.options.memory_limit_bytes
    return Evidence(
        warmup_steps=len(steps) - len(counted),
        counted_s=[event["wall_s"] for event in counted],
        outcome=run.outcome,
        same_tokens=len({event["padded_tokens"] for event in counted}) <= 1,
        retries=max(known) if known else None,
        throttled=_throttled(run.devices, environment),
        driver_asked=scenario.hardware.gpu.id == CPU or len(run.devices) > 0,
        other_processes=max(others, default=None),
        held_before_bytes=max((device.held_before_bytes or 0 for device in run.devices), default=None),
        device_peak_bytes=max(
            (_filled_bytes(device, limited=limit_bytes is not None) for device in run.devices), default=None
        ),
        device_bytes=limit_bytes or scenario.hardware.gpu.visible_memory_bytes,
        warnings=_boundary_warnings(case, scenario),
    )


def _filled_bytes(device: DevicePeaks, *, limited: bool) -> int:
    """How full a device became: all that programs held, without what the driver keeps,
    which CUDA does not make visible either.

    Under a limit only what this run added.
    """
    kept = device.baseline_bytes - (0 if limited else device.held_before_bytes or 0)
    return device.peak_bytes - (kept if limited or device.held_before_bytes is not None else 0)


def _throttled(devices: Sequence[DevicePeaks], environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Why clocks were low.  A card that reaches the power limit it is sold with is not slowed:
    that is its speed.
    """
    reasons: list[str] = []
    states = {state.get("index"): state for state in environment.get("gpu_state") or ()}
    for device in devices:
        state = states.get(device.index, {})
        limit_mw = state.get("power_limit_mw")
        as_sold = limit_mw is not None and limit_mw >= state.get("power_limit_default_mw", math.inf)
        reasons += [reason for reason in device.throttle_reasons if not (as_sold and reason == POWER_CAP)]
    return tuple(dict.fromkeys(reasons))


def _boundary_warnings(case: RunCase, scenario: Scenario) -> tuple[str, ...]:
    """What escapes a memory limit, so that the outcome says nothing about a smaller card."""
    if case.options.memory_limit_bytes is None:
        return ()
    if scenario.recipe.optimizer.startswith("paged"):
        return ("paged states are outside of the memory limit: no evidence about a card of that size",)
    if scenario.hardware.world_size > 1:
        return ("NCCL's buffers are outside of the memory limit: no evidence about cards of that size",)
    return ()
