"""One optimizer step: which seconds add up and which hide behind others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.arrays import is_zero, maximum, minimum
from planner.domain.prediction import TimePrediction
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.term import TimeTerm
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program import job as program
from planner.throughput.communication import (
    collective_seconds,
    gained_seconds,
    hook_seconds,
    overlapping_share,
    sharding_copy_seconds,
    update_collective_seconds,
    waiting_hook_seconds,
)
from planner.throughput.evaluation import run_evaluation_seconds
from planner.throughput.flop import model_flop
from planner.throughput.generation_time import generation_seconds
from planner.throughput.kernel_time import optimizer_seconds, update_launch_seconds, walk_seconds
from planner.throughput.offload import cpu_adam_seconds, nvme_seconds, transfers
from planner.throughput.parallel_time import parallel_seconds
from planner.throughput.terms import kernel_seconds, pass_seconds
from planner.throughput.time_inputs import TimedJob, job_of
from planner.units import HOUR_S

# Names of terms, and where the formula of each is.
_GPU_FORMULAS = {
    "matmul": "kernel_time:product_seconds",
    "attention": "kernel_time:attention_seconds",
    "elementwise": "kernel_time:moving_seconds",
    "weight_casts": "kernel_time:moving_seconds",
    "adapters": "kernel_time:moving_seconds",
    "logits_and_loss": "kernel_time:moving_seconds",
    "dequantization": "kernel_time:expansion_seconds",
    "passes_aside": "terms:aside_seconds",
    "vision_tower": "terms:tower_seconds",
    "parallel_collectives": "parallel_time:parallel_seconds",
    "sharding_copies": "communication:sharding_copy_seconds",
}
_HOST_TERMS = frozenset({"launch", "sharding_hooks", "module_walks"})


def predict_time(
    scenario: Scenario, coefficients: Coefficients, known: program.Job | None = None, *, explain: bool = False
) -> TimePrediction | None:
    """Time of one optimizer step and what follows from it; ``None`` where the rates of the card
    are unknown, or the CPU computes experts.

    ``known``: the scenario as the step program has it, where that is there already;
    with ``explain`` each term carries the numbers of its formula.

    GPU kernels of a micro-step run one after another.  The host issues them ahead, so a micro-step takes the
    longer of both; int8 products wait for the GPU at every matrix, so their issue time adds.  Collectives and
    weight fetches hide behind both by ``comm_overlap`` (FSDP: all but its ends) at most, and slow
    the kernels; offloaded activations hide whole, gradient transfers, the CPU update and NVMe do not.
    Ignored: data loading (workers run ahead), logging and saving; evaluation is added to the run,
    where it is asked for.
    """
    on_host = scenario.stack.host_experts != "none"
    job = None if on_host else job_of(scenario, coefficients, known)
    if job is None:
        return None
    seconds = pass_seconds(job, "training")
    aside = pass_seconds(job, "aside")
    for name in ("launches", "waits"):
        seconds[name] = seconds.get(name, 0.0) + aside.get(name, 0.0)
    seconds |= {"passes_aside": kernel_seconds(aside), "parallel_collectives": parallel_seconds(job)}
    seconds["sharding_copies"] = sharding_copy_seconds(job)
    terms = _gpu_terms(job, seconds)
    gpu_s: Number = sum((term.seconds for term in terms), 0.0)
    on_host_terms = _host_terms(job, gpu_s, seconds)
    # Where the host sets the pace, kernels wait for it and collectives do not.
    issuing = (term for term in on_host_terms if term.name != "module_walks")
    passes_s: Number = gpu_s + sum((term.seconds - term.overlapped_s for term in issuing), 0.0)
    terms += on_host_terms
    terms += _once_per_step_terms(job, passes_s)
    step_s: Number = sum((term.seconds - term.overlapped_s for term in terms), 0.0)
    predicted = _prediction(job, tuple(terms), step_s)
    if not explain:
        return predicted
    from planner.throughput.time_details import with_time_details

    return with_time_details(job, predicted)


def pass_terms(terms: Sequence[TimeTerm]) -> tuple[TimeTerm, ...]:
    """Those of the passes: kernels, and the host that issues them."""
    return tuple(each for each in terms if each.name in _GPU_FORMULAS or each.name in _HOST_TERMS)


def _term(name: str, seconds: Number, place: str, overlapped_s: Number = 0.0) -> list[TimeTerm]:
    """The term in a list, or nothing where a recipe does not have it."""
    if is_zero(seconds):
        return []
    return [TimeTerm(name, seconds, f"planner.throughput.{place}", overlapped_s)]


def _gpu_terms(job: TimedJob, seconds: Mapping[str, Number]) -> list[TimeTerm]:
    terms: list[TimeTerm] = []
    for name, place in _GPU_FORMULAS.items():
        terms += _term(name, job.recipe.batch.grad_accum * seconds.get(name, 0.0), place)
    return terms


def launch_seconds(job: TimedJob, n_operators: Number) -> Number:
    """Host time to issue operators; seconds.

    Formula: operators x time per operator.  Source: the operators of :mod:`planner.program`, among which each
    tensor that checkpointing without reentry hooks counts as two (:mod:`planner.program.checkpoint`);
    coefficient ``launch_s``.
    """
    return n_operators * job.coefficients.launch_s


def _host_terms(job: TimedJob, gpu_s: Number, seconds: Mapping[str, Number]) -> list[TimeTerm]:
    """Issuing operators and running sharding hooks: hidden as long as the GPU has work,
    except where the host waits for it.
    """
    count = job.recipe.batch.grad_accum
    waiting = count * launch_seconds(job, seconds.get("waits", 0.0))
    launch = count * launch_seconds(job, seconds["launches"])
    hooks, exposed = count * hook_seconds(job), count * waiting_hook_seconds(job)
    hidden = minimum(gpu_s, launch - waiting)
    hidden_hooks = minimum(gpu_s, launch - waiting + hooks - exposed) - hidden
    terms = _term("launch", launch, "step_time:launch_seconds", hidden)
    terms += _term("sharding_hooks", hooks, "communication:hook_seconds", hidden_hooks)
    return terms + _term("module_walks", walk_seconds(job), "kernel_time:walk_seconds")


def _once_per_step_terms(job: TimedJob, passes_s: Number) -> list[TimeTerm]:
    """Update, collectives and offload; what is prefetched hides behind the passes, each second only once."""
    recipe, overlap = job.recipe, job.coefficients.comm_overlap
    update, issued = optimizer_seconds(job), update_launch_seconds(job)
    terms = _term("optimizer_step", update, "kernel_time:optimizer_seconds")
    terms += _term("update_launch", issued, "kernel_time:update_launch_seconds", minimum(issued, update))
    terms += _term(
        "update_collectives", update_collective_seconds(job), "communication:update_collective_seconds"
    )
    terms += _term("generation", generation_seconds(job), "generation_time:generation_seconds")
    hidden: Number = 0.0
    if recipe.sharding.communicates:
        seconds = collective_seconds(job)
        hidden = minimum(seconds * overlapping_share(job), passes_s)
        terms += _term(
            "collectives", seconds, "communication:collective_seconds", gained_seconds(job, hidden)
        )
    if recipe.offload != "none":
        moved, rate = transfers(job), job.rates.host_link_bytes_per_s
        beside = (moved.fetched * overlap + moved.saved) / rate
        whole = (moved.fetched + moved.exposed + moved.saved) / rate
        fetch_hidden = minimum(beside, maximum(0.0, passes_s - hidden))
        terms += _term("host_transfers", whole, "offload:transfers", fetch_hidden)
        terms += _term("cpu_adam", cpu_adam_seconds(job), "offload:cpu_adam_seconds")
        terms += _term("nvme", nvme_seconds(job), "offload:nvme_seconds")
    return terms


def _prediction(job: TimedJob, terms: tuple[TimeTerm, ...], step_s: Number) -> TimePrediction:
    """Rates of the whole job from the time of a step; a last partial batch is counted in proportion."""
    recipe, run, micro = job.recipe, job.scenario.run, job.mean_micro
    per_step = job.world * recipe.batch.grad_accum
    batches = per_step / recipe.parallel.gpus
    samples_per_s = batches * recipe.batch.micro_batch / step_s
    needed = per_step * model_flop(job)
    run_time_s: Number | None = None
    cost_usd: Number | None = None
    if run.n_samples is not None:
        run_time_s = run.n_samples * run.epochs / samples_per_s + run_evaluation_seconds(job)
        if run.usd_per_gpu_hour is not None:
            cost_usd = run_time_s / HOUR_S * run.usd_per_gpu_hour * job.world
    return TimePrediction(
        terms=terms,
        step_s=step_s,
        samples_per_s=samples_per_s,
        tokens_per_s=batches * recipe.parallel.context * micro.real / step_s,
        padded_tokens_per_s=batches * recipe.parallel.context * micro.computed / step_s,
        model_flop_per_step=needed,
        mfu=needed / step_s / (job.world * job.rates.peak_flop_per_s),
        run_time_s=run_time_s,
        cost_usd=cost_usd,
    )
