"""Several GPUs of one process that no launcher gives a rank."""

from __future__ import annotations

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.errors import ExitCode
from planner.intake.given.request import from_flags
from tests.files import answer_to

ARGUMENTS = (
    "--model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --output_dir o --per_device_train_batch_size 1 "
    "--gradient_checkpointing --bf16"
)
TRL = f"{ARGUMENTS} --max_length 1024"
CLM = f"{ARGUMENTS} --block_size 1024 --do_train"
LF = (
    "--stage sft --finetuning_type lora --template qwen --cutoff_len 1024 --bf16 --do_train "
    "--model_name_or_path Qwen/Qwen2.5-7B --dataset x --output_dir o"
)

OLD = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (f"python trl/scripts/sft.py {TRL}", ExitCode.NOT_MODELLED, "with loss chunked"),
        (f"python trl/scripts/dpo.py {TRL}", ExitCode.NOT_MODELLED, "for task dpo; a process for each GPU"),
        (f"python run_clm.py {CLM}", ExitCode.NOT_MODELLED, "nn.DataParallel"),
        (f"accelerate launch --num_processes 1 run_clm.py {CLM}", ExitCode.NOT_MODELLED, "nn.DataParallel"),
        (f"CUDA_VISIBLE_DEVICES=0,1 python run_clm.py {CLM}", ExitCode.NOT_MODELLED, "nn.DataParallel"),
        (f"python -m llamafactory.launcher {LF}", ExitCode.USAGE, "LLaMA-Factory stops"),
        (f"python src/train_bash.py {LF} {OLD}", ExitCode.NOT_MODELLED, "nn.DataParallel"),
        (f"CUDA_VISIBLE_DEVICES=0,1 python -m llamafactory.launcher {LF}", ExitCode.USAGE, "LLaMA-Factory"),
    ],
)
def test_what_one_process_does_with_several_gpus(command: str, code: ExitCode, words: str) -> None:
    """TRL spreads the layers, Transformers' Trainer copies the model, LLaMA-Factory stops since 0.8.2."""
    checked = answer_to(command, {"gpu": "h200-sxm:4"})
    assert (checked.exit_code, words in checked.failure) == (code, True), checked.failure


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (f"python run_clm.py {CLM}", "its command starts one process: the Trainer copies"),
        (f"CUDA_VISIBLE_DEVICES=0,1 python run_clm.py {CLM}", "(launch line):CUDA_VISIBLE_DEVICES: "),
        (f"accelerate launch --num_processes 1 --gpu_ids 0,1 run_clm.py {CLM}", "(launch line):gpu_ids: "),
    ],
)
def test_places_are_what_was_written(command: str, place: str) -> None:
    """No key that a launch file would have, where there is none."""
    checked = answer_to(command, {"gpu": "h200-sxm:4"})
    assert place in checked.failure
    assert "distributed_type" not in checked.failure


@pytest.mark.parametrize(
    "command", [f"python run_clm.py {CLM}", f"python -m llamafactory.launcher {LF}"], ids=["clm", "lf"]
)
def test_a_process_that_sees_one_gpu_has_one(command: str) -> None:
    """Whatever the machine has."""
    seeing = f"CUDA_VISIBLE_DEVICES=3 {command}"
    checked = answer_to(seeing, {"gpu": "h200-sxm:4"})
    assert checked.subject is not None, checked.failure
    assert checked.subject.scenario.hardware.world_size == 1


def test_trl_spreads_the_layers() -> None:
    """With the loss that is modelled there."""
    given = from_flags({"gpu": "h200-sxm:4", "loss": "hf"})
    checked = check_job(command_job(f"python sft.py {TRL}", CheckOptions()), given, advise=False)
    assert checked.subject is not None, checked.failure
    assert checked.subject.scenario.recipe.parallel.in_turn
