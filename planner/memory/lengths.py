"""The cache that lengths pile up which change from step to step.

Where samples are padded to the longest of their batch, a batch that is longer than all before it finds no cached block of its
size: its fp32 logits get new segments, and those of the longest batch before stay reserved; 16-bit logits find room in these.
Shorter batches fit into what is there.  So only new longest batches count, and the last of them is already in the peak: what is
stranded belongs to those before it.
Settled on replays (``planner/allocator/caching_allocator.py``) of eleven traced jobs: four models of 0.5B to 8B, 9 orders of
lengths each, several kinds of base and checkpointing.  A step without a new longest batch changes nothing.  The formula here is
2.9 % of reserved away from the replays; without any term it is 17.9 %.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.natural_lengths import CutLaw, cut_law, lengths_vary
from planner.arrays import ceil_div, exp, log, maximum, minimum, sqrt, where
from planner.domain.recipe import Number
from planner.memory.logits import logits_backward_bytes, logits_forward_bytes
from planner.program.job import Job

# Activations that grew find this part of their room in stranded logits.  Fitted to the replays above.
_ROOM_FOUND = 0.9
# Micro-steps of a run where the scenario does not say how many samples there are; ten times more adds 2.3 records at most.
_MICRO_STEPS = 1000
_POINTS = 64
_LEVELS_BEYOND = 8.0
# Below this share of the orders nothing is asked of them; it keeps quotients finite.
_LEAST_SHARE = 1e-9
# A normal quantile is about ln(p / (1 - p)) / 1.702, within 0.06 for p from 0.02 to 0.98.
_LOGISTIC = 1.702


@dataclass(frozen=True, slots=True)
class LengthCache:
    """``n_bytes``: what half of the orders of the samples strand at most.  ``spread_bytes``: one standard deviation over them."""

    n_bytes: Number
    spread_bytes: Number


NOTHING = LengthCache(0, 0)


@dataclass(frozen=True, slots=True)
class Records:
    """Records before the last, in units of the cap: the mean of their sum over orders, and its variance.

    ``first``: mean longest of a batch.  ``at_once``: share of the orders whose first batch has a sample at the cap.
    """

    total: Number
    squares: Number
    first: Number
    at_once: Number


def length_cache(job: Job, activation_bytes: Number) -> LengthCache:
    """Blocks that hold nothing because longer batches than theirs came later; reserved, never needed.

    Formula: ``length_cache_share`` x ``outgrown`` - ``growth``.  ``outgrown``: the widest copies of the logits
    (:func:`_outgrown_bytes`) of all new longest batches but the last (:func:`middle_sum`), as the median over orders, because a
    run has one order and the mean is that of a few large sums.  ``growth``: the part of ``activation_bytes``
    (at the cap) that grew since the first batch, which takes its room there.  Blocks that k-bit preparation
    left, of the size of the 16-bit tables, serve fp32 logits that fit in them.  A run of unknown length is
    taken to have 1,000 micro-steps.  0 for packed and padded lengths of one size, segments that grow or
    caches that are emptied, and losses in pieces.  A card that is full gets it all back, so it does not count
    in the minimum memory.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block, alloc_block; records: Arnold, Balakrishnan and
    Nagaraja, "Records", 2.3.
    Ignored: scores of eager attention, which grow with the square; that activations find no room before new
    longest batches leave it.
    """
    batch = job.recipe.batch
    if not lengths_vary(batch) or not job.stack.keeps_outgrown_blocks or job.recipe.loss != "hf":
        return NOTHING
    found = records(job)
    share = job.coefficients.length_cache_share
    lost = maximum(share * _outgrown_bytes(job) - _served_by_tables(job), 0)
    stranded = lost * middle_sum(found) - _ROOM_FOUND * activation_bytes * (1 - found.first)
    # A run of one micro-step has no record before its last: its sums are 0 but for rounding, which may be below.
    return LengthCache(maximum(stranded, 0), lost * sqrt(maximum(found.squares, 0)))


def _outgrown_bytes(job: Job) -> Number:
    """Bytes of those copies of a batch's logits that find no block in what a shorter batch left.

    Formula: the copies of the loss (:mod:`planner.memory.logits`).  Where autocast meets 16-bit logits two thirds of them, the
    fp32 ones: the logits and their log-softmax have half the width, and fit into outgrown blocks of these.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block (best fit), alloc_block; replays of both chains, see
    ``tests/against_libraries/test_trace_lengths.py``.
    """
    copies = maximum(logits_forward_bytes(job), logits_backward_bytes(job))
    half_width = job.regime.autocast and job.regime.compute < 4 and not job.model.fp32_logits
    return copies * 2 / 3 if half_width else copies


def middle_sum(found: Records) -> Number:
    """Sum of the records but the last that half of the orders stay below, in units of the cap.

    A share ``at_once`` of the orders has none.  The sums of the others are taken as gamma distributed with the mean m and the
    variance v that are left for them.  Formula: m (1 - c + z sqrt(c))^3 with c = v / (9 m^2), where z is the normal quantile of
    the place of the middle among these others, by the logistic curve.
    Source: Wilson and Hilferty, "The distribution of chi-square", 1931.  Within 0.12 of the cap of 1,500 drawn runs, and within
    0.25 where long samples are left out: the first batch is certainly a new longest one, and counts here as if it were not.
    """
    others = maximum(1 - found.at_once, _LEAST_SHARE)
    mean = found.total / others
    variance = maximum((found.squares + found.total * found.total) / others - mean * mean, 0)
    ninth = variance / (9 * maximum(mean * mean, _LEAST_SHARE))
    place = maximum((0.5 - found.at_once) / others, _LEAST_SHARE)
    quantile = log(place / (1 - place)) / _LOGISTIC
    return mean * maximum(1 - ninth + quantile * sqrt(ninth), 0) ** 3


def _served_by_tables(job: Job) -> Number:
    """Bytes of fp32 logits of the longest batch that blocks of the 16-bit tables serve, one for the table and one for the head.

    Such a block is free after the preparation of a k-bit base, and large enough for at most hidden / 2 tokens of a batch.
    """
    quantization = job.recipe.numerics.quantization
    if not job.regime.quantized or quantization == "gptq-int4" or job.stack.kbit_upcast != "all":
        return 0
    blocks = 1 if job.model.tied else 2
    return where(job.tokens <= job.model.hidden_size / 2, blocks * 4 * job.tokens * job.model.vocab_size, 0)


def records(job: Job) -> Records:
    """Expected records among the longest samples of the batches of a run, all but the last.

    Lengths follow a shifted exponential of coefficient of variation ``length_variation`` that ends at the cap, with the mean that
    the samples have.  Longer samples are cut, and then some are at the cap itself, or they are left out (switch
    ``drops_long_samples``), and then none is.  With the level ``r = -ln(1 - w)``, where ``w`` is the share of
    the batches that stay below a length, the new longest of ``n`` micro-steps have the density ``1 - w^n - n
    w^(n-1) e^-r``, integrated by midpoints.
    Source: Arnold, Balakrishnan and Nagaraja, "Records", 2.3; compared with 2,000 drawn runs, within 3 %.
    """
    law = _law(job)
    start, end, samples, kept = law.start, law.end, law.samples, law.kept
    drops = job.stack.drops_long_samples
    at_once = 0 * end if drops else 1 - (1 - exp(-end)) ** samples
    steps = _micro_steps(job)
    # Beyond this level a run of that many batches has next to no record.
    top = log(steps) + _LEVELS_BEYOND
    last_level = top if drops else minimum(-log(maximum(at_once, _LEAST_SHARE)), top)
    total: Number = 0
    squares: Number = 0
    for point in range(_POINTS):
        rest = exp(-last_level * (point + 0.5) / _POINTS)
        all_below = 1 - rest
        last = all_below ** (steps - 1)
        density = (1 - last * all_below - steps * last * rest) * last_level / _POINTS
        length = (start - log(1 - all_below ** (1 / samples) * kept)) / (start + end)
        total, squares = total + density * length, squares + density * length * length
    longer: Number = 0
    for point in range(_POINTS):
        share = (1 - exp(-end * (point + 0.5) / _POINTS)) / kept
        longer = longer + end / _POINTS * (1 - share**samples)
    return Records(total, squares, (start + longer) / (start + end), at_once)


def _law(job: Job) -> CutLaw:
    """How long the samples of the job are."""
    stack = job.stack
    variation = job.coefficients.length_variation
    return cut_law(job.recipe.batch, variation, drops_long=stack.drops_long_samples, sorts_lengths=stack.sorts_lengths)


def longest_of_batch_tokens(job: Job, share: float) -> Number:
    """Padded tokens per sample that the ``share`` of the batches do not exceed.

    Formula: the length at that share of the law of :func:`records`; the cap where batches have one length, or for all of them.
    Source: as of :func:`records`.
    """
    batch = job.recipe.batch
    if not lengths_vary(batch) or share >= 1:
        return batch.seq_len
    return ceil_div(_law(job).length(share) * batch.seq_len, 1)


def _micro_steps(job: Job) -> Number:
    """Micro-steps of one GPU over the whole run."""
    run = job.scenario.run
    if run.n_samples is None:
        return _MICRO_STEPS
    return maximum(run.n_samples * run.epochs / (job.recipe.batch.micro_batch * job.hardware.world_size), 1)
