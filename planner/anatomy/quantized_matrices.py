"""Which matrices quantisers replace, and the model as a stack builds it: Megatron-Core has query, key and
value in one matrix, and gate and up.

Source of the latter: megatron-core 0.16.1 models/gpt/gpt_layer_specs.py (``linear_qkv``, ``linear_proj``,
``linear_fc1``, ``linear_fc2``); mcore-bridge 1.6.5 bridge/gpt_bridge.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from planner.domain.model import BlockSpec, InputTensor, LinearSpec, ModelSpec
from planner.domain.stack import Stack
from planner.domain.stack_values import PassedOver


def is_quantizable(linear: LinearSpec, passed_over: PassedOver) -> bool:
    """Whether k-bit quantisers replace this matrix.

    They replace ``nn.Linear`` and GPT-2's ``Conv1D`` except the head, which Lightning's replace too.  Expert
    tensors and routers that are bare parameters are passed over; before Transformers 5 (``passed_over``:
    nothing) the experts of most models were linears and were replaced.  Since then only ``nn.Linear`` itself
    is replaced: Falcon's own linear class is passed over, and nothing of Falcon is quantised.
    Source: transformers 5.23 ``quantizers/base.py`` (modules not converted), ``integrations/bitsandbytes.py``
    replace_with_bnb_linear (``type(module) is nn.Linear``; 4.36 asked ``isinstance``).
    """
    if linear.left_whole:
        return False
    if linear.group == "head":
        return linear.packed_as_head
    if linear.kind == "subclass":
        return passed_over == "nothing"
    if linear.kind != "parameter":
        return True
    if linear.group == "expert":
        return passed_over != "parameters"
    return linear.group == "router" and passed_over == "nothing"


_GEMMA_4 = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
_QWEN_3 = (
    *("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_5", "qwen3_5_text", "qwen3_5_moe"),
    "qwen3_5_moe_text",
)
_FUSED_HEAD_NORMS = {"none": (), "gemma4": _GEMMA_4, "qwen3_too": (*_GEMMA_4, *_QWEN_3)}
"""Source: axolotl 0.19.0 loaders/patch_manager.py _apply_model_specific_patches."""


@lru_cache(maxsize=256)
def as_built(model: ModelSpec, stack: Stack) -> ModelSpec:
    """``model`` as a stack builds it: with an own head, a quantised one, or mixers that are whole.

    A list of modules that are not to be packed stands in for the default one, which has the head.
    Source: litgpt 0.5.13 model.py GPT.__init__ (``lm_head``, ``transformer.wte``), LLaMAMLP (gate and up are
    matrices of their own, ``fc_1`` and ``fc_2``); lightning 2.5
    fabric/plugins/precision/ bitsandbytes.py BitsandbytesPrecision.convert_module (every ``nn.Linear``);
    transformers 5.23 quantizers/base.py get_modules_to_not_convert (``skip_modules``).

    Gate and up are tensors of their own in torchtitan e347b1e5e models/moe/moe.py and 0.3.0
    models/common/moe.py GroupedExperts.
    """
    if stack.model_code == "megatron-core":
        return _joined_model(model)
    if stack.mixture_code.startswith("torchtitan-"):
        model = model.with_blocks(partial(_with_gates_apart, group="expert", names=("w1", "w3")))
    if model.architecture in _FUSED_HEAD_NORMS[stack.fused_head_norms]:
        model = model.with_blocks(_with_turned_norms)
    if stack.joins_turned_heads:
        model = model.with_blocks(_with_joined_heads)
        model = model.with_blocks(partial(_with_gates_apart, group="mlp", names=("gate_proj", "up_proj")))
    if model.tied and not stack.ties_tables:
        model = replace(model, tied=False)
    if stack.quantizer == "lightning":
        model = replace(model, head=replace(model.head, packed_as_head=True))
    if model.architecture == stack.whole_out_proj:
        head = model.head if model.tied else replace(model.head, packed_as_head=True)
        model = replace(model, head=head).with_linears(_with_whole_out_proj)
    return model


def _with_gates_apart(block: BlockSpec, *, group: str, names: tuple[str, str]) -> BlockSpec:
    def apart(spec: LinearSpec) -> tuple[LinearSpec, ...]:
        if (spec.group, spec.reads) != (group, "mlp_in") or spec.out_features != 2 * block.mlp.width:
            return (spec,)
        half = replace(spec, out_features=block.mlp.width, legacy_names=())
        return tuple(replace(half, name=name) for name in names)

    return replace(block, linears=tuple(part for spec in block.linears for part in apart(spec)))


def _with_turned_norms(block: BlockSpec) -> BlockSpec:
    norms = (replace(each, scaling="turned") if each.on == "heads" else each for each in block.norms)
    return replace(block, norms=tuple(norms))


def _with_joined_heads(block: BlockSpec) -> BlockSpec:
    attention = replace(block.attention, one_product=not block.attention.fused_qkv)
    if attention.position == "rope":
        attention = replace(attention, joined_rotary=True)
    return replace(block, attention=attention)


def _with_whole_out_proj(linears: tuple[LinearSpec, ...]) -> Iterable[LinearSpec]:
    return (replace(each, left_whole=each.left_whole or each.reads == "mixer_out") for each in linears)


@lru_cache(maxsize=256)
def has_quantizable(model: ModelSpec, passed_over: PassedOver) -> bool:
    """Whether k-bit quantisers replace anything: in some models they find nothing."""
    return any(is_quantizable(linear, passed_over) for linear, _ in (*model.linears(), (model.head, 1)))


_NAMES: Mapping[InputTensor, str] = {
    "attn_in": "linear_qkv",
    "attn_out": "linear_proj",
    "mlp_in": "linear_fc1",
    "mlp_mid": "linear_fc2",
}


EXPERTS = "experts."
"""How names of experts' matrices begin."""
_PLACES: Mapping[str, str] = {"expert": EXPERTS, "shared_expert": "shared_experts."}


def _joined_model(model: ModelSpec) -> ModelSpec:
    """The model with one matrix in the place of those that read the same; once is enough."""
    return model.with_blocks(_joined)


def _joined(block: BlockSpec) -> BlockSpec:
    found: dict[tuple[str, InputTensor], LinearSpec] = {}
    latents = any(each.reads == "attn_latent_kv" for each in block.linears)
    for each in block.linears:
        if each.group == "router":
            found[each.name, each.reads] = replace(each, kind="linear", legacy_names=(), adaptable=False)
            continue
        if latents and each.group == "attention":
            # Matrices of latents are as in Transformers.
            found[each.name, each.reads] = replace(each, kind="linear", legacy_names=())
            continue
        key, whole = (each.group, each.reads), found.get((each.group, each.reads))
        if whole is None:
            name = _PLACES.get(each.group, "") + _NAMES.get(each.reads, each.name)
            found[key] = replace(each, name=name, kind="linear", legacy_names=())
        else:
            found[key] = replace(whole, out_features=whole.out_features + each.out_features)
    attention = replace(block.attention, fused_qkv=True)
    return replace(block, linears=tuple(found.values()), attention=attention)
