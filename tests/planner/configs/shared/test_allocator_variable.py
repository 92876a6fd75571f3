"""What the environment of a command tells PyTorch's allocator counts, whatever the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.intake.given.request import from_flags
from planner.report.check.checked import Checked
from tests.files import written
from tests.planner.configs.programs.test_program import TRL, program

ARGUMENTS = (
    "train.py --per_device_train_batch_size 2 --num_train_epochs 1 --bf16 --optim adamw_torch "
    "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name a --max_length 512"
)
TRAINS = f"torchrun --nproc_per_node 2 {ARGUMENTS}"


def answer(command: str) -> Checked:
    """What a command is answered on two cards."""
    return check_job(command_job(command, CheckOptions(tool="trl")), from_flags({"gpu": "rtx4090:2"}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("expandable_segments:True", "expandable_segments:True"),
        ("garbage_collection_threshold:0.8,expandable_segments:True", "expandable_segments:True"),
        ("roundup_power2_divisions:8", "roundup_power2_divisions:8"),
        ("max_split_size_mb:128", "max_split_size_mb:128"),
        ("garbage_collection_threshold:0.8", ""),
        ("expandable_segments:False", ""),
    ],
)
def test_settings_of_a_command_count(settings: str, said: str) -> None:
    """By either name, before the command or exported above it."""
    for command in (
        f"PYTORCH_CUDA_ALLOC_CONF={settings} {TRAINS}",
        f"export PYTORCH_ALLOC_CONF={settings}\n{TRAINS}",
        f"PYTORCH_ALLOC_CONF='{settings}' accelerate launch --multi_gpu --num_processes 2 {ARGUMENTS}",
    ):
        subject = answer(command).subject
        assert subject is not None
        assert subject.scenario.allocator_settings == said


def test_the_older_of_two_names_counts(tmp_path: Path) -> None:
    """PyTorch reads the other one only where it is not set: of a command, of a program, of ms-swift."""
    both = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:8",
    }
    before = " ".join(f"{name}={text}" for name, text in both.items())
    lines = "".join(f"os.environ[{name!r}] = {text!r}\n" for name, text in reversed(both.items()))
    path = program(tmp_path, f"import os\n{lines}{TRL}")
    swift = "swift sft --model Qwen/Qwen2.5-0.5B --max_length 512 --dataset a --torch_dtype bfloat16"
    for command in (f"{before} {TRAINS}", f"torchrun --nproc_per_node 2 {path}", f"{before} {swift}"):
        tool = "trl" if command.endswith(ARGUMENTS) else None
        found = check_job(command_job(command, CheckOptions(tool=tool)), from_flags({"gpu": "rtx4090:2"}))
        assert found.subject is not None, found.failure
        assert found.subject.scenario.allocator_settings == "roundup_power2_divisions:8"


def test_settings_of_a_command_count_for_the_text_of_a_program(tmp_path: Path) -> None:
    """Beside what the program sets itself."""
    path = program(tmp_path, TRL)
    for before, grows in (("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ", True), ("", False)):
        command = f"{before}torchrun --nproc_per_node 2 {path}"
        found = check_job(command_job(command, CheckOptions()), from_flags({"gpu": "rtx4090:2"}))
        assert found.subject is not None, found.failure
        assert found.subject.scenario.segments_grow is grows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "os.environ.setdefault('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True')",
            "roundup_power2_divisions:8",
        ),
        ("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'", "expandable_segments:True"),
    ],
)
def test_a_program_replaces_what_its_command_sets(line: str, said: str, tmp_path: Path) -> None:
    """The whole text of a variable, or none of it where it only fills one in that is not set."""
    path = program(tmp_path, f"import os\n{line}\n{TRL}")
    command = f"PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:8 torchrun --nproc_per_node 2 {path}"
    found = check_job(command_job(command, CheckOptions()), from_flags({"gpu": "rtx4090:2"}))
    assert found.subject is not None, found.failure
    assert found.subject.scenario.allocator_settings == said


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "PYTORCH_ALLOC_CONF=large_segment_size_mb:32",
            "PYTORCH_ALLOC_CONF: 'large_segment_size_mb:32' is not",
        ),
        ("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "backend 'cudaMallocAsync'"),
        ("PYTORCH_CUDA_ALLOC_CONF='roundup_power2_divisions:[256:1,512:2,>:4]'", "is not modelled"),
        ("PYTORCH_CUDA_ALLOC_CONF=much", "key:value"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING=1", "what this variable changes"),
        ("ACCELERATE_USE_FSDP=true", "what this variable changes"),
        ("ACCELERATE_MIXED_PRECISION=fp8", "what this variable changes"),
        ("docker run --gpus 1 image", "no command that starts a training"),
        ("docker run -e PYTORCH_ALLOC_CONF=expandable_segments:True image", "no command"),
    ],
)
def test_what_is_not_counted_is_no_answer(before: str, said: str) -> None:
    """Other settings, and other variables that move memory."""
    assert said in refused(f"{before} {TRAINS}")


def refused(command: str) -> str:
    """Why a command is not answered."""
    found = answer(command)
    assert found.subject is None
    return found.failure


@pytest.mark.parametrize(
    "before", ["ACCELERATE_LOG_LEVEL=info", "ACCELERATE_USE_FSDP=false", "docker run --gpus all image"]
)
def test_what_moves_nothing_is_passed(before: str) -> None:
    """Logs, switches that are off, all GPUs."""
    plain, other = answer(TRAINS).subject, answer(f"{before} {TRAINS}").subject
    assert plain is not None
    assert other is not None
    assert other.scenario.recipe == plain.scenario.recipe
    assert other.scenario.stack == plain.scenario.stack


def test_a_variable_that_depends_on_more_is_told() -> None:
    """The answer is without it."""
    found = answer(f"PYTORCH_CUDA_ALLOC_CONF=$MINE {TRAINS}")
    assert found.subject is not None
    assert any("is not counted" in text for _, text in found.remarks)


AXOLOTL = (
    "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\nadapter: lora\n"
    "lora_target_linear: true\n"
)
FACTORY = (
    "llamafactory-cli train --model_name_or_path Qwen/Qwen2.5-0.5B --stage sft --do_train --bf16 "
    "--finetuning_type lora --template qwen --dataset a --cutoff_len 512 --output_dir b"
)


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ("", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF=max_split_size_mb:128 ", "max_split_size_mb:128"),
        ("PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8 ", ""),
    ],
)
def test_axolotl_sets_the_variable_where_nobody_does(tmp_path: Path, said: str, counted: str) -> None:
    """Its own settings are not beside those that are said."""
    path = written(tmp_path, AXOLOTL)
    found = check_job(
        command_job(f"{said}axolotl train {path}", CheckOptions()), from_flags({"gpu": "rtx4090:2"})
    )
    assert found.subject is not None, found.failure
    assert found.subject.scenario.allocator_settings == counted


@pytest.mark.parametrize(
    ("gpu", "counted"), [("rtx4090:2", "expandable_segments:True"), ("rtx4090", "max_split_size_mb:128")]
)
def test_llama_factory_sets_it_for_torchrun_whatever_is_said(gpu: str, counted: str) -> None:
    """Which it starts on several GPUs."""
    job = command_job(f"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 {FACTORY}", CheckOptions())
    found = check_job(job, from_flags({"gpu": gpu}))
    assert found.subject is not None, found.failure
    assert found.subject.scenario.allocator_settings == counted
