"""Files that a command names: those of a repository that is not here are known by folder and name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.named_files import launch_table
from planner.errors import InputFileError
from planner.intake.given.request import from_flags

NAME = Path("command")


@pytest.mark.parametrize(
    ("named", "stage"),
    [
        ("examples/accelerate_configs/deepspeed_zero3.yaml", 3),
        ("/home/me/open-r1/recipes/accelerate_configs/zero2.yaml", 2),
        ("recipes/accelerate_configs/ddp.yaml", None),
    ],
)
def test_launch_files_of_repositories_are_known(named: str, stage: int | None) -> None:
    """Where they are not there; whose file is counted is told."""
    table, told = launch_table(NAME, named)
    assert table.get("deepspeed_config", {}).get("zero_stage") == stage
    assert table["num_processes"] == 8
    assert told.startswith(f"{named} is not here: taken as trl")


def test_a_file_that_is_there_is_read(tmp_path: Path) -> None:
    """Whatever its name is."""
    folder = tmp_path / "accelerate_configs"
    folder.mkdir()
    (folder / "zero2.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 3\n", encoding="utf-8")
    table = {"distributed_type": "MULTI_GPU", "num_processes": 3}
    assert launch_table(NAME, str(folder / "zero2.yaml")) == (table, "")


@pytest.mark.parametrize("named", ["accelerate_configs/fsdp.yaml", "mine/deepspeed_zero3.yaml", "zero3.yaml"])
def test_others_have_to_be_there(named: str) -> None:
    """Files of FSDP differ from tool to tool, and a bare name may be anybody's."""
    with pytest.raises(InputFileError, match="no such file"):
        launch_table(NAME, named)


def test_the_answer_says_whose_file_it_is() -> None:
    """The job is divided as the file says, and a remark names it."""
    line = (
        "accelerate launch --config_file examples/accelerate_configs/deepspeed_zero3.yaml trl/scripts/sft.py "
        "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name notes --max_length 512"
    )
    checked = check_job(command_job(line, CheckOptions()), from_flags({"gpu": "a100-80-sxm:8"}))
    assert checked.subject is not None
    assert checked.subject.scenario.recipe.sharding.name == "zero3"
    assert any("is not here: taken as trl" in text for _, text in checked.remarks)
