"""Configuration files of the engines that shard, made from the scenario; they are kept in the record."""

from __future__ import annotations

from typing import Any

from planner.domain.scenario import Scenario

MAX_GRAD_NORM = 1.0
# What "auto" stands for in Transformers 5.23 integrations/deepspeed.py trainer_config_finalize.
_PREFETCH_SHARE = 0.9
_PERSISTENCE_WIDTHS = 10
# DeepSpeed 0.19.8 runtime/zero/config.py: its keys, and the switches that hold a file's numbers for them.
_STAGE_3 = {
    "reduce_bucket_size": "zero3_bucket_elements",
    "stage3_prefetch_bucket_size": "zero3_prefetch_elements",
    "stage3_param_persistence_threshold": "zero3_persistence_elements",
    "stage3_max_live_parameters": "zero3_live_elements",
    "stage3_max_reuse_distance": "zero3_reuse_elements",
    "sub_group_size": "zero3_sub_group_elements",
}
_QUANTIZED = ("weights", "gradients")


def zero_stage(scenario: Scenario) -> int:
    """Stage of ZeRO."""
    return scenario.recipe.sharding.zero_stage


def deepspeed_config(scenario: Scenario, *, on_cpu: bool, nvme_path: str | None = None) -> dict[str, Any]:
    """A DeepSpeed configuration as the Trainer finishes one, with the bucket sizes of the scenario's stack.

    On a CPU the optimizer is torch's own, because DeepSpeed's needs a compiler and forty seconds,
    and buckets are small.
    """
    recipe, stack = scenario.recipe, scenario.stack
    width = scenario.model.hidden_size
    zero: dict[str, Any] = {"stage": zero_stage(scenario), "overlap_comm": not on_cpu}
    if zero_stage(scenario) < 3:
        # The default of 5e8 elements would take a gigabyte and more of host RAM on each rank of a CPU run.
        elements = width * width if on_cpu else stack.zero12_bucket_elements or width * width
        zero |= {"reduce_bucket_size": elements, "allgather_bucket_size": elements}
    elif stack.zero_auto_buckets:
        zero |= {
            "reduce_bucket_size": width * width,
            "stage3_prefetch_bucket_size": int(_PREFETCH_SHARE * width * width),
            "stage3_param_persistence_threshold": _PERSISTENCE_WIDTHS * width,
        }
    if zero_stage(scenario) == 3:
        numbers = {key: getattr(stack, name) for key, name in _STAGE_3.items()}
        zero |= {key: number for key, number in numbers.items() if number >= 0}
        zero |= {f"zero_quantized_{what}": True for what in _QUANTIZED if what in stack.zero3_quantized}
        zero["leaf_module"] = {"classes": [name for name in stack.zero3_leaves if name != "none"]}
        if recipe.parallel.hpz > 1:
            zero["zero_hpz_partition_size"] = recipe.parallel.hpz
    place = {"device": "nvme", "nvme_path": nvme_path} if recipe.offloads_to_nvme else {"device": "cpu"}
    if recipe.offloads_optimizer:
        zero["offload_optimizer"] = {**place, "pin_memory": not on_cpu}
    if recipe.offloads_params:
        zero["offload_param"] = {**place, "pin_memory": not on_cpu}
    return {
        "train_micro_batch_size_per_gpu": int(recipe.batch.micro_batch),
        "gradient_accumulation_steps": int(recipe.batch.grad_accum),
        "gradient_clipping": MAX_GRAD_NORM,
        "bf16": {"enabled": recipe.numerics.precision == "bf16-mixed"},
        "fp16": {"enabled": recipe.numerics.precision == "fp16-mixed"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": recipe.offloads_optimizer and not on_cpu,
        "zero_optimization": zero,
    }


def trainer_deepspeed_config(scenario: Scenario, *, nvme_path: str | None = None) -> dict[str, Any]:
    """The configuration for ``TrainingArguments(deepspeed=...)``.

    With an offloaded AdamW the file names the optimizer, like people's files, so that DeepSpeed takes its own
    for the CPU.  Other optimizers are the Trainer's, which DeepSpeed then has to be allowed to take.
    """
    config = deepspeed_config(scenario, on_cpu=False, nvme_path=nvme_path)
    if scenario.recipe.offloads_optimizer:
        if scenario.recipe.optimizer.startswith("adamw_torch"):
            settings = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
            config["optimizer"] = {"type": "AdamW", "params": settings}
        else:
            config["zero_force_ds_cpu_optimizer"] = False
    return config


def trainer_fsdp_config(scenario: Scenario) -> dict[str, Any]:
    """The configuration for ``TrainingArguments(fsdp=True, fsdp_config=...)``: FSDP2,
    or FSDP1 where that is asked for.

    Source: Transformers 5.17 and 5.23 training_args.py _process_fsdp_args.
    """
    recipe, first = scenario.recipe, scenario.recipe.sharding.is_fsdp1
    divides: Any = recipe.sharding.divides_weights
    if first:
        divides = "full_shard" if divides else "shard_grad_op"
    prefetches = {"backward_prefetch": "backward_pre"} if first and scenario.stack.fsdp1_prefetches else {}
    return {
        "version": 1 if first else 2,
        "reshard_after_forward": divides,
        "cpu_offload": recipe.offloads_params,
        "cpu_ram_efficient_loading": not first,
        **prefetches,
    }


def fsdp_config(scenario: Scenario) -> dict[str, Any]:
    """How FSDP2 is applied, in the words of accelerate's configuration."""
    recipe = scenario.recipe
    return {
        "fsdp_version": 2,
        "reshard_after_forward": recipe.sharding.divides_weights,
        "auto_wrap_policy": "each decoder layer, then the rest",
        "param_dtype": recipe.numerics.compute_dtype if recipe.numerics.mixed else recipe.numerics.load_dtype,
        "offload_params": recipe.offloads_params,
    }
