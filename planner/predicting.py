"""The table of contents: Scenario + Coefficients -> Prediction."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.anatomy.packing import group_reach_bytes
from planner.arrays import minimum
from planner.domain.prediction import (
    HostPrediction,
    MemoryLevel,
    MemoryPrediction,
    Prediction,
    TimePrediction,
    Uncertainty,
    Verdict,
)
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import IN_GROUPS, Number
from planner.domain.scenario import Scenario
from planner.domain.term import LENGTH_CACHE, PHASE_WORDS
from planner.domain.uncertainty.calibration import Calibration, lengths_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import (
    NOMINAL_COVERAGE,
    NORMAL_QUANTILE,
    TAIL,
    Interval,
    Lengths,
    SpreadKey,
    interval_around,
)
from planner.domain.uncertainty.scale import (
    Doubt,
    lifted,
    memory_scale,
    need_scale,
    time_scale,
    widened,
    widest_need_scale,
)
from planner.memory.certain import least_certain_bytes
from planner.memory.fullest_stage import fullest_job, on_whole_nodes, stage_words
from planner.memory.host import predict_host
from planner.memory.quick import predict_quick
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from planner.program.update.projected import workspace_reach_bytes
from planner.throughput.pipeline_time import predict_pipeline
from planner.throughput.step_time import predict_time
from planner.units import format_gib

PRIORS = Coefficients()
_LEVELS: tuple[MemoryLevel, ...] = ("allocated", "reserved", "driver")


def estimate(
    scenario: Scenario,
    coefficients: Coefficients = PRIORS,
    *,
    explain: bool = False,
    quick: bool = False,
    why: bool = False,
) -> Prediction:
    """Memory, host RAM and time of one scenario, with a verdict;
    with ``explain`` each term carries the numbers of its formula.

    The step is replayed through the model of the caching allocator, which takes about a tenth of a second.
    ``quick`` takes a few milliseconds instead: one slack in the place of the replay, to compare many jobs;
    who is shown is replayed.  ``why``: of a job that does not fit, the request that fails, which takes one
    more replay or two.

    All numeric fields of the scenario are plain numbers; for grids of scenarios see
    :mod:`planner.searching.grid`.
    """
    job = fullest_job(scenario, coefficients, predict_quick if quick else predict_replayed)
    memory = predict_quick(job) if quick else predict_replayed(job, why=why)
    host = predict_host(on_whole_nodes(job, scenario))
    verdict, reason = (
        judge(memory, host) if scenario.hardware.gpu.is_cuda else ("no_verdict", _not_cuda(memory))
    )
    if explain:
        from planner.memory.memory_details import with_details
        from planner.memory.shares import with_shares

        memory, host = with_details(job, with_shares(job, memory), host)
    time = (
        predict_time(scenario, coefficients, job, explain=explain)
        if job.model.stage is None
        else predict_pipeline(scenario, coefficients, explain=explain)
    )
    return Prediction(
        memory=memory,
        host=host,
        time=time,
        verdict=verdict,
        reason=reason,
        fits_probability=None,
        calibration=coefficients.name,
        warnings=(*scenario.warnings, *stage_words(job), *_paging_words(memory)),
        untimed=_untimed(scenario, time),
    )


def _paging_words(memory: MemoryPrediction) -> tuple[str, ...]:
    """That paged states do not all fit, in a sentence; nothing where they do or there are none.

    CUDA moves managed memory out for what the allocator reserves, which never gives way to it.  bitsandbytes
    asks for the states of each parameter in each step (``optim/optimizer.py``, prefetch_state), in the same
    order, so that those longest unused, which go first, are needed next.  Rows of an A100 that take 1.4 to
    5.3 times what is predicted have moved 12 GB/s over two crossings of all states.
    """
    limit, names = memory.limit_bytes, {term.name for term in memory.terms if term.n_bytes}
    if limit is None or "paged_optimizer_states" not in names or memory.uncapped_driver_bytes <= limit:
        return ()
    return ("Paged optimizer states do not all fit on the card; moving them in each step is not in its time",)


def _untimed(scenario: Scenario, time: TimePrediction | None) -> str:
    """What is not known that decides the time of a step; empty where there is a ``time``."""
    if time is not None:
        return ""
    if scenario.stack.host_experts != "none":
        return "how long the CPU computes the experts is not known"
    return "the rates of this card are not known"


def judge(memory: MemoryPrediction, host: HostPrediction) -> tuple[Verdict, str]:
    """Verdict from the point estimate, and one sentence that says why.

    A job fits when the least that it needs fits: the allocator gives cached blocks back before it fails.
    """
    if memory.limit_bytes is None:
        return (
            "no_verdict",
            "the memory that CUDA makes visible on this card is unknown; give it with --gpu-memory",
        )
    need, limit = float(memory.must_have_bytes), memory.limit_bytes
    moment = PHASE_WORDS[memory.limiting_phase]
    if need > limit:
        stops = f"; it {memory.failed.text}" if memory.failed and limit else ""
        return "does_not_fit", f"{format_gib(need - limit)} are missing at the peak ({moment}){stops}"
    short = _host_shortage(host)
    if short is not None:
        return "host_memory_short", short
    driver_bytes = float(memory.uncapped_driver_bytes)
    if driver_bytes > limit:
        return (
            "fits",
            (
                f"it fills the card ({moment}): the allocator has to return cached blocks to fit "
                f"{format_gib(limit)}"
            ),
        )
    return "fits", f"{format_gib(limit - driver_bytes)} remain free at the peak ({moment})"


def _not_cuda(memory: MemoryPrediction) -> str:
    """The replay is that of PyTorch's CUDA allocator: elsewhere only what has to be held is known."""
    return (
        "not a CUDA device; weights and optimizer states alone take at least "
        f"{format_gib(float(memory.state_bytes))}"
    )


