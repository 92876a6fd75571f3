"""``qlora.py``, the script of QLoRA's authors: its words, its defaults, and what is refused."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.errors import ExitCode
from planner.report.check.checked import Checked
from tests.files import answer_to, scenario_in

BASE = "--model_name_or_path huggyllama/llama-7b --output_dir out --do_train --bf16 --max_steps 1875"


def checked(arguments: str, start: str = "python qlora.py", gpus: int = 1) -> Checked:
    """The answer to a command."""
    return answer_to(f"{start} {BASE} {arguments}", {"gpu": "rtx4090", "gpus": gpus})


def job_of(arguments: str, start: str = "python qlora.py", gpus: int = 1) -> Scenario:
    """The job of a command."""
    return scenario_in(checked(arguments, start, gpus))


def test_what_is_left_out_is_the_scripts_own() -> None:
    """Not what the Trainer has: a paged optimizer, checkpoints, and 16 micro-batches of one sample."""
    recipe = job_of("").recipe
    assert (recipe.batch.micro_batch, recipe.batch.grad_accum, recipe.batch.seq_len) == (1, 16, 1280)
    assert (recipe.optimizer, recipe.gradient_checkpointing) == ("paged_adamw_32bit", True)
    assert (recipe.numerics.quantization, recipe.numerics.double_quant) == ("nf4", True)
    assert recipe.adapter is not None
    assert (recipe.adapter.rank, recipe.attention) == (64, "eager")


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ("--source_max_len 512 --target_max_len 128", 640),
        ("--dataset oasst1 --source_max_len 16 --target_max_len 512", 513),
        ("--dataset mine.json --dataset_format hh-rlhf --target_max_len 768", 769),
    ],
)
def test_source_and_target_lie_behind_each_other(arguments: str, length: int) -> None:
    """Some data have no source but the token that begins it."""
    assert job_of(arguments).recipe.batch.seq_len == length


def test_head_and_token_table_are_halves_again() -> None:
    """Norms stay in fp32, as PEFT's preparation leaves all of them."""
    scenario = job_of("--bits 8 --per_device_train_batch_size 4")
    assert (scenario.stack.kbit_upcast, scenario.recipe.numerics.quantization) == ("norms", "int8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--bits 16", "16 bits of this script"),
        ("--do_mmlu_eval", "longer rows"),
        ("--full_finetune", "full fine-tune"),
        ("--lora_modules q_proj", "lora_modules"),
        ("--lora_targets x", "what a fork makes of it"),
        ("--bf16 False --fp16", "another precision"),
    ],
)
def test_what_was_not_read_is_refused(arguments: str, sentence: str) -> None:
    """Each with its key."""
    found = checked(arguments)
    assert found.failure_code == ExitCode.NOT_MODELLED
    assert sentence in found.failure


def test_one_process_spreads_its_layers() -> None:
    """Which is not modelled of Transformers 4; a process for each GPU has a whole copy."""
    assert "spreads layers" in checked("", gpus=2).failure
    assert job_of("", "torchrun --nproc_per_node 2 qlora.py", 2).recipe.sharding.name == "ddp"
