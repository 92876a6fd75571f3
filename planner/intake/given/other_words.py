"""What flags of other tools are called here.

Nearest spellings do not find these: ``--zero 3`` is a value of ``--sharding``.  Sources: arguments of
Transformers 5.23 (training_args.py), peft 0.21 (LoraConfig), Axolotl 0.19 and LLaMA-Factory 0.9.4, and the
short forms of Megatron-LM and torchtitan.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_BY_FLAG: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "--attention flash2": ("flash_attn", "flash_attn_2", "flash_attention", "flash_attention_2"),
        "--attention": ("attn", "attn_implementation"),
        "--batch": (
            *("batch_size", "bs", "mbs", "micro_batch_size", "train_batch_size"),
            *("per_device_batch_size", "per_device_train_batch_size"),
        ),
        "--context-parallel": ("cp", "cp_size", "sp", "sp_size", "sequence_parallel_size"),
        "--data": ("dataset", "dataset_path"),
        "--expert-parallel": ("ep", "ep_size"),
        "--gpu": ("card", "device", "gpu_type"),
        "--gpu-memory": ("vram", "gpu_mem"),
        "--gpus": ("num_gpus", "n_gpus", "ngpus", "nproc_per_node"),
        "--grad-accum": ("ga", "gradient_accumulation", "gradient_accumulation_steps"),
        "--gradient-checkpointing": ("gc", "checkpointing", "activation_checkpointing"),
        "--host-memory": ("ram", "cpu_memory"),
        "--load-dtype": ("dtype", "torch_dtype"),
        "--lora-rank": ("r", "rank", "lora_r"),
        "--lora-targets": ("lora_target", "target_modules", "lora_target_modules"),
        "--loss liger": ("liger", "use_liger_kernel"),
        "--method": ("peft", "finetuning_type"),
        "--method lora": ("lora", "use_lora"),
        "--method qlora": ("load_in_4bit", "qlora", "4bit"),
        "--model": ("base_model", "model_id", "model_name", "model_name_or_path"),
        "--offload optimizer+params": ("cpu_offload", "offload_cpu"),
        "--optimizer": ("optim",),
        "--padding packed": ("packing", "sample_packing"),
        "--pipeline-parallel": ("pp", "pp_size"),
        "--precision bf16-mixed": ("bf16",),
        "--precision fp16-mixed": ("fp16",),
        "--quantization int8": ("load_in_8bit", "8bit"),
        "--seq": (
            *("seq_len", "seq_length", "sequence_len", "sequence_length", "context", "context_length"),
            *("cutoff_len", "max_len", "max_length", "max_seq_len", "max_seq_length"),
        ),
        "--sharding": ("strategy", "zero", "zero_stage", "deepspeed", "ds"),
        "--sharding fsdp": ("fsdp", "fsdp2"),
        "--sharding zero1": ("zero1",),
        "--sharding zero2": ("zero2",),
        "--sharding zero3": ("zero3",),
        "--task dpo": ("dpo",),
        "--tensor-parallel": ("tp", "tp_size"),
    }
)
_HERE = MappingProxyType({word: flag for flag, words in _BY_FLAG.items() for word in words})


def in_our_words(flag: str) -> str | None:
    """The flag, and its value where that is part of the meaning, that another tool's ``flag`` stands for;
    ``None`` where there is none.
    """
    return _HERE.get(flag.lstrip("-").replace("-", "_").lower())
