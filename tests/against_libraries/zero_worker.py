"""One process of real DeepSpeed ZeRO runs on the CPU: trains a tiny model for one step a case,
writes what it holds to a file.

Started by ``torchrun --nproc_per_node 2`` with ``DS_ACCELERATOR=cpu``.  The optimizer is torch's own and the
collectives are gloo's, so that nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import transformers


def size(tensors: Any) -> int:
    """Bytes of distinct storages behind ``tensors``."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.numel()
    }
    return sum(storages.values())


def elements(tensors: Any) -> int:
    """Bytes of the elements of ``tensors``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def zero_config(options: argparse.Namespace, hidden: int) -> dict[str, Any]:
    """A DeepSpeed config with bf16,
    small buckets and the persistence threshold that Hugging Face's ``auto`` sets.
    """
    kinds = {"offload_optimizer": "optimizer", "offload_param": "params"}
    offloads = {
        key: {"device": "cpu", "pin_memory": True} for key, what in kinds.items() if what in options.offload
    }
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": options.accum,
        "bf16": {"enabled": True},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            **offloads,
            "stage": options.stage,
            "overlap_comm": False,
            "reduce_bucket_size": 32 * hidden,
            "stage3_prefetch_bucket_size": 10_000,
            "stage3_param_persistence_threshold": 10 * hidden,
        },
    }


def build(options: argparse.Namespace, config: dict[str, Any]) -> Any:
    """The model, created inside ``zero.Init`` where asked (as ``from_pretrained`` does),
    with adapters where a rank is given.
    """
    torch.manual_seed(0)
    fields = transformers.AutoConfig.for_model(**json.loads(options.model))
    if options.zero_init:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = transformers.AutoModelForCausalLM.from_config(fields, dtype=torch.bfloat16)
    else:
        model = transformers.AutoModelForCausalLM.from_config(fields, dtype=torch.bfloat16)
    if options.rank:
        import peft

        lora = peft.LoraConfig(r=options.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
    return model


def held_weights(engine: Any, stage: int) -> dict[str, int]:
    """Bytes of weights on this rank: trained, frozen, and under stage 3 those that stay whole."""
    parameters = list(engine.module.parameters())
    trained = [tensor for tensor in parameters if tensor.requires_grad]
    frozen = [tensor for tensor in parameters if not tensor.requires_grad]
    if stage < 3:
        return {"trained": size(trained), "frozen": size(frozen), "whole": 0}
    whole = [tensor for tensor in parameters if tensor.ds_status.name == "AVAILABLE"]
    return {
        "trained": elements(tensor.ds_tensor for tensor in trained),
        "frozen": elements(tensor.ds_tensor for tensor in frozen),
        "whole": elements(tensor.data for tensor in whole),
    }


def beside_weights(optimizer: Any, masters: list[Any]) -> int:
    """Bytes of masters that are not the partitions of the weights themselves."""
    weights = {
        tensor.ds_tensor.untyped_storage().data_ptr() for group in optimizer.fp16_groups for tensor in group
    }
    return size(tensor for tensor in masters if tensor.untyped_storage().data_ptr() not in weights)


def held_by_optimizer(optimizer: Any, stage: int) -> dict[str, int]:
    """Bytes of masters and gradients on this rank, after backward and before the step."""
    if stage < 3:
        gradients = [
            tensor for group in optimizer.averaged_gradients.values() if group is not None for tensor in group
        ]
        return {"master": size(optimizer.single_partition_of_fp32_groups), "gradients": elements(gradients)}
    flat, masters = optimizer.grad_partitions_flat_buffer, optimizer.fp32_partitioned_groups_flat
    return {
        "master": size(masters),
        "gradients": elements([flat]),
        "master_beside_weights": beside_weights(optimizer, masters),
    }


def held_on_host(engine: Any, optimizer: Any, stage: int) -> dict[str, int]:
    """Bytes of what offload keeps beside the GPU, by DeepSpeed's own names; asked when a step is over."""
    if stage < 3:
        masters, accumulated = optimizer.single_partition_of_fp32_groups, optimizer.accumulated_grads_in_cpu
        buffer = optimizer.param_buffer_of_bit16_for_cpu_offload_groups
        held = {
            "single_grad_partition": [each.grad for each in masters],
            "param_buffer_of_bit16_for_cpu_offload_groups": buffer,
            "temp_grad_buffer_for_cpu_offload": [optimizer.temp_grad_buffer_for_cpu_offload],
            "accumulated_grads_in_cpu": accumulated.values(),
            "single_partition_of_fp32_groups": masters,
        }
        return {name: elements(tensors) for name, tensors in held.items()}
    masters = optimizer.fp32_partitioned_groups_flat
    frozen = [each for each in engine.module.parameters() if not each.requires_grad and not each.ds_persist]
    held = {
        "fp32_partitioned_groups_flat": masters,
        "subgroup_gradient_buffer": [each.grad for each in masters],
        "grad_partitions_flat_buffer": [optimizer.grad_partitions_flat_buffer],
        "param_groups_fp16_flat_cpu_memory": optimizer.param_groups_fp16_flat_cpu_memory,
        "ds_tensor": [each.ds_tensor for each in frozen],
    }
    return {name: elements(tensors) for name, tensors in held.items()}


