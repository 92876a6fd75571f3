"""The numbers behind each time term, as text; worked out only when somebody asks how a term came about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.domain.prediction import TimePrediction
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.term import TimeTerm
from planner.throughput.communication import (
    broadcasts,
    gathered_bytes,
    quantized_bytes,
    reduced_bytes,
    second_copy_bytes,
    update_bytes,
    update_bytes_per_s,
)
from planner.throughput.counted import by_structure
from planner.throughput.flop import products_flop
from planner.throughput.generation_time import cache_bytes_per_token
from planner.throughput.offload import transfers
from planner.throughput.parallel_time import exchanged_bytes, parallel_bytes
from planner.throughput.terms import passes_aside
from planner.throughput.time_inputs import TimedJob
from planner.units import GIGA, MEGA, MICRO_S, TERA


def with_time_details(job: TimedJob, time: TimePrediction) -> TimePrediction:
    """``time`` with the numbers of each formula in ``TimeTerm.detail``; of one scenario, never of a grid."""
    return replace(
        time, terms=tuple(replace(term, detail=_DETAILS[term.name](job, term)) for term in time.terms)
    )


def _moved(job: TimedJob, term: TimeTerm) -> str:
    moved = term.seconds / job.recipe.batch.grad_accum * job.rates.memory_bytes_per_s
    return f"{moved / GIGA:.1f} GB per micro-batch at {job.rates.memory_bytes_per_s / GIGA:.0f} GB/s"


def _matmul(job: TimedJob, term: TimeTerm) -> str:
    """The rate that is reached on average, beside that of large 16-bit products."""
    rates = job.rates
    flop = products_flop(job, job.micro, "training", ("forward", "again", "backward"))
    passes = 2 * flop / products_flop(job, job.micro, "training", ("forward",))
    reached = flop * job.recipe.batch.grad_accum / term.seconds
    return (
        f"{passes:.1f} N x {job.micro.computed:.0f} tokens = {flop / TERA:.1f} TFLOP per micro-batch at "
        f"{reached / TERA:.3g} TFLOP/s; large products in 16 bits reach {rates.matmul_flop_per_s / TERA:.0f} "
        f"of {rates.peak_flop_per_s / TERA:.0f}"
    )


def _attention(job: TimedJob, _: TimeTerm) -> str:
    return f"{job.recipe.attention}, {job.micro.length:.0f} tokens per sample"


def _logits(job: TimedJob, term: TimeTerm) -> str:
    return f"{job.scenario.model.vocab_size} logits per token, {_moved(job, term)}"


def _quantized(job: TimedJob, _: TimeTerm) -> str:
    packed, rate = job.own.packed.elements / GIGA, job.rates.memory_bytes_per_s / GIGA
    return f"{packed:.2f} B weights in {job.recipe.numerics.quantization} at {rate:.0f} GB/s"


def _launch(job: TimedJob, term: TimeTerm) -> str:
    each = job.coefficients.launch_s
    return (
        f"{term.seconds / job.recipe.batch.grad_accum / each:.0f} operators per micro-batch at "
        f"{each / MICRO_S:.0f} us"
    )


def _generation(job: TimedJob, _: TimeTerm) -> str:
    rollout, rows = job.recipe.rollout, job.recipe.batch.rows * job.recipe.generation_micro_steps
    tokens = rollout.completion_tokens if rollout else 0
    cached = cache_bytes_per_token(job) / MEGA
    return (
        f"{rows} sequences, {tokens} tokens one after another, {cached:.2f} MB of cache per token at "
        f"{job.rates.memory_bytes_per_s / GIGA:.0f} GB/s"
    )


def _hooks(job: TimedJob, _: TimeTerm) -> str:
    modules, cost = job.called_modules, job.coefficients.hook_s / MICRO_S
    return f"{modules} modules, {job.trained_tensors} trained tensors, {cost:.0f} us each"


def _optimizer(job: TimedJob, _: TimeTerm) -> str:
    gpus = "GPU" if job.world == 1 else "GPUs"
    return f"{job.recipe.optimizer}, {job.own.trained / GIGA:.3f} B trained parameters on {job.world} {gpus}"


def _update_launch(job: TimedJob, _: TimeTerm) -> str:
    each = OPTIMIZER_FACTS[job.recipe.optimizer].operators
    cost = job.coefficients.launch_s / MICRO_S
    return f"{job.trained_tensors} trained tensors, operators for each: {each:g} at {cost:.0f} us"


def _collectives(job: TimedJob, _: TimeTerm) -> str:
    moved = gathered_bytes(job) + reduced_bytes(job) + second_copy_bytes(job) + sum(quantized_bytes(job))
    return f"{moved / GIGA:.2f} GB per GPU and step at {job.rates.collective_bytes_per_s / GIGA:.1f} GB/s"


def _transfers(job: TimedJob, _: TimeTerm) -> str:
    moved = transfers(job)
    fetched, rate = moved.fetched + moved.saved, job.rates.host_link_bytes_per_s / GIGA
    return (
        f"{fetched / GIGA:.2f} GB fetched, {moved.exposed / GIGA:.2f} GB of gradients and "
        f"updates at {rate:.1f} GB/s"
    )


def _tower(job: TimedJob, _: TimeTerm) -> str:
    images = job.recipe.batch.images
    patches = job.recipe.batch.rows * images.per_sample * images.patches if images else 0
    back = by_structure(job.scenario, job.micro, "training", lambda all_: {"reached": all_.reaches_tower})
    return f"{patches:,.0f} patches, {'forward and backward' if back['reached'] else 'forward alone'}"


def _parallel(job: TimedJob, _: TimeTerm) -> str:
    parallel = job.recipe.parallel
    if parallel.experts > 1:
        return f"{exchanged_bytes(job) / GIGA:,.2f} GB of rows for experts among {parallel.experts} GPUs"
    return f"{parallel_bytes(job) / GIGA:,.2f} GB among {parallel.tensor} x {parallel.context} GPUs"


def _update_collectives(job: TimedJob, _: TimeTerm) -> str:
    sent = f"{update_bytes(job) / GIGA:.2f} GB at {update_bytes_per_s(job) / GIGA:.0f} GB/s"
    count = broadcasts(job)
    return f"{sent}, {count:.0f} broadcasts" if count else sent


_DETAILS: dict[str, Callable[[TimedJob, TimeTerm], str]] = {
    "matmul": _matmul,
    "attention": _attention,
    "elementwise": _moved,
    "weight_casts": _moved,
    "adapters": lambda job, _: (
        f"{job.adapted_matrices} matrices, at {job.rates.memory_bytes_per_s / GIGA:.0f} GB/s"
    ),
    "logits_and_loss": _logits,
    "dequantization": _quantized,
    "passes_aside": lambda job, _: (
        f"{passes_aside(job):g} forward passes without gradients of {job.micro.computed:,.0f} tokens"
    ),
    "vision_tower": _tower,
    "parallel_collectives": _parallel,
    "sharding_copies": _moved,
    "launch": _launch,
    "sharding_hooks": _hooks,
    "module_walks": lambda job, _: (
        f"{job.called_modules} modules, {job.coefficients.launch_s / MICRO_S:.0f} us each"
    ),
    "optimizer_step": _optimizer,
    "update_launch": _update_launch,
    "update_collectives": _update_collectives,
    "generation": _generation,
    "collectives": _collectives,
    "host_transfers": _transfers,
    "cpu_adam": lambda job, _: (
        f"{job.own.trained / job.scenario.hardware.nodes / GIGA:.2f} B parameters per node"
    ),
    "nvme": lambda job, _: f"at {job.coefficients.nvme_bytes_per_s / GIGA:.1f} GB/s per node",
}
