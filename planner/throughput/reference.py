"""Passes without gradients beside the one that is trained: the model as it was before, whose
log-probabilities are compared.
"""

from __future__ import annotations

from planner.arrays import is_zero
from planner.domain.recipe import Number
from planner.throughput.evaluation import forward_seconds
from planner.throughput.job import Job
from planner.throughput.kernels import expansion_seconds
from planner.throughput.passes import passes_aside, policy_passes, reference_passes
from planner.throughput.traffic import read_logits_bytes
from planner.throughput.vision import tower_operators


def aside_seconds(job: Job) -> Number:
    """Forward passes of DPO and KTO that train nothing; seconds per micro-step.

    Formula: passes x (kernels of a forward pass + its logits, written and read for their log-probabilities +
    4-bit weights expanded once).  Passes of the model as it was run without adapters.
    Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss; as
    :mod:`planner.throughput.evaluation`.
    Ignored: int8's own cost beside its products.
    """
    passes = passes_aside(job.recipe)
    if not passes:
        return 0.0
    logits = job.scenario.model.head.out_features * job.micro.computed
    moved = logits * read_logits_bytes(job.recipe.loss, job.regime)
    kernels = policy_passes(job.recipe) * forward_seconds(job)
    kernels = kernels + reference_passes(job.recipe) * forward_seconds(job, adapters_on=False)
    beside = moved / job.rates.memory_bytes_per_s
    if job.recipe.numerics.quantization not in ("none", "int8"):
        beside = beside + expansion_seconds(job)
    return kernels + passes * beside


def issued_operators(job: Job) -> Number:
    """Operators of all passes of a micro-step: those of training, forward ones of each pass beside it,
    and those of a tower.

    Source: :mod:`planner.throughput.operators`.
    """
    operators = job.profile.operators
    return operators.total + passes_aside(job.recipe) * operators.forward + tower_operators(job)


def waiting_operators(job: Job) -> Number:
    """Operators of passes that wait for the GPU between matrices (int8),
    those beside the training pass as well.

    Source: :mod:`planner.throughput.operators`.
    """
    waiting = job.profile.operators.synchronising
    return waiting if is_zero(waiting) else waiting * (1 + passes_aside(job.recipe) / job.passes)