def _host_shortage(host: HostPrediction) -> str | None:
    """What a node lacks of host RAM, in a sentence;
    ``None`` where it has enough or nobody knows what it has.
    """
    node_bytes, available = float(host.required_per_node_bytes), host.available_bytes
    if available is None or node_bytes <= available:
        return None
    when = " while it saves" if float(host.steps_per_node_bytes) <= available else ""
    return (
        f"the node needs {format_gib(node_bytes)} of host RAM{when}, "
        f"{format_gib(node_bytes - available)} more than it has"
    )


def estimate_calibrated(
    scenario: Scenario,
    calibration: Calibration,
    *,
    explain: bool = False,
    quick: bool = False,
    why: bool = False,
) -> Prediction:
    """:func:`estimate` with fitted coefficients, intervals and P(fits);
    the verdict says when the limit is inside.
    """
    prediction = estimate(
        scenario, calibration.coefficients_for(scenario), explain=explain, quick=quick, why=why
    )
    uncertainty = _uncertainty(prediction, scenario, calibration)
    probability = _fits_probability(prediction.memory, scenario, calibration)
    verdict, reason = prediction.verdict, prediction.reason
    if probability is not None and TAIL < probability < 1 - TAIL and verdict in ("fits", "does_not_fit"):
        short = _host_shortage(prediction.host)
        straddles = (
            f"the {100 * NOMINAL_COVERAGE:.0f} % interval of what it needs straddles the card's limit; "
            f"{short or reason}"
        )
        verdict, reason = ("uncertain" if short is None else "host_memory_short"), straddles
    return replace(
        prediction, verdict=verdict, reason=reason, fits_probability=probability, uncertainty=uncertainty
    )


def predict_with(
    scenario: Scenario,
    model: Coefficients | Calibration,
    *,
    explain: bool = False,
    quick: bool = False,
    why: bool = False,
) -> Prediction:
    """:func:`estimate` or :func:`estimate_calibrated`, as ``model`` asks for."""
    if isinstance(model, Calibration):
        return estimate_calibrated(scenario, model, explain=explain, quick=quick, why=why)
    return estimate(scenario, model, explain=explain, quick=quick, why=why)


def is_too_large(scenario: Scenario, model: Coefficients | Calibration) -> bool:
    """Whether weights, states and gradients alone are so many that a job does not fit, which
    :func:`predict_with` would say, too; no program is read for them.

    What needs more has no better chance: it is farther above the limit, and scatters no more than a job of
    which nothing is counted.
    """
    limit = scenario.hardware.limit_bytes
    if not limit or scenario.recipe.parallel.pipeline > 1:
        return False
    calibration = model if isinstance(model, Calibration) else None
    job = job_of(scenario, model.coefficients_for(scenario) if isinstance(model, Calibration) else model)
    need = float(least_certain_bytes(job)) - _assumed_reach(scenario)[0]
    spread = calibration.spread_for(SpreadKey("need")) if calibration else None
    if need <= limit or calibration is None or spread is None:
        return need > limit
    moved, widest = float(lifted(need)) - need, float(widest_need_scale(need, calibration.doubt(scenario)))
    return spread.share_below(math.log((limit + moved) / (need + moved)) / widest) <= TAIL


