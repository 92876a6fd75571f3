"""What help says of a flag that is not given."""

from __future__ import annotations

from collections.abc import Mapping

NEEDED = "needed"
OF_STACK = "of the stack"
"""The software says it: ``plan stacks`` lists the defaults of each."""

_OF_STACK = (
    *("padding", "lora_rank", "lora_targets", "lora_dropout", "optimizer", "optimizer_in_backward"),
    *("precision", "load_dtype", "adapter_dtype", "gradient_checkpointing", "checkpoint_reentrant"),
    *("checkpoint_every", "checkpoint_policy", "attention", "loss"),
)
DEFAULT_TEXTS: Mapping[str, str] = {
    **dict.fromkeys(("model", "method", "seq"), NEEDED),
    "gpu": f"{NEEDED}, or --gpu-memory",
    **dict.fromkeys(_OF_STACK, OF_STACK),
    "task": "sft",
    "num_labels": "2",
    "quantization": "of --method",
    "double_quant": "on with qlora",
    "gpus": "1",
    "gpu_memory": "of the card",
    "gpu_reserved": "0",
    "host": "unknown",
    "host_memory": "unknown",
    "link": "of the card",
    "nodes": "1",
    "batch": "1; 8 for grpo",
    "grad_accum": "1",
    "tokens_per_sample": "--seq",
    "images_per_sample": "0",
    "sharding": "ddp on several GPUs",
    "offload": "none",
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"), "1"),
    "pipeline_schedule": "1f1b",
    "generations": "8",
    "iterations": "1; 4 for ppo",
    "compare_reference": "off",
    "generator": "transformers",
    "vllm_memory": "0.3",
    "stack": "hf-trainer@5, trl for some tasks",
    "epochs": "1",
    "eval_batch": "no evaluation",
}
