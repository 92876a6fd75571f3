"""Configuration files of the engines that shard, made from the scenario; they are kept in the record."""

from __future__ import annotations

from typing import Any

from planner.domain.scenario import Scenario
from planner.errors import NotModelledError

MAX_GRAD_NORM = 1.0
# What "auto" stands for in Transformers 5.23 integrations/deepspeed.py trainer_config_finalize.
_PREFETCH_SHARE = 0.9
_PERSISTENCE_WIDTHS = 10


def zero_stage(scenario: Scenario) -> int:
    """Stage of ZeRO."""
    return int(scenario.recipe.sharding.removeprefix("zero"))


def deepspeed_config(scenario: Scenario, *, on_cpu: bool) -> dict[str, Any]:
    """A DeepSpeed configuration as the Trainer finishes one, with the bucket sizes of the scenario's stack.

    On a CPU the optimizer is torch's own, because DeepSpeed's needs a compiler and forty seconds, and buckets are small.

    Raises:
        NotModelledError: offload to NVMe, which needs a path that nobody gave.
    """
    recipe, stack = scenario.recipe, scenario.stack
    if recipe.offloads_to_nvme:
        raise NotModelledError("offload to NVMe cannot be run: no folder for it can be named yet")
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
    if recipe.offloads_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": not on_cpu}
    if recipe.offloads_params:
        zero["offload_param"] = {"device": "cpu", "pin_memory": not on_cpu}
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


def fsdp_config(scenario: Scenario) -> dict[str, Any]:
    """How FSDP2 is applied, in the words of accelerate's configuration."""
    recipe = scenario.recipe
    return {
        "fsdp_version": 2,
        "reshard_after_forward": recipe.sharding != "fsdp-grad-op",
        "auto_wrap_policy": "each decoder layer, then the rest",
        "param_dtype": recipe.numerics.compute_dtype if recipe.numerics.mixed else recipe.numerics.load_dtype,
        "offload_params": recipe.offloads_params,
    }
