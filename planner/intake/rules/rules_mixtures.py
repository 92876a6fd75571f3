"""Rules about mixtures whose experts and routers stacks treat in their own ways."""

from __future__ import annotations

from planner.domain.model import BlockGroup
from planner.domain.recipes.recipe import TARGET_PARAMETER
from planner.intake.expert_parallel import MIXTURES
from planner.intake.linears import failing_routers
from planner.intake.rules.rule import Case, not_modelled, refuse
from planner.intake.rules.rules_recipe import adapted_expert_bytes


def _adapts_router(case: Case) -> bool:
    """Whether a router that returns two tensors gets an adapter."""
    if case.adapter is None:
        return False
    names = {target.rpartition(".")[2] for target in case.adapter.targets}
    return any(not names.isdisjoint({"all-linear", each}) for each in failing_routers(case.model))


def _routes(case: Case, how: str) -> bool:
    return any(group.block.mlp.router == how for group in case.model.groups)


def _is_another_mixture(case: Case) -> bool:
    if not case.stack.mixture_code.startswith("torchtitan-") or not case.model.is_moe:
        return False
    return case.model.architecture not in MIXTURES or case.recipe.method != "full"


def _holds_elsewhere(case: Case) -> bool:
    """Whether experts that are expanded when they are read are divided other than by FSDP2, or adapted by a
    PEFT that was not compared.
    """
    sharding = case.recipe.sharding
    divided = (sharding.gathers_weights or case.recipe.uses_fsdp) and not sharding.dtensors
    adapted = adapted_expert_bytes(case) > 0 and not case.stack.expert_deltas
    return _holds(case) and (divided or adapted)


def _holds(case: Case) -> bool:
    return (
        case.model.is_moe and case.stack.quantizes_experts == "held" and case.numerics.quantization != "none"
    )


def _holds_int8_elsewhere(case: Case) -> bool:
    """Whether int8 experts are divided, or a checkpoint may end inside of them.

    Their hooks are not called where a checkpoint that is not reentrant stops early: all layers then keep
    their experts expanded (axolotl 0.19.0 monkeypatch/moe_quant.py replace_parameter_8bit; those of
    bitsandbytes 0.50 nn/parametrize.py for 4 bits are called always).  Dry runs of Axolotl: Qwen3 30B-A3B
    under FSDP2 124 GiB, where 34 GiB were counted; reentrant ones on one GPU agree with what is counted.
    """
    recipe = case.recipe
    stops_early = recipe.gradient_checkpointing and not recipe.checkpoint_reentrant
    divided = recipe.sharding.gathers_weights or recipe.uses_fsdp
    return _holds(case) and case.numerics.quantization == "int8" and (divided or stops_early)


def _scatters_elsewhere(case: Case) -> bool:
    """Whether ScatterMoE runs experts, or over shards, that nobody read.

    Source: axolotl 0.19.0 integrations/kernels/libs/scattermoe_lora/experts.py scattermoe_supports_layout;
    parallel_linear_lora.py keeps a view of the weight, which ZeRO-3 and FSDP1 would free.
    """
    if case.stack.mixture_code != "scattermoe" or not case.model.is_moe:
        return False
    packed = _holds(case) and case.numerics.quantization == "int8"
    sharding = case.recipe.sharding
    divided = (sharding.gathers_weights or case.recipe.uses_fsdp) and not sharding.dtensors
    return packed or divided or not all(map(_is_plain, case.model.groups))


def _is_plain(group: BlockGroup) -> bool:
    """Whether a layer has no experts, or gated ones without biases whose values are not clamped."""
    mlp = group.block.mlp
    biased = any(spec.bias for spec in group.block.linears if spec.group == "expert")
    plain = mlp.gated and not biased and mlp.activation != "clamped_swiglu"
    return not mlp.n_experts or (plain and mlp.router not in ("every", "sampled", "selected"))


def _drops_on_experts(case: Case) -> bool:
    """Whether PEFT is told of a dropout, by the tool's default as well, and adapts experts of one tensor.

    It is told before a trainer of preferences sets every dropout to zero.
    """
    given = case.given.get("lora_dropout")
    told = case.stack.defaults.lora_dropout if given is None else given.value
    if not told or case.adapter is None or adapted_expert_bytes(case) == 0:
        return False
    names_them = any(each.startswith(TARGET_PARAMETER) for each in case.adapter.targets)
    return names_them or case.stack.expert_targets != "undropped"


_ON_HOST = frozenset({"deepseek_v3", "qwen3_5_moe", "qwen3_moe", "qwen3_vl_moe"})
"""Architectures whose mixtures were read as KTransformers runs them."""


