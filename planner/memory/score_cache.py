"""What the cached blocks of written-out attention are good for in the rest of a step, and what they are lost for.

Scores are the largest tensors of a layer, so their blocks serve whatever comes after; but a block that a small tensor was cut
from serves no scores any more until that tensor has gone.  Source of all: torch 2.13 c10/cuda/CUDACachingAllocator.cpp
(get_free_block, should_split, release_cached_blocks).
"""

from __future__ import annotations

from planner.anatomy.attention import score_bytes, softmax_reads_half
from planner.arrays import where
from planner.domain.recipe import Number
from planner.program.job import Job

# Blocks of 16-bit scores that a rebuilt layer needs beside those that are alive at its peak: where the softmax reads fp16 scores
# as they are, and otherwise.  Means of 18 replays each (Llama-2-7B, Mistral-7B, Yi-6B, phi-2; 1 to 10 samples of 1,024 to 4,096
# tokens), 3.6 and 2.9, less the fragments that are counted anyway; single jobs need 2 to 5, and 1 to 5.  Either way about 17
# bytes are reserved per head, token and key.  A test holds the second to the
# stored traces of data/differential, and the first to one job.
_SPOILED_HALF, _SPOILED = 3.5, 2.5


def stranded_scores_bytes(job: Job) -> Number:
    """Blocks of attention scores that are reserved in backward although no scores are in them.

    Without checkpointing: of two 16-bit and two fp32 blocks that a layer's backward needs in turn, one 16-bit block is free, and
    too small, when both fp32 ones are live; that of fp16 scores takes their gradient, which is in fp16 itself
    (:func:`planner.anatomy.attention.softmax_reads_half`).  With checkpointing: see :func:`spoiled_scores_bytes`.
    Formula: 2 bytes per head, token and key of one layer, eager attention in 16-bit, for each such block.
    Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward; c10/cuda/CUDACachingAllocator.cpp.
    """
    spoiled = spoiled_scores_bytes(job)
    reads_half = all(softmax_reads_half(job.view(group.block)) for group in job.model.groups)
    return spoiled if job.recipe.gradient_checkpointing or reads_half else _block_bytes(job)


def spoiled_scores_bytes(job: Job) -> Number:
    """Blocks of scores that stored inputs and features of a rebuilt layer were cut from: they serve no scores of that layer.

    A stored input takes the smallest free block that is large enough.  When no block of its own size is left, that is one of
    scores, and the next layer has to ask for another.  Its segment cannot be given back either while the input lies in it, so
    this counts in what must be held.
    Formula: 3.5 blocks of 16-bit scores (2 bytes per head, token and key of one layer) where the softmax reads fp16 scores as
    they are, else 2.5; 0 without checkpointing.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block (best fit), should_split, release_cached_blocks (whole
    segments only); how many, from replays.
    Ignored: that a job needs a whole number of them, 1 to 5, which depends on how stored inputs fill the blocks.
    """
    if not job.recipe.gradient_checkpointing:
        return 0
    reads_half = all(softmax_reads_half(job.view(group.block)) for group in job.model.groups)
    return (_SPOILED_HALF if reads_half else _SPOILED) * _block_bytes(job)


def logits_in_scores_bytes(job: Job) -> Number:
    """Logits that lie in cached blocks of the scores of checkpointed layers: of those blocks as much is not idle in the loss.

    Formula: the 16-bit logits, where a block of fp32 scores is large enough for them; and where it is large enough for fp32
    logits, one tensor of these.  Per token these are 4 bytes for each head and key against 2 or 4 bytes for each logit.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block; seen in replays.
    Ignored: what is left of a block beside the logits, which serves the small tensors of the backward.
    """
    recipe, regime = job.recipe, job.regime
    if recipe.attention != "eager" or not recipe.gradient_checkpointing or recipe.loss != "hf" or regime.compute == 4:
        return 0
    if any(score_bytes(job.view(group.block))[1] < 4 + regime.compute for group in job.model.groups):
        return 0
    scores, vocabulary = most_heads(job) * recipe.batch.seq_len, job.model.vocab_size
    narrow = where(4 * scores >= regime.compute * vocabulary, regime.compute, 0)
    wide = where(scores >= vocabulary, 4, 0)
    return job.tokens * vocabulary * ((narrow if job.model.fp32_logits else 0) + wide)


def _block_bytes(job: Job) -> Number:
    """Bytes of one layer's 16-bit scores: 2 per head, token and key; 0 for fused attention and fp32 products."""
    if job.recipe.attention != "eager" or job.regime.compute == 4:
        return 0
    return job.regime.compute * most_heads(job) * job.tokens * job.recipe.batch.seq_len


def most_heads(job: Job) -> int:
    """Query heads of the layers that have most.

    Source: the shapes of the model.
    """
    return max(group.block.attention.n_heads for group in job.model.groups)
