"""What one GPU has of a model whose matrices are divided over several, and of a sequence that is divided.

Source: transformers 5.23 distributed/tensor_parallel.py (``colwise``, ``rowwise``, ``embedding_rowwise``) and
the ``base_model_tp_plan`` of models/llama/configuration_llama.py; torchtitan 0.3.0
models/common/decoder_sharding.py; torchtitan e347b1e5e distributed/expert_parallel.py ExpertParallel
(``Shard(0)``: each GPU has some of the experts, whole).
Ignored: a vocabulary that does not divide evenly, of which the first GPUs have a row more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from planner.domain.model import BlockSpec, InputTensor, LinearSpec, ModelSpec, Side
from planner.domain.scenario import Scenario

_SIDES: Mapping[InputTensor, Side] = {
    "attn_in": "outputs",
    "attn_latent_q": "outputs",
    "attn_latent_kv": "outputs",
    "mlp_in": "outputs",
    "attn_out": "inputs",
    "mlp_mid": "inputs",
}


def on_one_gpu(scenario: Scenario) -> Scenario:
    """The scenario with the part of the model and of each sequence that one GPU has; once is enough."""
    recipe, batch, parts = scenario.recipe, scenario.recipe.batch, scenario.recipe.parallel.context
    whole_table = recipe.uses_deepspeed
    model = divided_model(scenario.model, recipe.parallel.tensor, whole_table=whole_table)
    model = with_own_experts(model, recipe.parallel.experts, recipe.parallel.expert_tensor)
    if batch.parts != parts:
        mean = batch.tokens_per_sample / parts
        recipe = replace(
            recipe, batch=replace(batch, parts=parts, seq_len=batch.seq_len // parts, tokens_per_sample=mean)
        )
    divides = recipe.parallel.divides or recipe.parallel.expert_gpus > 1
    return replace(scenario, model=model, recipe=recipe) if divides else scenario


@lru_cache(maxsize=64)
def divided_model(model: ModelSpec, parts: int, *, whole_table: bool = False) -> ModelSpec:
    """The model that one of ``parts`` GPUs has: norms whole, of the rest one part; under DeepSpeed the token
    table is whole, too.
    """
    if model.parts == parts:
        return model
    table = model.token_embedding
    if not whole_table:
        table = replace(table, rows=-(-table.rows // parts))
    head = _divided(model.head, "outputs", parts)
    model = replace(model, token_embedding=table, head=head, parts=parts)
    return model.with_blocks(lambda block: _divided_block(block, parts))


@lru_cache(maxsize=64)
def with_own_experts(model: ModelSpec, parts: int, of_features: int) -> ModelSpec:
    """The model with the experts that one of ``parts`` GPUs has, of which ``of_features`` GPUs divide the
    features; routers choose among all of them.
    """
    if model.expert_parts == parts * of_features:
        return model

    def own(linears: tuple[LinearSpec, ...]) -> Iterable[LinearSpec]:
        return (
            _own_experts(each, parts, of_features) if each.group == "expert" else each for each in linears
        )

    return replace(model, expert_parts=parts * of_features).with_linears(own)


def _own_experts(linear: LinearSpec, parts: int, of_features: int) -> LinearSpec:
    """Nothing is sent at such a matrix: rows of all are gathered before."""
    linear = replace(linear, copies=linear.copies // parts)
    return replace(_divided(linear, _SIDES[linear.reads], of_features), divided="no")


def _divided_block(block: BlockSpec, parts: int) -> BlockSpec:
    heads = block.attention
    norms = tuple(
        replace(norm, rows_per_token=max(norm.rows_per_token // parts, 1)) if norm.on == "heads" else norm
        for norm in block.norms
    )
    # Experts are whole on their GPU, and every GPU has the router.
    mlp = replace(block.mlp, shared_width=block.mlp.shared_width // parts)
    if not mlp.n_experts:
        mlp = replace(mlp, width=mlp.width // parts)
    return replace(
        block,
        attention=replace(heads, n_heads=heads.n_heads // parts, n_kv_heads=heads.n_kv_heads // parts),
        mlp=mlp,
        linears=tuple(
            linear if _is_whole(block, linear) else _divided(linear, _SIDES[linear.reads], parts)
            for linear in block.linears
        ),
        norms=norms,
    )


def _is_whole(block: BlockSpec, linear: LinearSpec) -> bool:
    """Experts and routers, and what compresses queries, keys and values to latents."""
    latents = any(each.reads == "attn_latent_kv" for each in block.linears)
    compresses = latents and linear.reads == "attn_in" and linear.out_features != block.attention.q_width
    return compresses or linear.group in ("expert", "router")


def _divided(linear: LinearSpec, side: Side, parts: int) -> LinearSpec:
    if side == "outputs":
        return replace(linear, out_features=-(-linear.out_features // parts), divided=side)
    return replace(linear, in_features=linear.in_features // parts, divided=side)
