"""The table of combinations: every rule has an example that it answers and a neighbour that it leaves
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.domain.scenario import Scenario
from planner.errors import ExitCode, RefusedCombinationError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.intake.rules.all_rules import RULES, Rule

BASE = {"model": "llama-2-7b", "method": "lora", "gpu": "4090", "seq": 1024}
WIDE_HEADS = {
    "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 2048, "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip

AWQ, AQLM = "TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16"
NF4 = "hugging-quants/Meta-Llama-3.1-70B-BNB-NF4-BF16"

Flags = Mapping[str, object]
IN_RAM: Flags = {"sharding": "zero3", "offload": "optimizer", "stack": "axolotl"}
DRAWN: Flags = {"method": "full", "train_layers": "drawn:2@20;embed", "optimizer": "adamw_torch"}
HELD: Flags = {
    "model": "olmoe-1b-7b",
    "method": "qlora",
    "stack": "axolotl",
    "lora_targets": "attention",
    "switches": ["quantizes_experts=held", "adapter_kernels=eager"],
}
SCATTERED: Flags = {
    "model": "olmoe-1b-7b",
    "stack": "axolotl",
    "lora_targets": "attention",
    "switches": ["mixture_code=scattermoe", "adapter_kernels=eager"],
}
ON_HOST: Flags = {
    "model": "qwen3-30b-a3b", "stack": "llama-factory", "gpus": 2, "sharding": "fsdp",
    "lora_targets": "all-linear", "switches": ["host_experts=bf16"],
}  # fmt: skip
MUON: Flags = {"method": "full", "optimizer": "muon", "stack": "llama-factory"}
CLASS: Flags = {"model": "mixtral-8x7b", "sharding": "fsdp", "gpus": 2}
UNITS: Flags = {"sharding": "fsdp1", "gpus": 2, "switches": ["fsdp_units=feed_forward"]}
FLAT: Flags = {
    "quantization": "nf4", "gpus": 2, "sharding": "fsdp1", "quant_storage": "bf16", "load_dtype": "bf16"
}  # fmt: skip
HPZ: Flags = {"gpus": 2, "sharding": "zero3", "hpz": 2}
SENT: Flags = {"gpus": 2, "sharding": "zero3", "switches": ["zero3_quantized=weights"]}

TAUGHT: Flags = {"task": "gkd", "stack": "trl", "teacher_model": "llama-2-13b"}
SCORED: Flags = {
    "task": "grpo", "stack": "axolotl", "seq": 512, "switches": ("feature_layers=3",)
}  # fmt: skip
# An image of 999 tokens.
SEES: Flags = {"model": "qwen2.5-vl-7b", "images_per_sample": 1, "image_size": "1024x768", "seq": 2048}
CUT_OFF: Flags = {
    **SEES, "model": "qwen3-vl-8b", "method": "lora", "lora_targets": ("all-linear",), "gpus": 2,
    "stack": "axolotl", "switches": ("adapter_kernels=eager",),
    "gradient_checkpointing": True,
}  # fmt: skip
# Rule id -> (flags over BASE that it answers, flags as near as possible that it leaves alone).  WIDE:
# a model with heads of 512.
EXAMPLES: dict[str, tuple[Flags, Flags]] = {
    "method-against-quantization": (
        {"method": "int8", "quantization": "nf4"},
        {"method": "lora", "quantization": "nf4"},
    ),
    "quantized-full": (
        {"method": "full", "quantization": "gptq-int4"},
        {"method": "lora", "quantization": "gptq-int4"},
    ),
    "packed-samples-masked": (
        {"stack": "trl", "padding": "packed", "batch": 8},
        {"stack": "trl", "padding": "packed", "batch": 8, "attention": "flash2"},
    ),
    "lora-options-with-full": ({"method": "full", "lora_rank": 8}, {"method": "full"}),
    "modules-to-save-with-full": (
        {"method": "full", "modules_to_save": "lm_head"},
        {"modules_to_save": "lm_head"},
    ),
    "dropout-on-experts": (
        {"model": "mixtral-8x7b", "lora_targets": "all-linear", "lora_dropout": 0.1},
        {"model": "mixtral-8x7b", "lora_targets": "attention", "lora_dropout": 0.1},
    ),
    "held-experts-elsewhere": (
        {**HELD, "gpus": 2, "sharding": "zero3"},
        {**HELD, "gpus": 2, "sharding": "fsdp2"},
    ),
    "held-int8-experts": (
        {**HELD, "method": "int8", "gradient_checkpointing": True, "checkpoint_reentrant": False},
        {**HELD, "method": "int8", "gradient_checkpointing": True, "checkpoint_reentrant": True},
    ),
    "scattered-experts": (
        {**SCATTERED, "gpus": 2, "sharding": "zero3"},
        {**SCATTERED, "gpus": 2, "sharding": "fsdp2"},
    ),
    "adapter-on-router": (
        {"model": "llama-4-scout", "method": "lora", "lora_targets": ("all-linear",)},
        {"model": "llama-4-scout", "method": "lora"},
    ),
    "every-expert-elsewhere": (
        {"model": "llama-4-scout", "method": "qlora", "lora_targets": ("attention",), "stack": "unsloth"},
        {"model": "llama-4-scout", "method": "qlora", "lora_targets": ("attention",), "stack": "trl"},
    ),
    "experts-on-host": ({**ON_HOST, "sharding": "ddp"}, ON_HOST),
    "experts-on-host-unread": ({**ON_HOST, "optimizer": "adafactor"}, ON_HOST),
    "selected-experts-elsewhere": (
        {"model": "dbrx", "precision": "bf16", "stack": "torchtune"},
        {"model": "dbrx", "precision": "bf16", "stack": "hf-trainer"},
    ),
    "selected-experts-mixed": (
        {"model": "dbrx", "precision": "bf16-mixed"},
        {"model": "dbrx", "precision": "bf16-mixed", "method": "full", "load_dtype": "fp32"},
    ),
    "streams-packed": (
        {"model": "gemma-3n-e2b", "method": "qlora"},
        {"model": "gemma-3n-e2b", "method": "lora"},
    ),
    "streams-elsewhere": (
        {"model": "gemma-3n-e2b", "stack": "torchtune"},
        {"model": "gemma-3n-e2b", "stack": "trl"},
    ),
    "model-unread-in-stack": (
        {"model": "starcoderbase-1b", "stack": "hf-trainer@4"},
        {"model": "starcoderbase-1b", "stack": "hf-trainer"},
    ),
    "model-newer-than-versions": (
        {"model": "qwen3-0.6b", "stack": "hf-trainer@4"},
        {"model": "qwen3-0.6b", "stack": "hf-trainer@4", "versions": ["transformers==4.51.3"]},
    ),
    "recurrent-kernels": ({"model": "qwen3.5-0.8b"}, {"model": "qwen3-0.6b"}),
    "recurrent-layers-elsewhere": (
        {"model": "qwen3.5-0.8b", "stack": "torchtune"},
        {"model": "qwen3.5-0.8b", "stack": "trl"},
    ),
    "packed-out-proj": (
        {"model": "nemotron-h-8b", "method": "qlora", "lora_targets": ("in_proj",)},
        {"model": "jamba-v0.1", "method": "qlora", "lora_targets": ("in_proj",)},
    ),
    "adapter-on-out-proj": (
        {"model": "nemotron-h-8b", "method": "lora", "lora_targets": ("in_proj", "out_proj")},
        {"model": "nemotron-h-8b", "method": "lora", "lora_targets": ("in_proj",)},
    ),
    "adapter-on-out-proj-idle": (
        {"model": "granite-4.0-h-tiny", "method": "lora", "lora_targets": ("all-linear",)},
        {"model": "granite-4.0-h-tiny", "method": "lora", "lora_targets": ("in_proj",)},
    ),
    "train-layers-with-adapters": ({"train_layers": "last:8"}, {"method": "full", "train_layers": "last:8"}),
    "train-layers-not-there": (
        {"method": "full", "train_layers": "30-32;norm"},
        {"method": "full", "train_layers": "30-31;norm"},
    ),
    "train-layers-tied-head": (
        {"model": "llama-3.2-1b", "method": "full", "train_layers": "last:4;head"},
        {"model": "llama-3.2-1b", "method": "full", "train_layers": "last:4;embed;head"},
    ),
    "train-layers-match-nothing": (
        {"method": "full", "train_layers": "32-35"},
        {"method": "full", "train_layers": "31-35"},
    ),
    "train-layers-divided": (
        {"method": "full", "train_layers": "last:8", "gpus": 2, "sharding": "fsdp1"},
        {
            "method": "full",
            "train_layers": "last:8",
            "gpus": 2,
            "sharding": "zero3",
            "offload": "optimizer+params",
        },
    ),
    "drawn-layers": (DRAWN, {**DRAWN, "train_layers": "last:2;embed"}),
    "drawn-layers-elsewhere": ({**DRAWN, "optimizer": "paged_adamw_8bit"}, DRAWN),
    "fsdp-class-of-another": (
        {**CLASS, "switches": ["fsdp_layer_class=MixtralDecoderLayer+MistralDecoderLayer"]},
        {**CLASS, "switches": ["fsdp_layer_class=MixtralDecoderLayer"]},
    ),
    "fsdp-units-elsewhere": (
        {**UNITS, "model": "llama-2-7b"},
        {**UNITS, "model": "mixtral-8x7b"},
    ),
    "train-layers-checkpointing-unread": (
        {"method": "full", "train_layers": "last:8", "stack": "torchtune", "gradient_checkpointing": True},
        {
            "method": "full",
            "train_layers": "last:8;embed",
            "stack": "torchtune",
            "gradient_checkpointing": True,
        },
    ),
    "train-layers-without-gradients": (
        {
            "method": "full",
            "train_layers": "last:8",
            "stack": "hf-trainer@4",
            "gradient_checkpointing": True,
            "checkpoint_reentrant": True,
        },
        {
            "method": "full",
            "train_layers": "last:8",
            "gradient_checkpointing": True,
            "checkpoint_reentrant": True,
        },
    ),
    "train-layers-with-offload": (
        {
            "method": "full",
            "train_layers": "last:8",
            "gradient_checkpointing": True,
            "offload": "activations",
        },
        {"method": "full", "train_layers": "last:8", "gradient_checkpointing": True},
    ),
    "train-layers-ends-in-pieces": (
        {"method": "full", "train_layers": "norm;head", "loss": "liger", "stack": "llama-factory"},
        {"method": "full", "train_layers": "last:1;head", "loss": "liger", "stack": "llama-factory"},
    ),
    "kernels-of-attention": (
        {"model": "phi-4", "stack": "axolotl"},
        {"model": "phi-4", "stack": "axolotl", "switches": ("adapter_kernels=eager",)},
    ),
    "kernels-of-wide-layers": (
        {"model": "afm-4.5b", "method": "qlora", "stack": "axolotl"},
        {"model": "afm-4.5b", "stack": "axolotl"},
    ),
    "dora-unread": ({"dora": True, "stack": "unsloth"}, {"dora": True, "stack": "llama-factory"}),
    "dora-of-kernels": ({"dora": True, "method": "int8"}, {"dora": True, "method": "qlora"}),
    "oft-unread": (
        {"oft_block_size": 32, "stack": "unsloth"},
        {"oft_block_size": 32, "stack": "llama-factory"},
    ),
    "oft-elsewhere": (
        {"oft_block_size": 32, "gpus": 2, "sharding": "zero2"},
        {"oft_block_size": 32, "gpus": 2, "sharding": "ddp"},
    ),
    "oft-without-autocast": (
        {"oft_block_size": 32, "quantization": "gptq-int4", "precision": "bf16", "stack": "llama-factory"},
        {
            "oft_block_size": 32,
            "quantization": "gptq-int4",
            "precision": "bf16-mixed",
            "stack": "llama-factory",
        },
    ),
    "vera-unread": ({"vera": True, "stack": "unsloth"}, {"vera": True, "stack": "hf-trainer@5"}),
    "vera-elsewhere": (
        {"vera": True, "gpus": 2, "sharding": "zero2"},
        {"vera": True, "gpus": 2, "sharding": "ddp"},
    ),
    "vera-with-dora": ({"vera": True, "dora": True}, {"vera": True}),
    "oft-with-lora-options": ({"oft_block_size": 32, "lora_rank": 8}, {"oft_block_size": 32}),
    "optimizer-of-whole-matrices": (
        {**MUON, "gpus": 2, "sharding": "zero2"},
        {**MUON, "gpus": 2, "sharding": "ddp"},
    ),
    "muon-of-stacked-matrices": (
        {**MUON, "stack": "axolotl", "model": "granite-3.0-1b-a400m"},
        {**MUON, "model": "granite-3.0-1b-a400m"},
    ),
    "muon-of-uneven-parts": (
        {**MUON, "stack": "axolotl", "model": "qwen2.5-0.5b", "gpus": 6, "sharding": "fsdp"},
        {**MUON, "stack": "axolotl", "model": "qwen2.5-0.5b", "gpus": 8, "sharding": "fsdp"},
    ),
    "optimizer-in-backward": (
        {"method": "full", "optimizer_in_backward": True, "grad_accum": 2},
        {"method": "full", "optimizer_in_backward": True},
    ),
    "badam-of-one-layer": (
        {"method": "full", "optimizer": "badam"},
        {"method": "full", "optimizer": "badam", "train_layers": "first:1"},
    ),
    "fp32-shards-to-flash": (
        {
            "gpus": 2,
            "sharding": "zero3",
            "method": "full",
            "attention": "flash2",
            "switches": ["zero3_divides_fp32=true"],
        },
        {
            "gpus": 2,
            "sharding": "zero3",
            "method": "full",
            "attention": "sdpa",
            "switches": ["zero3_divides_fp32=true"],
        },
    ),
    "fp32-shards-unread": (
        {
            "gpus": 2,
            "sharding": "zero3",
            "attention": "sdpa",
            "task": "dpo",
            "switches": ["zero3_divides_fp32=true"],
        },
        {
            "gpus": 2,
            "sharding": "zero3",
            "method": "full",
            "attention": "sdpa",
            "switches": ["zero3_divides_fp32=true"],
        },
    ),
    "hpz-without-zero3": (
        {"gpus": 2, "sharding": "fsdp", "hpz": 2},
        {"gpus": 2, "sharding": "zero3", "hpz": 2},
    ),
    "hpz-second-model": (
        {**HPZ, "method": "full", "task": "dpo", "stack": "trl"},
        {**HPZ, "task": "dpo", "stack": "trl"},
    ),
    "hpz-on-nvme": (
        {**HPZ, "offload": "optimizer+params-nvme"},
        {**HPZ, "offload": "optimizer+params"},
    ),
    "hpz-unread": (
        {**HPZ, "stack": "axolotl", "context_parallel": 2, "attention": "flash2"},
        {**HPZ, "stack": "axolotl", "attention": "flash2"},
    ),
    "quantized-without-zero3": (
        {"gpus": 2, "sharding": "zero2", "switches": ["zero3_quantized=weights"]},
        {"gpus": 2, "sharding": "zero3", "switches": ["zero3_quantized=weights"]},
    ),
    "quantized-weights-lose-dtype": (
        {**SENT, "versions": ["deepspeed==0.19.4"]},
        {**SENT, "versions": ["deepspeed==0.19.4"], "precision": "fp16-mixed"},
    ),
    "quantized-packed": (
        {**SENT, "method": "qlora", "quant_storage": "bf16"},
        {**SENT, "method": "lora"},
    ),
    "quantized-frozen": (
        {**SENT, "method": "qlora", "quant_storage": "bf16", "switches": ["zero3_quantizes_frozen=true"]},
        {**SENT, "method": "lora", "switches": ["zero3_quantizes_frozen=true"]},
    ),
    "quantized-unread": (
        {**SENT, "stack": "axolotl", "context_parallel": 2, "attention": "flash2", "precision": "fp16-mixed"},
        {**SENT, "stack": "axolotl", "attention": "flash2", "precision": "fp16-mixed"},
    ),
    "quantized-gradients-misread": (
        {**SENT, "nodes": 2, "switches": ["zero3_quantized=gradients"], "precision": "bf16-mixed"},
        {**SENT, "nodes": 2, "switches": ["zero3_quantized=gradients"], "precision": "fp16-mixed"},
    ),
    "quantized-gradients-one-node": (
        {**SENT, "switches": ["zero3_quantized=gradients"]},
        {**SENT, "switches": ["zero3_quantized=weights"]},
    ),
    "distributed-optimizer-elsewhere": (
        {"gpus": 2, "sharding": "distributed-optimizer", "method": "full"},
        {"gpus": 2, "sharding": "zero1", "method": "full"},
    ),
    "megatron-mixture": (
        {"stack": "megatron", "model": "qwen3-30b-a3b", "method": "full", "gpus": 2, "padding": "packed"},
        {"stack": "megatron", "model": "qwen3-8b", "method": "full", "gpus": 2, "padding": "packed"},
    ),
    "mixture-unread": (
        {"stack": "torchtitan@2025", "model": "mixtral-8x7b", "method": "full"},
        {"stack": "torchtitan@2025", "model": "qwen3-30b-a3b", "method": "full"},
    ),
    "replicas-without-hsdp": (
        {"gpus": 2, "sharding": "fsdp", "replicas": 2},
        {"gpus": 2, "sharding": "hsdp", "replicas": 2},
    ),
    "fp8-not-on-card": (
        {"method": "full", "gpu": "a100-80-sxm", "fp8": "rowwise"},
        {"method": "full", "gpu": "h100-sxm", "fp8": "rowwise"},
    ),
    "fp8-unread": (
        {"gpu": "h100-sxm", "fp8": "rowwise"},
        {"method": "full", "gpu": "h100-sxm", "fp8": "rowwise"},
    ),
    "qat-unread": (
        {"method": "full", "qat": "int8-int4"},
        {"method": "full", "qat": "int8-int4", "stack": "torchtune"},
    ),
    "qat-group-undivided": (
        {"method": "lora", "qat": "int8-int4", "stack": "torchtune", "qat_group": 1000},
        {"method": "lora", "qat": "int8-int4", "stack": "torchtune"},
    ),
    "qat-group-alone": (
        {"method": "full", "stack": "torchtune", "qat_group": 32},
        {"method": "full", "stack": "torchtune", "qat": "int8-int4", "qat_group": 32},
    ),
    "qat-rounds-nothing": (
        {"method": "full", "qat": "int8-int4", "stack": "torchtune", "qat_group": 65_536},
        {"method": "full", "qat": "int8-int4", "stack": "torchtune", "qat_group": 11_008},
    ),
    "optimizer-rank-unused": ({"optimizer_rank": 8}, {}),
    "double-quant-without-4bit": (
        {"method": "int8", "double_quant": True},
        {"method": "qlora", "double_quant": True},
    ),
    "quant-storage-without-4bit": (
        {"method": "int8", "quant_storage": "bf16"},
        {"method": "qlora", "quant_storage": "bf16"},
    ),
    "load-dtype-over-quantized": (
        {"method": "qlora", "load_dtype": "bf16"},
        {"method": "lora", "load_dtype": "bf16"},
    ),
    "fused-experts-not-quantized": (
        {"model": "mixtral-8x7b", "method": "qlora"},
        {"model": "mixtral-8x7b", "method": "qlora", "stack": "hf-trainer@4"},
    ),
    "own-linears-not-quantized": (
        {"model": "falcon-7b", "method": "qlora"},
        {"model": "falcon-7b", "method": "qlora", "stack": "hf-trainer@4"},
    ),
    "four-bit-computes-in-fp32": (
        {"method": "qlora", "stack": "swift"},
        {"method": "qlora", "stack": "swift", "load_dtype": "bf16"},
    ),
    "fused-experts-adapted": (
        {"model": "mixtral-8x7b", "method": "lora"},
        {"model": "mixtral-8x7b", "method": "lora", "lora_targets": "attention"},
    ),
    "fp16-gradients": (
        {"method": "full", "precision": "fp16-mixed", "load_dtype": "fp16"},
        {"method": "full", "precision": "fp16-mixed", "load_dtype": "fp16", "sharding": "zero2"},
    ),
    "targets-match-nothing": ({"lora_targets": "query_key_value"}, {"lora_targets": "self_attn.q_proj"}),
    "targets-name-a-part": (
        {"model": "qwen3-30b-a3b", "lora_targets": "q_proj;gate_proj"},
        {"model": "qwen3-30b-a3b", "lora_targets": "q_proj;gate_proj;up_proj"},
    ),
    "targets-match-partly": ({"lora_targets": "q_proj;c_attn"}, {"lora_targets": "q_proj;v_proj"}),
    "modules-to-save-unmatched": ({"modules_to_save": "wte"}, {"modules_to_save": "embed_tokens;lm_head"}),
    "parameter-targets": (
        {"model": "mixtral-8x7b", "lora_targets": "q_proj;param:experts.down_proj", "lora_dropout": 0.1},
        {"model": "mixtral-8x7b", "lora_targets": "q_proj;param:experts.down_proj", "lora_dropout": 0},
    ),
    "rank-above-width": ({"lora_rank": 4097}, {"lora_rank": 4096}),
    "tokens-above-sequence": ({"tokens_per_sample": 1024.5}, {"tokens_per_sample": 1024}),
    "packed-with-sample-length": (
        {"padding": "packed", "tokens_per_sample": 300},
        {"padding": "longest", "tokens_per_sample": 300},
    ),
    "sequence-above-table": ({"model": "gpt2", "seq": 1025}, {"model": "gpt2", "seq": 1024}),
    "sequence-above-model": ({"seq": 4097}, {"seq": 4096}),
    "reentrant-without-checkpointing": (
        {"checkpoint_reentrant": True, "gradient_checkpointing": False},
        {"checkpoint_reentrant": True, "gradient_checkpointing": True},
    ),
    "checkpoint-every-without-checkpointing": (
        {"checkpoint_every": 2, "gradient_checkpointing": False},
        {"checkpoint_every": 2, "gradient_checkpointing": True},
    ),
    "checkpoint-every-with-offload": (
        {"checkpoint_every": 2, "gradient_checkpointing": True, "offload": "activations"},
        {"checkpoint_every": 1, "gradient_checkpointing": True, "offload": "activations"},
    ),
    "activations-offload-without-checkpointing": (
        {"gradient_checkpointing": False, "offload": "activations"},
        {"gradient_checkpointing": True, "offload": "activations"},
    ),
    "selective-reentrant": (
        {"checkpoint_policy": "selective-op", "gradient_checkpointing": True, "checkpoint_reentrant": True},
        {"checkpoint_policy": "selective-op", "gradient_checkpointing": True, "checkpoint_reentrant": False},
    ),
    "selective-of-kernels": (
        {"checkpoint_policy": "selective-op", "gradient_checkpointing": True, "method": "int8"},
        {"checkpoint_policy": "selective-op", "gradient_checkpointing": True, "method": "qlora"},
    ),
    "packed-head-in-pieces": (
        {"method": "qlora", "stack": "litgpt", "loss": "liger"},
        {"method": "qlora", "stack": "litgpt", "loss": "hf"},
    ),
    "adapted-head-in-pieces": (
        {"method": "lora", "lora_targets": ("q_proj", "lm_head"), "loss": "liger"},
        {"method": "lora", "lora_targets": ("q_proj", "lm_head"), "loss": "hf"},
    ),
    "checkpoint-every-of-parts": (
        {"checkpoint_every": 2, "gradient_checkpointing": True, "stack": "automodel"},
        {"checkpoint_every": 1, "gradient_checkpointing": True, "stack": "automodel"},
    ),
    "fewer-samples-than-a-step": (
        {"samples": 7, "batch": 2, "grad_accum": 4},
        {"samples": 8, "batch": 2, "grad_accum": 4},
    ),
    "adapters-beside-ends": (
        {"model": "qwen-7b", "stack": "qwen-finetune", "method": "lora"},
        {"model": "Qwen/Qwen-7B-Chat", "stack": "qwen-finetune", "method": "lora"},
    ),
    "sharding-on-one-process": ({"sharding": "zero2"}, {"sharding": "zero2", "offload": "optimizer"}),
    "many-gpus-in-a-node": ({"gpu": "h100-sxm", "gpus": 64}, {"gpu": "gb200", "gpus": 64}),
    "many-gpus-without-ddp": ({"gpus": 2, "sharding": "none"}, {"gpus": 2}),
    "hsdp-on-one-node": ({"gpus": 2, "sharding": "hsdp"}, {"gpus": 2, "sharding": "hsdp", "nodes": 2}),
    "nf4-sharded-without-storage": (
        {"method": "qlora", "gpus": 2, "sharding": "zero3"},
        {"method": "qlora", "gpus": 2, "sharding": "zero3", "quant_storage": "bf16"},
    ),
    "int8-sharded": (
        {"method": "int8", "gpus": 2, "sharding": "fsdp"},
        {"method": "int8", "gpus": 2, "sharding": "fsdp", "stack": "axolotl"},
    ),
    "liger-loss-refused": (
        {"model": "granite-3.1-2b", "method": "lora", "stack": "axolotl", "loss": "liger"},
        {"model": "granite-3.1-2b", "method": "lora", "stack": "axolotl"},
    ),
    "int8-latents": (
        {"model": "glm-4.7-flash", "method": "int8"},
        {"model": "glm-4.7-flash", "method": "qlora"},
    ),
    "gptq-sharded": (
        {"quantization": "gptq-int4", "gpus": 2, "sharding": "zero3"},
        {"quantization": "gptq-int4", "gpus": 2, "sharding": "zero2"},
    ),
    "stored-otherwise": ({"model": AWQ, "quantization": "nf4"}, {"model": AWQ, "method": "qlora"}),
    "grouped-heads-unfused": (
        {"model": "llama-3.2-1b", "gpu": "t4", "precision": "fp16-mixed"},
        {"model": "llama-3.2-1b", "gpu": "t4", "precision": "fp16-mixed", "stack": "unsloth"},
    ),
    "stored-computes-otherwise": (
        {"model": NF4, "precision": "fp16-mixed"},
        {"model": NF4, "precision": "bf16-mixed"},
    ),
    "packed-kernels-unread": (
        {"quantization": "gptq-int4", "stack": "torchtune"},
        {"quantization": "gptq-int4", "stack": "trl"},
    ),
    "packed-fused-experts": (
        {"model": "mixtral-8x7b", "quantization": "gptq-int4"},
        {"model": "mixtral-8x7b", "quantization": "gptq-int4", "stack": "hf-trainer@4"},
    ),
    "packed-needs-backend": (
        {"quantization": "awq-int4"},
        {"quantization": "awq-int4", "stack": "hf-trainer@4"},
    ),
    "packed-groups-assumed": ({"model": "llama-3-8b", "quantization": "awq-int4"}, {"model": AWQ}),
    "aqlm-of-no-checkpoint": ({"quantization": "aqlm"}, {"model": AQLM}),
    "aqlm-sharded": (
        {"model": AQLM, "gpus": 2, "sharding": "zero3"},
        {"model": AQLM, "gpus": 2, "sharding": "zero2"},
    ),
    "zero-without-masters": (
        {"sharding": "zero2", "precision": "bf16"},
        {"sharding": "zero2", "precision": "bf16-mixed"},
    ),
    "offload-without-engine": ({"offload": "optimizer"}, {"offload": "activations"}),
    "params-offload-below-stage-3": (
        {"sharding": "zero2", "offload": "optimizer+params"},
        {"sharding": "zero2", "offload": "optimizer"},
    ),
    "nvme-without-stage-3": (
        {"sharding": "zero2", "offload": "optimizer-nvme"},
        {"sharding": "zero3", "offload": "optimizer-nvme"},
    ),
    "fsdp-offloads-both": (
        {"sharding": "fsdp", "offload": "params"},
        {"sharding": "fsdp", "offload": "optimizer+params"},
    ),
    "fsdp1-not-in-stack": (
        {"sharding": "fsdp1", "gpus": 2, "stack": "llama-factory-v1"},
        {"sharding": "fsdp", "gpus": 2, "stack": "llama-factory-v1"},
    ),
    "litgpt-divides-no-packed-base": (
        {"method": "qlora", "sharding": "fsdp1", "gpus": 2, "stack": "litgpt"},
        {"sharding": "fsdp1", "gpus": 2, "stack": "litgpt"},
    ),
    "litgpt-checkpoints-divided-jobs": (
        {"stack": "litgpt", "gradient_checkpointing": True},
        {"stack": "litgpt"},
    ),
    "deepspeed-elsewhere": (
        {"sharding": "zero2", "gpus": 2, "stack": "torchtune"},
        {"sharding": "zero2", "gpus": 2},
    ),
    "litgpt-on-several-gpus": (
        {"gpus": 2, "stack": "litgpt"},
        {"sharding": "fsdp1", "gpus": 2, "stack": "litgpt"},
    ),
    "packed-tower": (
        {"model": "qwen2.5-vl-3b", "quantization": "awq-int4", "stack": "trl"},
        {"model": "qwen2.5-vl-3b", "quantization": "gptq-int4", "stack": "trl"},
    ),
    "gpu-optimizer-offloaded": (
        {"sharding": "zero3", "offload": "optimizer", "optimizer": "paged_adamw_8bit"},
        {"sharding": "zero3", "offload": "params", "optimizer": "paged_adamw_8bit"},
    ),
    "torchao-offloaded": (
        {**IN_RAM, "sharding": "fsdp", "gpus": 2, "optimizer": "adamw_torch_4bit"},
        {"sharding": "fsdp", "gpus": 2, "optimizer": "adamw_torch_4bit"},
    ),
    "bitsandbytes-offloaded": (
        {**IN_RAM, "optimizer": "adamw_8bit", "versions": ["bitsandbytes==0.49.1"]},
        {**IN_RAM, "optimizer": "adamw_8bit", "versions": ["bitsandbytes==0.50.2"]},
    ),
    "optimizer-on-dtensors": (
        {"sharding": "fsdp", "gpus": 2, "optimizer": "adamw_8bit"},
        {"sharding": "fsdp1", "gpus": 2, "optimizer": "adamw_8bit"},
    ),
    "kernels-over-stored": (
        {"quantization": "gptq-int4", "stack": "axolotl"},
        {"quantization": "gptq-int4", "stack": "axolotl", "switches": "adapter_kernels=eager"},
    ),
    "weights-below-precision": (
        {"precision": "fp32"},
        {"precision": "fp32", "load_dtype": "fp32"},
    ),
    "packed-base-loaded-whole": (
        {**FLAT, "switches": "kbit_upcast=none"},
        {**FLAT, "stack": "trl@0.24"},
    ),
    "fsdp1-adapts-fused-experts": (
        {
            "model": "olmoe-1b-7b",
            "method": "lora",
            "gpus": 2,
            "sharding": "fsdp1",
            "lora_targets": ("all-linear",),
        },
        {
            "model": "olmoe-1b-7b",
            "method": "lora",
            "gpus": 2,
            "sharding": "fsdp1",
            "lora_targets": ("attention",),
        },
    ),
    "fsdp1-flattens-one-dtype": (FLAT, {**FLAT, "switches": "kbit_upcast=none"}),
    "model-newer-than-stack": (
        {"model": "ministral-3-3b", "stack": "trl@0.24"},
        {"model": "ministral-3-3b", "stack": "trl"},
    ),
    "adamw-hf-gone": (
        {"optimizer": "adamw_hf", "stack": "trl@0.24"},
        {"optimizer": "adamw_hf", "stack": "hf-trainer@4"},
    ),
    "slow-optimizer-offloaded": (
        {"sharding": "zero3", "offload": "optimizer", "optimizer": "adafactor"},
        {"sharding": "zero3", "offload": "optimizer", "optimizer": "adamw_torch"},
    ),
    "offload-host-unknown": (
        {"sharding": "zero3", "offload": "optimizer"},
        {"sharding": "zero3", "offload": "optimizer", "host_memory": "256GB"},
    ),
    "bf16-without-units": ({"gpu": "t4", "precision": "bf16-mixed"}, {"gpu": "t4"}),
    "flash2-on-old-card": ({"gpu": "t4", "attention": "flash2"}, {"gpu": "l4", "attention": "flash2"}),
    "flash2-in-fp32": (
        {"attention": "flash2", "precision": "fp32"},
        {"attention": "sdpa", "precision": "fp32"},
    ),
    "flash2-wide-heads": ({"model": "WIDE", "attention": "flash2"}, {"model": "WIDE"}),
    "flex-on-old-card": ({"gpu": "t4", "attention": "flex"}, {"gpu": "l4", "attention": "flex"}),
    "flex-in-fp32": ({"attention": "flex", "precision": "fp32"}, {"attention": "flex"}),
    "flex-wide-heads": ({"model": "WIDE", "attention": "flex"}, {"model": "WIDE"}),
    "kernel-refused": (
        {"model": "llama-4-scout", "attention": "flash2", "lora_targets": "attention"},
        {"model": "llama-4-scout", "attention": "sdpa", "lora_targets": "attention"},
    ),
    "kernel-not-in-model-code": ({"model": "bloom-3b", "attention": "sdpa"}, {"model": "bloom-3b"}),
    "backward-without-sinks": (
        {"model": "gpt-oss-20b", "attention": "flash2"},
        {"model": "gpt-oss-20b", "attention": "eager"},
    ),
    "attention-of-remote-code": ({"model": "qwen-7b", "attention": "sdpa"}, {"model": "qwen-7b"}),
    "liger-lacks-model": (
        {"model": "bloom-1b1", "method": "lora", "loss": "liger"},
        {"model": "bloom-1b1", "method": "lora", "loss": "hf"},
    ),
    "liger-not-in-stack": (
        {"loss": "liger", "stack": "torchtune"},
        {"loss": "liger", "stack": "llama-factory"},
    ),
    "not-a-cuda-device": ({"gpu": "mi300x"}, {"gpu": "h100-sxm"}),
    "shared-with-the-host": ({"gpu": "dgx-spark"}, {"gpu": "dgx-spark", "gpu_reserved": "16GiB"}),
    "gpu-memory-unknown": ({"gpu": "a100-unknown"}, {"gpu": "a100-unknown", "gpu_memory": "79GiB"}),
    "gpu-speed-unknown": ({"gpu": "my-card", "gpu_memory": "24GiB"}, {"gpu": "4090", "gpu_memory": "23GiB"}),
    "plan-for-each-shape": (
        {"gpu": "h100-sxm", "attention": "sdpa", "tokens_per_sample": 300},
        {"gpu": "h100-sxm", "attention": "sdpa", "padding": "max_length", "tokens_per_sample": 300},
    ),
    "version-not-read": ({"versions": "peft==9.0"}, {"versions": "peft==0.21.2"}),
    "gpu-memory-above-label": ({"gpu_memory": "48GiB"}, {"gpu_memory": "24GiB"}),
    "task-not-in-stack": (
        {"task": "reward", "stack": "torchtune"},
        {"task": "reward", "stack": "trl"},
    ),
    "reference-divided": (
        {"task": "kto", "sharding": "fsdp1", "gpus": 2},
        {"task": "orpo", "sharding": "fsdp1", "gpus": 2},
    ),
    "reference-of-its-own-units": (
        {"task": "dpo", "stack": "torchtune", "method": "full", "gpus": 2},
        {"task": "dpo", "stack": "torchtune", "gpus": 2},
    ),
    "whole-weights-accumulate": (
        {"sharding": "fsdp1-grad-op", "gpus": 2, "grad_accum": 2},
        {"sharding": "fsdp1-grad-op", "gpus": 2, "grad_accum": 1},
    ),
    "generations-uneven": (
        {"task": "grpo", "stack": "trl", "seq": 512, "batch": 6, "generations": 4},
        {"task": "grpo", "stack": "trl", "seq": 512, "batch": 8, "generations": 4},
    ),
    "epochs-without-samples": ({"epochs": 3}, {"epochs": 3, "samples": 1000}),
    "vllm-share-short": (
        {"task": "grpo", "stack": "trl", "gpu": "rtx4090", "generator": "vllm", "vllm_memory": 0.3},
        {"task": "grpo", "stack": "trl", "gpu": "rtx4090", "generator": "vllm", "vllm_memory": 0.7},
    ),
    "ppo-engine": (
        {"task": "ppo", "stack": "llama-factory@0.8", "seq": 512, "method": "full"},
        {"task": "ppo", "stack": "llama-factory@0.8", "seq": 512, "method": "lora"},
    ),
    "generation-divided": (
        {"task": "grpo", "stack": "trl", "seq": 512, "batch": 8, "sharding": "fsdp2", "gpus": 2},
        {"task": "grpo", "stack": "trl", "seq": 512, "batch": 8, "sharding": "zero3", "gpus": 2},
    ),
    "generation-of-other-layers": (
        {"task": "grpo", "stack": "trl", "seq": 512, "batch": 8, "model": "qwen3.5-0.8b"},
        {
            "task": "grpo",
            "stack": "trl",
            "seq": 512,
            "batch": 8,
            "model": "qwen3.5-0.8b",
            "generator": "vllm",
        },
    ),
    "reward-model-packed": (
        {
            "task": "grpo",
            "stack": "trl",
            "seq": 512,
            "method": "qlora",
            "reward_model": "qwen2.5-0.5b",
            "versions": ("trl==1.0.0",),
        },
        {"task": "grpo", "stack": "trl", "seq": 512, "method": "qlora", "reward_model": "qwen2.5-0.5b"},
    ),
    "features-of-a-copy": (
        {**SCORED, "method": "full"},
        {**SCORED, "method": "lora"},
    ),
    "teacher-divided": (
        {**TAUGHT, "gpus": 2, "sharding": "fsdp2"},
        {**TAUGHT, "gpus": 2, "sharding": "zero3"},
    ),
    "teacher-of-other-words": (
        {**TAUGHT, "teacher_model": "qwen2.5-7b"},
        {**TAUGHT, "teacher_model": "llama-2-13b"},
    ),
    "no-head-of-labels": (
        {"model": "granite-3.1-2b", "method": "lora", "task": "classify"},
        {"model": "granite-3.1-2b", "method": "lora", "task": "classify", "stack": "swift"},
    ),
    "labels-elsewhere": (
        {"task": "prm", "stack": "axolotl", "padding": "packed"},
        {"task": "prm", "stack": "axolotl", "padding": "longest"},
    ),
    "preference-packed": ({"task": "dpo", "padding": "packed"}, {"task": "dpo"}),
    "preference-loss-kernel": (
        {"task": "dpo", "loss": "liger", "stack": "llama-factory"},
        {"task": "dpo", "loss": "hf", "stack": "llama-factory"},
    ),
    "reward-in-two-passes": (
        {
            "task": "reward",
            "versions": "trl==0.18.0",
            "stack": "trl@0",
            "load_dtype": "fp32",
            "precision": "bf16-mixed",
        },
        {
            "task": "reward",
            "versions": "trl==0.18.0",
            "stack": "trl@0",
            "load_dtype": "bf16",
            "precision": "bf16-mixed",
        },
    ),
    "value-head": (
        {"task": "reward", "stack": "llama-factory", "method": "full"},
        {"task": "reward", "stack": "llama-factory", "method": "lora"},
    ),
    "compared-logits": (
        {"stack": "llama-factory", "switches": ("loss_weights=divergence",), "method": "lora"},
        {"stack": "llama-factory", "switches": ("loss_weights=divergence",), "method": "full"},
    ),
    "offloaded-with-reference": (
        {"task": "dpo", "offload": "activations", "gradient_checkpointing": True},
        {"task": "orpo", "offload": "activations", "gradient_checkpointing": True},
    ),
    "head-in-tiles": ({"task": "dpo", "model": "gemma-2-2b"}, {"task": "dpo", "model": "gemma-2b"}),
    "vision-unread": (
        {"model": "gemma-3n-e2b", "method": "lora", "images_per_sample": 1},
        {"model": "gemma-3n-e2b", "method": "lora"},
    ),
    "vision-forward-alone": (
        {"model": "gemma-4-e2b", "image_size": "768x768"},
        {"model": "gemma-4-e2b", "image_size": "768x768", "freeze": "vision_tower;projector"},
    ),
    "tower-cut-off": (
        {**CUT_OFF, "checkpoint_reentrant": True},
        {**CUT_OFF, "checkpoint_reentrant": False},
    ),
    "images-without-room": ({**SEES, "seq": 998}, {**SEES, "seq": 999}),
    "vision-fsdp1": ({**SEES, "gpus": 2, "sharding": "fsdp1"}, {**SEES, "gpus": 2, "sharding": "fsdp"}),
    "vision-code": (
        {**SEES, "stack": "hf-trainer@4"},
        {**SEES, "stack": "hf-trainer@4", "freeze": "vision_tower"},
    ),
    "vision-eager": ({**SEES, "attention": "eager"}, {"model": "qwen2.5-vl-7b", "attention": "eager"}),
    "vision-checkpointing": (
        {**SEES, "gradient_checkpointing": True, "checkpoint_every": 2},
        {**SEES, "gradient_checkpointing": True},
    ),
    "vision-offloaded-activations": (
        {**SEES, "gradient_checkpointing": True, "offload": "activations"},
        {"model": "qwen2.5-vl-7b", "gradient_checkpointing": True, "offload": "activations"},
    ),
    "images-flex": ({**SEES, "attention": "flex"}, SEES),
    "vision-train-layers": (
        {**SEES, "method": "full", "train_layers": "last:8"},
        {**SEES, "method": "full", "freeze": "vision_tower"},
    ),
    "reserved-fills-card": ({"gpu_reserved": "24GiB"}, {"gpu_reserved": "23GiB"}),
}


# Further ways into a rule, or around it: (rule id, flags over BASE, whether it answers).
OTHER_WAYS: list[tuple[str, Flags, bool]] = [
    # The head is the table where they are tied, so that the first layer's input requires a gradient.
    *(
        (
            "train-layers-checkpointing-unread",
            {
                "method": "full",
                "train_layers": "last:8;head",
                "stack": "torchtune",
                "gradient_checkpointing": True,
                "model": model,
            },
            answers,
        )
        for model, answers in (("llama-2-7b", True), ("qwen2.5-0.5b", False))
    ),
    (
        "adapter-on-out-proj",
        {"model": "nemotron-h-8b", "method": "lora", "lora_targets": ("in_proj", "mixer.out_proj")},
        True,
    ),
    *(
        (
            "value-head",
            {"task": "reward", "stack": "llama-factory", "method": "lora", "gradient_checkpointing": again},
            not again,
        )
        for again in (False, True)
    ),
]


def forced(flags: Flags, folder: Path) -> Scenario:
    """The scenario of BASE with these flags, refusals as warnings."""
    said = {**BASE, **flags}
    if said["model"] == "WIDE":
        path = folder / "config.json"
        path.write_text(json.dumps(WIDE_HEADS))
        said["model"] = str(path)
    return resolve(from_flags(said), force=True)


def test_every_rule_has_an_example() -> None:
    """A rule without an example, or an example without a rule, fails here."""
    assert set(EXAMPLES) == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_answers_its_example_only(rule: Rule, tmp_path: Path) -> None:
    """The example has the rule's warning, with its sentence; the neighbour does not."""
    rule_id, sentence = rule.id, rule.sentence
    fires, quiet = EXAMPLES[rule_id]
    found = [warning for warning in forced(fires, tmp_path).warnings if f"[{rule_id}]" in warning]
    assert len(found) == 1
    assert sentence in found[0]
    assert not any(f"[{rule_id}]" in warning for warning in forced(quiet, tmp_path).warnings)


