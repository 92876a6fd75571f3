"""Gemma 3n: four streams of which each layer computes one, a branch of few ranks beside attention,
and inputs of each layer.

Module names, shapes and defaults are those of Transformers 5.23 (``models/gemma3n``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, head_norms
from planner.catalog.architectures.parts import gated_mlp, rms, separate_qkv, with_scaling
from planner.catalog.architectures.windows import alternating_types, layer_windows
from planner.domain.model import BlockSpec, EmbeddingSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec

Keys = Literal["own", "lent", "borrowed"]
_PERIOD = 5
_SPARSE_LAYERS = 10
_VOCABULARY = 262_400
_ROWS_OF_INPUTS = 262_144


def read_gemma3n_text(fields: ConfigFields) -> ModelSpec:
    """``gemma3n_text``: the last layers take keys and values from those before.

    Ignored: these keys and values, of one layer of each kind, while backward is in the last layers.
    """
    fields = ConfigFields({"vocab_size": _VOCABULARY, "hidden_size": 2048, **fields.data}, fields.where)
    n_layers = fields.layers("num_hidden_layers", default=35)
    window = fields.integer("sliding_window", default=512)
    windows = layer_windows(fields, n_layers, window, alternating_types(n_layers, _PERIOD))
    n_own = n_layers - fields.count("num_kv_shared_layers", default=15)
    widths, sparse = _widths(fields, n_layers), _sparse_layers(fields, n_layers)
    kinds = list(zip(windows, widths, sparse, keys_of(windows, n_own), strict=True))
    blocks = {each: _block(fields, each, n_layers) for each in dict.fromkeys(kinds)}
    layers = [blocks[each] for each in kinds]
    spec = decoder(fields, layers, tied_default=True)
    spec = with_scaling(_with_inputs(fields, spec), "in_fp32")
    return replace(
        spec,
        embedding_scale="table",
        logit_softcap=fields.data.get("final_logit_softcapping", 30.0) is not None,
    )


def keys_of(windows: Sequence[int | None], n_own: int) -> list[Keys]:
    """Whose keys each layer has: those behind the first ``n_own`` borrow from the last one of their kind."""
    own = windows[:n_own]
    lent = {max(n for n, each in enumerate(own) if each == window) for window in set(own)}
    lenders = lent if n_own < len(windows) else set()
    first: list[Keys] = ["lent" if number in lenders else "own" for number in range(len(own))]
    behind: list[Keys] = ["borrowed"] * (len(windows) - len(own))
    return first + behind


def _widths(fields: ConfigFields, n_layers: int) -> list[int]:
    """``intermediate_size``: one for all layers, or a list."""
    if not isinstance(fields.data.get("intermediate_size"), list):
        return [fields.integer("intermediate_size", default=16_384)] * n_layers
    widths = fields.integers("intermediate_size")
    if len(widths) != n_layers or not all(widths):
        raise fields.fail(f"intermediate_size names {len(widths)} layers, num_hidden_layers is {n_layers}")
    return list(widths)


def _sparse_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Layers whose gate keeps only its largest features."""
    given = fields.data.get("activation_sparsity_pattern")
    if given is None:
        return [n_layers > _SPARSE_LAYERS and number < _SPARSE_LAYERS for number in range(n_layers)]
    if not isinstance(given, list) or len(given) != n_layers:
        raise fields.fail("activation_sparsity_pattern must be a list of one number for each layer")
    if not all(isinstance(each, int | float) and 0 <= each < 1 for each in given):
        raise fields.fail("activation_sparsity_pattern must hold numbers from 0 to 1")
    return [each > 0 for each in given]


def _block(fields: ConfigFields, kind: tuple[int | None, int, bool, Keys], n_layers: int) -> BlockSpec:
    window, width, sparse, keys = kind
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    attention = attention_of(
        fields, window_tokens=window, kv_default=2, head_dim_default=256, heads_default=8
    )
    attention = replace(attention, lends_keys=keys == "lent", widened_tables=True, tables_by_window=True)
    linears = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    of_values = NormSpec(
        "rms", attention.head_dim, weight=False, on="heads", rows_per_token=attention.n_kv_heads
    )
    of_heads = (*head_norms(attention), of_values)
    if keys == "borrowed":
        attention, of_heads = replace(attention, borrows_keys=True), head_norms(attention)[:1]
        linears = tuple(each for each in linears if each.name not in ("k_proj", "v_proj"))
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    inputs = fields.integer("hidden_size_per_layer_input", default=256)
    return BlockSpec(
        attention,
        MlpSpec(width, gated=True, activation=activation, sparse_gate=sparse),
        (*linears, *gated_mlp(hidden, width), *_beside(fields, hidden, inputs)),
        (rms(hidden, copies=7), *of_heads),
        extra_params=hidden,
        streams=_streams(fields),
        layer_inputs_width=inputs * n_layers,
    )


def _streams(fields: ConfigFields) -> int:
    return fields.integer("altup_num_inputs", default=4)


def _beside(fields: ConfigFields, hidden: int, inputs: int) -> tuple[LinearSpec, ...]:
    """Matrices of the streams, of the branch of few ranks, and of the layer's input."""
    streams, rank = _streams(fields), fields.integer("laurel_rank", default=64)
    return (
        LinearSpec("correction_coefs", "mlp", streams, streams, "streams"),
        LinearSpec("prediction_coefs", "mlp", streams, streams**2, "streams"),
        LinearSpec("modality_router", "mlp", hidden, streams, "streams"),
        LinearSpec("linear_left", "mlp", hidden, rank, "low_rank"),
        LinearSpec("linear_right", "mlp", rank, hidden, "low_rank"),
        LinearSpec("per_layer_input_gate", "mlp", hidden, inputs, "layer_gate"),
        LinearSpec("per_layer_projection", "mlp", inputs, hidden, "layer_mid"),
    )


def _with_inputs(fields: ConfigFields, spec: ModelSpec) -> ModelSpec:
    """The table of the inputs of all layers, what makes them of the stream, and what makes streams of one."""
    inputs, hidden = fields.integer("hidden_size_per_layer_input", default=256), spec.hidden_size
    width, others = inputs * spec.n_layers, range(_streams(fields) - 1)
    rows = fields.integer("vocab_size_per_layer_input", default=_ROWS_OF_INPUTS)
    last = NormSpec("rms", inputs, on="layer_inputs", rows_per_token=spec.n_layers)
    return replace(
        spec,
        extra_embeddings=(EmbeddingSpec("embed_tokens_per_layer", rows, width, per_layer=True),),
        extra_linears=(
            LinearSpec("per_layer_model_projection", "mlp", hidden, width, "layer_inputs"),
            *(LinearSpec(f"altup_projections.{each}", "mlp", hidden, hidden, "streams") for each in others),
            *(
                LinearSpec(f"altup_unembed_projections.{each}", "mlp", hidden, hidden, "joined_streams")
                for each in others
            ),
        ),
        final_norms=(*spec.final_norms, last),
    )


READERS = {"gemma3n_text": read_gemma3n_text}