def _host_refuses(case: Case) -> bool:
    """Whether KTransformers stops at how the job is spread.

    Source: accelerate-kt 1.14.0.post4 utils/dataclasses.py KTransformersPlugin.validate_distributed_setup.
    """
    sharding = case.recipe.sharding
    return case.stack.host_experts != "none" and sharding.communicates and not sharding.dtensors


def _is_unread_on_host(case: Case) -> bool:
    recipe, adapter = case.recipe, case.adapter
    if case.stack.host_experts == "none" or _host_refuses(case):
        return False
    plain = adapter is not None and adapter.is_plain and not adapter.modules_to_save
    usual = recipe.numerics.quantization == "none" and recipe.optimizer.startswith("adamw_torch")
    read = case.model.architecture in _ON_HOST and recipe.task == "sft" and recipe.offload == "none"
    return not (plain and usual and read and case.stack.fused_experts)


MIXTURE_RULES = (
    refuse(
        "experts-on-host",
        "KTransformers trains in one process or under FSDP2: use --sharding fsdp",
        _host_refuses,
        lambda case: case.recipe.sharding.name,
    ),
    not_modelled(
        "experts-on-host-unread",
        "Experts on the CPU were read for LoRA by torch's AdamW, supervised, of DeepSeek V3, Qwen3, Qwen3-VL "
        "and Qwen3.5 in 16 bits without offload",
        _is_unread_on_host,
        lambda case: f"{case.model.architecture}, {case.recipe.method}, {case.recipe.optimizer}",
    ),
    refuse(
        # peft 0.20 and 0.21 tuners/lora/layer.py ParamWrapper raises.
        "dropout-on-experts",
        "PEFT takes no dropout over experts that are one tensor, which these targets reach: use "
        "--lora-dropout 0 or --lora-targets attention; or linear-modules, where no dense layer has names of "
        "experts",
        _drops_on_experts,
        lambda case: case.model.id,
    ),
    not_modelled(
        "held-experts-elsewhere",
        "Packed experts that are dequantised when they are read are modelled where every GPU holds them "
        "whole and under FSDP2, with adapters of their own for PEFT before 0.21: use --sharding ddp or fsdp, "
        "and --lora-targets attention",
        _holds_elsewhere,
        lambda case: case.model.id,
    ),
    not_modelled(
        "held-int8-experts",
        "Axolotl's experts in int8 are modelled where every GPU holds them whole, without checkpointing or "
        "with the reentrant kind; the other keeps the experts of all layers expanded: use --method qlora, "
        "or --sharding ddp --checkpoint-reentrant",
        _holds_int8_elsewhere,
        lambda case: case.model.id,
    ),
    not_modelled(
        "scattered-experts",
        "ScatterMoE is modelled for gated experts without biases, in 16 or 4 bits, where every GPU holds "
        "them whole and under FSDP2: use --sharding ddp or fsdp",
        _scatters_elsewhere,
        lambda case: case.model.id,
    ),
    not_modelled(
        "mixture-unread",
        "Of torchtitan's mixtures those of Qwen 3 and DeepSeek were read, with all weights trained",
        _is_another_mixture,
        lambda case: f"{case.model.architecture}, {case.recipe.method}",
    ),
    refuse(
        "adapter-on-router",
        "PEFT's adapter of this router fails, because the router returns two tensors; name other targets, "
        "as in --lora-targets 'q_proj;k_proj;v_proj;o_proj'",
        _adapts_router,
        lambda case: case.model.id,
    ),
    not_modelled(
        "every-expert-elsewhere",
        "A mixture that computes all experts for all tokens is read in the modules of Transformers 5 and "
        "what its quantisers leave of them, not in those of this stack; use --stack hf-trainer",
        lambda case: (
            _routes(case, "every")
            and (case.stack.model_code != "transformers-5" or case.stack.passes_over != "parameters")
        ),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "selected-experts-elsewhere",
        "The experts of DBRX are read in the modules of Transformers 5, not in those of this stack; "
        "use --stack hf-trainer",
        lambda case: _routes(case, "selected") and case.stack.model_code != "transformers-5",
        lambda case: case.stack.id,
    ),
    refuse(
        # transformers 5.23 models/dbrx/modeling_dbrx.py DbrxExperts.forward: index_add_ of fp32 rows.
        "selected-experts-mixed",
        "DBRX adds fp32 rows of autocast to a sum in the dtype of its weights, which fails unless these are "
        "fp32: use --precision bf16",
        lambda case: _routes(case, "selected") and case.numerics.mixed and case.numerics.load_dtype != "fp32",
        lambda case: f"{case.model.id} in {case.numerics.load_dtype}",
    ),
)
