"""A training file of LLaMA-Factory for Megatron-Core (``USE_MCA=1``): its keys, and those of mcore_adapter.

Its trainer takes the model from mcore_adapter, so nothing of LLaMA-Factory's loader is used: no adapters, no
quantisation, no kernels.  All weights are trained, whatever ``finetuning_type`` says.
Keys and defaults: mcore_adapter 0.10.0 (alibaba/ROLL 8eb27cc2 of 2026-08-19) training_args.py,
models/model_config.py ``__post_init__``; LLaMA-Factory ff6d4d12e (2026-08-18) train/mca/workflow.py,
hparams/parser.py _configure_mca_training_args.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.megatron_keys import (
    DEGREES,
    EXPERT_TENSOR,
    OTHER_DISPATCHER,
    OTHER_OPTIMIZER,
    OTHER_PRECISION,
    ROUTER_IN_16_BITS,
    SINGLE_EXPERTS,
    SINGLE_OPERATORS,
    UNMODELLED,
    WHOLE_OPTIMIZER,
    read_degrees,
    read_fp8,
    recomputed,
    refuse_parts,
    say_whole_layers,
)
from planner.configs.shared.trainer_arguments import read_given_launch, read_trainer
from planner.configs.tools.llama_factory.llama_factory import MARKS as LLAMA_FACTORY
from planner.configs.tools.llama_factory.llama_factory_refused import remark_on_unknown_keys
from planner.configs.tools.llama_factory.llama_factory_vision import VISION_TEMPLATES
from planner.configs.yaml_or_json import Document
from planner.domain.model import ModelSpec
from planner.errors import show

TOOL = "LLaMA-Factory with mcore_adapter 0.10.0"
STACK = "llama-factory-mca"
_PLACE = "mcore_adapter 0.10.0 training_args.py"
_UNMODELLED = {**UNMODELLED, **texts_in("megatron.toml", "unmodelled_of_mcore_adapter")}
# Switches that are off where a file says nothing, without which nothing was read.
_SWITCHED_ON = {
    "bf16": OTHER_PRECISION,
    "use_distributed_optimizer": WHOLE_OPTIMIZER,
    "bias_activation_fusion": SINGLE_OPERATORS,
}
_UNUSED = names_in("megatron.toml", "unused_of_mcore_adapter")
_STAGES = ("pt", "sft")
# MCA_SUPPORTED_MODELS of extras/constants.py, of the architectures that are modelled under Megatron.
_SUPPORTED = ("deepseek_v3", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
# Templates of mcore_adapter that have no width of heads (``kv_channels``).
_BY_HIDDEN = ("llama", "mistral", "qwen2")
_DIVIDE_LAYERS = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
_MANY_EXPERTS = 32
_MULTIPLE = {"sft": 64, "pt": 8}
_OF_MEGATRON = frozenset(
    {*DEGREES, "use_distributed_optimizer", "bias_activation_fusion", "recompute_granularity"}
)
OF_BRIDGE = frozenset(names_in("megatron.toml", "bridge"))


def is_mca(document: Document) -> bool:
    """Whether a file names its model and its training as LLaMA-Factory does, and degrees as Megatron."""
    keys = document.table.keys()
    is_own = "model_name_or_path" in keys and bool(LLAMA_FACTORY & keys)
    return is_own and bool(_OF_MEGATRON & keys) and not OF_BRIDGE & keys


def read_mca(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file says to mcore_adapter."""
    stage = _refuse(keys)
    reading.stops.append(Stop(lambda spec: spec.architecture not in _SUPPORTED, _unsupported(keys)))
    if stage == "pt":
        reading.say("task", "pretrain", keys.where("stage"))
    if keys.path.suffix in (".yaml", ".yml", ".json"):
        reading.remark(str(keys.path), "counted as started with USE_MCA=1")
    _read_method(keys, reading)
    read_checkpoint(keys, "model_name_or_path", reading, trusts="")
    read_fp8(keys, reading, ("fp8", "fp8_recipe", "fp8_param"))
    _read_length(keys, reading, stage)
    read_own_loop(keys, reading, _UNUSED, "mcore_adapter")
    _read_groups(keys, reading)
    _read_experts(keys, reading)
    _read_recomputation(keys, reading)
    if keys.flag("cross_entropy_loss_fusion"):
        _read_fused_loss(keys, reading)
    read_given_launch(reading, beside)
    wide = f"{keys.path}: mcore_adapter takes heads of another width for this model"
    reading.stops.append(Stop(_has_own_width, wide))
    keys.skip(
        (*names_in("megatron.toml", "harmless_of_mcore_adapter"), *names_in("llama-factory.toml", "harmless"))
    )
    remark_on_unknown_keys(keys, reading)


def _unsupported(keys: Keys) -> str:
    return f"{keys.path}: LLaMA-Factory has no such model under mcore_adapter"


def _has_own_width(spec: ModelSpec) -> bool:
    heads = spec.groups[0].block.attention
    return spec.architecture in _BY_HIDDEN and heads.n_heads * heads.head_dim != spec.hidden_size


def _refuse(keys: Keys) -> str:
    """The stage."""
    stage = keys.text("stage") or "sft"
    if stage not in _STAGES:
        raise keys.not_modelled("stage", f"{show(stage)} by mcore_adapter is not modelled; sft and pt are")
    if keys.text("template") in VISION_TEMPLATES:
        raise keys.not_modelled("template", "models that see are not modelled under Megatron")
    keys.refuse_switched_on(_UNMODELLED)
    for name, why in _SWITCHED_ON.items():
        if not keys.flag(name):
            raise keys.not_modelled(name, f"{why}: say {name} true")
    if keys.text("optimizer") not in (None, "adam"):
        raise keys.not_modelled("optimizer", OTHER_OPTIMIZER)
    if keys.text("transformer_impl") not in (None, "transformer_engine"):
        raise keys.not_modelled("transformer_impl", "other layers than Transformer Engine's are not modelled")
    return stage


