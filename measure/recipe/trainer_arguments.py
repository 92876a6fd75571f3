"""What the Hugging Face Trainer is told of a recipe, by the worker of a real run and in a dry run."""

from __future__ import annotations

from typing import Any

import transformers

from measure.recipe.checkpointing import checkpoint_kwargs
from measure.recipe.engine_configs import trainer_deepspeed_config, trainer_fsdp_config
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.scenario import Scenario

_LEARNING_RATE = 1e-4
# What the scenario calls the Liger loss: the fused projection and loss,
# with every other layer as Transformers has it.
LIGER_LOSS_ONLY = {
    "fused_linear_cross_entropy": True,
    "cross_entropy": False,
    "rope": False,
    "rms_norm": False,
    "swiglu": False,
}


def trainer_arguments(scenario: Scenario, folder: str, **more: Any) -> Any:
    """``TrainingArguments`` of the recipe; ``more`` is what the caller says beside it."""
    recipe, run = scenario.recipe, scenario.run
    precision = recipe.numerics.precision
    # The Trainer hands it on to ``activation_checkpointing_enable`` (Transformers 5.23 training_args.py).
    every = {"every_n_layers": recipe.checkpoint_every} if recipe.rebuilds_some else {}
    make: Any = transformers.TrainingArguments
    liger = {"use_liger_kernel": True, "liger_kernel_config": LIGER_LOSS_ONLY}
    return make(
        output_dir=folder,
        per_device_train_batch_size=int(recipe.batch.micro_batch),
        per_device_eval_batch_size=int(run.eval_micro_batch or recipe.batch.micro_batch),
        gradient_accumulation_steps=int(recipe.batch.grad_accum),
        learning_rate=_LEARNING_RATE,
        optim=(*OPTIMIZER_FACTS[recipe.optimizer].trainer_names, recipe.optimizer)[0],
        bf16=precision == "bf16-mixed",
        fp16=precision == "fp16-mixed",
        gradient_checkpointing=recipe.gradient_checkpointing,
        gradient_checkpointing_kwargs={**checkpoint_kwargs(recipe), **every},
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **{**(liger if recipe.loss == "liger" else {}), **more},
    )


def sharding_settings(scenario: Scenario, *, nvme_path: str | None = None) -> dict[str, Any]:
    """What the Trainer's arguments say about sharding; empty for one process and for DDP."""
    if scenario.recipe.uses_deepspeed:
        return {"deepspeed": trainer_deepspeed_config(scenario, nvme_path=nvme_path)}
    if scenario.recipe.uses_fsdp:
        return {"fsdp": True, "fsdp_config": trainer_fsdp_config(scenario)}
    return {}
