"""What each layer of older modelling code keeps for positions: tables of cosines and sines.

Source: transformers 4.36.2 models/llama/modeling_llama.py LlamaRotaryEmbedding._set_cos_sin_cache (two
buffers in the default dtype, which is the one that weights are loaded in); unsloth 6dd9d4e2b (2024.12.4)
models/llama.py LlamaRotaryEmbedding.extend_rope_embedding; 2026.10.9 models/llama.py:1571-1603, where
positions are given, as of rows without padding; torchtune 0.6.1 modules/position_embeddings.py,
models/qwen2/_positional_embeddings.py, models/phi3/_position_embeddings.py (``build_rope_cache``).
Ignored: those of a reference model, and of code that comes with a checkpoint.  Tables of GPT-NeoX are fp32
since 4.38, which is below 0.2 % of a peak.  GPT-2, GPT-J and GPT-NeoX kept a mask of all pairs of positions
in each layer until 4.45 to 5.4, a byte a pair: below 0.3 % of a peak that was measured or traced, and 3 % of
that of a 1.4B QLoRA job of 512 tokens.
"""

from __future__ import annotations

from planner.arrays import ceil_div, maximum, where
from planner.domain.recipes.recipe import Number
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES

_OF_TORCHTUNE = {
    "pairs": (1, False),
    "halves": (2, False),
    "pairs_of_layers": (1, True),
    "halves_of_layers": (2, True),
}
"""Numbers of a row for each feature of a head, and whether each layer has a table."""
_IN_FP32 = ("gemma", "gemma2")
"""Architectures whose tables Unsloth makes in fp32.  Source: unsloth b140367a8 (2024.8) models/gemma.py
GemmaFixedRotaryEmbedding."""
_FIRST_ROWS, _MORE_ROWS = 4 * 8192, 8192
"""Positions that a table which grows begins with, at most, and those that are added at a time."""


def table_rows(job: Job) -> Number:
    """Positions of one table: all that the model was made for and those of a longer sample,
    or (``rotary_rows`` "grown") a part of them to begin with.
    """
    if job.stack.rotary_positions:
        return job.stack.rotary_positions
    length, made_for = job.recipe.batch.seq_len, job.model.max_position_tokens
    if made_for is None:
        return length
    if job.stack.rotary_rows == "positions":
        return maximum(made_for, length)
    first = min(_FIRST_ROWS, made_for)
    return where(length > first, ceil_div(length, _MORE_ROWS) * _MORE_ROWS, first)


def table_row_bytes(job: Job) -> int:
    """Bytes of a row of both tables, of all layers that have some; DeepSpeed's engine casts them, and FSDP1,
    whose mixed precision is that of buffers too.  Of torchtune they are fp32, but for its recipes with FSDP1.

    Source: accelerate 1.15 utils/dataclasses.py FullyShardedDataParallelPlugin.set_mixed_precision; torchtune
    0.2.1 recipes/lora_finetune_distributed.py _setup_model (``model.to(torch.bfloat16)``).
    """
    own = _OF_TORCHTUNE.get(job.stack.rotary_tables[0])
    if own is not None:
        count, in_each = own
        layers = job.model.n_layers if in_each else 1
        width = ELEMENT_BYTES[job.recipe.numerics.load_dtype if job.recipe.sharding.is_fsdp1 else "fp32"]
        return count * width * job.model.groups[0].block.attention.head_dim * layers
    is_shared = "shared" in job.stack.rotary_tables
    if _decoder(job) not in job.stack.rotary_tables or (is_shared and not job.recipe.adapter):
        return 0
    numerics = job.recipe.numerics
    casts = job.regime.engine == "deepspeed" or job.recipe.sharding.is_fsdp1
    in_fp32 = _decoder(job) in _IN_FP32
    dtype = "fp32" if in_fp32 else numerics.compute_dtype if casts else numerics.load_dtype
    groups = [each for each in job.model.groups if each.block.attention.position == "rope"]
    widths = [
        each.count * (each.block.attention.rotary_width or each.block.attention.head_dim) for each in groups
    ]
    return 2 * sum(widths) * ELEMENT_BYTES[dtype] // (job.model.n_layers if is_shared else 1)


def _decoder(job: Job) -> str:
    return job.model.decoder or job.model.architecture
