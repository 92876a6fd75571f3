"""Rules about adapters other than LoRA's: which stacks,
bases and engines they were compared with the trace for.
"""

from __future__ import annotations

from planner.domain.recipes.recipe import PREPACKED, TARGET_PARAMETER
from planner.errors import REFUSED_BY_TOOL
from planner.intake.rules.rule import Case, not_modelled, refuse, warn
from planner.intake.rules.rules_recipe import adapted_expert_bytes, adapts_head

_OF_LORA = ("lora_rank", "lora_dropout", "dora", "vera")
# axolotl 0.19.0 monkeypatch/lora_kernels.py patch_self_attn_lora, called for every architecture of the
# catalog with transformers 5.16.1: it finds no attention class of these, or not the lines that it replaces.
_UNPATCHED = frozenset({
    *("afmoe", "bloom", "cohere", "deepseek_v2", "deepseek_v3", "falcon", "falcon_h1", "glm4_moe"),
    "glm4_moe_lite",
    *("biogpt", "codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "lfm2", "lfm2_moe"),
    *("flex_olmo", "llama4", "minimax_m2", "mllama", "mpt", "olmo", "youtu"),
    *("olmo2", "olmo3", "olmoe", "opt", "phi", "phi3", "stablelm"),
    *("glm4v", "internvl", "llava", "llava_next", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl_moe"),
})  # fmt: skip
# Autocast widens what their activation returns, and a matrix in 4 bits returns what it was given: all later
# layers are fp32, where axolotl 0.19.0 kernels/lora.py matmul_lora adds fp32 factors to a 16-bit product in
# place.  transformers 5.16.1 activations.py ReLUSquaredActivation, XIELUActivation; bitsandbytes 0.50.2
# nn/modules.py Linear4bit.forward.
_WIDE_LAYERS = frozenset({"apertus", "arcee", "jais2", "nanochat"})
_SCALED = ("none", "nf4", "fp4", "int8")
_ROTATED = (*_SCALED, "gptq-int4", "awq-int4")


def _has_dora(case: Case) -> bool:
    return case.adapter is not None and case.adapter.dora


def _dora_is_elsewhere(case: Case) -> bool:
    """Whether DoRA meets weights or engines of which nobody compared it with the trace."""
    sharding = case.recipe.sharding
    of_torchtune = case.stack.dora == "adapter_first"
    whole = sharding.engine == "deepspeed" and not sharding.gathers_weights
    divided = sharding.engine != "native" and not whole and not (of_torchtune and sharding.dtensors)
    return (
        divided
        or (of_torchtune and case.numerics.quantization != "none")
        or case.numerics.quantization in PREPACKED | {"int8"}
        or adapts_head(case)
        or adapted_expert_bytes(case) > 0
    )


def _rotates(case: Case) -> bool:
    return case.adapter is not None and case.adapter.oft_block_size > 0


def _has_vera(case: Case) -> bool:
    return case.adapter is not None and case.adapter.vera


def _is_elsewhere(case: Case, bases: tuple[str, ...]) -> bool:
    """Whether OFT or VeRA meets weights or engines of which nobody compared it with the trace."""
    divided = case.recipe.sharding.engine != "native" or case.recipe.checkpoint_policy == "selective-op"
    return divided or case.numerics.quantization not in bases or adapts_head(case) or _has_stacked(case)


def _has_stacked(case: Case) -> bool:
    """Whether there are experts, or targets that are no modules."""
    targets = case.adapter.targets if case.adapter else ()
    experts = any(group.block.mlp.n_experts for group in case.model.groups)
    return experts or any(each.startswith(TARGET_PARAMETER) for each in targets)


def _lora_beside_rotations(case: Case) -> list[str]:
    return [name for name in _OF_LORA if name in case.given and case.given[name].value]


def _twice_without_autocast(case: Case) -> bool:
    """Whether PEFT 0.18 hands a turned input in the adapters' dtype to a kernel of GPTQ."""
    precision, quantization = case.numerics.precision, case.numerics.quantization
    return case.stack.oft == "twice" and quantization == "gptq-int4" and not precision.endswith("-mixed")


def _is_fused_by_axolotl(case: Case) -> bool:
    return case.adapter is not None and case.stack.adapter_kernels == "fused_dropped"


def _widens_layers(case: Case) -> bool:
    numerics = case.numerics
    return numerics.quantization in ("nf4", "fp4") and numerics.precision.endswith("-mixed")


def _may_train_ends(case: Case) -> bool:
    """Whether QwenLM's script would train token table and head of a base model."""
    plain = case.adapter is not None and case.numerics.quantization == "none"
    named = str(case.given["model"].value).lower() if "model" in case.given else ""
    is_base = "chat" not in named
    return case.stack.trains_ends and plain and is_base and "modules_to_save" not in case.given


ADAPTER_RULES = (
    warn(
        # Qwen 73b34d4 finetune.py train: modules_to_save unless q_lora, or "chat" in the path.
        "adapters-beside-ends",
        "finetune.py of QwenLM trains wte and lm_head whole beside LoRA, unless 'chat' is in the path of the "
        "model; this answer counts neither: for a base model say --modules-to-save 'wte;lm_head'",
        _may_train_ends,
    ),
    refuse(
        "kernels-of-attention",
        "Axolotl's fused adapter kernels stop at this model's attention; say lora_qkv_kernel: false and "
        f"lora_o_kernel: false, or --switches adapter_kernels=eager [{REFUSED_BY_TOOL}]",
        lambda case: _is_fused_by_axolotl(case) and case.model.architecture in _UNPATCHED,
        lambda case: f"{case.model.id}, of {case.model.architecture}",
    ),
    refuse(
        "kernels-of-wide-layers",
        "Axolotl's fused adapter kernels stop where layers hand on fp32, as those of this model over 4 bits; "
        "say lora_qkv_kernel: false, lora_o_kernel: false and lora_mlp_kernel: false, or --switches "
        f"adapter_kernels=eager [{REFUSED_BY_TOOL}]",
        lambda case: (
            _is_fused_by_axolotl(case) and case.model.architecture in _WIDE_LAYERS and _widens_layers(case)
        ),
        lambda case: f"{case.model.id}, of {case.model.architecture}",
    ),
    refuse(
        # axolotl 0.19.0 kernels/lora.py get_lora_parameters: base_layer.weight; gptqmodel 7.3.4
        # nn_modules/qlinear/__init__.py BaseQuantLinear: qweight, qzeros, scales, and no weight.
        "kernels-over-stored",
        "Axolotl's fused adapter kernels stop at matrices that a checkpoint has packed; say lora_mlp_kernel: "
        f"false, or --switches adapter_kernels=eager [{REFUSED_BY_TOOL}]",
        lambda case: (
            case.adapter is not None
            and case.stack.adapter_kernels == "fused_dropped"
            and case.numerics.quantization in PREPACKED
        ),
        lambda case: case.numerics.quantization,
    ),
    not_modelled(
        "dora-unread",
        "Nobody read how this stack computes DoRA; use --stack hf-trainer@5, or LoRA without --dora",
        lambda case: (
            _has_dora(case) and (case.stack.dora == "unread" or case.stack.adapter_kernels != "eager")
        ),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "dora-of-kernels",
        "DoRA is modelled over unquantised and 4-bit matrices of layers, where every GPU holds all weights; "
        "of torchtune over unquantised ones, under FSDP2, too; use --method lora or qlora, and --sharding "
        "ddp, zero1 or zero2",
        lambda case: _has_dora(case) and _dora_is_elsewhere(case),
    ),
    not_modelled(
        "oft-unread",
        "Nobody read how this stack computes OFT; use --stack hf-trainer@5, or LoRA without --oft-block-size",
        lambda case: _rotates(case) and (case.stack.oft == "unread" or case.stack.adapter_kernels != "eager"),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "oft-elsewhere",
        "OFT is modelled over unquantised, bitsandbytes, GPTQ and AWQ matrices of models without experts, "
        "where every GPU holds everything and layers are checkpointed whole; use --sharding ddp or none, "
        "or LoRA without --oft-block-size",
        lambda case: _rotates(case) and _is_elsewhere(case, _ROTATED),
    ),
    not_modelled(
        "oft-without-autocast",
        "PEFT 0.18 hands GPTQ's kernel an input in the adapters' dtype where there is no autocast, which "
        "nobody read; use --precision bf16-mixed, or --versions peft==0.21.2",
        lambda case: _rotates(case) and _twice_without_autocast(case),
    ),
    refuse(
        "oft-with-lora-options",
        "OFT has no LoRA matrices; leave these options out, or --oft-block-size",
        lambda case: _rotates(case) and bool(_lora_beside_rotations(case)),
        lambda case: ", ".join(_lora_beside_rotations(case)),
    ),
    not_modelled(
        "vera-unread",
        "Nobody read how this stack computes VeRA; use --stack hf-trainer@5, or LoRA without --vera",
        lambda case: (
            _has_vera(case) and (case.stack.vera == "unread" or case.stack.adapter_kernels != "eager")
        ),
        lambda case: case.stack.id,
    ),
    not_modelled(
        "vera-elsewhere",
        "VeRA is modelled over unquantised and bitsandbytes matrices of models without experts, where every "
        "GPU holds everything and layers are checkpointed whole; use --sharding ddp or none, or LoRA without "
        "--vera",
        lambda case: _has_vera(case) and _is_elsewhere(case, _SCALED),
    ),
    refuse(
        "vera-with-dora",
        "VeRA and DoRA are two kinds of adapters; leave --dora or --vera out",
        lambda case: _has_vera(case) and _has_dora(case),
    ),
)
