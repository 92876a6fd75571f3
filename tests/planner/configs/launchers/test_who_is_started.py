"""Whose program a command starts, where its folder or Python says it, and on how many GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import how_many, started
from planner.errors import ExitCode, NotModelledError, UsageError
from planner.intake.given.request import from_flags

NAME = Path("command")
ARGUMENTS = "--model_name_or_path gpt2 --per_device_train_batch_size 8 --bf16 True --max_length 64"
TRAINS = f"train.py {ARGUMENTS}"


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (f"cd trl/examples/scripts && python sft.py {ARGUMENTS}", "trl"),
        (f"cd $HOME/trl\ncd examples/scripts\npython sft.py {ARGUMENTS}", "trl"),
        (f"cd trl && python examples/scripts/sft.py {ARGUMENTS}", "trl"),
        (f"cd open-instruct/open_instruct && python finetune.py {ARGUMENTS}", "open-instruct"),
        (f"cd mine && python sft.py {ARGUMENTS}", None),
        # Where the text went in a subshell is over behind it.
        (f"(cd trl/examples/scripts; ls)\npython sft.py {ARGUMENTS}", None),
    ],
)
def test_a_script_is_known_by_the_folder_that_the_text_went_into(text: str, tool: str | None) -> None:
    """As it is by the folder in its own name."""
    assert started(NAME, text).tool == tool


def test_a_trainer_of_open_instruct_is_known_by_its_folder() -> None:
    """Which the command need not repeat."""
    with pytest.raises(NotModelledError, match="trainer of open-instruct"):
        started(NAME, f"cd open_instruct && python reward_modeling.py {ARGUMENTS}")


@pytest.mark.parametrize(
    ("start", "whose"),
    [
        ("python examples/scripts/sft.py", "the script of that name of trl"),
        ("python mine/sft.py", "the tool that their names say"),
    ],
)
def test_whose_script_it_is_taken_for_is_said(start: str, whose: str) -> None:
    """By its place, or by its arguments."""
    given = from_flags({"gpu": "a100-80-sxm", "method": "full", "load_dtype": "bf16"})
    checked = check_job(command_job(f"{start} {ARGUMENTS}", CheckOptions()), given)
    assert checked.subject is not None, checked.failure
    assert whose in checked.remarks[0][1]


@pytest.mark.parametrize(
    ("start", "tool", "launch"),
    [
        (
            "python -m accelerate.commands.launch --num_processes 4 ",
            None,
            {"distributed_type": "MULTI_GPU", "num_processes": 4},
        ),
        ("python3 -m accelerate.commands.accelerate_cli launch --num_processes=1 ", None, {}),
        ("python -m deepspeed.launcher.runner --num_gpus 2 ", None, {"num_processes": 2}),
        ("python -m llamafactory.cli train --stage sft --do_train --x ", "llama-factory", {}),
        ("python -m swift.cli.sft --x ", "ms-swift", {}),
    ],
)
def test_a_program_that_python_starts_as_a_module(start: str, tool: str | None, launch: Any) -> None:
    """It is the same program."""
    text = f"{start}{TRAINS}" if tool is None else f"{start} y {ARGUMENTS}"
    job = started(NAME, text)
    assert job.tool == tool
    assert launch.items() <= job.launch.items()
    assert job.script == ("train.py" if tool is None else "train" if tool == "llama-factory" else "sft")


@pytest.mark.parametrize(
    "count",
    [
        "$(nvidia-smi -L | wc -l)",
        "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l)",
        "$(python -c 'import torch; print(torch.cuda.device_count())')",
    ],
)
def test_processes_that_are_counted_on_the_machine_are_its_gpus(count: str) -> None:
    """As the launcher's own word for it."""
    job = started(NAME, f"N={count}\ntorchrun --nproc_per_node $N {TRAINS}")
    assert job.launch == started(NAME, f"torchrun --nproc_per_node gpu {TRAINS}").launch
    launched = started(NAME, f"accelerate launch --num_processes {count} {TRAINS}")
    assert launched.launch == started(NAME, f"accelerate launch {TRAINS}").launch


def test_a_number_of_processes_that_is_left_open_is_that_of_the_gpus_given() -> None:
    """And asked for where none is given; nodes are said to be left open."""
    job = command_job(f"torchrun --nproc_per_node $N --nnodes $M {TRAINS}", CheckOptions())
    flags = {"gpu": "a100-80-sxm", "method": "full", "load_dtype": "bf16"}
    asked = check_job(job, from_flags(flags))
    assert asked.exit_code == ExitCode.USAGE
    assert "placeholder $N" in asked.failure
    found = check_job(job, from_flags({**flags, "gpu": "a100-80-sxm:4"}))
    assert found.subject is not None, found.failure
    assert found.subject.scenario.hardware.gpus_per_node == 4
    said = " ".join(text for _, text in found.remarks)
    assert "$N" in said
    assert "$M" in said


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("ray job submit --no-wait -- python3 -m openrlhf.cli.train_ppo_ray --pretrain a", "OpenRLHF"),
        ("torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=a", "verl"),
        ("python -m verl.trainer.main_ppo data.train_batch_size=8", "verl"),
    ],
)
def test_modules_of_programs_that_are_not_read_are_named(text: str, program: str) -> None:
    """Whatever their arguments look like."""
    with pytest.raises(NotModelledError, match=f"command lines of {program} are not read"):
        started(NAME, text)


def test_a_module_of_theirs_that_trains_nothing_is_no_training() -> None:
    """Such as one that answers."""
    with pytest.raises(UsageError, match="no command that starts a training"):
        started(NAME, "python -m openrlhf.cli.interactive_chat --pretrain a")


def test_lmflows_reward_model_is_not_read_as_trls() -> None:
    """Both scripts have one name; the folder of its data is LMFlow's alone."""
    text = f"deepspeed examples/reward_modeling.py {ARGUMENTS}"
    assert started(NAME, text).task == "reward"
    with pytest.raises(NotModelledError, match="trainer of LMFlow"):
        started(NAME, f"{text} --dataset_path data/rewards")


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("accelerate launch -m axolotl.cli.inference a.yml", 0),
        ("accelerate launch -m axolotl.cli.train a.yml --prepare_ds_only", 0),
        ("accelerate launch -m axolotl.cli.train a.yml", 1),
        ("torchrun --nproc_per_node 8 src/eval_math.py --model_name_or_path gpt2 --max_length 64", 0),
        ("accelerate launch run_inference.py --model_name_or_path gpt2", 0),
        ("deepspeed merge_lora.py --base_model gpt2", 0),
        ("torchrun train_and_eval.py --model_name_or_path gpt2", 1),
        ("torchrun evaluation.py --model_name_or_path gpt2 --learning_rate 1e-5", 1),
        ("torchrun retrieval.py --model_name_or_path gpt2", 1),
    ],
)
def test_what_a_name_says_to_do_otherwise_trains_nothing(command: str, count: int) -> None:
    """Unless arguments of a training stand beside it."""
    assert how_many(Path("run.sh"), command) == count
