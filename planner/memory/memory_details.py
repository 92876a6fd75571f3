"""The numbers behind host RAM and behind what is no request of the program, as text,
worked out when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.domain.prediction import HostPrediction, MemoryPrediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory import outside
from planner.memory.drawn_lengths import N_ORDERS, drawn_longest
from planner.memory.replayed_peak import REPLAY
from planner.program.job import Job, job_of
from planner.units import format_bytes, format_count


def with_details(
    job: Job, memory: MemoryPrediction, host: HostPrediction
) -> tuple[MemoryPrediction, HostPrediction]:
    """The numbers of each formula in ``detail`` of terms that have none of their own."""
    cache = {REPLAY: _cached(memory)}
    terms = tuple(
        replace(term, detail=term.detail or cache.get(term.formula, "") or _detail(job, term.formula))
        for term in memory.terms
    )
    host_terms = tuple(replace(term, detail=term.detail or _detail(job, term.formula)) for term in host.terms)
    return replace(memory, terms=terms), replace(host, terms=host_terms)


def _detail(job: Job, formula: str) -> str:
    write = _DETAILS.get(formula.removeprefix("planner.memory."))
    return write(job) if write else ""


def _cached(memory: MemoryPrediction) -> str:
    """What is reserved and not allocated, with batches of one length."""
    slack = sum(float(term.n_bytes) for term in memory.terms if term.formula == REPLAY)
    allocated = float(memory.allocated_peak_bytes)
    return f"{format_bytes(allocated + slack)} reserved at most - {format_bytes(allocated)} allocated at most"


def _lengths(job: Job) -> str:
    """The longest batches so far of the first drawn run, and how much lengths vary."""
    longest = ", ".join(str(each.tokens) for each in drawn_longest(job))
    prior = job_of(job.scenario, Coefficients())
    return (
        f"mean of {N_ORDERS} drawn runs; the longest batches so far of the first have {longest} tokens; "
        f"{_coefficient('length_variation')(prior)}"
    )


def _outliers(job: Job) -> str:
    share = job.coefficients.int8_outlier_fraction
    return f"{format_count(job.packed.elements)} weights x {share:.2%} of columns, input's dtype"


def _states(job: Job) -> str:
    return (
        f"{job.recipe.optimizer} over {format_count(float(job.trained))} "
        f"parameters{_over(job.optimizer_shards)}"
    )


def _context(job: Job) -> str:
    coefficients, gpu = job.coefficients, job.hardware.gpu
    known = outside.resident_threads(job) is not None
    card = f"{gpu.multiprocessors} multiprocessors" if known else "those of the card are unknown: as an A100"
    threads = (
        f"{outside.counted_threads(job):,} threads ({card}) x thread_memory_bytes "
        f"{coefficients.thread_memory_bytes:.0f} B"
    )
    return f"{threads} + context_bytes {format_bytes(coefficients.context_bytes)}, {coefficients.name}"


def _coefficient(name: str) -> Callable[[Job], str]:
    def write(job: Job) -> str:
        value, unit = getattr(job.coefficients, name), job.coefficients.prior_of(name).unit
        amount = format_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"
        return f"coefficient {name} = {amount}, {job.coefficients.name}"

    return write


def _pinned(job: Job) -> str:
    return (
        f"{format_count(float(job.trained / job.optimizer_shards))} parameters per process, {_pinning(job)}"
    )


def _pinning(job: Job) -> str:
    return "pinned, rounded to powers of two" if job.stack.pins_offload else "not pinned"


def _rounding(job: Job) -> str:
    words = {"never": "not pinned", "always": "rounded to powers of two"}
    return words.get(job.stack.pins_inputs, "rounded to powers of two where host RAM has room")


def _offloaded_params(job: Job) -> str:
    partition = format_count(float(job.base_params / job.hardware.world_size))
    return (
        f"{partition} parameters per process x {job.regime.compute} B, each tensor by itself, {_pinning(job)}"
    )


def _over(shards: object) -> str:
    return f" / {shards} processes" if isinstance(shards, int) and shards > 1 else ""


_DETAILS: dict[str, Callable[[Job], str]] = {
    "outside:context_bytes": _context,
    "outside:nccl_bytes": _coefficient("nccl_bytes"),
    "outside:paged_bytes": _states,
    "outside:outlier_weight_bytes": _outliers,
    "drawn_lengths:drawn_longest": _lengths,
    "host:process_baseline_bytes": _coefficient("host_process_bytes"),
    "host:offloaded_optimizer_bytes": _pinned,
    "host:offloaded_gradient_bytes": _pinned,
    "host:upload_buffer_bytes": _pinned,
    "host:offloaded_parameter_bytes": _offloaded_params,
    "host:pinned_cache_bytes": lambda _: "trained parts one by one, rounded to powers of two",
    "host:offloaded_activation_bytes": lambda job: f"{job.model.n_layers} block inputs, {_rounding(job)}",
}
