"""What a change of a job costs: two predictions beside each other."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario


def step_ratio(before: Prediction, after: Prediction) -> float | None:
    """Time of a step after a change over that before; ``None`` where one of them is not known."""
    if before.time is None or after.time is None:
        return None
    return float(after.time.step_s) / float(before.time.step_s)


def host_bytes(scenario: Scenario, before: Prediction, changed: Scenario, after: Prediction) -> int:
    """Host RAM that a node needs on top; other cards stand in another node."""
    if replace(changed.hardware, nodes=scenario.hardware.nodes) != scenario.hardware:
        return 0
    more = float(after.host.required_per_node_bytes) - float(before.host.required_per_node_bytes)
    return max(0, round(more))


def usd_ratio(scenario: Scenario, before: Prediction, changed: Scenario, after: Prediction) -> float | None:
    """Known on the card whose price was given only."""
    if scenario.run.usd_per_gpu_hour is None or changed.hardware.gpu != scenario.hardware.gpu:
        return None
    if before.time is None or after.time is None:
        return None
    gpus = changed.hardware.world_size / scenario.hardware.world_size
    return gpus * float(before.time.samples_per_s) / float(after.time.samples_per_s)
