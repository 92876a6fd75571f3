"""Bytes of host RAM that KTransformers takes to compute and train experts there, in one process of the job.

Source: kt-kernel 0.7.0, whose files are named below.
Ignored: experts' files, which are read layer by layer; room that is reserved and never written, such as that
for longer batches (``kt_model_max_length``) or more of them (``kt_max_cache_depth``).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.arrays import ceil_div, maximum
from planner.domain.recipes.recipe import Number
from planner.program.job import Job

_BF16, _FP32 = 2, 4
# Ranks are filled up to what one tile of a product takes, of elements of so many bytes.
_TILES = {"bf16": (32, _BF16), "int8": (64, 1)}


@dataclass(frozen=True, slots=True)
class _Mixture:
    """One layer's experts: so many of three matrices between ``hidden`` and ``width`` features, of which
    ``chosen`` compute each token; each of ``parts`` has the whole of ``hidden`` and its part of ``width``.
    """

    count: int
    experts: int
    hidden: int
    width: int
    chosen: int
    parts: int

    @property
    def sides(self) -> int:
        """Features of both sides of a matrix, over all parts."""
        return self.hidden * self.parts + self.width


def _mixtures(job: Job) -> list[_Mixture]:
    hidden, parts = job.model.hidden_size, job.stack.host_parts
    found = ((group.count, group.block.mlp) for group in job.model.groups)
    return [
        _Mixture(count, mlp.n_experts, hidden, mlp.width, mlp.top_k, parts)
        for count, mlp in found
        if mlp.n_experts and job.stack.host_experts != "none"
    ]


def _rank(job: Job) -> Number:
    return job.recipe.adapter.rank if job.recipe.adapter else 0


def _tokens(job: Job) -> Number:
    """Tokens of one micro-batch of all ranks."""
    return job.tokens * job.hardware.world_size


def host_weight_bytes(job: Job) -> Number:
    """Weights of all experts in host RAM, and one layer's again, transposed for the backward pass.

    Formula: three matrices of each expert, 2 bytes for each element; in int8 one, and 4 for each row of a
    matrix.  Source: kt-kernel operators/amx/moe_base.hpp AMX_MOE_BASE::init (``gate_bb_``),
    la/amx_kernels.hpp BufferB::required_size, sft_moe.hpp prepare_backward_bb_for_async.
    """

    def layer(each: _Mixture) -> int:
        elements = 3 * each.hidden * each.width
        if job.stack.host_experts == "bf16":
            return _BF16 * each.experts * elements
        return each.experts * (elements + _FP32 * (2 * each.width + each.hidden * each.parts))

    sizes = [(each.count, layer(each)) for each in _mixtures(job)]
    return sum(count * size for count, size in sizes) + max((size for _, size in sizes), default=0)


def host_adapter_bytes(job: Job) -> Number:
    """Adapters of all experts with gradients and states, and what products read of them.

    Formula: 8 bytes for each number: itself, its gradient and two states in bf16.  Both matrices of the third
    product again, with ranks filled up to a tile, for the backward pass; matrices that lie in parts, and
    those to the output transposed.
    Source: kt-kernel python/sft/lora.py _create_fused_expert_lora_buffers; operators/amx/sft_moe.hpp
    prepare_lora_backward_weights, transpose_lora_b_weights; operators/moe-sft-tp.hpp update_lora_weights;
    torch 2.13 optim/adamw.py: states have the dtype of their parameter.
    """
    rank = _rank(job)
    if not rank or not _mixtures(job):
        return 0
    tile, size = _TILES[job.stack.host_experts]
    filled = ceil_div(rank, tile) * tile
    total: Number = 0
    for each in _mixtures(job):
        trained = 4 * _BF16 * 3 * rank * (each.hidden + each.width)
        packed = size * filled * each.sides
        copies = _BF16 * rank * (5 * each.width + each.hidden * each.parts)
        total = total + each.count * each.experts * (trained + packed + copies)
    return total


def host_activation_bytes(job: Job) -> Number:
    """What the backward pass of experts reads, kept of every layer or made again for one.

    Formula: in bf16 for each token its input, and for each of its experts three tensors of the width and the
    output; where it is kept, the sum of these outputs, too.
    Source: kt-kernel operators/amx/sft_moe.hpp alloc_forward_buffers, alloc_or_resize_cache_pool;
    python/sft/base.py cache_checkpoint_output.
    """
    tokens, rank, keeps = _tokens(job), _rank(job), job.stack.keeps_host_activations

    def layer(each: _Mixture) -> Number:
        row = _BF16 * each.hidden * each.parts
        chosen = 3 * _BF16 * each.width + row + _FP32 * rank * each.parts
        return tokens * (row + each.chosen * chosen + _BF16 * each.hidden * keeps)

    mixtures = _mixtures(job)
    if keeps:
        return sum(each.count * layer(each) for each in mixtures)
    return maximum(0, *map(layer, mixtures))


def host_buffer_bytes(job: Job) -> Number:
    """Tensors in which experts work, which all layers share.

    Formula: for each token and each of its experts 22 bytes for a feature of ``hidden``, 24 for one of the
    width; 8 for each feature of a token on its way from and to the card.
    Source: kt-kernel operators/amx/moe_base.hpp AMX_MOE_BASE::init (``m_local_input_`` and pools),
    sft_moe.hpp alloc_forward_buffers, alloc_backward_buffers; python/sft/base.py KExpertsSFTBuffer.
    Ignored: what is as wide as the rank; that some of it is half as large for weights in int8.
    """
    rows = (
        each.chosen * (22 * each.hidden * each.parts + 24 * each.width) + 8 * each.hidden
        for each in _mixtures(job)
    )
    return _tokens(job) * max(rows, default=0)
