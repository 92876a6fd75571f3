"""One process of real FSDP2 runs on the CPU: shards a tiny model as accelerate does, trains one step,
says what it holds.

Started by ``torchrun --nproc_per_node 2``; gloo.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build(fields: dict[str, Any], rank: int) -> Any:
    """The model in bf16 with trained parameters in fp32, as accelerate makes it before it shards."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**fields)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if rank:
        import peft

        model = peft.get_peft_model(
            model, peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    for tensor in model.parameters():
        if tensor.requires_grad:
            tensor.data = tensor.data.float()
    return model


def shard(model: Any) -> None:
    """The units of accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model,
    for a table that is not tied to the head.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    base = next(module for module in model.modules() if isinstance(module, transformers.LlamaModel))
    for layer in base.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model.get_input_embeddings(), mp_policy=policy)
    tail = (
        [model.get_output_embeddings()]
        if hasattr(model, "peft_config")
        else [base.norm, model.get_output_embeddings()]
    )
    fully_shard(tail, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)


def local_bytes(tensors: Any) -> int:
    """Bytes of this rank's parts."""
    return sum(each.to_local().untyped_storage().nbytes() for each in tensors)


def train_one_step(fields: dict[str, Any], rank: int) -> dict[str, Any]:
    """What this rank holds: shards, gradients after backward, and states after the step."""
    model = build(fields, rank)
    shard(model)
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=True)
    ids = torch.randint(0, 64, (1, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = {
        each.grad.to_local().untyped_storage().data_ptr(): each.grad.to_local().untyped_storage()
        for each in trained
    }
    report = {
        "shards": local_bytes(model.parameters()),
        "gradients": sum(each.nbytes() for each in gradients.values()),
    }
    optimizer.step()
    states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    return {**report, "states": sum(each.to_local().nbytes for each in states), "class": type(model).__name__}


def main() -> None:
    """Every case of ``--ranks`` (LoRA ranks; 0 is full fine-tuning), written to ``rank<n>.json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", required=True)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    reports = {str(rank): train_one_step(json.loads(given.model), rank) for rank in json.loads(given.ranks)}
    (given.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(reports))
    dist.barrier()
    # All is written.  Taking gloo's threads down now and then aborts a process of a busy machine.
    os._exit(0)


if __name__ == "__main__":
    main()
