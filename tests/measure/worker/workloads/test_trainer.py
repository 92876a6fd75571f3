"""The Trainer with sharding runs on GPUs only; what it is given, and how its engine is checked,
is tried here without one.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from measure.recipe.engine_configs import trainer_deepspeed_config, trainer_fsdp_config
from measure.run.cases.case import RunCase, RunOptions
from planner.domain.recipes.sharding import sharding_named
from planner.domain.scenario import Scenario
from tests.extras import import_or_skip

import_or_skip("torch")
transformers = import_or_skip("transformers")
import_or_skip("accelerate")

SAID = {
    "model": "qwen2.5-0.5b",
    "gpu": "a100-80gb",
    "gpus": 2,
    "method": "full",
    "seq": 512,
    "batch": 2,
    "grad_accum": 4,
}


def scenario(**said: Any) -> Scenario:
    """A job on two cards."""
    return RunCase({**SAID, **said}, RunOptions()).scenario()


def arguments(**more: Any) -> Any:
    """The Trainer's arguments as they are without sharding, on a CPU."""
    return transformers.TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        learning_rate=1e-4,
        max_steps=8,
        bf16=True,
        use_cpu=True,
        report_to="none",
        **more,
    )


@pytest.mark.parametrize(
    ("sharding", "offload", "optimizer"),
    [
        ("zero1", "none", "adamw_torch"),
        ("zero2", "optimizer", "adamw_torch_fused"),
        ("zero2", "optimizer", "adafactor"),
        ("zero3", "none", "adamw_torch"),
        ("zero3", "optimizer+params", "adamw_torch"),
    ],
)
def test_the_trainer_takes_the_deepspeed_file(sharding: str, offload: str, optimizer: str) -> None:
    """Nothing in it contradicts the arguments; an offloaded AdamW is DeepSpeed's own,
    another optimizer is allowed in.
    """
    import_or_skip("deepspeed")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = trainer_deepspeed_config(scenario(sharding=sharding, offload=offload, optimizer=optimizer))
    processed = HfTrainerDeepSpeedConfig(config)
    given = arguments()
    processed.trainer_config_process(given)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=896), generation_config=None)
    processed.trainer_config_finalize(given, model, 8)
    assert processed.mismatches == []
    assert processed.config["zero_optimization"]["stage"] == int(sharding[-1])
    own = offload != "none" and optimizer.startswith("adamw")
    assert ("optimizer" in processed.config) is own
    assert processed.config["zero_force_ds_cpu_optimizer"] is own
    if own:
        assert processed.config["optimizer"]["params"]["lr"] == 1e-4


def test_an_nvme_folder_reaches_the_file() -> None:
    """Both kinds of offload name the folder that was given."""
    job = scenario(sharding="zero3", offload="optimizer+params-nvme", optimizer="adamw_torch")
    zero = trainer_deepspeed_config(job, nvme_path="/nvme")["zero_optimization"]
    assert (zero["offload_optimizer"]["device"], zero["offload_param"]["nvme_path"]) == ("nvme", "/nvme")


@pytest.mark.parametrize(
    ("sharding", "version", "reshards"),
    [("fsdp", 2, True), ("fsdp-grad-op", 2, False), ("fsdp1", 1, "full_shard")],
)
def test_the_trainer_takes_the_fsdp_settings(sharding: str, version: int, reshards: Any) -> None:
    """They become the settings of accelerate's plugin, with whole layers as groups."""
    given = arguments(fsdp=True, fsdp_config=trainer_fsdp_config(scenario(sharding=sharding)))
    plugin = given.fsdp_plugin_args
    assert (plugin["fsdp_version"], plugin["reshard_after_forward"]) == (version, reshards)
    assert plugin["auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"


def engine(name: str, **more: Any) -> Any:
    """An object whose class has this name."""
    return type(name, (), more)()


@pytest.mark.parametrize(
    ("sharding", "running", "right"),
    [
        ("zero2", engine("DeepSpeedEngine", zero_optimization_stage=lambda _: 2), True),
        ("zero2", engine("DeepSpeedEngine", zero_optimization_stage=lambda _: 3), False),
        ("zero3", engine("DistributedDataParallel"), False),
        ("fsdp", engine("FSDPModule"), True),
        ("fsdp", engine("FullyShardedDataParallel"), False),
        ("fsdp1", engine("FullyShardedDataParallel"), True),
        ("ddp", engine("DistributedDataParallel"), True),
        ("ddp", engine("LlamaForCausalLM"), False),
    ],
)
def test_another_engine_is_no_result(sharding: str, running: Any, right: bool) -> None:
    """The class that really runs decides, and the stage of ZeRO with it."""
    from measure.worker.workloads.engine import EngineMismatchError
    from measure.worker.workloads.trainer import check_engine

    recipe = replace(scenario(sharding="ddp").recipe, sharding=sharding_named(sharding))
    if right:
        check_engine(recipe, running, model=None)
    else:
        with pytest.raises(EngineMismatchError, match=sharding):
            check_engine(recipe, running, model=None)


def test_the_step_inside_the_backward_pass_is_a_phase_of_its_own() -> None:
    """Accelerate lets DeepSpeed step at the end of its backward; the phase begins there."""
    from measure.worker.workloads.trainer import mark_engine_step

    entered: list[str] = []
    task: Any = SimpleNamespace(phases=SimpleNamespace(enter=entered.append))
    stepping = SimpleNamespace(step=lambda: entered.append("stepped"))
    mark_engine_step(stepping, task)
    stepping.step()
    assert entered == ["optimizer_step", "stepped"]
