"""What cards, stacks and model code can run: bf16, attention kernels, optimizers, the Liger loss."""

from __future__ import annotations

import re

from planner.catalog.architecture_tables import needed_version
from planner.catalog.architectures import supported_architectures
from planner.domain.hardware import GpuSpec
from planner.domain.model import ModelSpec
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS, Attention
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer
from planner.domain.recipes.recipe import Quantization, Recipe
from planner.domain.recipes.sharding import Sharding
from planner.domain.stack import Stack
from planner.domain.stored import StoredWeights, stored_text
from planner.words import words

# Nobody read how they step what an engine has put into host RAM.
# Rules refuse those of tools under every engine.
GPU_ONLY_OPTIMIZERS = frozenset(
    name
    for name, facts in OPTIMIZER_FACTS.items()
    if facts.on_host in ("some", "unread") and facts.library != "tool"
)
_WORD_FOR_LAYER = re.compile(r"(?:Text)?(?:DecoderLayer|Block|Layer)$")
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9])")
FIRST_WITH_FLASH = (8, 0)
"""Compute capability from which FlashAttention 2 runs, torch's copy of it included.

Source: torch 2.13 ATen/native/transformers/cuda/sdp_utils.cpp ``check_flash_attention_hardware_support``.
"""

_FIRST_WITH_FP8, _HOPPER = (8, 9), 9

# Source: transformers 5.23.0 models/*/modeling_*.py,
# `_supports_sdpa` and `_supports_flash_attn` absent or False.
_NO_SDPA = frozenset(
    {"bloom", "codegen", "falcon_mamba", "mamba", "mamba2", "mpt", "gpt_neo", "gptj", "gpt_oss", "vaultgemma"}
)
_NO_FLASH = frozenset({"bloom", "codegen", "falcon_mamba", "mamba", "mamba2", "mpt", "llama4", "llama4_text"})
# Models without ``_supports_flex_attn``, or a part of which has none.  Source: transformers 5.23.0 models.
_NO_FLEX = frozenset(
    {
        *("bloom", "falcon", "falcon_h1", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "jamba", "mpt", "olmoe"),
        *("codegen", "falcon_mamba", "mamba", "mamba2", "stablelm"),
        *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_vl"),
        *("qwen3_5_text", "qwen3_5_moe_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_vl_text"),
    }
)
# Text models without a class that labels sequences, in place of the words.
# Source: transformers 5.23.0 models/auto/modeling_auto.py MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.
NO_LABELS = frozenset(
    words("""
    afmoe apertus baichuan bamba btlm chatglm codegen cohere cohere2 cwm dbrx dots1 ernie4_5 ernie4_5_moe
    exaone_moe falcon_h1 falcon_mamba flex_olmo gemma3n_text gemma4_text gemma4_unified_text glm4_moe
    glm4_moe_lite glm4v_moe_text glm4v_text glm_ocr_text gpt_from_scratch granite granitemoe
    granitemoehybrid hy_v3 hyperclovax internlm internlm2 internlm3 iquestcoder jais2 lfm2 lfm2_moe llama4
    llama4_text mamba mamba2 minicpm minimax_m2 mosaic_gpt mpt_causal_lm muse_glimmer_text nanochat
    nemotron_h olmoe qwen qwen3_5_moe qwen3_5_moe_text solar_open vaultgemma youtu
    """)
)
# Modules that ship with the checkpoint and write attention out.  Source:
# mosaicml/llm-foundry layers/attention.py; modeling_btlm.py; modeling_internlm.py INTERNLM_ATTENTION_CLASSES.
_REMOTE_NO_SDPA = frozenset({"mosaic_gpt", "btlm", "internlm"})
# The same in transformers 4.36 to 4.38, where fewer classes had been moved to torch's kernel.
_NO_SDPA_BEFORE_2024_09 = _NO_SDPA | {"gpt2", "gpt_neox", "opt", "phi", "stablelm"}


