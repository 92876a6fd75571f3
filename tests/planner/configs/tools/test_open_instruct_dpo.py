"""What files of open-instruct for DPO mean beyond those for supervised fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.intake.given.request import from_flags
from tests.planner.configs.tools.test_open_instruct import NOW, OLD, read


@pytest.mark.parametrize(
    ("keys", "task", "stack", "checkpoints"),
    [
        ({"beta": 5}, "dpo", "open-instruct", None),
        ({"loss_type": "simpo", "activation_memory_budget": 0.5}, "simpo", "open-instruct", True),
        ({"loss_type": "dpo_norm", "gradient_checkpointing": True}, "dpo", "open-instruct@2026-01", True),
        ({"beta": 5, "gradient_checkpointing": True, "use_lora": True}, "dpo", "open-instruct@2026-01", None),
    ],
)
def test_files_for_dpo(
    tmp_path: Path, keys: dict[str, Any], task: str, stack: str, checkpoints: bool | None
) -> None:
    """The loss is the task; adapters over 16 bits are trained without checkpoints."""
    reading = read(tmp_path, NOW | {"num_epochs": 1} | keys)
    assert (reading.value("task"), reading.value("stack")) == (task, stack)
    assert reading.value("gradient_checkpointing") is checkpoints
    assert reading.value("sharding") == "zero3"


def test_dpo_of_2024_runs_a_second_model(tmp_path: Path) -> None:
    """But not for SimPO."""
    reading = read(tmp_path, OLD | {"dpo_loss_type": "dpo_norm", "dpo_beta": 5, "num_train_epochs": 1})
    assert (reading.value("task"), reading.value("stack"), reading.value("epochs")) == (
        "dpo",
        "open-instruct@2024",
        1,
    )
    assert "caches_reference=false" in reading.value("switches")
    simpo = read(tmp_path, OLD | {"dpo_loss_type": "simpo"})
    assert simpo.value("task") == "simpo"
    assert "caches_reference=false" not in simpo.value("switches")


def test_the_script_says_that_the_reference_is_asked_before() -> None:
    """Its name, where a command has it: dpo_tune.py went in January 2025."""
    arguments = "--model_name_or_path Qwen/Qwen2.5-0.5B --max_seq_length 512 --dpo_loss_type dpo_norm"
    for script, before in (("dpo_tune_cache", True), ("dpo_tune", False)):
        command = f"accelerate launch --mixed_precision bf16 open_instruct/{script}.py {arguments}"
        job = command_job(command, CheckOptions())
        checked = check_job(job, from_flags({"gpu": "a100-80-sxm"}), advise=False)
        assert checked.subject.scenario.recipe.caches_reference is before


def test_the_script_says_dpo_where_no_key_does() -> None:
    """All of its own keys may be left out."""
    arguments = "--model_name_or_path Qwen/Qwen2.5-0.5B --max_seq_length 512 --with_tracking"
    for more, stack in (("", "open-instruct"), (" --use_flash_attn false", "open-instruct@2026-01")):
        command = (
            f"accelerate launch --mixed_precision bf16 open_instruct/dpo_tune_cache.py {arguments}{more}"
        )
        job = command_job(command, CheckOptions())
        checked = check_job(job, from_flags({"gpu": "a100-80-sxm"}), advise=False)
        assert checked.failure == ""
        assert checked.subject.scenario.recipe.task == "dpo"
        assert checked.subject.scenario.stack.id == stack


def test_zero_that_dpo_makes_itself(tmp_path: Path) -> None:
    """A stage without a file; stage 3 has a secondary partition of eight unless it is said."""
    assert read(tmp_path, NOW | {"beta": 5, "zero_stage": 2}).value("sharding") == "zero2"
    alone = read(tmp_path, NOW | {"beta": 5, "offload_optimizer": True})
    assert (alone.value("offload"), alone.ignored) == (None, [])
    assert read(tmp_path, NOW | {"beta": 5, "zero_stage": 3}).value("hpz") == 8
    own = read(
        tmp_path, NOW | {"beta": 5, "zero_stage": 3, "zero_hpz_partition_size": 1, "offload_optimizer": True}
    )
    assert (own.value("sharding"), own.value("offload")) == ("zero3", "optimizer")
