"""The table of contents: Scenario + Coefficients -> Prediction."""

from __future__ import annotations

from planner.domain.coefficients import Coefficients
from planner.domain.prediction import HostPrediction, MemoryPrediction, Prediction, Verdict
from planner.domain.scenario import Scenario
from planner.memory.host import predict_host
from planner.memory.job import job_of
from planner.memory.optimizer import paged_state_bytes
from planner.memory.peak import predict_memory
from planner.throughput.step import predict_time
from planner.units import format_gib

PRIORS = Coefficients()


def estimate(scenario: Scenario, coefficients: Coefficients = PRIORS, *, explain: bool = False) -> Prediction:
    """Memory, host RAM and time of one scenario, with a verdict; with ``explain`` each term carries the numbers of its formula.

    All numeric fields of the scenario are plain numbers; for grids of scenarios see :mod:`planner.search.grid`.
    """
    job = job_of(scenario, coefficients)
    memory = predict_memory(job)
    host = predict_host(job, paged_state_bytes(job))
    verdict, reason = judge(memory, host)
    if explain:
        from planner.memory.details import with_host_details, with_memory_details

        memory, host = with_memory_details(job, memory), with_host_details(job, host)
    return Prediction(
        memory=memory,
        host=host,
        time=predict_time(scenario, coefficients),
        verdict=verdict,
        reason=reason,
        fits_probability=None,
        calibration=coefficients.name,
        warnings=scenario.warnings,
    )


def judge(memory: MemoryPrediction, host: HostPrediction) -> tuple[Verdict, str]:
    """Verdict from the point estimate, and one sentence that says why.

    A job fits when what must be held at once fits: the allocator gives cached blocks back before it fails.
    """
    if memory.limit_bytes is None:
        return "no_verdict", "the memory that CUDA makes visible on this card is unknown; give it with --gpu-memory"
    need, limit = float(memory.must_have_bytes), memory.limit_bytes
    if need > limit:
        over = format_gib(need - limit)
        return (
            "does_not_fit",
            f"{memory.limiting_phase} needs {format_gib(need)} at once, {over} more than the card's {format_gib(limit)}",
        )
    node_bytes, driver_bytes = float(host.required_per_node_bytes), float(memory.uncapped_driver_bytes)
    if host.available_bytes is not None and node_bytes > host.available_bytes:
        short = format_gib(node_bytes - host.available_bytes)
        return "host_memory_short", f"the node needs {format_gib(node_bytes)} of host RAM, {short} more than it has"
    if driver_bytes > limit:
        return (
            "fits",
            f"{memory.limiting_phase} fills the card: the allocator has to return cached blocks to fit {format_gib(limit)}",
        )
    return "fits", f"{memory.limiting_phase} is the largest phase, {format_gib(limit - driver_bytes)} remain free"
