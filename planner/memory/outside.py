"""What the device holds outside of the allocator, what a calibration found beside the counted tensors, and the limit."""

from __future__ import annotations

from collections.abc import Mapping

from planner.arrays import is_zero
from planner.domain.recipe import Number
from planner.domain.term import Phase, Term, TermName
from planner.memory import runtime, weights
from planner.memory.phases import AFTER_STEP, ALL_PHASES, LOSS, PASSES, STEPS, kind_of, make_term
from planner.program.driver import paged_state_bytes
from planner.program.job import Job
from planner.program.parameters import adapter_weights, model_weights


def driver_terms(job: Job) -> tuple[Term, ...]:
    """CUDA context, NCCL's buffers and paged optimizer states."""
    context, nccl, paged = runtime.context_bytes(job), runtime.nccl_bytes(job), _paged_bytes(job)
    shards = kind_of(job.optimizer_shards)
    return (
        *make_term("context", "CUDA context and kernels", context, ALL_PHASES, "runtime:context_bytes", "replicated"),
        *make_term("nccl", "NCCL buffers", nccl, ALL_PHASES, "runtime:nccl_bytes", "replicated"),
        *make_term("paged_optimizer_states", "paged optimizer states", paged, AFTER_STEP, "optimizer:paged_state_bytes", shards),
    )


def _paged_bytes(job: Job) -> Number:
    """Paged states of the tensors that bitsandbytes pages; small ones have theirs in the program.

    Source: as of :func:`planner.program.driver.paged_state_bytes`.
    """
    recipe = job.recipe
    if not recipe.optimizer.startswith("paged") or recipe.offloads_optimizer:
        return 0
    trained = (weight for weight in (*model_weights(job), *adapter_weights(job)) if weight.trained)
    return paged_state_bytes(job, trained) / job.optimizer_shards


def limit_bytes(job: Job) -> int | None:
    """What the job may use of its card; ``None`` where that is unknown, or on another device than CUDA's."""
    hardware = job.hardware
    visible = hardware.gpu.visible_memory_bytes
    if visible is None or not hardware.gpu.is_cuda:
        return None
    # Others can hold all of a card, never more.
    return max(visible - hardware.gpu_reserved_bytes, 0)


_ACTIVATIONS: tuple[TermName, ...] = ("saved_activations", "block_recompute")


def uncounted_terms(job: Job, phases: Mapping[Phase, Mapping[TermName, Number]]) -> tuple[Term, ...]:
    """What a calibration found beside the program's tensors; nothing without one, so that the physics stays as it is.

    Coefficient ``activation_share`` of the activations at their fullest, ``logits_extra_copies`` of the logits, and the
    columns of older int8 layers that met outliers.
    """
    share, copies = job.coefficients.activation_share, job.coefficients.logits_extra_copies
    terms: tuple[Term, ...] = ()
    if not is_zero(share):
        most = max((sum(each.get(name, 0) for name in _ACTIVATIONS) for each in phases.values()), default=0)
        terms = make_term("other_temporaries", "other activations", share * most, PASSES, "outside:uncounted_terms", "transient")
    if not is_zero(copies) and job.recipe.loss == "hf":
        n_bytes = copies * job.tokens * job.model.vocab_size * job.regime.compute
        here = "outside:uncounted_terms"
        terms = (*terms, *make_term("logits_and_loss", "other logits copies", n_bytes, LOSS, here, "transient"))
    outliers, formula = weights.outlier_weight_bytes(job), "weights:outlier_weight_bytes"
    return (*terms, *make_term("dequantization", "outlier columns", outliers, STEPS, formula, "replicated"))
