"""Gemma 1, 2 and 3 (text).

Module names, shapes and defaults are those of Transformers 5.23 (``models/gemma*/modeling_gemma*.py`` and
``configuration_gemma*.py``).  All tie the head to the token table unless told otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, head_norms, with_windows
from planner.catalog.architectures.parts import gated_mlp, rms, separate_qkv, with_scaling
from planner.catalog.architectures.vision.square_vision import siglip_tower
from planner.catalog.architectures.windows import alternating_types, layer_windows, window_field
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError

_GEMMA3_TEXT_VOCAB = 262_208


def _block(
    fields: ConfigFields, attention: AttentionSpec, activation: str, *, n_hidden_norms: int
) -> BlockSpec:
    hidden = fields.integer("hidden_size")
    width = fields.integer("intermediate_size")
    bias = fields.flag("attention_bias", False)
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=activation),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias) + gated_mlp(hidden, width),
        norms=(rms(hidden, copies=n_hidden_norms),),
    )


def read_gemma(fields: ConfigFields) -> ModelSpec:
    """``gemma``: Llama's block with heads of 256 features.
    ``hidden_act`` "gelu" in the released files means the tanh form.
    """
    activation = fields.text("hidden_act", "gelu_pytorch_tanh")
    activation = "gelu_pytorch_tanh" if activation == "gelu" else activation
    attention = attention_of(fields, heads_default=16, kv_default=16, head_dim_default=256)
    block = _block(fields, attention, activation, n_hidden_norms=2)
    spec = with_scaling(
        decoder(fields, [block] * fields.layers("num_hidden_layers"), tied_default=True), "one_plus"
    )
    return replace(spec, embedding_scale="table")


def read_gemma2(fields: ConfigFields) -> ModelSpec:
    """``gemma2``: a norm before and after each branch, every other layer local,
    soft caps on scores and logits.
    """
    n_layers = fields.layers("num_hidden_layers")
    attention = attention_of(fields, heads_default=8, kv_default=4, head_dim_default=256)
    attention = replace(attention, softcap=is_capped(fields, "attn_logit_softcapping", default=True))
    block = _block(fields, attention, fields.text("hidden_activation", "gelu_pytorch_tanh"), n_hidden_norms=4)
    windows = layer_windows(fields, n_layers, window_field(fields, 4096), alternating_types(n_layers, 2))
    spec = with_scaling(decoder(fields, with_windows(block, windows), tied_default=True), "one_plus")
    spec = replace(spec, embedding_scale="table")
    return replace(spec, logit_softcap=is_capped(fields, "final_logit_softcapping", default=True))


def read_gemma3_text(fields: ConfigFields) -> ModelSpec:
    """``gemma3_text``: Gemma 2's block with query and key norms, five local layers to one global,
    no soft caps.

    Released files leave out fields at their default (8 heads, 4 of them key/value, 256 features,
    vocabulary 262,208).
    """
    if fields.flag("use_bidirectional_attention", False):
        raise NotModelledError(
            f"{fields.where}: Gemma 3 with bidirectional attention is an encoder, which is not modelled"
        )
    n_layers = fields.layers("num_hidden_layers")
    attention = attention_of(fields, heads_default=8, kv_default=4, head_dim_default=256)
    attention = replace(
        attention,
        softcap=is_capped(fields, "attn_logit_softcapping", default=False),
        head_norms_last=True,
        tables_by_window=True,
    )
    block = _block(fields, attention, fields.text("hidden_activation", "gelu_pytorch_tanh"), n_hidden_norms=4)
    block = replace(block, norms=block.norms + head_norms(attention))
    period = fields.integer("sliding_window_pattern", default=6)
    windows = layer_windows(fields, n_layers, window_field(fields, 4096), alternating_types(n_layers, period))
    with_vocab = ConfigFields({"vocab_size": _GEMMA3_TEXT_VOCAB, **fields.data}, fields.where)
    spec = with_scaling(decoder(with_vocab, with_windows(block, windows), tied_default=True), "one_plus")
    spec = replace(spec, embedding_scale="table")
    return replace(spec, logit_softcap=is_capped(fields, "final_logit_softcapping", default=False))


def read_gemma3(fields: ConfigFields) -> ModelSpec:
    """``gemma3``: the multimodal checkpoint, which AutoModelForCausalLM loads whole; without
    ``vision_config`` its decoder.
    """
    text = dict(fields.section("text_config").data)
    text.setdefault("model_type", "gemma3_text")
    if fields.has("tie_word_embeddings"):
        text["tie_word_embeddings"] = fields.flag("tie_word_embeddings", True)
    spec = read_gemma3_text(ConfigFields(text, f"{fields.where}: text_config"))
    spec = replace(spec, text_class="Gemma3ForCausalLM", loads_whole=True)
    if not fields.has("vision_config"):
        return spec.text_part()
    tokens = fields.integer("mm_tokens_per_image", default=256)
    tower = siglip_tower(fields.section("vision_config"), spec.hidden_size, tokens)
    return replace(spec, architecture="gemma3", vision=tower)


def is_capped(fields: ConfigFields, name: str, *, default: bool) -> bool:
    """Whether a soft cap is on: absent means the class's default, null means off."""
    value = fields.data.get(name, default)
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, (int, float)) or not value > 0:
        raise fields.fail(f"field '{name}' must be a positive number or null")
    return True


READERS = {"gemma": read_gemma, "gemma2": read_gemma2, "gemma3_text": read_gemma3_text, "gemma3": read_gemma3}
