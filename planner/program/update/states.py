"""The states that each optimizer keeps for a parameter, made in its first step.

Source: torch 2.13 optim/adam.py, rmsprop.py; bitsandbytes 0.50 optim/optimizer.py init_state and
get_state_buffer; transformers 4.36.2 and 4.49.0 optimization.py AdamW.step, 5.23 Adafactor.step,
trainer_optimizer.py.
Of others: schedulefree 1.4.1 adamw_schedulefree.py; axolotl 0.19.0 utils/optimizers/adopt.py, adamc.py;
bitsandbytes 0.50.2 optim/ademamix.py; adam_mini 1.1.1 adam_mini.py; llamafactory 0.9.5
third_party/muon/muon.py; torchao 0.17 optim/adam.py _AdamBase._new_buffer, subclass_8bit.py,
subclass_4bit.py, with the blocks of transformers 5.23 trainer_optimizer.py _get_torchao_optimizer.
Ignored: step counters and code books, of at most 2 KiB.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.errors import NotModelledError
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Unit
from planner.program.parameters import Weight
from planner.program.update.projected import is_projected, kept_bytes, narrowed, singular_vectors
from planner.program.update.step_kernels import is_orthogonalized

_MIN_8BIT_ELEMENTS = 4096
BLOCK = 256
"""Elements that share a scale, in bitsandbytes and, as the Trainer asks for it, in torchao."""
_MIN_PAGED_ELEMENTS = 100_000


class State(NamedTuple):
    """Bytes for each of a unit.  ``paged``: managed memory, which lies outside of the allocator."""

    unit: Unit
    unit_bytes: float
    paged: bool = False


def states_of(job: Job, weight: Weight) -> list[State]:
    """The states of one parameter, in the order in which they are made.

    Raises:
        NotModelledError: an optimizer whose states nobody wrote down here.
    """
    optimizer, unit, like_weight = job.recipe.optimizer, weight.unit, weight.unit_bytes
    facts = OPTIMIZER_FACTS[optimizer]
    if facts.projects:
        return _projected(job, weight)
    if facts.library == "torchao":
        return _torchao(job, weight)
    if facts.library == "bitsandbytes":
        return _bitsandbytes(job, weight)
    if facts.library in ("torch", "package") or optimizer == "adamw_hf":
        return [State(unit, each * like_weight) for each in facts.state_elements]
    if optimizer == "adam_mini":
        rows = [State(Unit.ONE, weight.shape[0][1] * ELEMENT_BYTES[weight.dtype])]
        return [State(unit, like_weight), *(rows if len(weight.shape) > 1 else [])]
    if optimizer == "muon":
        return [State(unit, like_weight)] * (1 if is_orthogonalized(weight) else 2)
    if optimizer == "adafactor":
        return [State(*size) for size in sums_of(weight)]
    if optimizer == "badam":
        return [State(unit, 4 * weight.count)] * 2
    raise NotModelledError(
        f"--optimizer {optimizer}: its states are not written down (planner/program/update/states.py); "
        "take another"
    )


def _bitsandbytes(job: Job, weight: Weight) -> list[State]:
    """8-bit codes and a scale for each block of a large parameter; else fp32.

    The Trainer asks for tables in fp32 by their parameters, which DeepSpeed has replaced by copies of its own
    when the first step looks for them.  It does not ask GaLore's class.
    Source: bitsandbytes 0.50 optim/optimizer.py check_overrides; deepspeed 0.19.8
    runtime/zero/stage_1_and_2.py (``param_group['params'] = [single_partition_of_fp32_groups[i]]``).
    """
    facts, elements = OPTIMIZER_FACTS[job.recipe.optimizer], n_elements(job, weight)
    paged = facts.paged and elements >= _MIN_PAGED_ELEMENTS
    finds_tables = job.stack.widens_table_states and not (job.recipe.uses_deepspeed or facts.projects)
    widened = weight.kind == "table" and finds_tables
    if facts.bits == 8 and elements >= _MIN_8BIT_ELEMENTS and not widened:
        codes = [State(weight.unit, each * weight.count, paged) for each in facts.state_elements]
        return codes + [State(weight.unit, 4 * each * weight.count / BLOCK) for each in facts.state_elements]
    return [State(weight.unit, 4 * each * weight.count, paged) for each in facts.state_elements]


def _torchao(job: Job, weight: Weight) -> list[State]:
    """Two states: codes and a scale for each block of a large parameter, else tensors like the parameter."""
    if not is_in_blocks(job, weight):
        return [State(weight.unit, weight.unit_bytes)] * 2
    codes = State(weight.unit, weight.count * OPTIMIZER_FACTS[job.recipe.optimizer].bits / 8)
    return [codes, State(weight.unit, 4 * weight.count / BLOCK)] * 2


def _projected(job: Job, weight: Weight) -> list[State]:
    """The matrix that a gradient is multiplied with, and states of the product; of what is not projected its
    own.  GaLore's Adafactor decomposes gradients in fp32.
    """
    optimizer, rank = job.recipe.optimizer, job.recipe.optimizer_rank
    facts, kept = OPTIMIZER_FACTS[optimizer], []
    if rank is not None and is_projected(weight, head=job.stack.projects_head):
        rank = singular_vectors(weight, rank) if facts.decomposes else rank
        dtype: Dtype = "fp32" if optimizer == "galore_adafactor" else weight.dtype
        kept = [State(Unit.ONE, kept_bytes(weight, rank, dtype, decomposed=facts.decomposes))]
        weight = narrowed(weight, rank)
    if facts.bits == 8:
        return kept + _bitsandbytes(job, weight)
    if optimizer == "galore_adafactor":
        return kept + [State(*size) for size in sums_of(weight)]
    return kept + [State(weight.unit, weight.unit_bytes)] * 2


def is_in_blocks(job: Job, weight: Weight) -> bool:
    """Whether torchao keeps a parameter's states in codes: 4,096 elements or more, in whole blocks."""
    return n_elements(job, weight) >= _MIN_8BIT_ELEMENTS and n_elements(job, weight) % BLOCK == 0


def sums_of(weight: Weight) -> list[tuple[Unit, float]]:
    """Adafactor's fp32 sums of a matrix's rows and columns; of a vector as large as itself."""
    if len(weight.shape) == 1:
        return [(weight.unit, 4 * weight.count)]
    *outer, row, column = weight.shape
    return [_product([*outer, row]), _product([*outer, column])]


def _product(shape: list[tuple[Unit, float]]) -> tuple[Unit, float]:
    unit = Unit.RANK if any(unit is Unit.RANK for unit, _ in shape) else Unit.ONE
    return unit, 4 * prod(count for _, count in shape)


def n_elements(job: Job, weight: Weight) -> float:
    """Elements of a parameter."""
    return weight.count * rank_of(job) if weight.unit is Unit.RANK else weight.count


def rank_of(job: Job) -> float:
    """The rank of the adapters; 0 without adapters."""
    return float(job.recipe.adapter.rank) if job.recipe.adapter else 0.0
