"""What preparing a 16-bit base for k-bit training leaves behind: blocks of 16-bit weights, each replaced by an fp32 copy.

The copies come one after the other, each before its original goes.  An original is half as large as its own copy, so it can only
serve a smaller matrix that comes later; what finds no taker stays cached for good, in blocks no larger than a matrix.  What the
passes hold in tensors of that size lies in these blocks; logits do not fit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from functools import lru_cache

from planner.arrays import maximum, where
from planner.domain.model import ModelSpec
from planner.domain.recipe import Number
from planner.domain.term import PHASES, Phase, Term
from planner.memory.phases import LOSS
from planner.program.job import Job
from planner.units import MIB

# A free block is cut where more than this is left over.  Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp should_split.
_CUT_ABOVE_BYTES = MIB


def widens_base(job: Job) -> bool:
    """Whether the stack prepares a base that is not quantised, which turns every 16-bit weight into fp32 on the GPU.

    Source: peft 0.7 utils/other.py prepare_model_for_kbit_training, called by stacks with ``prepares_unquantized``.
    """
    recipe = job.recipe
    prepared = recipe.method == "lora" and not job.regime.quantized and job.stack.prepares_unquantized
    return prepared and job.regime.engine != "deepspeed" and recipe.numerics.load_dtype != "fp32"


def left_by_widening_bytes(job: Job) -> int:
    """Bytes of 16-bit blocks that are free, and still cached, when the whole base is in fp32; 0 where nothing is widened.

    Formula: best fit over the weights in the order of the model: a copy of 4 bytes per weight takes the smallest free block that
    holds it, and leaves what is over; then the original's 2 bytes per weight are free.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block, should_split.
    Ignored: rounding to 2 MiB, and biases and norms, which come from the pool of small blocks.
    """
    return _left_over(job.model) if widens_base(job) else 0


def idle_after_widening_bytes(job: Job, terms: tuple[Term, ...]) -> dict[Phase, Number]:
    """Bytes of those blocks in which nothing lies, by phase; no phase where nothing was widened.

    Formula: :func:`left_by_widening_bytes` less the tensors no larger than a matrix that are alive then (adapters, their copies,
    gradients and states, activations), and less the blocks of tables where logits fit: up to ``hidden`` tokens.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block: a free block serves requests of at most its size.
    """
    left = left_by_widening_bytes(job)
    return {phase: _idle_in_phase(job, terms, left, phase) for phase in PHASES} if left else {}


def _idle_in_phase(job: Job, terms: tuple[Term, ...], left: int, phase: Phase) -> Number:
    small = sum(term.n_bytes for term in terms if term.name in _SMALL_TERMS and phase in term.phases)
    tables = 2 * (job.counts.tables + job.counts.head) if phase in LOSS else 0
    return maximum(left - small - where(job.tokens <= job.model.hidden_size, tables, 0), 0)


# Terms whose tensors are no larger than a matrix of a layer.
_SMALL_TERMS: frozenset[str] = frozenset(
    {"adapters", "autocast_copies", "gradients", "optimizer_states", "saved_activations", "block_recompute"}
)


@lru_cache(maxsize=64)
def _left_over(model: ModelSpec) -> int:
    return sum(left_by_replacing(_weights(model)))


def left_by_replacing(weights: Iterable[int]) -> list[int]:
    """Sizes in bytes of the free blocks after matrices of so many weights went from 2 to 4 bytes each, one after the other.

    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block, should_split.
    """
    free: list[int] = []
    for count in weights:
        wanted = 4 * count
        found = bisect_left(free, wanted)
        if found < len(free):
            rest = free.pop(found) - wanted
            if rest > _CUT_ABOVE_BYTES:
                insort(free, rest)
        insort(free, 2 * count)
    return free


def _weights(model: ModelSpec) -> Iterator[int]:
    """Weights of each large tensor in the order of the model: tables, the matrices of the layers, the head."""
    tables = (model.token_embedding, *model.extra_embeddings)
    yield from (table.param_count for table in tables)
    for group in model.groups:
        for _ in range(group.count):
            yield from (linear.in_features * linear.out_features for linear in group.block.linears for _ in range(linear.copies))
    if not model.tied:
        yield model.head.weight_count
