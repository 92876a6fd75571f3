"""A training file of LLaMA-Factory for Megatron-Bridge (``USE_MEGATRON_BRIDGE=1``).

The job is Bridge's own: of LLaMA-Factory's loader nothing is used, and of the Trainer's arguments sizes and
the length of the run.  Its adapters are made like those of mcore-bridge where one GPU has each matrix whole.
Keys and defaults: LLaMA-Factory ff6d4d12e (2026-08-18) hparams/megatron_bridge_args.py,
train/megatron_bridge/config_builder.py; NVIDIA-NeMo/Megatron-Bridge 067f987d (2026-08-22)
models/gpt_provider.py, peft/lora.py, peft/utils.py ParallelLinearAdapter.
Ignored: its 32 micro-batches of evaluation, which keep nothing; with APEX products add to the buffer of
gradients, which without it are tensors for a moment.
"""

from __future__ import annotations

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.megatron_keys import (
    OTHER_DISPATCHER,
    OTHER_PRECISION,
    ROUTER_IN_16_BITS,
    SINGLE_EXPERTS,
    SINGLE_OPERATORS,
    UNMODELLED,
    WHOLE_OPTIMIZER,
    read_degrees,
    recomputed,
    refuse_parts,
    say_whole_layers,
)
from planner.configs.shared.trainer_arguments import read_given_launch
from planner.configs.tools.llama_factory.llama_factory import MARKS as LLAMA_FACTORY
from planner.configs.tools.llama_factory.llama_factory_mca import OF_BRIDGE, read_own_loop
from planner.configs.tools.llama_factory.llama_factory_refused import remark_on_unknown_keys
from planner.configs.yaml_or_json import Document
from planner.errors import show

