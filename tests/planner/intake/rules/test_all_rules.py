"""The table of combinations: every rule has an example that it answers and a neighbour that it leaves
alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.domain.scenario import Scenario
from planner.errors import ExitCode, RefusedCombinationError
from planner.intake.rules.all_rules import RULES, Rule
from tests.files import written
from tests.jobs import Flags, resolved, typed

BASE = {"model": "llama-2-7b", "method": "lora", "gpu": "4090", "seq": 1024}
WIDE_HEADS = {
    "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 2048, "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip

FP8, STATIC = "Qwen/Qwen3-8B-FP8", "mistralai/Ministral-3-8B-Instruct-2512"
AWQ, AQLM = "TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16"
NF4 = "hugging-quants/Meta-Llama-3.1-70B-BNB-NF4-BF16"

IN_RAM = "--sharding zero3 --offload optimizer --stack axolotl"
DRAWN = "--method full --train-layers drawn:2@20;embed --optimizer adamw_torch"
HELD = (
    "--model olmoe-1b-7b --method qlora --stack axolotl --lora-targets attention "
    "--switches quantizes_experts=held;adapter_kernels=eager"
)
SCATTERED = (
    "--model olmoe-1b-7b --stack axolotl --lora-targets attention "
    "--switches mixture_code=scattermoe;adapter_kernels=eager"
)
ON_HOST = (
    "--model qwen3-30b-a3b --stack llama-factory --gpus 2 --sharding fsdp --lora-targets all-linear "
    "--switches host_experts=bf16"
)
MUON = "--method full --optimizer muon --stack llama-factory"
CLASS = "--model mixtral-8x7b --sharding fsdp --gpus 2"
UNITS = "--sharding fsdp1 --gpus 2 --switches fsdp_units=feed_forward"
FLAT = "--quantization nf4 --gpus 2 --sharding fsdp1 --quant-storage bf16 --load-dtype bf16"
HPZ = "--gpus 2 --sharding zero3 --hpz 2"
SENT = "--gpus 2 --sharding zero3 --switches zero3_quantized"

TAUGHT = "--task gkd --stack trl --teacher-model llama-2-13b"
SCORED = "--task grpo --stack axolotl --seq 512 --switches feature_layers=3"
# An image of 999 tokens.
SEES = "--model qwen2.5-vl-7b --images-per-sample 1 --image-size 1024x768 --seq 2048"
CUT_OFF = (
    f"{SEES} --model qwen3-vl-8b --method lora --lora-targets all-linear --gpus 2 --stack axolotl "
    "--switches adapter_kernels=eager --gradient-checkpointing"
)
TE = "--method full --gpu h100-sxm --fp8 te-delayed --no-gradient-checkpointing"
# Rule id -> (flags over BASE that it answers, flags as near as possible that it leaves alone), before them
# those that both have where there are any.  WIDE: a model with heads of 512.
EXAMPLES: dict[str, tuple[Flags, Flags] | tuple[str, str, str]] = {
    "method-against-quantization": ("--method int8 --quantization nf4", "--method lora --quantization nf4"),
    "quantized-full": ("--method full --quantization gptq-int4", "--method lora --quantization gptq-int4"),
    "packed-samples-masked": ("--stack trl --padding packed --batch 8", "", "--attention flash2"),
    "lora-options-with-full": ("--method full --lora-rank 8", "--method full"),
    "modules-to-save-with-full": ("--method full --modules-to-save lm_head", "--modules-to-save lm_head"),
    "dropout-on-experts": (
        "--model mixtral-8x7b --lora-dropout 0.1",
        "--lora-targets all-linear",
        "--lora-targets attention",
    ),
    "held-experts-elsewhere": (f"{HELD} --gpus 2 --sharding zero3", f"{HELD} --gpus 2 --sharding fsdp2"),
    "held-int8-experts": (
        f"{HELD} --method int8 --gradient-checkpointing",
        "--no-checkpoint-reentrant",
        "--checkpoint-reentrant",
    ),
    "scattered-experts": (f"{SCATTERED} --gpus 2 --sharding zero3", f"{SCATTERED} --gpus 2 --sharding fsdp2"),
    "adapter-on-router": ("--model llama-4-scout --method lora", "--lora-targets all-linear", ""),
    "every-expert-elsewhere": (
        "--model llama-4-scout --method qlora --lora-targets attention",
        "--stack unsloth",
        "--stack trl",
    ),
    "experts-on-host": (f"{ON_HOST} --sharding ddp", ON_HOST),
    "experts-on-host-unread": (f"{ON_HOST} --optimizer adafactor", ON_HOST),
    "selected-experts-elsewhere": (
        "--model dbrx --precision bf16",
        "--stack torchtune",
        "--stack hf-trainer",
    ),
    "selected-experts-mixed": ("--model dbrx --precision bf16-mixed", "", "--method full --load-dtype fp32"),
    "streams-packed": ("--model gemma-3n-e2b --method qlora", "--model gemma-3n-e2b --method lora"),
    "streams-elsewhere": ("--model gemma-3n-e2b --stack torchtune", "--model gemma-3n-e2b --stack trl"),
    "model-unread-in-stack": ("--model starcoderbase-1b", "--stack hf-trainer@4", "--stack hf-trainer"),
    "model-newer-than-versions": (
        "--model qwen3-0.6b --stack hf-trainer@4",
        "",
        "--versions transformers==4.51.3",
    ),
    "recurrent-kernels": ("--model qwen3.5-0.8b", "", "--switches recurrent_kernels=torch"),
    "plain-recurrent-unread": (
        "--switches recurrent_kernels=torch",
        "--model falcon-h1-0.5b",
        "--model qwen3.5-0.8b",
    ),
    "recurrent-layers-elsewhere": ("--model qwen3.5-0.8b", "--stack torchtune", "--stack trl"),
    "packed-out-proj": (
        "--method qlora --lora-targets in_proj",
        "--model nemotron-h-8b",
        "--model jamba-v0.1",
    ),
    "adapter-on-out-proj": (
        "--model nemotron-h-8b --method lora",
        "--lora-targets in_proj;out_proj",
        "--lora-targets in_proj",
    ),
    "adapter-on-out-proj-idle": (
        "--model granite-4.0-h-tiny --method lora",
        "--lora-targets all-linear",
        "--lora-targets in_proj",
    ),
    "train-layers-with-adapters": ("--train-layers last:8", "--method full --train-layers last:8"),
    "train-layers-not-there": ("--method full", "--train-layers 30-32;norm", "--train-layers 30-31;norm"),
    "train-layers-tied-head": (
        "--model llama-3.2-1b --method full",
        "--train-layers last:4;head",
        "--train-layers last:4;embed;head",
    ),
    "train-layers-match-nothing": ("--method full", "--train-layers 32-35", "--train-layers 31-35"),
    "train-layers-divided": (
        "--method full --train-layers last:8 --gpus 2",
        "--sharding fsdp1",
        "--sharding zero3 --offload optimizer+params",
    ),
    "drawn-layers": (DRAWN, f"{DRAWN} --train-layers last:2;embed"),
    "drawn-layers-elsewhere": (f"{DRAWN} --optimizer paged_adamw_8bit", DRAWN),
    "fsdp-class-of-another": (
        CLASS,
        "--switches fsdp_layer_class=MixtralDecoderLayer+MistralDecoderLayer",
        "--switches fsdp_layer_class=MixtralDecoderLayer",
    ),
    "fsdp-units-elsewhere": (f"{UNITS} --model llama-2-7b", f"{UNITS} --model mixtral-8x7b"),
    "train-layers-checkpointing-unread": (
        "--method full --stack torchtune --gradient-checkpointing",
        "--train-layers last:8",
        "--train-layers last:8;embed",
    ),
    "train-layers-without-gradients": (
        "--method full --train-layers last:8 --gradient-checkpointing --checkpoint-reentrant",
        "--stack hf-trainer@4",
        "",
    ),
    "train-layers-with-offload": (
        "--method full --train-layers last:8 --gradient-checkpointing",
        "--offload activations",
        "",
    ),
    "train-layers-ends-in-pieces": (
        "--method full --loss liger --stack llama-factory",
        "--train-layers norm;head",
        "--train-layers last:1;head",
    ),
    "kernels-of-attention": ("--model phi-4 --stack axolotl", "", "--switches adapter_kernels=eager"),
    "kernels-of-wide-layers": ("--model afm-4.5b --stack axolotl", "--method qlora", ""),
    "dora-unread": ("--dora --stack unsloth", "--dora --stack llama-factory"),
    "dora-of-kernels": ("--dora --gpus 2", "--sharding zero3", "--sharding zero2"),
    "oft-unread": ("--oft-block-size 32 --stack unsloth", "--oft-block-size 32 --stack llama-factory"),
    "oft-elsewhere": ("--oft-block-size 32 --gpus 2", "--sharding zero2", "--sharding ddp"),
    "oft-without-autocast": (
        "--oft-block-size 32 --quantization gptq-int4 --stack llama-factory",
        "--precision bf16",
        "--precision bf16-mixed",
    ),
    "vera-unread": ("--vera --stack unsloth", "--vera --stack hf-trainer@5"),
    "vera-elsewhere": ("--vera --gpus 2 --sharding zero2", "--vera --gpus 2 --sharding ddp"),
    "vera-with-dora": ("--vera --dora", "--vera"),
    "oft-with-lora-options": ("--oft-block-size 32 --lora-rank 8", "--oft-block-size 32"),
    "own-adam-without-zero": (
        "--sharding zero0 --gpus 2 --switches one_optimizer_group=true",
        "",
        "--precision fp32",
    ),
    "optimizer-of-whole-matrices": (f"{MUON} --gpus 2 --sharding zero2", f"{MUON} --gpus 2 --sharding ddp"),
    "muon-of-stacked-matrices": (f"{MUON} --model granite-3.0-1b-a400m", "--stack axolotl", ""),
    "muon-of-uneven-parts": (
        f"{MUON} --stack axolotl --model qwen2.5-0.5b --sharding fsdp",
        "--gpus 6",
        "--gpus 8",
    ),
    "optimizer-in-backward": ("--method full --optimizer-in-backward", "--grad-accum 2", ""),
    "badam-of-one-layer": ("--method full --optimizer badam", "", "--train-layers first:1"),
    "fp32-shards-to-flash": (
        "--gpus 2 --sharding zero3 --method full --switches zero3_divides_fp32=true",
        "--attention flash2",
        "--attention sdpa",
    ),
    "fp32-shards-unread": (
        "--gpus 2 --sharding zero3 --attention sdpa --switches zero3_divides_fp32=true",
        "--task dpo",
        "--method full",
    ),
    "leaf-unread": (
        "--model gpt-oss-20b --gpus 8 --sharding zero3",
        "--switches zero3_leaves=GptOssMLP+GptOssAttention",
        "--switches zero3_leaves=GptOssMLP",
    ),
    "leaf-of-another": (
        "--gpus 8 --sharding zero3 --switches zero3_leaves=MixtralSparseMoeBlock",
        "--model gpt-oss-20b",
        "--model mixtral-8x7b",
    ),
    "hpz-without-zero3": ("--gpus 2 --hpz 2", "--sharding fsdp", "--sharding zero3"),
    "hpz-second-model": (f"{HPZ} --task dpo --stack trl", "--method full", ""),
    "hpz-on-nvme": (HPZ, "--offload optimizer+params-nvme", "--offload optimizer+params"),
    "hpz-unread": (f"{HPZ} --stack axolotl --attention flash2", "--context-parallel 2", ""),
    "quantized-without-zero3": (
        "--gpus 2 --switches zero3_quantized=weights",
        "--sharding zero2",
        "--sharding zero3",
    ),
    "quantized-weights-lose-dtype": (
        f"{SENT}=weights --versions deepspeed==0.19.4",
        "",
        "--precision fp16-mixed",
    ),
    "quantized-packed": (f"{SENT}=weights", "--method qlora --quant-storage bf16", "--method lora"),
    "quantized-frozen": (
        "--gpus 2 --sharding zero3 --switches zero3_quantizes_frozen=true",
        "--method qlora --quant-storage bf16",
        "--method lora",
    ),
    "quantized-unread": (
        f"{SENT}=weights --stack axolotl --attention flash2 --precision fp16-mixed",
        "--context-parallel 2",
        "",
    ),
    "quantized-gradients-misread": (
        f"{SENT}=gradients --nodes 2",
        "--precision bf16-mixed",
        "--precision fp16-mixed",
    ),
    "quantized-gradients-one-node": (
        "--gpus 2 --sharding zero3",
        "--switches zero3_quantized=gradients",
        "--switches zero3_quantized=weights",
    ),
    "distributed-optimizer-elsewhere": (
        "--gpus 2 --method full",
        "--sharding distributed-optimizer",
        "--sharding zero1",
    ),
    "mixture-unread": (
        "--stack torchtitan@2025 --method full",
        "--model mixtral-8x7b",
        "--model qwen3-30b-a3b",
    ),
    "replicas-without-hsdp": ("--gpus 2 --replicas 2", "--sharding fsdp", "--sharding hsdp"),
    "fp8-not-on-card": ("--method full --fp8 rowwise", "--gpu a100-80-sxm", "--gpu h100-sxm"),
    "fp8-scaling-not-on-card": (f"{TE} --fp8 te-mxfp8", "", "--gpu b200"),
    "te-recomputes-otherwise": (
        f"{TE} --gradient-checkpointing",
        "--no-checkpoint-reentrant",
        "--checkpoint-reentrant",
    ),
    "te-tokens-unaligned": (f"{TE} --padding packed", "--seq 1001", "--seq 1000"),
    "te-tokens-vary": (TE, "--batch 1", "--batch 8"),
    "fp8-unread": ("--gpu h100-sxm --fp8 rowwise", "--method full --gpu h100-sxm --fp8 rowwise"),
    "qat-unread": ("--method full --qat int8-int4", "--method full --qat int8-int4 --stack torchtune"),
    "qat-group-undivided": ("--method lora --qat int8-int4 --stack torchtune", "--qat-group 1000", ""),
    "qat-group-alone": ("--method full --stack torchtune --qat-group 32", "", "--qat int8-int4"),
    "qat-rounds-nothing": (
        "--method full --qat int8-int4 --stack torchtune",
        "--qat-group 65536",
        "--qat-group 11008",
    ),
    "optimizer-rank-unused": ("--optimizer-rank 8", ""),
    "projects-no-conv1d": (
        "--model gpt2 --method full",
        "--optimizer apollo_adamw",
        "--optimizer adamw_torch",
    ),
    "galore-decomposes": ("--method full", "--optimizer galore_adamw", "--optimizer apollo_adamw"),
    "double-quant-without-4bit": ("--method int8 --double-quant", "--method qlora --double-quant"),
    "quant-storage-without-4bit": ("--quant-storage bf16", "--method int8", "--method qlora"),
    "load-dtype-over-quantized": ("--method qlora --load-dtype bf16", "--method lora --load-dtype bf16"),
    "fused-experts-not-quantized": ("--model mixtral-8x7b --method qlora", "", "--stack hf-trainer@4"),
    "own-linears-not-quantized": ("--model falcon-7b --method qlora", "", "--stack hf-trainer@4"),
    "four-bit-computes-in-fp32": ("--method qlora --stack swift", "", "--load-dtype bf16"),
    "fused-experts-adapted": ("--model mixtral-8x7b --method lora", "", "--lora-targets attention"),
    "fp16-gradients": ("--method full --precision fp16-mixed --load-dtype fp16", "", "--sharding zero2"),
    "targets-match-nothing": ("--lora-targets query_key_value", "--lora-targets self_attn.q_proj"),
    "targets-name-a-part": (
        "--model qwen3-30b-a3b",
        "--lora-targets q_proj;gate_proj",
        "--lora-targets q_proj;gate_proj;up_proj",
    ),
    "targets-match-partly": ("--lora-targets q_proj;c_attn", "--lora-targets q_proj;v_proj"),
    "token-table-adapted": ("--lora-targets q_proj;embed_tokens", "--modules-to-save embed_tokens"),
    "table-adapted-under-fsdp1": (
        "--lora-targets q_proj;embed_tokens --gpu a100-80-sxm:2 --sharding fsdp1",
        "--load-dtype bf16",
        "--load-dtype fp32",
    ),
    "modules-to-save-unmatched": ("--modules-to-save wte", "--modules-to-save embed_tokens;lm_head"),
    "parameter-targets": (
        "--model mixtral-8x7b --lora-targets q_proj;param:experts.down_proj",
        "--lora-dropout 0.1",
        "--lora-dropout 0",
    ),
    "rank-above-width": ("--lora-rank 4097", "--lora-rank 4096"),
    "tokens-above-sequence": ("--tokens-per-sample 1024.5", "--tokens-per-sample 1024"),
    "packed-with-sample-length": ("--tokens-per-sample 300", "--padding packed", "--padding longest"),
    "sequence-above-table": ("--model gpt2 --seq 1025", "--model gpt2 --seq 1024"),
    "sequence-above-model": ("--seq 4097", "--seq 4096"),
    "reentrant-without-checkpointing": (
        "--checkpoint-reentrant",
        "--no-gradient-checkpointing",
        "--gradient-checkpointing",
    ),
    "checkpoint-every-without-checkpointing": (
        "--checkpoint-every 2",
        "--no-gradient-checkpointing",
        "--gradient-checkpointing",
    ),
    "checkpoint-every-with-offload": (
        "--gradient-checkpointing --offload activations",
        "--checkpoint-every 2",
        "--checkpoint-every 1",
    ),
    "activations-offload-without-checkpointing": (
        "--offload activations",
        "--no-gradient-checkpointing",
        "--gradient-checkpointing",
    ),
    "selective-reentrant": (
        "--checkpoint-policy selective-op --gradient-checkpointing",
        "--checkpoint-reentrant",
        "--no-checkpoint-reentrant",
    ),
    "selective-of-kernels": (
        "--checkpoint-policy selective-op --gradient-checkpointing",
        "--method int8",
        "--method qlora",
    ),
    "packed-head-in-pieces": ("--method qlora --stack litgpt", "--loss liger", "--loss hf"),
    "adapted-head-in-pieces": ("--method lora --lora-targets q_proj;lm_head", "--loss liger", "--loss hf"),
    "checkpoint-every-of-parts": (
        "--gradient-checkpointing --stack automodel",
        "--checkpoint-every 2",
        "--checkpoint-every 1",
    ),
    "fewer-samples-than-a-step": ("--batch 2 --grad-accum 4", "--samples 7", "--samples 8"),
    "adapters-beside-ends": (
        "--stack qwen-finetune --method lora",
        "--model qwen-7b",
        "--model Qwen/Qwen-7B-Chat",
    ),
    "sharding-on-one-process": ("--sharding zero2", "--sharding zero2 --offload optimizer"),
    "many-gpus-in-a-node": ("--gpu h100-sxm --gpus 64", "--gpu gb200 --gpus 64"),
    "many-gpus-without-ddp": ("--gpus 2 --sharding none", "--gpus 2"),
    "hsdp-on-one-node": ("--gpus 2 --sharding hsdp", "--gpus 2 --sharding hsdp --nodes 2"),
    "nf4-sharded-without-storage": ("--method qlora --gpus 2 --sharding zero3", "", "--quant-storage bf16"),
    "int8-sharded": ("--method int8 --gpus 2 --sharding fsdp", "", "--stack axolotl"),
    "liger-loss-refused": ("--model granite-3.1-2b --method lora --stack axolotl", "--loss liger", ""),
    "int8-latents": ("--model glm-4.7-flash --method int8", "--model glm-4.7-flash --method qlora"),
    "gptq-sharded": ("--quantization gptq-int4 --gpus 2", "--sharding zero3", "--sharding zero2"),
    "stored-otherwise": (f"--model {AWQ} --quantization nf4", f"--model {AWQ} --method qlora"),
    "grouped-heads-unfused": (
        "--model llama-3.2-1b --stack hf-loop",
        "--precision fp32 --load-dtype fp32",
        "--precision bf16",
    ),
    "stored-computes-otherwise": (f"--model {NF4}", "--precision fp16-mixed", "--precision bf16-mixed"),
    "packed-kernels-unread": ("--quantization gptq-int4", "--stack torchtune", "--stack trl"),
    "packed-fused-experts": ("--model mixtral-8x7b --quantization gptq-int4", "", "--stack hf-trainer@4"),
    "packed-needs-backend": ("--quantization awq-int4", "--quantization awq-int4 --stack hf-trainer@4"),
    "packed-groups-assumed": ("--model llama-3-8b --quantization awq-int4", f"--model {AWQ}"),
    "aqlm-of-no-checkpoint": ("--quantization aqlm", f"--model {AQLM}"),
    "aqlm-sharded": (f"--model {AQLM} --gpus 2", "--sharding zero3", "--sharding zero2"),
    "fp8-sharded": (f"--model {FP8} --gpu h100-sxm --gpus 2", "--sharding zero2", "--sharding ddp"),
    "fp8-experts-unread": (
        "--model Qwen/Qwen3-30B-A3B-FP8 --gpu h100-sxm",
        "--lora-targets all-linear",
        "--lora-targets attention",
    ),
    "fp8-checkpoint-unread": (f"--model {FP8} --gpu h100-sxm", "--stack unsloth", "--stack trl"),
    "fp8-checkpoint-too-new": ("--quantization fp8 --gpu h100-sxm", "--stack hf-trainer@4", ""),
    "fp8-not-trained": (f"--model {FP8} --gpu h100-sxm --stack swift", "", "--quantization none"),
    "fp8-kept-on-no-card": ("--quantization fp8", "--gpu a100-80-sxm", "--gpu 4090"),
    "fp8-kept-unread": (f"--model {STATIC}", "--gpu h100-sxm", "--gpu a100-80-sxm"),
    "fp8-blocks-assumed": ("--gpu h100-sxm", "--model qwen3-8b --quantization fp8", f"--model {FP8}"),
    "fp8-widened": (f"--model {FP8}", "--gpu a100-80-sxm", "--gpu h100-sxm"),
    "fp8-widened-unevenly": (
        "--model deepseek-ai/DeepSeek-V3 --lora-targets attention",
        "--gpu a100-80-sxm",
        "--gpu h200-sxm",
    ),
    "fp8-by-deepgemm": (f"--model {FP8}", "--gpu h100-sxm", "--gpu b200"),
    "zero-without-masters": ("--sharding zero2 --precision bf16", "--sharding zero2 --precision bf16-mixed"),
    "zero-trains-16-bits-unread": (
        "--method full --gpus 2 --precision fp32",
        "--sharding zero2",
        "--sharding zero3",
    ),
    "offload-without-engine": ("--offload optimizer", "--offload activations"),
    "params-offload-below-stage-3": ("--sharding zero2", "--offload optimizer+params", "--offload optimizer"),
    "nvme-without-stage-3": ("--offload optimizer-nvme", "--sharding zero2", "--sharding zero3"),
    "fsdp-offloads-both": ("--sharding fsdp --offload params", "--sharding fsdp --offload optimizer+params"),
    "fsdp1-not-in-stack": ("--gpus 2 --stack llama-factory-v1", "--sharding fsdp1", "--sharding fsdp"),
    "litgpt-divides-no-packed-base": ("--sharding fsdp1 --gpus 2 --stack litgpt", "--method qlora", ""),
    "litgpt-checkpoints-divided-jobs": ("--stack litgpt --gradient-checkpointing", "--stack litgpt"),
    "deepspeed-elsewhere": ("--sharding zero2 --gpus 2 --stack torchtune", "--sharding zero2 --gpus 2"),
    "litgpt-on-several-gpus": ("--gpus 2 --stack litgpt", "--sharding fsdp1 --gpus 2 --stack litgpt"),
    "packed-tower": (
        "--model qwen2.5-vl-3b --stack trl",
        "--quantization awq-int4",
        "--quantization gptq-int4",
    ),
    "gpu-optimizer-offloaded": (
        "--sharding zero3 --optimizer paged_adamw_8bit",
        "--offload optimizer",
        "--offload params",
    ),
    "torchao-offloaded": (
        f"{IN_RAM} --sharding fsdp --gpus 2 --optimizer adamw_torch_4bit",
        "--sharding fsdp --gpus 2 --optimizer adamw_torch_4bit",
    ),
    "bitsandbytes-offloaded": (
        f"{IN_RAM} --optimizer adamw_8bit",
        "--versions bitsandbytes==0.49.1",
        "--versions bitsandbytes==0.50.2",
    ),
    "optimizer-on-dtensors": ("--gpus 2 --optimizer adamw_8bit", "--sharding fsdp", "--sharding fsdp1"),
    "kernels-over-stored": (
        "--quantization gptq-int4 --stack axolotl",
        "",
        "--switches adapter_kernels=eager",
    ),
    "weights-below-precision": ("--precision fp32", "--precision fp32 --load-dtype fp32"),
    "packed-base-loaded-whole": (f"{FLAT} --switches kbit_upcast=none", f"{FLAT} --stack trl@0.24"),
    "fsdp1-adapts-fused-experts": (
        "--model olmoe-1b-7b --method lora --gpus 2 --sharding fsdp1",
        "--lora-targets all-linear",
        "--lora-targets attention",
    ),
    "fsdp1-flattens-one-dtype": (FLAT, f"{FLAT} --switches kbit_upcast=none"),
    "model-newer-than-stack": ("--model ministral-3-3b", "--stack trl@0.24", "--stack trl"),
    "adamw-hf-gone": ("--optimizer adamw_hf --stack trl@0.24", "--optimizer adamw_hf --stack hf-trainer@4"),
    "slow-optimizer-offloaded": (
        "--sharding zero3 --offload optimizer",
        "--optimizer adafactor",
        "--optimizer adamw_torch",
    ),
    "offload-host-unknown": ("--sharding zero3 --offload optimizer", "", "--host-memory 256GB"),
    "bf16-without-units": ("--gpu t4 --precision bf16-mixed", "--gpu t4"),
    "flash2-on-old-card": ("--gpu t4 --attention flash2", "--gpu l4 --attention flash2"),
    "flash2-in-fp32": ("--attention flash2 --precision fp32", "--attention sdpa --precision fp32"),
    "flash2-wide-heads": ("--model WIDE --attention flash2", "--model WIDE"),
    "flex-on-old-card": ("--gpu t4 --attention flex", "--gpu l4 --attention flex"),
    "flex-in-fp32": ("--attention flex --precision fp32", "--attention flex"),
    "flex-wide-heads": ("--model WIDE --attention flex", "--model WIDE"),
    "kernel-refused": (
        "--model llama-4-scout --lora-targets attention",
        "--attention flash2",
        "--attention sdpa",
    ),
    "kernel-not-in-model-code": ("--model bloom-3b --attention sdpa", "--model bloom-3b"),
    "backward-without-sinks": ("--model gpt-oss-20b", "--attention flash2", "--attention eager"),
    "attention-of-remote-code": ("--model qwen-7b --attention sdpa", "--model qwen-7b"),
    "liger-lacks-model": ("--model bloom-1b1 --method lora", "--loss liger", "--loss hf"),
    "liger-not-in-stack": ("--loss liger --stack torchtune", "--loss liger --stack llama-factory"),
    "not-a-cuda-device": ("--gpu mi300x", "--gpu h100-sxm"),
    "shared-with-the-host": ("--gpu dgx-spark", "--gpu dgx-spark --gpu-reserved 16GiB"),
    "gpu-memory-unknown": ("--gpu a100-unknown", "--gpu a100-unknown --gpu-memory 79GiB"),
    "gpu-speed-unknown": ("--gpu my-card --gpu-memory 24GiB", "--gpu 4090 --gpu-memory 23GiB"),
    "plan-for-each-shape": (
        "--gpu h100-sxm --attention sdpa --tokens-per-sample 300",
        "",
        "--padding max_length",
    ),
    "version-not-read": ("--versions peft==9.0", "--versions peft==0.21.2"),
    "gpu-memory-above-label": ("--gpu-memory 48GiB", "--gpu-memory 24GiB"),
    "task-not-in-stack": ("--task reward --stack torchtune", "--task reward --stack trl"),
    "reference-divided": ("--task kto --sharding fsdp1 --gpus 2", "--task orpo --sharding fsdp1 --gpus 2"),
    "reference-of-its-own-units": ("--task dpo --stack torchtune --gpus 2", "--method full", ""),
    "whole-weights-accumulate": ("--sharding fsdp1-grad-op --gpus 2", "--grad-accum 2", "--grad-accum 1"),
    "generations-uneven": ("--task grpo --stack trl --seq 512 --generations 4", "--batch 6", "--batch 8"),
    "epochs-without-samples": ("--epochs 3", "--epochs 3 --samples 1000"),
    "vllm-share-short": (
        "--task grpo --stack trl --gpu rtx4090 --generator vllm",
        "--vllm-memory 0.3",
        "--vllm-memory 0.7",
    ),
    "ppo-engine": ("--task ppo --stack llama-factory@0.8 --seq 512", "--method full", "--method lora"),
    "generation-divided": (
        "--task grpo --stack trl --seq 512 --batch 8 --gpus 2",
        "--sharding fsdp2",
        "--sharding zero3",
    ),
    "generation-of-other-layers": (
        "--task grpo --stack trl --seq 512 --batch 8 --model qwen3.5-0.8b",
        "",
        "--generator vllm",
    ),
    "reward-model-packed": (
        "--task grpo --stack trl --seq 512 --method qlora --reward-model qwen2.5-0.5b",
        "--versions trl==1.0.0",
        "",
    ),
    "features-of-a-copy": (f"{SCORED} --method full", f"{SCORED} --method lora"),
    "teacher-divided": (f"{TAUGHT} --gpus 2 --sharding fsdp2", f"{TAUGHT} --gpus 2 --sharding zero3"),
    "teacher-of-other-words": (TAUGHT, "--teacher-model qwen2.5-7b", "--teacher-model llama-2-13b"),
    "no-head-of-labels": ("--model granite-3.1-2b --method lora --task classify", "", "--stack swift"),
    "labels-elsewhere": ("--task prm --stack axolotl", "--padding packed", "--padding longest"),
    "preference-packed": ("--task dpo --padding packed", "--task dpo"),
    "preference-loss-kernel": ("--task dpo --stack llama-factory", "--loss liger", "--loss hf"),
    "reward-in-two-passes": (
        "--task reward --versions trl==0.18.0 --stack trl@0 --precision bf16-mixed",
        "--load-dtype fp32",
        "--load-dtype bf16",
    ),
    "value-head": ("--task reward --stack llama-factory", "--method full", "--method lora"),
    "compared-logits": (
        "--stack llama-factory --switches loss_weights=divergence",
        "--method lora",
        "--method full",
    ),
    "offloaded-with-reference": (
        "--offload activations --gradient-checkpointing",
        "--task dpo",
        "--task orpo",
    ),
    "head-in-tiles": ("--task dpo --model gemma-2-2b", "--task dpo --model gemma-2b"),
    "vision-unread": ("--model gemma-3n-e2b --method lora", "--images-per-sample 1", ""),
    "vision-forward-alone": (
        "--model gemma-4-e2b --image-size 768x768",
        "",
        "--freeze vision_tower;projector",
    ),
    "tower-cut-off": (f"{CUT_OFF} --checkpoint-reentrant", f"{CUT_OFF} --no-checkpoint-reentrant"),
    "images-without-room": (f"{SEES} --seq 998", f"{SEES} --seq 999"),
    "vision-fsdp1": (f"{SEES} --gpus 2 --sharding fsdp1", f"{SEES} --gpus 2 --sharding fsdp"),
    "vision-code": (f"{SEES} --stack hf-trainer@4", f"{SEES} --stack hf-trainer@4 --freeze vision_tower"),
    "vision-eager": (f"{SEES} --attention eager", "--model qwen2.5-vl-7b --attention eager"),
    "vision-checkpointing": (f"{SEES} --gradient-checkpointing", "--checkpoint-every 2", ""),
    "vision-offloaded-activations": (
        "--gradient-checkpointing --offload activations",
        SEES,
        "--model qwen2.5-vl-7b",
    ),
    "images-flex": (f"{SEES} --attention flex", SEES),
    "vision-train-layers": (f"{SEES} --method full", "--train-layers last:8", "--freeze vision_tower"),
    "reserved-fills-card": ("--gpu-reserved 24GiB", "--gpu-reserved 23GiB"),
}


# Further ways into a rule, or around it: (rule id, flags over BASE, whether it answers).
OTHER_WAYS: list[tuple[str, Flags, bool]] = [
    ("grouped-heads-unfused", "--model llama-3.2-1b --gpu t4 --precision fp16-mixed", True),
    ("grouped-heads-unfused", "--model llama-3.2-1b --gpu t4 --precision fp16-mixed --stack unsloth", False),
    (
        "grouped-heads-unfused",
        "--model llama-3.2-1b --precision fp32 --load-dtype fp32 --versions transformers==4.53.3",
        False,
    ),
    ("te-tokens-unaligned", f"{TE} --seq 1001 --padding longest", True),
    ("te-tokens-unaligned", f"{TE} --seq 1001 --padding longest --tokens-per-sample 300", False),
    ("te-tokens-vary", f"{TE} --padding packed", False),
    *(
        ("fp8-unread", f"{TE} --optimizer {said}", answers)
        for said, answers in (
            ("adamw_8bit", False),
            ("galore_adamw", True),
            ("muon --stack llama-factory", True),
            ("adamw_torch --optimizer-in-backward", True),
        )
    ),
    # The head is the table where they are tied, so that the first layer's input requires a gradient.
    *(
        (
            "train-layers-checkpointing-unread",
            (
                "--method full --train-layers last:8;head --stack torchtune --gradient-checkpointing "
                f"--model {model}"
            ),
            answers,
        )
        for model, answers in (("llama-2-7b", True), ("qwen2.5-0.5b", False))
    ),
    (
        "adapter-on-out-proj",
        "--model nemotron-h-8b --method lora --lora-targets in_proj;mixer.out_proj",
        True,
    ),
    *(
        ("value-head", f"--task reward --stack llama-factory --method lora --{again}", answers)
        for again, answers in (("gradient-checkpointing", False), ("no-gradient-checkpointing", True))
    ),
]


def sides(rule_id: str) -> tuple[Flags, Flags]:
    """Flags that a rule answers, and those that it leaves alone."""
    first, second, *third = EXAMPLES[rule_id]
    return (f"{first} {second}", f"{first} {third[0]}") if third else (first, second)


def over_base(flags: Flags, folder: Path) -> dict[str, object]:
    """BASE with these flags, and the model with wide heads as a file."""
    said = {**BASE, **(typed(flags) if isinstance(flags, str) else flags)}
    if said["model"] == "WIDE":
        said["model"] = str(written(folder, WIDE_HEADS, "config.json"))
    return said


def forced(flags: Flags, folder: Path) -> Scenario:
    """The scenario of BASE with these flags, refusals as warnings."""
    return resolved(over_base(flags, folder), force=True)


def test_every_rule_has_an_example() -> None:
    """A rule without an example, or an example without a rule, fails here."""
    assert set(EXAMPLES) == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_answers_its_example_only(rule: Rule, tmp_path: Path) -> None:
    """The example has the rule's warning, with its sentence; the neighbour does not."""
    rule_id, sentence = rule.id, rule.sentence
    fires, quiet = sides(rule_id)
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
    scenario = forced(sides(rule_id)[0], tmp_path)
    assert any(warning.startswith("forced: ") and f"[{rule_id}]" in warning for warning in scenario.warnings)
    with pytest.raises(RefusedCombinationError, match=re.escape(f"[{rule_id}]")) as caught:
        resolved(over_base(sides(rule_id)[0], tmp_path))
    assert "--force" in str(caught.value)
    alone = f"[{rule_id}]" == " ".join(re.findall(r"\[[a-z0-9-]+\]", str(caught.value)))
    code = ExitCode.USAGE if rule.level == "refuse" else ExitCode.NOT_MODELLED
    assert caught.value.exit_code is code or not alone


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.level == "warn"], ids=lambda rule: rule.id)
def test_a_warning_does_not_stop_anyone(rule: Rule, tmp_path: Path) -> None:
    """The examples of warnings resolve without --force."""
    rule_id = rule.id
    assert any(
        f"[{rule_id}]" in warning for warning in resolved(over_base(sides(rule_id)[0], tmp_path)).warnings
    )


def test_galore_decomposes_what_it_projects() -> None:
    """Of Mixtral attention alone: its experts are one tensor.  Of 32 layers by hand, over the pace of the
    table: two matrices of 4096 x 4096, two of 1024 x 4096.
    """
    seconds = 32 * 2 * (4096**3 + 4096 * 1024**2) / 3.15e11
    found = resolved(BASE, method="full", model="mixtral-8x7b", gpu="b200", optimizer="galore_adamw").warnings
    assert any(f"some {seconds:,.0f} s" in warning for warning in found)


def test_a_plain_job_has_no_warnings() -> None:
    """The base of all examples is quiet."""
    assert resolved(BASE).warnings == ()


def test_several_refusals_are_all_said() -> None:
    """A user learns everything that is wrong at once."""
    with pytest.raises(RefusedCombinationError) as caught:
        resolved(BASE, method="full", quantization="int8", lora_rank=8, tokens_per_sample=2000)
    for rule_id in ("quantized-full", "lora-options-with-full", "tokens-above-sequence"):
        assert f"[{rule_id}]" in str(caught.value)
