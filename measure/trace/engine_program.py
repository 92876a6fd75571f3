"""A job whose cards an engine divides, as a program of its own: Transformers, bitsandbytes and PEFT load the
model, and the Trainer trains it.  ``engine_program.py`` reads the scenario from ``scenario.pickle``, in text,
and the model from the folder ``model``.
"""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import accelerate  # type: ignore[import-untyped]
import torch
import transformers
from torch.utils.data import Dataset
from transformers.distributed.configuration_utils import DistributedConfig

from measure.recipe.adapters import DTYPES, adapted
from measure.recipe.kbit import prepare_for_kbit, quantization_config
from measure.recipe.losses import install_loss
from measure.recipe.trained import checkpoint_activations, freeze
from measure.recipe.trainer_arguments import sharding_settings, trainer_arguments
from measure.trace.build import class_of
from measure.trace.cuda.recurrent import recurrent_kernels
from planner.domain.recipes.attention_kernels import ATTENTION_FACTS
from planner.domain.scenario import Scenario

SCENARIO_FILE, MODEL_FOLDER = "scenario.pickle", "model"
# More than any run of it takes.
_STEPS, _ROWS = 8, 4096


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of random tokens, all as long as the job's longest; ``positions``: with their numbers, too."""

    def __init__(self, tokens: int, *, positions: bool = False) -> None:
        self._tokens = tokens
        self._positions = {"position_ids": torch.arange(tokens)} if positions else {}

    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 500, (self._tokens,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, **self._positions}


def loaded(scenario: Scenario) -> Any:
    """The model as a training script hands it to the Trainer."""
    recipe = scenario.recipe
    load: Any = class_of(scenario, transformers.AutoConfig.from_pretrained(MODEL_FOLDER)).from_pretrained
    model = load(
        MODEL_FOLDER,
        distributed_config=_divided_model(scenario),
        dtype=DTYPES[recipe.numerics.load_dtype],
        attn_implementation=ATTENTION_FACTS[recipe.attention].names[0],
        quantization_config=quantization_config(recipe),
    )
    # Of models with a tower the config of the text alone knows this word, which ``from_pretrained`` refuses.
    model.config.get_text_config().use_cache = False
    # Accelerate looks for each of them, also for those of a tower that is not there.
    classes, undivided = {type(module).__name__ for module in model.modules()}, "_no_split_modules"
    setattr(model, undivided, [name for name in getattr(model, undivided) or () if name in classes])
    # The fused loss by torch's operators: Liger's package is not needed.
    install_loss(model, recipe)
    model = freeze(model, scenario)
    if recipe.numerics.quantization != "none":
        prepare_for_kbit(model, scenario)
    if recipe.adapter is not None:
        model = adapted(model, recipe, scenario.model)
    checkpoint_activations(model, scenario)
    return model


def engine_settings(scenario: Scenario) -> dict[str, Any]:
    """What the Trainer is told of the engine.  DeepSpeed's file names no optimizer, as most do:
    Accelerate takes the one for the host by itself.
    """
    if _divided_model(scenario) is not None:
        return {}
    settings = sharding_settings(scenario)
    for name in ("optimizer", "zero_force_ds_cpu_optimizer"):
        settings.get("deepspeed", {}).pop(name, None)
    if scenario.recipe.parallel.tensor > 1:
        settings["deepspeed"]["tensor_parallel"] = {"autotp_size": scenario.recipe.parallel.tensor}
    return settings | _divided_sequences(scenario)


def _divided_model(scenario: Scenario) -> DistributedConfig | None:
    """How Transformers divides matrices or experts as it reads them, with FSDP2 of its own over the other
    GPUs.
    """
    tensor, experts = scenario.recipe.parallel.tensor, scenario.recipe.parallel.experts
    if tensor == experts == 1 or scenario.recipe.uses_deepspeed:
        return None
    batches = int(scenario.hardware.world_size) // tensor
    return DistributedConfig(tp_size=tensor, fsdp_size=batches, ep_size=experts)


def _divided_sequences(scenario: Scenario) -> dict[str, Any]:
    """How Accelerate divides each sequence: by torch's ring beside FSDP2, by heads beside DeepSpeed."""
    recipe, parts = scenario.recipe, scenario.recipe.parallel.context
    if parts == 1:
        return {}
    make: Any = accelerate.ParallelismConfig
    if not recipe.uses_deepspeed:
        handler = accelerate.utils.TorchContextParallelConfig("allgather")
        batches = int(scenario.hardware.world_size) // parts
        return {"parallelism_config": make(cp_size=parts, dp_shard_size=batches, cp_handler=handler)}
    by_heads = accelerate.utils.DeepSpeedSequenceParallelConfig(
        sp_seq_length=int(recipe.batch.seq_len),
        sp_seq_length_is_variable=False,
        sp_attn_implementation=ATTENTION_FACTS[recipe.attention].names[0],
    )
    return {"parallelism_config": make(sp_size=parts, sp_backend="deepspeed", sp_handler=by_heads)}


def _evaluation(scenario: Scenario) -> dict[str, Any]:
    """What the Trainer is told of evaluation, where there is one.  The dry run itself asks for one behind its
    last step; an earlier one would leave a cache to later steps that training for long does not begin with.
    """
    return {"eval_strategy": "steps", "eval_steps": _STEPS} if scenario.run.evaluates else {}


def train(scenario: Scenario) -> None:
    """Train until somebody stops it."""
    # Before the model: under ZeRO-3 they decide how a checkpoint is read.
    settings = {**engine_settings(scenario), **_evaluation(scenario)}
    arguments = trainer_arguments(scenario, "out", max_steps=_STEPS, use_liger_kernel=False, **settings)
    if scenario.hardware.nodes > 1:
        # All processes are on one machine here; DeepSpeed takes the cards that it sees for those of a node.
        torch.cuda.device_count = lambda: int(scenario.hardware.gpus_per_node)
    # DeepSpeed divides no sequence without them.
    by_heads = scenario.recipe.uses_deepspeed and scenario.recipe.parallel.context > 1
    rows = Rows(int(scenario.recipe.batch.seq_len), positions=by_heads)
    model, evaluated = loaded(scenario), rows if scenario.run.evaluates else None
    # The dry run replaces no missing packages, and without these the code falls back to plain torch.
    with recurrent_kernels(torch.cuda.get_device_properties(0).multi_processor_count):
        trainer: Any = transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, eval_dataset=evaluated
        )
        trainer.train()


if __name__ == "__main__":
    written = base64.b64decode(Path(SCENARIO_FILE).read_text(encoding="ascii"))
    train(pickle.loads(written))  # noqa: S301 - divided_job.py wrote it
