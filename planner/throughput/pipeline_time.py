"""Seconds of a step whose layers are divided over groups of GPUs: that of the slowest group,
the time in which it waits for the others, and what groups send one another.
"""

from __future__ import annotations

from dataclasses import replace

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.prediction import TimePrediction
from planner.domain.recipes.recipe import DTYPE_BYTES, Number
from planner.domain.scenario import Scenario
from planner.domain.term import TimeTerm
from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.rates import intra_node_bytes_per_s
from planner.throughput.step_time import pass_terms, predict_time
from planner.throughput.time_inputs import TimedJob, job_of
from planner.units import GIGA, HOUR_S

_PLACE = "planner.throughput.pipeline_time:"
_EXCHANGES = 2
"""Of each micro-batch and run of layers: output forward, gradient back.
What arrives from the other side comes at the same time."""


def predict_pipeline(
    scenario: Scenario, coefficients: Coefficients, *, explain: bool = False
) -> TimePrediction | None:
    """Time of one optimizer step; ``None`` where the card's rates are unknown."""
    stages = stages_of(scenario)
    times = [predict_time(each, coefficients, explain=explain) for each in stages]
    known = [each for each in times if each is not None]
    job = job_of(stages[0], coefficients)
    if job is None or len(known) < len(times):
        return None
    # One group's last step is the next one's first: who is slowest sets the pace.
    busy = [pass_seconds_of(each) for each in known]
    slowest = max(range(len(known)), key=lambda rank: float(busy[rank]))
    own, others = known[slowest], sum(busy, 0.0) - busy[slowest]
    waits, sends = bubble_seconds(job, others), transfer_seconds(scenario, job)
    step_s = own.step_s + waits + sends
    moved = f"{handed_on_bytes(job) / GIGA:.2f} GB per GPU and step"
    terms = (
        *own.terms,
        TimeTerm("pipeline_bubble", waits, f"{_PLACE}bubble_seconds", 0.0, f"group {slowest} is the slowest"),
        TimeTerm("pipeline_transfers", sends, f"{_PLACE}transfer_seconds", 0.0, moved),
    )
    return _of_all(scenario, known, replace(own, terms=terms), step_s)


def pass_seconds_of(time: TimePrediction) -> Number:
    """Seconds of all micro-batches of a step through one group."""
    return sum((term.seconds - term.overlapped_s for term in pass_terms(time.terms)), 0.0)


def bubble_seconds(job: TimedJob, others_s: Number) -> Number:
    """The time in which the slowest group waits, for the first micro-batch to come and the last one to go
    back; seconds per step.

    Formula: of each round the passes of one micro-batch through all other groups, less where each has several
    runs of layers.  With equal groups that is ``(n - 1) / (m + n - 1)`` of a round of ``m`` micro-batches.
    ``others_s``: passes of all micro-batches of a step through them.
    Source: Megatron-LM (arXiv 2104.04473) section 2.2.
    """
    stage = job.own.model.stage
    assert stage is not None
    return others_s / stage.microbatches / len(stage.chunks)


def transfer_seconds(scenario: Scenario, job: TimedJob) -> Number:
    """What a group between others sends and receives while its kernels wait; seconds per step.

    Formula: :func:`handed_on_bytes` over the rate of a link: of the network's share of one GPU where groups
    are on nodes of their own.
    Source: torch 2.13 distributed/pipelining/schedules.py Schedule1F1B (``_wait_batch_p2p`` before each
    pass).
    Ignored: that an interleaved schedule sends while it computes.
    """
    whole, group = scenario.hardware, job.scenario.hardware
    link = intra_node_bytes_per_s(whole, job.coefficients)
    if group.gpus_per_node == whole.gpus_per_node:
        link = min(link, job.rates.network_bytes_per_s / group.gpus_per_node)
    return handed_on_bytes(job) / link


def handed_on_bytes(job: TimedJob) -> Number:
    """Bytes of outputs and gradients that a group between others sends in one step, each GPU its own part; of
    GPUs in turn all that they send one another.

    Source: torch 2.13 distributed/pipelining/stage.py get_fwd_send_ops, get_bwd_send_ops.
    """
    stage, recipe, model = job.own.model.stage, job.recipe, job.scenario.model
    assert stage is not None
    tokens = job.mean_micro.computed / recipe.parallel.tensor
    element_bytes = DTYPE_BYTES[recipe.numerics.compute_dtype]
    width = _EXCHANGES * len(stage.chunks) * model.hidden_size
    if stage.in_turn:
        # All GPUs wait for each of these, and for the logits on their way to the first one.
        width = width * (stage.ranks - 1) + model.head.out_features
    return recipe.batch.grad_accum * tokens * width * element_bytes


def _of_all(
    scenario: Scenario, known: list[TimePrediction], own: TimePrediction, step_s: Number
) -> TimePrediction:
    """Rates of the whole job from those of its slowest group alone."""
    run, world = scenario.run, scenario.hardware.world_size
    slower = own.step_s / step_s
    flop = sum(time.model_flop_per_step for time in known)
    busy = [time.mfu * time.step_s for time in known if time.mfu is not None]
    utilisation = sum(busy, 0.0) / len(known) / step_s if len(busy) == len(known) else None
    samples_per_s = own.samples_per_s * slower
    run_time_s = None if run.n_samples is None else run.n_samples * run.epochs / samples_per_s
    cost = None
    if run_time_s is not None and run.usd_per_gpu_hour is not None:
        cost = run_time_s / HOUR_S * run.usd_per_gpu_hour * world
    return replace(
        own,
        step_s=step_s,
        samples_per_s=samples_per_s,
        tokens_per_s=own.tokens_per_s * slower,
        padded_tokens_per_s=own.padded_tokens_per_s * slower,
        model_flop_per_step=flop,
        mfu=utilisation,
        run_time_s=run_time_s,
        cost_usd=cost,
    )
