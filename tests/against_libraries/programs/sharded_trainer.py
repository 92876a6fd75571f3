"""A job of ``sharded_table.py`` by the Trainer and its engine: ``sharded_trainer.py ROW``, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

ROW: dict[str, str] = json.loads(sys.argv[1])
MODELS = {f"qwen2.5-{size.lower()}": f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "7B")}
MODELS |= {f"llama-{size.lower()}": f"meta-llama/Llama-{size}" for size in ("3.2-1B", "3.1-8B")}
MODELS["granite-3.0-1b-a400m"] = "ibm-granite/granite-3.0-1b-a400m-base"
MODELS["pythia-410m"] = "EleutherAI/pythia-410m"
AUTO = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
OFFLOADS = {"optimizer": "offload_optimizer", "params": "offload_param"}
AGAIN = {"use_reentrant": False}


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 500, (int(ROW["seq"]),))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def engine() -> dict[str, Any]:
    """What the Trainer is told of the engine."""
    sharding, offload = ROW["sharding"], ROW["offload"]
    if sharding in ("fsdp", "fsdp1"):
        version, reshards = (1, "FULL_SHARD") if sharding == "fsdp1" else (2, True)
        fsdp: dict[str, Any] = {"version": version, "reshard_after_forward": reshards}
        fsdp["cpu_offload"] = "params" in offload
        if version == 1:
            fsdp["backward_prefetch"] = "backward_pre"  # as files of ``accelerate config`` have it
        return {"fsdp": True, "fsdp_config": fsdp}
    if sharding == "ddp":
        return {}
    zero: dict[str, Any] = {"stage": int(sharding[-1])}
    zero |= dict.fromkeys(AUTO, "auto") if sharding == "zero3" else {"overlap_comm": True}
    zero |= {key: {"device": "cpu", "pin_memory": True} for name, key in OFFLOADS.items() if name in offload}
    sizes = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    config: dict[str, Any] = dict.fromkeys((*sizes, "gradient_clipping"), "auto")
    config |= {"zero_optimization": zero, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True}
    return {"deepspeed": config}


def quantization() -> Any:
    """That of bitsandbytes, where the job has one."""
    if ROW["method"] != "qlora":
        return None
    make: Any = BitsAndBytesConfig
    return make(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=torch.bfloat16 if ROW["quant_storage"] else torch.uint8,
    )


if __name__ == "__main__":
    checkpoints = ROW["gradient_checkpointing"] == "true"
    # Before the model: under ZeRO-3 they decide how a checkpoint is read.
    options = TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=int(ROW["batch"]),
        gradient_accumulation_steps=int(ROW["grad_accum"]),
        gradient_checkpointing=checkpoints,
        gradient_checkpointing_kwargs=AGAIN if checkpoints else None,
        bf16=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        **engine(),
    )
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(
        MODELS[ROW["model"]], dtype=torch.bfloat16, use_cache=False, quantization_config=quantization()
    )
    # FSDP1 flattens one dtype alone, so that TRL leaves the norms as they are under it (1.16 sft_trainer.py).
    if ROW["method"] == "qlora" and ROW["sharding"] != "fsdp1":
        prepare: Any = prepare_model_for_kbit_training
        model = prepare(model, use_gradient_checkpointing=checkpoints, gradient_checkpointing_kwargs=AGAIN)
    if ROW["method"] != "full":
        lora = LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(model, lora)
    Trainer(model=model, args=options, train_dataset=Rows()).train()
