"""The age of an Axolotl file, as its keys tell it, and the optimizer, whose names and default follow it."""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import OPTIMIZERS, say_optimizer
from planner.errors import REFUSED_BY_TOOL, UsageError

OLD_STACK = "axolotl@0.8"
STACK_OF_2023 = "axolotl@0.3"
_OLD_TOOL = "Axolotl 0.4 to 0.8"
# These are of 2023 and were hardly in example files of 2024-08: Transformers 4.35 had no sdpa.
_KEYS_OF_2023 = (
    "wandb_run_id",
    "is_llama_derived_model",
    "is_mistral_derived_model",
    "is_falcon_derived_model",
    "is_qwen_derived_model",
)
# These came in 2023-12 (a1da39cd4, 5f79b8242), the last with 0.4.0; so did ``bf16: auto``.
_KEYS_SINCE = ("wandb_name", "evals_per_epoch", "saves_per_epoch", "chat_template")
# These are in 0.6.0 and not in 0.4.0.  Beside one ``wandb_run_id``, a key of 0.19.0 as well
# (utils/schemas/integrations.py), tells no age.
_KEYS_SINCE_0_5 = ("plugins", "eval_strategy")
# Keys of 0.8 that later versions dropped, or that nearly all example files had up to 0.8.0 and none or few
# since 0.9.2, mostly without a value, so that even an empty one tells the age.
_OLD_KEYS = (
    "local_rank",
    "s2_attention",
    "xformers_attention",
    "lora_fan_in_fan_out",
    "eval_table_max_new_tokens",
    "relora_steps",
    *_KEYS_OF_2023,
    "flash_attn_fuse_qkv",
)
# Names that went: Transformers dropped the first in 4.50, Axolotl the second between 0.10 and 0.12, the third
# with its first schema (2024-03).
_OLD_VALUES = {"optimizer": "adamw_hf", "gradient_checkpointing": "unsloth", "bf16": "full"}
# Keys of 0.19.0 (utils/schemas) that 0.8.1 does not have: beside one, an older key is a leftover.
_NEW_KEYS = (
    "activation_offloading",
    "attn_implementation",
    "chunked_cross_entropy",
    "context_parallel_size",
    "dp_replicate_size",
    "dp_shard_size",
    "eot_tokens",
    "experts_implementation",
    "fsdp_version",
    "layer_offloading",
    "lora_target_parameters",
    "peft_autocast_adapter_dtype",
    "qat",
    "quantize_moe_experts",
    "selective_checkpointing",
    "tiled_mlp",
)
# Names beside the Trainer's (axolotl 0.19.0 utils/schemas/enums.py CustomSupportedOptimizers, core/builders/
# base.py _configure_optimizer).  Those with ``ao`` are older ones of the Trainer's (0.8.0
# core/trainers/base.py), in 4 bits with a scale for 128 elements in place of 256.
_OWN_OPTIMIZERS = {
    "ao_adamw_8bit": "adamw_torch_8bit",
    "ao_adamw_4bit": "adamw_torch_4bit",
    "adopt_adamw": "adopt_adamw",
    "adamc": "adamc",
    "muon": "muon",
}


def read_age(keys: Keys, reading: Reading) -> tuple[bool, bool]:
    """Whether a file is of 0.8 or before, and whether it is of 2023; its stack is entered then."""
    if any(keys.has(name) for name in _NEW_KEYS):
        return False, False
    since_0_5 = any(keys.holds(name) for name in _KEYS_SINCE_0_5)
    timeless = ("wandb_run_id",) if since_0_5 else ()
    old = next((name for name in _OLD_KEYS if keys.holds(name) and name not in timeless), None)
    old = old or next((name for name, value in _OLD_VALUES.items() if keys.get(name) == value), None)
    of_2023 = next((name for name in _KEYS_OF_2023 if keys.holds(name)), None)
    if since_0_5 or any(keys.holds(name) for name in _KEYS_SINCE) or keys.get("bf16") == "auto":
        of_2023 = None
    if of_2023 is not None:
        reading.take_stack(STACK_OF_2023, "Axolotl 0.3", keys.where(of_2023), "a key of Axolotl in 2023")
    elif old is not None:
        what = f"{_OLD_VALUES[old]} is a name" if old in _OLD_VALUES else "a key"
        reading.take_stack(OLD_STACK, _OLD_TOOL, keys.where(old), f"{what} of {_OLD_TOOL}")
    return old is not None, of_2023 is not None


def read_optimizer(keys: Keys, reading: Reading, *, old: bool) -> None:
    """The optimizer that a file names; where it names none, that of its age.

    Raises:
        NotModelledError: an optimizer that no formula covers.
        UsageError: Muon where Axolotl refuses it.
    """
    if keys.text("optimizer") is not None:
        _refuse_muon(keys)
        say_optimizer(keys, "optimizer", {**OPTIMIZERS, **_OWN_OPTIMIZERS}, reading)
    elif old:
        place = "axolotl 501b4d137 (2023-11) to 0.7.0 core/trainer_builder.py"
        reading.default("optimizer", "adamw_hf", f"{place}; 0.8.0 takes adamw_torch_fused, which needs less")


def _refuse_muon(keys: Keys) -> None:
    """Source: axolotl 0.19.0 utils/schemas/validation.py check_muon_deepspeed_fsdp.

    Raises:
        UsageError: Muon beside DeepSpeed or the first FSDP.
    """
    if keys.get("optimizer") != "muon":
        return
    beside = "DeepSpeed" if keys.get("deepspeed") else None
    settings, version = keys.get("fsdp_config"), keys.get("fsdp_version")
    if version is None and isinstance(settings, dict):
        version = settings.get("fsdp_version")
    if (settings or keys.get("fsdp")) and str(version) != "2":
        beside = beside or "FSDP without fsdp_version 2"
    if beside:
        raise UsageError(
            f"{keys.where('optimizer')}: Axolotl 0.19.0 stops at muon with {beside}; leave that out, or say "
            f"adamw_torch_fused [{REFUSED_BY_TOOL}]"
        )
