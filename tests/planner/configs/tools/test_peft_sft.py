"""PEFT's ``examples/sft/train.py``: what its own scripts say, its defaults, its age, and what is refused."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.errors import ExitCode
from planner.report.check.checked import Checked
from tests.files import answer_to, scenario_in

# As run_peft_qlora_deepspeed_stage3.sh of 5d602fdbf has them.
REST = (
    "--seed 100 --dataset_name smangrul/ultrachat-10k-chatml --chat_template_format chatml "
    "--add_special_tokens False --append_concat_token False --splits train,test --num_train_epochs 1 "
    "--packing True --bf16 True "
    "--output_dir out --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --learning_rate 1e-4"
)
MODEL = "--model_name_or_path meta-llama/Llama-3.2-1B --max_length 2048"
LORA = "--use_peft_lora True --lora_r 8 --lora_alpha 16 --lora_dropout 0.1 --lora_target_modules all-linear"
FOUR = "--use_4bit_quantization True --use_nested_quant True --bnb_4bit_compute_dtype bfloat16"
CHECKPOINTS = "--gradient_checkpointing True --use_reentrant True --use_flash_attn True"


def checked(arguments: str, launch: str = "accelerate launch --num_processes 4", gpus: int = 4) -> Checked:
    """The answer to a command."""
    return answer_to(f"{launch} train.py {arguments} {REST}", {"gpu": "h100-sxm", "gpus": gpus})


def job_of(arguments: str) -> Scenario:
    """The job of a command."""
    return scenario_in(checked(arguments))


def test_its_words_are_those_of_trl() -> None:
    """Names of its own, with what they mean there."""
    job = job_of(f"{MODEL} {LORA} {FOUR} {CHECKPOINTS}")
    recipe = job.recipe
    numerics = recipe.numerics
    assert (recipe.method, numerics.quantization, numerics.double_quant) == ("lora", "nf4", True)
    assert (recipe.attention, recipe.checkpoint_reentrant, recipe.batch.seq_len) == ("flash2", True, 2048)
    assert (recipe.batch.padding, job.stack.id, job.stack.loader_places) == ("packed", "trl", "kbit")


def test_weights_have_the_dtype_that_holds_packed_ones() -> None:
    """Else fp32, which is what is there of a base that is not packed, too."""
    stored = "--bnb_4bit_quant_storage_dtype bfloat16"
    for arguments, loaded, storage in (
        (f"{LORA} {FOUR} {stored}", "bf16", "bf16"),
        (f"{LORA} {FOUR}", "fp32", None),
        (f"{LORA} {stored}", "fp32", None),
        (LORA, "fp32", None),
    ):
        numerics = job_of(f"{MODEL} {arguments}").recipe.numerics
        assert (numerics.load_dtype, numerics.quant_storage) == (loaded, storage)


def test_its_defaults_are_not_trls() -> None:
    """Rank 64 on seven matrices of a layer, and checkpointing that is not reentrant."""
    recipe = job_of(f"{MODEL} --use_peft_lora True --gradient_checkpointing True").recipe
    assert recipe.adapter is not None
    assert (int(recipe.adapter.rank), recipe.adapter.dropout, len(recipe.adapter.targets)) == (64, 0.1, 7)
    assert (recipe.checkpoint_reentrant, job_of(MODEL).recipe.method) == (False, "full")


def test_scripts_of_2024_are_for_trl_of_their_time() -> None:
    """They shorten max_seq_length, which TRL had up to 0.19."""
    job = job_of(f"{MODEL.replace('max_length', 'max_seq_len')} {LORA}")
    assert (job.stack.id, job.recipe.batch.seq_len) == ("trl@0", 2048)


@pytest.mark.parametrize(
    ("arguments", "launch", "sentence"),
    [
        (f"{LORA} --use_unsloth True", "python", "Unsloth in this script"),
        (f"{LORA} --use_8bit_quantization True --use_4bit_quantization True", "python", "only one can be"),
        # It hands over a model that no map of devices has placed.
        (LORA, "python", "nn.DataParallel"),
    ],
)
def test_what_has_no_answer(arguments: str, launch: str, sentence: str) -> None:
    """Each is refused by its name."""
    found = checked(f"{MODEL} {arguments}", launch)
    assert found.subject is None
    assert sentence in (found.failure or "")
    assert found.exit_code in (ExitCode.USAGE, ExitCode.NOT_MODELLED)


def test_one_process_with_one_gpu_is_answered() -> None:
    """As run_peft.sh starts it."""
    found = checked(f"{MODEL} {LORA} {FOUR}", "python", 1)
    assert found.subject is not None, found.failure
    assert found.tool == "PEFT's examples/sft"
