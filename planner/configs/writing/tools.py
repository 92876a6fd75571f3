"""Each tool's keys for our fields: what its reader reads, the other way round.

A rule gives the keys to set for one value of a field, or ``None`` where the tool has no key for it.  Whether
a rule is right is seen by reading the result: whoever uses these tables does so.  Sharding and offload are in
``sharding_keys.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.configs.shared.trainer_arguments import OPTIMIZERS
from planner.configs.tools.llama_factory.llama_factory_v1 import is_pair_table
from planner.configs.tools.open_instruct import OLD_KEYS
from planner.configs.tools.open_instruct_dpo import is_dpo_table
from planner.configs.writing.edits import REMOVED, Settings
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS

Table = Mapping[str, Any]
Rule = Callable[[Table, Any], Settings | None]

_LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_OLD_ATTENTION = (
    "flash_attention",
    "sdp_attention",
    "eager_attention",
    "xformers_attention",
    "flex_attention",
)
_LONG_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_KERNELS = {ours: facts.names[0] for ours, facts in ATTENTION_FACTS.items()}
# Rank of adapters where a full fine-tune has none: that of PEFT's and the tools' own examples.
_RANK = 16
# Of several names of one optimizer the oldest.
_OPTIMIZER_NAMES = {ours: theirs for theirs, ours in reversed(OPTIMIZERS.items())}


def _key(*names: str) -> Rule:
    """A plain rename; of several names that one which the file uses, else the first."""

    def rule(table: Table, value: Any) -> Settings:
        used = next((name for name in names if name in table), names[0])
        return {(used,): REMOVED if value is None else list(value) if isinstance(value, tuple) else value}

    return rule


def _words(name: str, words: Mapping[Any, Any]) -> Rule:
    """A rename with other words for the values."""
    return lambda _, value: {(name,): words[value]} if value in words else None


def _dotted(*place: str) -> Rule:
    return lambda _, value: {place: value}


def _precision(table: Table, value: Any) -> Settings | None:
    """TrainingArguments: bf16 or fp16, each meaning autocast."""
    if value not in ("bf16-mixed", "fp16-mixed"):
        return None
    on, off = ("bf16", "fp16") if value.startswith("bf16") else ("fp16", "bf16")
    return {(on,): True, **({(off,): False} if table.get(off) else {})}


def _only(ours: str, *place: str, means: Any = True) -> Rule:
    """A key for one value of ours alone."""
    return lambda _, value: {place: means} if value == ours else None


_TRAINER: Mapping[str, Rule] = {
    "batch": _key("per_device_train_batch_size"),
    "eval_batch": _key("per_device_eval_batch_size"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "optimizer": _words("optim", _OPTIMIZER_NAMES),
    "precision": _precision,
    "gradient_checkpointing": _key("gradient_checkpointing", "activation_checkpointing"),
    "checkpoint_reentrant": _dotted("gradient_checkpointing_kwargs", "use_reentrant"),
    "loss": _only("liger", "use_liger_kernel"),
    "epochs": _key("num_train_epochs"),
}


def _attention_of_script(table: Table, value: Any) -> Settings | None:
    """A script's own argument, which exists only where the file has it."""
    known = "attn_implementation" in table and value in _KERNELS
    return {("attn_implementation",): _KERNELS[value]} if known else None


_TRANSFORMERS: Mapping[str, Rule] = {
    **_TRAINER,
    "seq": lambda table, value: {("block_size",): value} if "block_size" in table else None,
    "attention": _attention_of_script,
}


def _llama_factory_method(_: Table, value: Any) -> Settings | None:
    """No bits mean a base in 16 bits, which is what is left out."""
    bits = {"full": REMOVED, "lora": REMOVED, "qlora": 4, "int8": 8}
    kind = "full" if value == "full" else "lora"
    return {("finetuning_type",): kind, ("quantization_bit",): bits[value]} if value in bits else None


def _llama_factory_precision(table: Table, value: Any) -> Settings | None:
    if value == "bf16":
        return {("pure_bf16",): True}
    mixed = _precision(table, value)
    return None if mixed is None else {("pure_bf16",): REMOVED, **mixed}