@pytest.mark.parametrize(("rule_id", "flags", "answers"), OTHER_WAYS)
def test_a_rule_has_more_than_one_way_in(rule_id: str, flags: Flags, answers: bool, tmp_path: Path) -> None:
    """Each part of a condition decides by itself."""
    found = forced(flags, tmp_path).warnings
    assert any(f"[{rule_id}]" in warning for warning in found) == answers


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.level != "warn"], ids=lambda rule: rule.id)
def test_a_refusal_is_an_error_unless_forced(rule: Rule, tmp_path: Path) -> None:
    """Without --force the example is refused by the rule's id;
    with it the first warnings say that they were forced.  What is only not modelled has another exit code.
    """
    rule_id = rule.id
    scenario = forced(EXAMPLES[rule_id][0], tmp_path)
    assert any(warning.startswith("forced: ") and f"[{rule_id}]" in warning for warning in scenario.warnings)
    said = {**BASE, **EXAMPLES[rule_id][0]}
    if said["model"] == "WIDE":
        said["model"] = str(tmp_path / "config.json")
    with pytest.raises(RefusedCombinationError, match=re.escape(f"[{rule_id}]")) as caught:
        resolve(from_flags(said))
    assert "--force" in str(caught.value)
    alone = f"[{rule_id}]" == " ".join(re.findall(r"\[[a-z0-9-]+\]", str(caught.value)))
    code = ExitCode.USAGE if rule.level == "refuse" else ExitCode.NOT_MODELLED
    assert caught.value.exit_code is code or not alone


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.level == "warn"], ids=lambda rule: rule.id)
def test_a_warning_does_not_stop_anyone(rule: Rule, tmp_path: Path) -> None:
    """The examples of warnings resolve without --force."""
    rule_id = rule.id
    assert any(
        f"[{rule_id}]" in warning
        for warning in resolve(from_flags({**BASE, **EXAMPLES[rule_id][0]})).warnings
    )


def test_a_plain_job_has_no_warnings() -> None:
    """The base of all examples is quiet."""
    assert resolve(from_flags(BASE)).warnings == ()


def test_several_refusals_are_all_said() -> None:
    """A user learns everything that is wrong at once."""
    with pytest.raises(RefusedCombinationError) as caught:
        resolve(
            from_flags(
                BASE | {"method": "full", "quantization": "int8", "lora_rank": 8, "tokens_per_sample": 2000}
            )
        )
    for rule_id in ("quantized-full", "lora-options-with-full", "tokens-above-sequence"):
        assert f"[{rule_id}]" in str(caught.value)