def read_own_loop(keys: Keys, reading: Reading, unused: Sequence[str], whose: str) -> None:
    """What the Trainer's arguments say of batches, the length of the run and evaluation, where the loop is
    another's: what they and LLaMA-Factory's loader say of the rest (``unused``) has no effect.
    """
    read_trainer(keys, reading, evaluates_behind=True)
    for name in ("optimizer", "gradient_checkpointing", "checkpoint_reentrant"):
        reading.said.pop(name, None)
    for name in unused:
        if keys.is_on(name):
            reading.remark(keys.where(name), f"has no effect: {whose} has a loader and a loop of its own")


def _read_method(keys: Keys, reading: Reading) -> None:
    kind = keys.text("finetuning_type") or "lora"
    reading.say("method", "full", keys.where("finetuning_type"), "mcore_adapter trains all weights")
    if kind != "full":
        text = "LLaMA-Factory makes no adapters under mcore_adapter: all weights are trained"
        reading.remark(keys.where("finetuning_type"), text)


def _read_length(keys: Keys, reading: Reading, stage: str) -> None:
    """Samples are padded to the longest of a batch (to ``cutoff_len`` beside divided experts), and that to a
    multiple.
    """
    length = keys.count("cutoff_len") or 2048
    multiple = _MULTIPLE[stage]
    padded = -(-length // multiple) * multiple
    if keys.has("cutoff_len"):
        note = f"{length}, padded to a whole multiple of {multiple}" if padded != length else ""
        reading.say("seq", padded, keys.where("cutoff_len"), note)
    else:
        reading.default("seq", padded, "LLaMA-Factory ff6d4d12e hparams/data_args.py: cutoff_len")
    if not any(keys.flag(name) for name in ("packing", "neat_packing", "sequence_packing")):
        text = "every sample is counted as so long; shorter ones need less"
        if (keys.count("expert_model_parallel_size") or 1) == 1:
            reading.cut_samples = "packed"
        reading.remark(keys.where("cutoff_len"), text)
    keys.skip(("packing", "neat_packing", "sequence_packing"))


def _read_groups(keys: Keys, reading: Reading) -> None:
    """Experts beside divided matrices divide tokens, too, and a pipeline takes as many layers in each run
    (models/model_config.py ``__post_init__``).
    """
    pieces = math.prod(keys.count(name) or 1 for name in _DIVIDE_LAYERS)
    uneven = f"{keys.path}: mcore_adapter stops where layers do not divide into {pieces} runs of equal length"
    reading.stops.append(Stop(lambda spec: spec.n_layers % pieces > 0, uneven))
    experts = (keys.count("expert_model_parallel_size") or 1) > 1
    read_degrees(keys, reading, divides_tokens=keys.flag("sequence_parallel") or experts)


def _read_experts(keys: Keys, reading: Reading) -> None:
    """What mixtures must say; others leave it out.

    A router is in fp32 where it has 32 experts or more (models/model_config.py ``__post_init__``).
    """
    reasons = []
    if not keys.flag("moe_grouped_gemm"):
        reasons.append(f"{SINGLE_EXPERTS}: say moe_grouped_gemm true")
    other = (keys.text("moe_token_dispatcher_type") or "allgather") != "alltoall"
    if other and not keys.flag("variable_seq_lengths"):
        reasons.append(f"moe_token_dispatcher_type: {OTHER_DISPATCHER}")
    reading.take(keys, EXPERT_TENSOR)
    dtype = keys.text("moe_router_dtype")
    parts = reading.value("expert_tensor_parallel") or keys.count("tensor_model_parallel_size") or 1
    if parts > 1 and dtype != "fp32":
        why = f"{keys.path}: {ROUTER_IN_16_BITS}: say moe_router_dtype fp32"
        few = _MANY_EXPERTS if dtype is None else math.inf
        reading.stops.append(Stop(lambda spec: 0 < _most_experts(spec) < few, why, by_tool=False))
    reading.stops += [Stop(lambda spec: spec.is_moe, f"{keys.path}: {why}", by_tool=False) for why in reasons]


def _most_experts(spec: ModelSpec) -> int:
    return max(group.block.mlp.n_experts for group in spec.groups)


def _read_recomputation(keys: Keys, reading: Reading) -> None:
    """Whole layers where nothing more is said; attention's kernel alone keeps what FlashAttention keeps."""
    kind = recomputed(keys)
    keys.skip(("recompute_modules",))
    if kind == "full":
        how, count = keys.text("recompute_method"), keys.count("recompute_num_layers")
        if how is None and count is None:
            how, count = "uniform", 1
        say_whole_layers(keys, reading, how or "", count or 1)
        return
    if kind == "selective":
        refuse_parts(keys)
        reading.switch("recomputes_attention", True, keys.where("recompute_granularity"))
    keys.skip(("recompute_method", "recompute_num_layers"))
    reading.default("gradient_checkpointing", False, f"{_PLACE}: recompute_granularity")


def _read_fused_loss(keys: Keys, reading: Reading) -> None:
    """Megatron's own where GPUs divide the vocabulary, else a kernel of quack.

    Source: mcore_adapter 0.10.0 models/model_factory.py compute_language_model_loss.
    """
    where = keys.where("cross_entropy_loss_fusion")
    if reading.value("tensor_parallel") is None:
        why = "the loss of quack is not modelled: leave it out"
        raise keys.not_modelled("cross_entropy_loss_fusion", why)
    reading.switch("loss_backward", "float+nll_grad+compute_grad", where)