_LLAMA_FACTORY: Mapping[str, Rule] = {
    **_TRAINER,
    "seq": _key("cutoff_len"),
    "method": _llama_factory_method,
    "quantization": _words("quantization_bit", {"none": REMOVED, "nf4": 4, "int8": 8}),
    # Its compute dtype, always (model/model_utils/quantization.py).
    "quant_storage": lambda _table, _value: {},
    "double_quant": _key("double_quantization"),
    "precision": _llama_factory_precision,
    "lora_rank": _key("lora_rank"),
    "modules_to_save": _key("additional_target"),
    "gradient_checkpointing": lambda _, value: {("disable_gradient_checkpointing",): not value},
    "checkpoint_reentrant": _key("use_reentrant_gc"),
    "attention": _words("flash_attn", {"eager": "disabled", "sdpa": "sdpa", "flash2": "fa2"}),
    "loss": _only("liger", "enable_liger_kernel"),
    "padding": _only("packed", "packing"),
}


_LLAMA_FACTORY_MCA: Mapping[str, Rule] = {
    "batch": _key("per_device_train_batch_size"),
    "eval_batch": _key("per_device_eval_batch_size"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "seq": _key("cutoff_len"),
    "epochs": _key("num_train_epochs"),
    "gradient_checkpointing": _words("recompute_granularity", {True: "full", False: REMOVED}),
}


def _bridge_layers(table: Table, value: Any) -> Settings | None:
    """All of them one by one, which has to be said."""
    del table
    if not value:
        return {("recompute_granularity",): REMOVED}
    return {
        ("recompute_granularity",): "full",
        ("recompute_method",): "uniform",
        ("recompute_num_layers",): 1,
    }


_LLAMA_FACTORY_BRIDGE = {**_LLAMA_FACTORY_MCA, "gradient_checkpointing": _bridge_layers}


def _v1_precision(table: Table, value: Any) -> Settings | None:
    """Under FSDP2 alone: without it nothing casts."""
    dist = table.get("dist_config")
    fsdp = isinstance(dist, Mapping) and dist.get("name") == "fsdp2"
    return {("bf16",): value == "bf16-mixed"} if fsdp and value in ("bf16-mixed", "fp32") else None


def _v1_length(table: Table, value: Any) -> Settings | None:
    """A pair is one row."""
    return {("cutoff_len",): 2 * value if is_pair_table(table) else value}


_LLAMA_FACTORY_V1: Mapping[str, Rule] = {
    "batch": _key("micro_batch_size"),
    "eval_batch": _key("eval_batch_size"),
    # The accumulation is what the global batch leaves, where the file says one.
    "grad_accum": lambda table, _: {} if table.get("global_batch_size") else None,
    "seq": _v1_length,
    "epochs": _key("num_train_epochs"),
    "precision": _v1_precision,
    "gradient_checkpointing": _key("enable_activation_checkpointing"),
    "attention": _words("flash_attn", _KERNELS),
    "padding": _only("longest", "batching_strategy", means="normal"),
}


def _trl_method(_: Table, value: Any) -> Settings | None:
    """Double quantisation is off unless it is asked for; ``qlora`` means it."""
    quantised = {"qlora": "load_in_4bit", "int8": "load_in_8bit"}
    if value == "qlora":
        return {
            ("use_peft",): True,
            ("load_in_4bit",): True,
            ("load_in_8bit",): REMOVED,
            ("use_bnb_nested_quant",): True,
        }
    bits: Settings = {(name,): quantised.get(value) == name or REMOVED for name in quantised.values()}
    return {("use_peft",): value != "full", **bits} if value in ("full", "lora", "int8") else None


def _trl_dtype(table: Table, value: Any) -> Settings | None:
    return _key("dtype", "torch_dtype")(table, "auto" if value == "checkpoint" else _LONG_DTYPES[value])


_ACTIVATIONS = _only("activations", "activation_offloading")
_TRL: Mapping[str, Rule] = {
    **_TRAINER,
    "seq": _key("max_length", "max_seq_length"),
    "method": _trl_method,
    "quantization": _words("load_in_4bit", {"nf4": True}),
    "double_quant": _key("use_bnb_nested_quant"),
    "quant_storage": _words("bnb_4bit_quant_storage", _LONG_DTYPES),
    "load_dtype": _trl_dtype,
    "lora_rank": _key("lora_r"),
    "modules_to_save": _key("lora_modules_to_save"),
    "attention": _words("attn_implementation", _KERNELS),
    # use_liger_kernel leaves the loss as it is (trl 1.16.0 trainer/sft_trainer.py:1127-1140).  The default,
    # nll, is the same as chunked_nll, which earlier 1.x need (sft_config.py:112, 314-321).
    "loss": _only("chunked", "loss_type", means="chunked_nll"),
    "offload": _ACTIVATIONS,
    "padding": _only("packed", "packing"),
    "vllm_sleep": _key("vllm_enable_sleep_mode"),
}


def _axolotl_method(table: Table, value: Any) -> Settings | None:
    """Adapters need a rank, an alpha and targets, which a full fine-tune does not say."""
    if value not in ("lora", "qlora", "int8"):
        return None
    found: dict[tuple[str, ...], Any] = {("adapter",): "qlora" if value == "qlora" else "lora"}
    for name, wanted in (("load_in_4bit", "qlora"), ("load_in_8bit", "int8")):
        if value == wanted or table.get(name):
            found[(name,)] = value == wanted
    if not table.get("lora_r"):
        found |= {("lora_r",): _RANK, ("lora_alpha",): 2 * _RANK}
    if not (table.get("lora_target_modules") or table.get("lora_target_linear")):
        found[("lora_target_linear",)] = True
    return found


def _axolotl_attention(table: Table, value: Any) -> Settings | None:
    """By the key that the file uses; older files switch one kernel on."""
    old = {"flash2": "flash_attention", "sdpa": "sdp_attention", "eager": "eager_attention"}
    used = [name for name in _OLD_ATTENTION if name in table]
    if used and "attn_implementation" not in table:
        return {**{(name,): REMOVED for name in used}, (old[value],): True} if value in old else None
    return {("attn_implementation",): _KERNELS[value]} if value in _KERNELS else None


def _axolotl_loss(table: Table, value: Any) -> Settings | None:
    plugins = table.get("plugins") or []
    if value != "liger" or not isinstance(plugins, list):
        return None
    return {
        ("plugins",): plugins if _LIGER_PLUGIN in plugins else [*plugins, _LIGER_PLUGIN],
        ("liger_fused_linear_cross_entropy",): True,
    }


def _axolotl_precision(_: Table, value: Any) -> Settings | None:
    return {("bf16",): True, ("bfloat16",): REMOVED, ("fp16",): REMOVED} if value == "bf16-mixed" else None


_AXOLOTL: Mapping[str, Rule] = {
    "batch": _key("micro_batch_size"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "seq": _key("sequence_len"),
    "optimizer": _words("optimizer", _OPTIMIZER_NAMES),
    "precision": _axolotl_precision,
    "gradient_checkpointing": _key("gradient_checkpointing"),
    "checkpoint_reentrant": _dotted("gradient_checkpointing_kwargs", "use_reentrant"),
    "method": _axolotl_method,
    "quantization": _words("load_in_4bit", {"nf4": True}),
    # bf16, always (loaders/model.py set_quantization_config).
    "quant_storage": lambda _table, _value: {},
    "lora_rank": _key("lora_r"),
    "modules_to_save": _key("lora_modules_to_save"),
    "attention": _axolotl_attention,
    "loss": _axolotl_loss,
    "offload": _ACTIVATIONS,
    "padding": _only("packed", "sample_packing"),
}


def _open_instruct_method(_: Table, value: Any) -> Settings | None:
    if value not in ("full", "lora", "qlora"):
        return None
    return {("use_lora",): value != "full", ("use_qlora",): True if value == "qlora" else REMOVED}


def _open_instruct_optimizer(table: Table, value: Any) -> Settings | None:
    """Over 4 bits one key chooses between the paged ones, else between torch's two."""
    if table.get("use_qlora"):
        return (
            {("use_8bit_optimizer",): value == "paged_adamw_8bit"}
            if value.startswith("paged_adamw")
            else None
        )
    return {("fused_optimizer",): value == "adamw_torch_fused"} if value.startswith("adamw_torch") else None


_TUNE_OPTIMIZERS = {
    "adamw_torch": ("torch.optim.AdamW", False),
    "adamw_torch_fused": ("torch.optim.AdamW", True),
    "paged_adamw_8bit": ("bitsandbytes.optim.PagedAdamW8bit", None),
    "adamw_8bit": ("bitsandbytes.optim.AdamW8bit", None),
}


def _torchtune_optimizer(table: Table, value: Any) -> Settings | None:
    """A class and, for torch's own, which of its two implementations;
    an argument that the class has not would end the job.
    """
    if value not in _TUNE_OPTIMIZERS:
        return None
    name, fused = _TUNE_OPTIMIZERS[value]
    given = table.get("optimizer")
    drop = fused is None and isinstance(given, Mapping) and "fused" in given
    found: dict[tuple[str, ...], Any] = {("optimizer", "_component_"): name}
    if fused is not None or drop:
        found["optimizer", "fused"] = REMOVED if drop else fused
    return found


_TORCHTUNE: Mapping[str, Rule] = {
    "batch": _key("batch_size"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "seq": _dotted("tokenizer", "max_seq_len"),
    "epochs": _key("epochs"),
    "lora_rank": _dotted("model", "lora_rank"),
    "optimizer": _torchtune_optimizer,
    "gradient_checkpointing": _key("enable_activation_checkpointing"),
    "offload": _only("activations", "enable_activation_offloading"),
    "padding": _only("packed", "dataset", "packed"),
}


def _open_instruct_checkpointing(table: Table, value: Any) -> Settings:
    """DPO of today turns checkpoints on by the budget for what they save."""
    if is_dpo_table(table) and "gradient_checkpointing" not in table:
        return {("activation_memory_budget",): 0.5 if value else 1.0}
    return {("gradient_checkpointing",): value}


_OPEN_INSTRUCT: Mapping[str, Rule] = {
    "batch": _key("per_device_train_batch_size"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "seq": _key("max_seq_length"),
    "epochs": lambda table, value: {("num_epochs" if is_dpo_table(table) else "num_train_epochs",): value},
    "method": _open_instruct_method,
    "lora_rank": _key("lora_rank"),
    "optimizer": _open_instruct_optimizer,
    "gradient_checkpointing": _open_instruct_checkpointing,
    # Its versions of 2024 have no such key (efa36849b of 2025-03-11).
    "loss": lambda table, value: (
        {("use_liger_kernel",): True} if value == "liger" and not OLD_KEYS & table.keys() else None
    ),
}

_MS_SWIFT: Mapping[str, Rule] = {
    **_TRAINER,
    "seq": lambda table, value: {
        ("packing_length" if table.get("packing") and "packing_length" in table else "max_length",): value
    },
    "lora_rank": _key("lora_rank"),
    "attention": _words("attn_impl", {"eager": "eager", "sdpa": "sdpa", "flash2": "flash_attn"}),
    "vllm_sleep": lambda _, value: {("sleep_level",): int(value)},
}

_DEEPSPEED: Mapping[str, Rule] = {
    "batch": _key("train_micro_batch_size_per_gpu"),
    "grad_accum": _key("gradient_accumulation_steps"),
    "precision": _only("bf16-mixed", "bf16", "enabled"),
}

_UNSLOTH: Mapping[str, Rule] = {
    "batch": _dotted("training", "batch_size"),
    "grad_accum": _dotted("training", "gradient_accumulation_steps"),
    "seq": _dotted("training", "max_seq_length"),
    "epochs": _dotted("training", "num_epochs"),
    "lora_rank": _dotted("lora", "lora_r"),
    "gradient_checkpointing": lambda _, value: {
        ("training", "gradient_checkpointing"): "unsloth" if value else "none"
    },
    "offload": _only("activations", "training", "gradient_checkpointing", means="unsloth"),
    "padding": _only("packed", "training", "packing"),
}

_LMFLOW: Mapping[str, Rule] = {
    **_TRAINER,
    "seq": _key("block_size"),
    "lora_rank": _key("lora_r"),
    "attention": _words("use_flash_attention", {"flash2": True}),
    "load_dtype": _words("torch_dtype", _LONG_DTYPES),
}

RULES: Mapping[str, Mapping[str, Rule]] = {
    "llama-factory": _LLAMA_FACTORY,
    "llama-factory-v1": _LLAMA_FACTORY_V1,
    "llama-factory-mca": _LLAMA_FACTORY_MCA,
    "llama-factory-bridge": _LLAMA_FACTORY_BRIDGE,
    "axolotl": _AXOLOTL,
    "trl": _TRL,
    "transformers": _TRANSFORMERS,
    "open-instruct": _OPEN_INSTRUCT,
    "torchtune": _TORCHTUNE,
    "ms-swift": _MS_SWIFT,
    "unsloth": _UNSLOTH,
    "lmflow": _LMFLOW,
    "deepspeed": _DEEPSPEED,
}
"""Rules of each tool, by the names of our fields.  For a tool that is not here no change is written down."""
