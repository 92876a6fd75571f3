"""Memory of a job whose architecture no program describes: what is certain, and a range for the rest.

A plain decoder, Llama's, of the same sizes runs as a program in its place.  What known architectures of the
family need beside weights and states, in units of their own plain decoders, is the range.

Code that hands a mask or a bias to SDPA gets all scores made, as eager attention does, and some code expands
or copies weights.  So the unit of the upper end is the plain decoder with eager attention, and weights
that may be copied: no architecture is far above that, whatever the length of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.arrays import maximum
from planner.catalog.hf_config import model_from_config
from planner.catalog.unmodelled import Range
from planner.domain.model import ModelSpec
from planner.domain.recipes.attention_kernels import Attention
from planner.domain.recipes.recipe import Number
from planner.domain.term import STATE_TERMS, TermName
from planner.memory.certain import certain_bytes, outside_bytes
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of

_NEVER_SCORES = ("flash2",)
"""Kernels that take no mask, so that no code can make them give all scores."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes on one GPU.  ``certain``: what the model must hold; ``outside``: context and NCCL.
    ``low_bytes`` and ``high_bytes``: the ends of what it needs, with both.
    """

    certain: Mapping[TermName, int]
    outside_bytes: int
    low_bytes: int
    high_bytes: int
    limit_bytes: int | None
    range: Range

    @property
    def certain_bytes(self) -> int:
        """All that is certain."""
        return sum(self.certain.values()) + self.outside_bytes


def plain_decoder(model: ModelSpec) -> ModelSpec:
    """Llama's decoder of the sizes of ``model``; of a mixture it is as wide as the experts of one token."""
    blocks = [group.block for group in model.groups]
    attention = next((each.attention for each in blocks if each.attends), blocks[0].attention)
    widths = [each.mlp.top_k * each.mlp.width for each in blocks if each.mlp.n_experts]
    fields = {
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": max(widths or [each.mlp.width for each in blocks]),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": model.max_position_tokens,
    }
    plain = model_from_config(fields, f"{model.id}: its plain decoder")
    return replace(plain, id=f"plain-{model.id}", checkpoint_dtype=model.checkpoint_dtype)


def rest_of(job: Job) -> tuple[Number, Number]:
    """What the program of ``job`` needs beside weights and states, allocated and reserved."""
    done, held = predict_replayed(job, minimum_too=False), _held(certain_bytes(job))
    around = held + outside_bytes(job, paged=True)
    return done.allocated_peak_bytes - held, done.uncapped_driver_bytes - around


def units_of(job: Job, plain: Job) -> tuple[Number, Number]:
    """The rest of the ``plain`` decoder in units of which the ends of ``job`` are.

    Formula: allocated of the plain decoder; reserved of the plain decoder with eager attention, and elements
    that may be copied times the bytes of the compute dtype.  An update holds more where ``job`` trains more
    parameters than its plain decoder.
    Source: torch 2.13 aten transformers/cuda/sdp_utils.cpp (a mask keeps flash attention out),
    autocast_mode.cpp ``cached_cast`` (copies of weights stay for a pass).
    """
    share = job.trained / plain.trained
    wide = plain if plain.recipe.attention in _NEVER_SCORES else _with_attention(plain, "eager")
    low, high = rest_of(plain)[0], rest_of(wide)[1]
    update, copied = _update_of(plain) * share, _copied_elements(job.model) * job.regime.compute
    return maximum(low, update), maximum(high, update) + copied


def _copied_elements(model: ModelSpec) -> int:
    """Elements of weights of which there may be copies in the compute dtype: all of one layer, and of each
    layer the bare tensors, which quantisers leave wide and autocast then copies.
    """
    bare = 0
    for block, count in ((group.block, group.count) for group in model.groups):
        tensors = (each.weight_count for each in block.linears if each.kind == "parameter")
        bare += count * (block.extra_params + sum(tensors))
    return bare + max(group.block.param_count for group in model.groups)


def _update_of(job: Job) -> Number:
    phases = predict_replayed(job, minimum_too=False).phases
    update = next(each.allocated_bytes for each in phases if each.phase == "optimizer_step")
    return update - _held(certain_bytes(job))


def _with_attention(job: Job, attention: Attention) -> Job:
    """The same job with another kernel."""
    recipe = replace(job.recipe, attention=attention)
    return job_of(replace(job.scenario, recipe=recipe), job.coefficients)


def bounds_of(job: Job, plain: Job, within: Range) -> Bounds:
    """Bounds of ``job``, whose model says its parameters alone, by what its ``plain`` decoder needs.

    Formula: what is certain and lies outside, and an end of the range times its unit in place of gradients.
    Where the range decides nothing, the lower end is what is certain.
    Source: ``data/unmodelled.toml``.
    """
    certain, (low_unit, high_unit) = certain_bytes(job), units_of(job, plain)
    held, outside = _held(certain), outside_bytes(job, paged=False)
    seen = held + within.low * low_unit if within.decides else 0
    low = maximum(sum(certain.values()), seen) + outside
    high = maximum(low, held + within.high * high_unit + outside_bytes(job, paged=True))
    whole = {name: round(float(n_bytes)) for name, n_bytes in certain.items()}
    least, most = round(float(low)), round(float(high))
    return Bounds(whole, round(float(outside)), least, most, job.hardware.limit_bytes, within)


def _held(certain: Mapping[TermName, Number]) -> Number:
    return sum(n_bytes for name, n_bytes in certain.items() if name in STATE_TERMS)
