"""A model as Megatron-Core builds it: query, key and value are one matrix, and so are gate and up.

Source: megatron-core 0.16.1 models/gpt/gpt_layer_specs.py (``linear_qkv``, ``linear_proj``, ``linear_fc1``,
``linear_fc2``); mcore-bridge 1.6.5 bridge/gpt_bridge.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.domain.model import BlockSpec, InputTensor, LinearSpec, ModelSpec

_NAMES: Mapping[InputTensor, str] = {
    "attn_in": "linear_qkv",
    "attn_out": "linear_proj",
    "mlp_in": "linear_fc1",
    "mlp_mid": "linear_fc2",
}


EXPERTS = "experts."
"""How names of experts' matrices begin."""
_PLACES: Mapping[str, str] = {"expert": EXPERTS, "shared_expert": "shared_experts."}


def joined_model(model: ModelSpec) -> ModelSpec:
    """The model with one matrix in the place of those that read the same; once is enough."""
    return model.with_blocks(_joined)


def _joined(block: BlockSpec) -> BlockSpec:
    found: dict[tuple[str, InputTensor], LinearSpec] = {}
    for each in block.linears:
        if each.group == "router":
            found[each.name, each.reads] = replace(each, kind="linear", legacy_names=(), adaptable=False)
            continue
        key, whole = (each.group, each.reads), found.get((each.group, each.reads))
        if whole is None:
            name = _PLACES.get(each.group, "") + _NAMES.get(each.reads, each.name)
            found[key] = replace(each, name=name, kind="linear", legacy_names=())
        else:
            found[key] = replace(whole, out_features=whole.out_features + each.out_features)
    attention = replace(block.attention, fused_qkv=True)
    return replace(block, linears=tuple(found.values()), attention=attention)