def is_layer_of_another(name: str, model: ModelSpec) -> bool:
    """Whether a class of layers is called after another architecture than this model's.

    Transformers calls layers after the ``model_type``, with a word for what they are behind it.  FSDP stops
    where a model has no class of a name that it is to wrap.  Code of a checkpoint has names of its own, such
    as ChatGLM's ``GLMBlock``.
    Source: transformers 5.23.0 models/*/modeling_*.py ``_no_split_modules``; accelerate 1.15.0
    utils/dataclasses.py set_auto_wrap_policy; peft 0.20.0 utils/other.py fsdp_auto_wrap_policy.
    """
    family = folded(_WORD_FOR_LAYER.sub("", name))
    others = {folded(each) for each in supported_architectures()}
    return not model.remote_code and family in others - names_of(model)


def names_of(model: ModelSpec) -> frozenset[str]:
    """What the classes of a model may be called after, :func:`folded`."""
    return frozenset({folded(model.architecture), folded(model.decoder)})


def folded(name: str) -> str:
    """A ``model_type``, or the beginning of the name of a class, as both are written alike."""
    return name.lower().removesuffix("_text").replace("_", "")


def stops_on_cpu(recipe: Recipe, stack: Stack) -> bool:
    """Whether the first step of an offloaded optimizer ends the job with an error of bitsandbytes."""
    of_bitsandbytes = OPTIMIZER_FACTS[recipe.optimizer].library == "bitsandbytes"
    return recipe.offloads_optimizer and of_bitsandbytes and not stack.steps_on_cpu


def leaves_rate_on_card(recipe: Recipe, stack: Stack) -> bool:
    """Whether the first step of an optimizer of torchao multiplies its weights, which FSDP has in host RAM,
    by a learning rate on the card: a tensor, which Accelerate moves there with the optimizer's state dict.

    Source: torchao 0.17.0 optim/adam.py add_param_group, single_param_adam; accelerate 1.13.0 and 1.15.0
    optimizer.py AcceleratedOptimizer.__init__; so end dry runs of Axolotl 0.19.
    """
    of_torchao = OPTIMIZER_FACTS[recipe.optimizer].library == "torchao"
    return recipe.offloads_optimizer and recipe.uses_fsdp and of_torchao and stack.runs_trainer