TOOL = "LLaMA-Factory with Megatron-Bridge 067f987d"
STACK = "megatron"
_PLACE = "LLaMA-Factory ff6d4d12e hparams/megatron_bridge_args.py"
_OF_PROVIDER = "NVIDIA-NeMo/Megatron-Bridge 067f987d models/gpt_provider.py"
_UNMODELLED = {**UNMODELLED, **texts_in("megatron.toml", "unmodelled_of_bridge")}
# On unless a file says otherwise.
_SWITCHED_OFF = {
    "bf16": OTHER_PRECISION,
    "use_distributed_optimizer": WHOLE_OPTIMIZER,
    "bias_activation_fusion": SINGLE_OPERATORS,
    "moe_grouped_gemm": SINGLE_EXPERTS,
}
# MEGATRON_BRIDGE_SUPPORTED_MODELS of extras/constants.py, of the architectures that are modelled.
_SUPPORTED = ("deepseek_v3", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
_OF_ADAPTERS = ("lora_rank", "lora_alpha")
_UNUSED = [name for name in names_in("megatron.toml", "unused_of_mcore_adapter") if name not in _OF_ADAPTERS]


def is_bridge(document: Document) -> bool:
    """Whether a file names its model and its training as LLaMA-Factory does, and has keys for Bridge."""
    keys = document.table.keys()
    return "model_name_or_path" in keys and bool(LLAMA_FACTORY & keys) and bool(OF_BRIDGE & keys)


def read_bridge(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file says to Megatron-Bridge."""
    _refuse(keys)
    unsupported = f"{keys.path}: LLaMA-Factory has no such model under Megatron-Bridge"
    reading.stops.append(Stop(lambda spec: spec.architecture not in _SUPPORTED, unsupported))
    latents = f"{keys.path}: latents of attention by Megatron-Bridge are not modelled"
    reading.stops.append(Stop(lambda spec: spec.architecture == "deepseek_v3", latents, by_tool=False))
    if keys.path.suffix in (".yaml", ".yml", ".json"):
        reading.remark(str(keys.path), "counted as started with USE_MEGATRON_BRIDGE=1")
    read_checkpoint(keys, "model_name_or_path", reading, trusts="")
    _read_length(keys, reading)
    read_own_loop(keys, reading, _UNUSED, "Megatron-Bridge")
    read_degrees(keys, reading, divides_tokens=keys.flag("sequence_parallel"))
    _read_experts(keys, reading)
    _read_method(keys, reading)
    _read_provider(keys, reading)
    read_given_launch(reading, beside)
    keys.skip(
        (*names_in("megatron.toml", "harmless_of_mcore_adapter"), *names_in("llama-factory.toml", "harmless"))
    )
    keys.skip(names_in("megatron.toml", "bridge"))
    remark_on_unknown_keys(keys, reading)


def _refuse(keys: Keys) -> None:
    """Raises: NotModelledError at what no formula covers."""
    if (stage := keys.text("stage") or "sft") != "sft":
        raise keys.not_modelled("stage", f"{show(stage)} by Megatron-Bridge is not modelled; sft is")
    keys.refuse_switched_on(_UNMODELLED)
    for name, why in _SWITCHED_OFF.items():
        if keys.flag(name) is False:
            raise keys.not_modelled(name, why)
    if (precision := keys.text("mixed_precision")) not in (None, "bf16_mixed"):
        raise keys.not_modelled("mixed_precision", f"{show(precision)}: {OTHER_PRECISION}")
    if keys.text("moe_token_dispatcher_type") not in (None, "alltoall"):
        raise keys.not_modelled("moe_token_dispatcher_type", OTHER_DISPATCHER)


def _read_length(keys: Keys, reading: Reading) -> None:
    if keys.has("cutoff_len"):
        reading.say("seq", keys.count("cutoff_len"), keys.where("cutoff_len"))
    else:
        reading.default("seq", 2048, "LLaMA-Factory ff6d4d12e hparams/data_args.py: cutoff_len")
    if not keys.flag("use_packed_sequences"):
        reading.cut_samples = "packed"
        reading.remark(keys.where("cutoff_len"), "every sample is counted as so long; shorter ones need less")


def _read_experts(keys: Keys, reading: Reading) -> None:
    """A step has fewer micro-batches by the GPUs that divide experts (_compute_train_schedule).  Where none
    do, features of experts are divided as other matrices are (NVIDIA-NeMo/Megatron-Bridge 067f987d
    models/transformer_config.py _set_moe_expert_tensor_parallel_default).

    Raises:
        InputFileError: their number does not divide; Megatron stops.
    """
    experts, count = reading.value("expert_parallel") or 1, reading.value("grad_accum") or 1
    if experts == 1 and reading.value("tensor_parallel") is not None:
        why = f"{keys.path}: {ROUTER_IN_16_BITS}: say expert_model_parallel_size"
        reading.stops.append(Stop(lambda spec: spec.is_moe, why, by_tool=False))
    if experts == 1:
        return
    if count % experts:
        raise keys.stops("gradient_accumulation_steps", f"{count} micro-batches do not divide by {experts}")
    reading.said.pop("grad_accum")
    reading.say("grad_accum", count // experts, keys.where("expert_model_parallel_size"))


def _read_method(keys: Keys, reading: Reading) -> None:
    """LoRA of all linears unless the file says ``full``, whatever ``lora_target`` names.

    Raises:
        NotModelledError: another tuner, and adapters beside divided matrices.
    """
    kind = keys.text("finetuning_type") or "lora"
    if kind not in ("lora", "full"):
        raise keys.not_modelled("finetuning_type", f"{show(kind)} by Megatron-Bridge; lora and full are")
    reading.say("method", kind, keys.where("finetuning_type"))
    if kind == "full":
        keys.skip(("lora_rank",))
        return
    if reading.value("tensor_parallel") is not None:
        why = "Bridge's adapters beside divided matrices are not modelled; finetuning_type full is"
        raise keys.not_modelled("tensor_model_parallel_size", why)
    experts = f"{keys.path}: Bridge's adapters of experts are not modelled; finetuning_type full is"
    reading.stops.append(Stop(lambda spec: spec.is_moe, experts, by_tool=False))
    if keys.has("lora_rank"):
        reading.take(keys, {"lora_rank": "lora_rank"})
    reading.default("lora_dropout", 0.0, "NVIDIA-NeMo/Megatron-Bridge 067f987d peft/lora.py: dropout")


def _read_provider(keys: Keys, reading: Reading) -> None:
    """What is computed again, the loss, and how gradients come to the buffer."""
    kind = recomputed(keys)
    keys.skip(("recompute_modules",))
    if kind == "full":
        how, count = keys.text("recompute_method"), keys.count("recompute_num_layers")
        if how is None or count is None:
            raise keys.stops("recompute_granularity", "Megatron stops without its method and layers")
        say_whole_layers(keys, reading, how, count)
    elif kind == "selective":
        refuse_parts(keys)
    else:
        reading.switch("recomputes_attention", False, f"{_PLACE}: recompute_granularity")
    keys.skip(("recompute_method", "recompute_num_layers"))
    if kind != "full":
        reading.default("gradient_checkpointing", False, f"{_PLACE}: recompute_granularity")
    if keys.flag("cross_entropy_loss_fusion") is False:
        reading.switch("loss_backward", "compute+float", keys.where("cross_entropy_loss_fusion"))
    reading.switch("adds_gradients", False, f"{_OF_PROVIDER}: gradient_accumulation_fusion, without APEX")
    reading.switch("expandable_segments", "on", "LLaMA-Factory ff6d4d12e launcher.py: OPTIM_TORCH")