def _uncertainty(prediction: Prediction, scenario: Scenario, calibration: Calibration) -> Uncertainty:
    time, host_bytes = prediction.time, float(prediction.host.per_process_bytes)
    doubt, lengths = calibration.doubt(scenario), lengths_of(scenario)
    levels = {
        level: _peak_interval(prediction.memory, level, lengths, calibration, doubt) for level in _LEVELS
    }
    down, up = _assumed_reach(scenario)
    levels = {
        level: around and Interval(max(0.0, around.low - down), around.high + up)
        for level, around in levels.items()
    }
    step = host = None
    if time is not None and (spread := calibration.spread_for(SpreadKey("time"))):
        scale, below = float(time_scale(time, doubt)), float(time_scale(time, doubt, below=True))
        step = interval_around(spread, float(time.step_s), scale, below)
    if spread := calibration.spread_for(SpreadKey("host_memory")):
        host = interval_around(spread, host_bytes, float(widened(1.0, doubt.n_unseen)))
    return Uncertainty(
        nominal=NOMINAL_COVERAGE,
        memory=tuple((level, interval) for level, interval in levels.items() if interval is not None),
        step=step,
        host=host,
        coverage=calibration.coverage,
        basis=f"{calibration.n_rows} rows of {len(calibration.groups)} sources, {calibration.date}",
        extrapolates=calibration.extrapolates(scenario),
    )


def _peak_interval(
    memory: MemoryPrediction, level: MemoryLevel, lengths: Lengths, calibration: Calibration, doubt: Doubt
) -> Interval | None:
    """Around what an unlimited card would show, downwards around what this card shows where that is less;
    no reading is above the card where the job is predicted to fit on it.
    """
    spread = calibration.spread_for(SpreadKey.memory(level, lengths))
    if spread is None:
        return None
    shown = float(getattr(memory, f"{level}_peak_bytes"))
    value = float(memory.uncapped_driver_bytes) if level == "driver" else shown
    moved = float(lifted(value)) - value
    lifted_around = interval_around(spread, value + moved, float(memory_scale(memory, level, doubt)))
    low = lifted_around.low * min(1.0, shown / value)
    around = Interval(max(0.0, low - moved), lifted_around.high - moved)
    outside = 0.0 if level == "driver" else float(memory.driver_peak_bytes - memory.reserved_peak_bytes)
    ceiling = math.inf if memory.limit_bytes is None else memory.limit_bytes - outside
    if level != "allocated":
        down, up = map(float, order_reach_bytes(memory))
        around = Interval(min(around.low, value - down), max(around.high, value + up))
    high = max(min(around.high, ceiling), shown) if shown <= ceiling else around.high
    return Interval(min(around.low, shown), high)


def order_reach_bytes(memory: MemoryPrediction) -> tuple[Number, Number]:
    """How far down and up the order of samples of natural lengths alone moves what is reserved;
    0 where lengths are fixed.

    As many standard deviations as a normal distribution has at the nominal coverage,
    and downwards no more than was piled up.
    """
    spread: Number = NORMAL_QUANTILE * memory.order_spread_bytes
    piled: Number = sum(term.n_bytes for term in memory.terms if term.label == LENGTH_CACHE)
    return minimum(spread, piled), spread


def _fits_probability(memory: MemoryPrediction, scenario: Scenario, calibration: Calibration) -> float | None:
    """Share of unseen measurements, at this prediction, that need no more than the limit;
    ``None`` where that is not known.

    No meter shows the least that a job needs; which readings stand for it says
    :mod:`planner.calibration.intervals.spreads`.
    """
    spread = calibration.spread_for(SpreadKey("need"))
    if spread is None or memory.limit_bytes is None:
        return None
    if not memory.limit_bytes:
        return 0.0
    scale, shares = float(need_scale(memory, calibration.doubt(scenario))), []
    down, up = _assumed_reach(scenario)
    for need in (float(memory.must_have_bytes) - down, float(memory.must_have_bytes) + up):
        moved = float(lifted(need)) - need
        shares.append(spread.share_below(math.log((memory.limit_bytes + moved) / (need + moved)) / scale))
    return sum(shares) / len(shares)


def _assumed_reach(scenario: Scenario) -> tuple[float, float]:
    """How far down and up the groups of a packed base may move its bytes where nobody gave them, or the
    workspace of GaLore's decompositions, which nobody published; both ends count alike.
    """
    if OPTIMIZER_FACTS[scenario.recipe.optimizer].decomposes:
        return workspace_reach_bytes(job_of(scenario, PRIORS))
    numerics = scenario.recipe.numerics
    if scenario.model.stored is not None or numerics.quantization not in IN_GROUPS:
        return 0.0, 0.0
    return group_reach_bytes(numerics, job_of(scenario, PRIORS).packed)