# liger-kernel 0.8.1 transformers/monkey_patch.py: classes that see whose own forward its functions replace.
_LIGER_SEES = frozenset({
    *("gemma3", "gemma4", "glm4v", "glm4v_moe", "internvl", "llava", "paligemma", "smolvlm"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
})  # fmt: skip


_LOSS_ALONE = ("granite", "pixtral")


def takes_liger(model: ModelSpec, stack: Stack) -> bool:
    """Whether Liger has a function for models of this type, be it one that leaves the loss alone
    (liger-kernel 0.8.5 transformers/monkey_patch.py apply_liger_kernel_to_granite, _to_pixtral).
    """
    return bool({"any", model.architecture} & {*stack.liger_models}) or model.architecture in _LOSS_ALONE


def takes_liger_loss(model: ModelSpec, stack: Stack) -> bool:
    """Whether the switch for Liger's fused loss changes the loss of this model.

    Transformers and LLaMA-Factory pass over types without a function of Liger's (liger-kernel 0.8.5
    transformers/monkey_patch.py _apply_liger_kernel_to_instance; llamafactory 0.9.5
    model/model_utils/liger_kernel.py).  Axolotl loads the class that sees, and replaces what another class,
    for text alone, computes; so its dry runs of Qwen3.5.  Source: axolotl 0.19.0 integrations/liger/plugin.py
    pre_model_load: Mistral 3 and Gemma 4 Unified are passed over, qwen3_5 and qwen3_5_moe have functions of
    their own.  Others get patch_lce_forward for ``...ForCausalLM``.
    """
    if stack.liger_by_class and not stack.cut_cross_entropy:
        return model.vision is None or model.architecture in _LIGER_SEES
    return "any" in stack.liger_models or model.architecture in stack.liger_models


def stops_at_liger_loss(model: ModelSpec, stack: Stack) -> bool:
    """Whether Liger 0.8.1 has a function for the model that raises (apply_liger_kernel_to_granite), which
    Axolotl calls for Granite's mixtures, too.
    """
    named = model.architecture in ("granite", "granitemoe")
    return named and stack.liger_by_class and not stack.cut_cross_entropy


# Their checkpoints bring code of their own, which Transformers 4 runs.
_BRINGS_CODE = frozenset({"minimax_m2", "nemotron_h"})


def has_own_adamw(stack: Stack) -> bool:
    """Whether Transformers has an AdamW of its own: up to 4.49.

    The stack of Axolotl up to 0.8 passes, because it stands for releases with older ones, too.
    Source: https://github.com/huggingface/transformers/pull/36177, in 4.50.0.
    """
    minor = minor_of_transformers_4(stack)
    return minor is not None and minor <= 50


def minor_of_transformers_4(stack: Stack) -> int | None:
    """The 36 of Transformers 4.36.2; ``None`` for a stack with another major version, or without it."""
    major, _, rest = dict(stack.versions).get("transformers", "").partition(".")
    return int(rest.partition(".")[0]) if major == "4" else None


def lacks_model(stack: Stack, model: ModelSpec) -> bool:
    """Whether the stack has a Transformers 4, and the class of the model, or of its decoder, came with 5."""
    came_with_5 = needed_version(model) >= (5, 0, 0) and model.architecture not in _BRINGS_CODE
    return came_with_5 and minor_of_transformers_4(stack) is not None


# Architectures of which the classes of Transformers 5 alone were read, though older releases have some, too.
_READ_IN_5 = frozenset(
    words("""
    aya_vision biogpt codegen cwm exaone_moe falcon_mamba flex_olmo glm_ocr gpt_bigcode gpt_neo helium hy_v3
    hyperclovax idefics2 iquestcoder jais2 lfm2_vl lighton_ocr mamba mamba2 muse_glimmer
    muse_glimmer_text nanochat paddleocr_vl phimoe solar_open vaultgemma youtu
    """)
)


def is_unread(stack: Stack, model: ModelSpec) -> bool:
    """Whether the stack runs code of the model that nobody read: a Transformers 4, or none."""
    another = stack.model_code != "transformers-5" or minor_of_transformers_4(stack) is not None
    return model.architecture in _READ_IN_5 and another


def cannot_step(optimizer: Optimizer, sharding: Sharding) -> bool:
    """Whether the optimizer fails on the weights that this sharding hands it: FSDP2's are DTensors."""
    return sharding.dtensors and not OPTIMIZER_FACTS[optimizer].takes_dtensors


_WITH_GROUPED_PRODUCTS = (9, 10)


def compute_capability(gpu: GpuSpec) -> tuple[int, int] | None:
    """CUDA compute capability, or ``None`` for another kind of device or an unlisted card."""
    match = _CAPABILITY.fullmatch(gpu.compute_capability) if gpu.is_cuda else None
    return (int(match[1]), int(match[2])) if match else None


def lacks_bf16(gpu: GpuSpec) -> bool:
    """Whether the card is known to have no bf16 matrix units.  An unlisted card is not known to lack them."""
    capability = compute_capability(gpu)
    return capability is not None and not gpu.supports_bf16


def lacks_flash2(gpu: GpuSpec) -> bool:
    """Whether FlashAttention 2 is known not to run: it needs compute capability 8.0,
    or an accelerator at all.
    """
    capability = compute_capability(gpu)
    return gpu.vendor == "none" or (capability is not None and capability < FIRST_WITH_FLASH)


def lacks_fp8(gpu: GpuSpec) -> bool:
    """Whether Transformers turns weights in fp8 to 16 bits on the card: below compute capability 8.9, and
    without an accelerator.  An unlisted card counts as one of these, which takes more memory.

    Source: transformers 5.23 quantizers/quantizer_finegrained_fp8.py validate_environment.
    """
    capability = compute_capability(gpu)
    return capability is None or capability < _FIRST_WITH_FP8


def held_as(stored: StoredWeights, gpu: GpuSpec, stack: Stack) -> tuple[Quantization, str]:
    """The quantisation of weights that were stored so, once they are loaded, and why."""
    note = f"the checkpoint is stored as {stored_text(stored)}: {stored.source}"
    if stored.quantization == "fp8" and stack.fp8_checkpoints == "unpacked":
        return "none", f"{note}; the tool turns it to 16 bits while it loads"
    transformers_may = stored.quantization == "fp8" and stack.fp8_checkpoints in ("widened", "trained")
    if transformers_may and lacks_fp8(gpu):
        return "none", f"{note}; {gpu.name} has no fp8, so Transformers turns it to 16 bits"
    return stored.quantization, note


def runs_deepgemm(gpu: GpuSpec) -> bool:
    """Whether products with matrices in fp8 are DeepGEMM's: on Hopper, where a CUDA toolkit has nvcc; on
    Blackwell scales in fp32 are declined.

    Source: transformers 5.23 integrations/finegrained_fp8.py fp8_linear, deepgemm.py is_deepgemm_loadable.
    """
    capability = compute_capability(gpu)
    return capability is not None and capability[0] == _HOPPER


def groups_products(gpu: GpuSpec) -> bool:
    """Whether torch multiplies the rows of all experts by one kernel, of bf16 factors; on other cards, and of
    other dtypes, its host issues one product for each expert.  An unlisted card counts as one that has it.

    Source: torch 2.9 to 2.13 native/cuda/GroupedBlas.cpp _grouped_mm_cuda (``use_fast_path``: compute
    capability 9.x and 10.x, or AMD's gfx942 and gfx950), native/GroupedMMUtils.h _grouped_mm_fallback.
    """
    capability = compute_capability(gpu)
    return capability is None or capability[0] in _WITH_GROUPED_PRODUCTS


def code_lacks(model: ModelSpec, stack: Stack, attention: Attention) -> bool:
    """Whether the model's code, in Transformers or shipped with the checkpoint,
    has no such attention kernel.
    """
    is_flash = ATTENTION_FACTS[attention].is_flash
    if attention == "flex":
        has_it = stack.model_code == "transformers-5" or stack.selective_flex != "unread"
        drops = any(group.block.attention.dropout for group in model.groups)
        runs = has_it and not model.remote_code
        return not runs or model.architecture in _NO_FLEX or drops or has_sinks(model)
    if model.remote_code:
        return attention == "sdpa" and model.architecture in _REMOTE_NO_SDPA
    if attention == "eager":
        return False
    if stack.soft_caps == "stream" and any(group.block.attention.softcap for group in model.groups):
        # torchtune 0.6.1 models/gemma2/_attention.py Gemma2Attention writes its capped attention out.
        return True
    if stack.model_code == "own":
        return is_flash and has_sinks(model)
    if is_flash:
        return model.architecture in _NO_FLASH
    if _caps_scores(model):
        return stack.capped_sdpa == "refused"
    lacking = _NO_SDPA_BEFORE_2024_09 if stack.model_code == "transformers-4" else _NO_SDPA
    return not lacking.isdisjoint((model.architecture, model.decoder))


def refuses_flash(model: ModelSpec, stack: Stack, attention: Attention) -> bool:
    """Whether Transformers ends with an error because FlashAttention is asked for.

    Source: transformers 4.51.3 and 5.23 modeling_utils.py, ``_supports_flash_attn`` of the model's class.
    """
    asked = ATTENTION_FACTS[attention].is_flash and attention != "flex"
    return asked and stack.model_code.startswith("transformers") and model.architecture in _NO_FLASH


def _caps_scores(model: ModelSpec) -> bool:
    """Whether scores are capped in Transformers' own class, Gemma 2's."""
    return "gemma2" in (model.architecture, model.decoder)


def prefers_eager(model: ModelSpec, stack: Stack, default: Attention) -> bool:
    """Whether the stack writes attention out where no kernel is named, though it has a ``default``."""
    if _caps_scores(model):
        return default == "sdpa" and stack.capped_sdpa == "asked"
    return stack.gemma3_eager and model.architecture in ("gemma3", "gemma3_text")


def has_sinks(model: ModelSpec) -> bool:
    """Whether attention has a learned sink per head, which FlashAttention 2 does not take.

    For gpt-oss Transformers puts vLLM's FlashAttention 3 in its place (5.23.0, modeling_utils.py:1754-1773
    and models/gpt_oss/modeling_gpt_oss.py:390-395).  Its backward leaves the sinks out (issues 1797 and 1895
    of Dao-AILab/flash-attention), so a job runs with gradients that are not exact: axolotl 067b021c8
    examples/gpt-oss/README.md gives memory of such runs.
    """
    return any(group.block.attention.sinks for group in model.groups)


def widest_head(model: ModelSpec) -> int:
    """Largest head dimension of any layer."""
    return max(
        max(group.block.attention.head_dim, group.block.attention.value_head_dim) for group in model.groups
    )
