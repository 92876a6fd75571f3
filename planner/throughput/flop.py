"""Arithmetic of a micro-step, read from the operators of the step program."""

from __future__ import annotations

from dataclasses import replace

from planner.anatomy.adapted_matrices import is_merged
from planner.arrays import is_zero, minimum
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Number
from planner.program.ops.tensors import Unit
from planner.program.ops.work import Direction, FusedAttention, Product
from planner.throughput.counted import SCORES, Counted, Pass, by_structure, unit_values
from planner.throughput.kernel_time import FLOP_PER_MAC, mean_keys
from planner.throughput.terms import passes_aside
from planner.throughput.time_inputs import TimedJob
from planner.throughput.tokens import MicroStep

_NEEDED: tuple[Direction, ...] = ("forward", "backward")


def products_flop(job: TimedJob, micro: MicroStep, passes: Pass, directions: tuple[Direction, ...]) -> Number:
    """FLOP of the products of matrices in one micro-step, attention left out.

    Formula: twice their multiply-accumulates.  Source: the operators of :mod:`planner.program`, which
    tests hold to torch's counter.
    """
    values = unit_values(job.scenario, micro)

    def read(counted: Counted) -> dict[str, Number]:
        found: Number = 0.0
        for each in counted.costs:
            if isinstance(each.kind, Product) and each.unit not in SCORES and each.direction in directions:
                found = found + each.amount * values[each.unit]
        return {"macs": found}

    return FLOP_PER_MAC * by_structure(job.scenario, micro, passes, read)["macs"]


def model_flop(job: TimedJob) -> Number:
    """FLOP that the method needs for one micro-step, without recomputation: the numerator of model FLOP
    utilisation.

    Formula: products of matrices, forward and backward, over tokens that are no padding; causal attention,
    whose backward is twice its forward; passes that train nothing, forward alone.
    Source: PaLM (arXiv 2204.02311) appendix B, with frozen matrices left out of the weight gradients.
    Ignored: losses that make logits a second time, which count twice.
    """
    recipe, mean = job.recipe, job.mean_micro
    micro = replace(mean, computed=mean.real)
    aside = passes_aside(job)
    products = products_flop(job, micro, "training", _NEEDED)
    if not is_zero(aside):
        products = products + products_flop(job, micro, "aside", _NEEDED)
    length = micro.real / recipe.batch.rows * recipe.parallel.context
    attention = attention_forward_macs(job.scenario.model, length) * micro.real
    attention = (3 + aside) * attention + _tower_attention_macs(job)
    return products + FLOP_PER_MAC * (attention - _spare_macs(job) * micro.real)


def attention_forward_macs(model: ModelSpec, length: Number) -> Number:
    """Multiply-accumulates per token of scores and weighted values in one forward pass.

    Formula: keys x heads x (query-key + value features) per layer, over the causal triangle or its band.
    Source: FlashAttention-2 (arXiv 2307.08691) section 4, 4 x s^2 x d x heads, halved when causal.
    """
    total: Number = 0
    for group in model.groups:
        spec = group.block.attention
        kind = FusedAttention("flash", (spec.head_dim, spec.value_head_dim), "band", spec.window_tokens)
        features = spec.n_heads * (spec.head_dim + spec.value_head_dim)
        total = total + group.count * features * mean_keys(kind, length)
    return total


def _spare_macs(job: TimedJob) -> int:
    """Multiply-accumulates per token that the code makes and the method does not need: experts that nobody
    chose, and the gradient of an expert's weight that an adapter is added to.
    """
    recipe, stack, total = job.recipe, job.scenario.stack, 0
    for block, count in job.scenario.model.blocks():
        for linear in block.linears:
            spare = 0
            if block.mlp.router == "every" and linear.group == "expert":
                spare = (3 if recipe.method == "full" else 2) * (linear.copies - linear.active_copies)
            elif recipe.adapter and is_merged(linear, recipe.adapter.targets, stack):
                spare = linear.active_copies
            total += count * spare * linear.in_features * linear.out_features
    return total


def _tower_attention_macs(job: TimedJob) -> Number:
    """Those of a vision tower's attention, which sees whole images or windows."""
    images = job.recipe.batch.images
    if job.scenario.model.vision is None or images is None:
        return 0
    patches = job.values[Unit.PATCHES]

    def read(counted: Counted) -> dict[str, Number]:
        found: Number = 0.0
        times = 3 if counted.reaches_tower else 1
        for each in counted.costs:
            kind = each.kind
            if each.place == "tower" and isinstance(kind, FusedAttention) and each.direction == "forward":
                keys = minimum(kind.window or images.tile_patches, images.tile_patches)
                found = found + times * each.amount * patches * keys
        return {"macs": found}

    return by_structure(job.scenario, job.micro, "training", read)["macs"]
