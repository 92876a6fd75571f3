"""Dense architectures that are a known block with little changed: CWM, HyperCLOVA X, Helium, IQuest-Coder,
Jais 2, Muse Glimmer, NanoChat, VaultGemma.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.gemma_family import is_capped, read_gemma2
from planner.catalog.architectures.dense.later_blocks import turned_in_windows
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    llama_block,
    read_granite,
    read_llama,
    with_windows,
)
from planner.catalog.architectures.dense.llama_kin import relu2_block
from planner.catalog.architectures.parts import (
    gated_mlp,
    layer_norm,
    plain_mlp,
    rms,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import FULL, SLIDING, layer_windows, window_field
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec


def read_cwm(fields: ConfigFields) -> ModelSpec:
    """``cwm``: Llama's block with a window on three layers of four, the first of which attends fully."""
    n_layers = fields.layers("num_hidden_layers")
    attention = attention_of(fields, kv_default=8, head_dim_default=128)
    block = llama_block(fields, attention, mlp_bias=fields.flag("mlp_bias", False))
    types = [SLIDING if index % 4 else FULL for index in range(n_layers)]
    windows = layer_windows(fields, n_layers, window_field(fields, 8192), types)
    return decoder(fields, with_windows(block, windows))


def read_hyperclovax(fields: ConfigFields) -> ModelSpec:
    """``hyperclovax``: Granite's model, with a norm behind each branch, too, unless told otherwise."""
    copies = 4 if fields.flag("use_post_norm", True) else 2
    norms = (rms(fields.integer("hidden_size"), copies=copies),)
    return read_granite(fields).with_blocks(lambda block: replace(block, norms=norms, scales_branches=True))


def read_helium(fields: ConfigFields) -> ModelSpec:
    """``helium``: Llama's block; positions turn pairs, with tables that each layer repeats."""
    attention = attention_of(fields, kv_default=20, head_dim_default=128)
    if attention.out_width != fields.integer("hidden_size"):
        raise fields.fail("heads times head_dim must be hidden_size, which the output projection reads")
    block = llama_block(
        fields,
        replace(attention, rotary_form="repeated_pairs"),
        qkv_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )
    return with_scaling(decoder(fields, [block] * fields.layers("num_hidden_layers")), "wide")


def read_iquestcoder(fields: ConfigFields) -> ModelSpec:
    """``iquestcoder``: Llama's modules, with numbers of its own for fields that are absent."""
    given = {"num_key_value_heads": 8, "head_dim": 128, **fields.data}
    return read_llama(ConfigFields(given, fields.where))


def read_jais2(fields: ConfigFields) -> ModelSpec:
    """``jais2``: Arcee's block with layer norms and bias."""
    hidden = fields.integer("hidden_size")
    block = relu2_block(fields, layer_norm(hidden, copies=2), bias=True)
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    return replace(spec, final_norms=(layer_norm(hidden),))


def read_nanochat(fields: ConfigFields) -> ModelSpec:
    """``nanochat``: norms without weights, over embeddings and turned heads, too; a squared ReLU."""
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    bias, attention = fields.flag("attention_bias", False), attention_of(fields, kv_default=6)
    attention = replace(attention, head_norms_turned=True)
    norm = NormSpec("rms", hidden, weight=False)
    heads = NormSpec("rms", attention.head_dim, weight=False, on="heads")
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "relu2")),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
        + plain_mlp(hidden, width, ("fc1", "fc2"), bias=False),
        norms=(
            replace(norm, copies=2),
            replace(heads, rows_per_token=attention.n_heads),
            replace(heads, rows_per_token=attention.n_kv_heads),
        ),
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    capped = is_capped(fields, "final_logit_softcapping", default=True)
    return replace(spec, final_norms=(norm, norm), embedding_norm=True, logit_softcap=capped)


def read_muse_glimmer_text(fields: ConfigFields) -> ModelSpec:
    """``muse_glimmer_text``: Gemma 2's norms around AFMoE's attention, whose gate runs last and whose heads
    have norms without weights, as the embeddings have; positions in windows only.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    width, bias = fields.integer("intermediate_size"), fields.flag("attention_bias", False)
    attention = replace(
        attention_of(fields, kv_default=2, head_dim_default=128),
        head_norms_last=True,
        output_gate="behind",
        scales_query=True,
    )
    gate = LinearSpec("gate_proj", "attention", hidden, attention.out_width, "attn_in")
    projections = (*separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias), gate)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_activation", "silu")),
        linears=projections + gated_mlp(hidden, width),
        norms=(
            replace(rms(hidden, copies=4), scaling="one_plus"),
            *(replace(each, weight=False) for each in head_norms(attention)),
        ),
    )
    types = [SLIDING if (n_layers - 1 - index) % 4 else FULL for index in range(n_layers)]
    windows = layer_windows(fields, n_layers, window_field(fields, 2048), types)
    spec = decoder(fields, turned_in_windows(block, windows))
    last = replace(rms(hidden), scaling="in_fp32")
    return replace(spec, final_norms=(last,), embedding_scale="norm", scales_logits=True, logit_softcap=True)


def read_vaultgemma(fields: ConfigFields) -> ModelSpec:
    """``vaultgemma``: Gemma 2 without the norms behind its branches."""
    norms = (rms(fields.integer("hidden_size"), copies=2),)
    spec = read_gemma2(fields).with_blocks(lambda block: replace(block, norms=norms))
    return with_scaling(spec, "one_plus")


READERS = {
    "cwm": read_cwm,
    "hyperclovax": read_hyperclovax,
    "helium": read_helium,
    "iquestcoder": read_iquestcoder,
    "jais2": read_jais2,
    "muse_glimmer_text": read_muse_glimmer_text,
    "nanochat": read_nanochat,
    "vaultgemma": read_vaultgemma,
}
