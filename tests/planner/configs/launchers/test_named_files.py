"""Files that a command names: those of a repository that is not here are known by folder and name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import started
from planner.configs.launchers.named_files import launch_table, with_files_here
from planner.errors import InputFileError
from planner.intake.given.request import from_flags
from tests.files import written

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


def test_files_of_another_machine_are_found_by_the_end_of_their_path(tmp_path: Path) -> None:
    """By folder and name at least, which is told; and from the folder into which the script went."""
    (tmp_path / "src" / "configs").mkdir(parents=True)
    here = written(tmp_path / "src" / "configs", "{}", "ds.json")
    script = tmp_path / "run.sh"
    for away in ("/data/me/src/configs/ds.json", "${ROOT}/src/configs/ds.json", "~/src/configs/ds.json"):
        words, told = with_files_here(script, ["a", f"--deepspeed={away}", "--b", "/data/ds.json"])
        assert words == ["a", f"--deepspeed={here}", "--b", "/data/ds.json"]
        assert told[0].startswith(f"{away} is not here: taken as /")
    text = "cd src && torchrun a.py --deepspeed configs/ds.json --max_steps 1"
    assert started(script, text).arguments["deepspeed"] == str(here)
    assert started(script, text[text.index("torchrun") :]).arguments["deepspeed"] == "configs/ds.json"


def test_deepspeed_files_have_names() -> None:
    """Where the one that is named is not here, and none of its name is known."""
    text = "torchrun --nproc_per_node 8 a.py --model_name_or_path gpt2 --bf16 True --deepspeed a/b.json"
    given = from_flags({"gpu": "4090:8", "method": "full", "seq": 64})
    assert "zero3_offload" in check_job(command_job(text, CheckOptions()), given).failure
    checked = check_job(command_job(text, CheckOptions(deepspeed="zero3_offload")), given, advise=False)
    assert checked.subject is not None
    assert checked.subject.scenario.recipe.sharding.name == "zero3"
    assert checked.subject.scenario.recipe.offload == "optimizer+params"


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