def whole_gradients(tensors: list[Any]) -> int:
    """Bytes of gradients that hang on the parameters themselves."""
    held = [getattr(tensor, name, None) for tensor in tensors for name in ("grad", "grad_accum")]
    return elements(tensor for tensor in held if tensor is not None)


def watch_end_of_backward(optimizer: Any, tensors: list[Any], report: dict[str, Any]) -> None:
    """Note what hangs on the parameters when the backward is over and before the optimizer takes it away."""
    take = optimizer.independent_gradient_partition_epilogue

    def noted() -> None:
        report["end_of_backward"] = max(report.get("end_of_backward", 0), whole_gradients(tensors))
        take()

    optimizer.independent_gradient_partition_epilogue = noted


def train_one_step(options: argparse.Namespace) -> dict[str, Any]:
    """One step of one case through ``deepspeed.initialize``; what this rank held meanwhile."""
    config = zero_config(options, json.loads(options.model)["hidden_size"])
    model = build(options, config)
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=torch.optim.AdamW(trained), config=config
    )
    ids = torch.randint(0, 64, (1, 16))
    report: dict[str, Any] = {"class": type(optimizer).__name__, "engine": type(engine).__name__}
    watch_end_of_backward(optimizer, trained, report)
    for _ in range(options.accum - 1):
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    if options.offload == "none":
        report |= held_by_optimizer(optimizer, options.stage)
        report["whole_gradients"] = whole_gradients(trained)
    engine.step()
    if options.offload != "none":
        report["host"] = held_on_host(engine, optimizer, options.stage)
    report |= held_weights(engine, options.stage)
    states = [
        value for state in optimizer.optimizer.state.values() for key, value in state.items() if key != "step"
    ]
    report["states"] = elements(value for value in states if isinstance(value, torch.Tensor))
    report["trained_dtypes"] = sorted(
        {str(tensor.dtype) for tensor in engine.module.parameters() if tensor.requires_grad}
    )
    report["tensors"] = len(list(engine.module.parameters()))
    engine.destroy()
    return report


def main() -> None:
    """Run every case of ``--cases`` (JSON: name -> its fields) and write them all to ``rank<n>.json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--cases", required=True)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Collectives of its own in shared memory, which it would compile for a minute on first use;
    # gloo's do the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    reports = {
        name: train_one_step(argparse.Namespace(model=given.model, **case))
        for name, case in json.loads(given.cases).items()
    }
    (given.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(reports))
    dist.barrier()
    # All is written.  Taking gloo's threads down now and then aborts a process of a busy machine.
    os._exit(0)


if __name__ == "__main__":
    main()
