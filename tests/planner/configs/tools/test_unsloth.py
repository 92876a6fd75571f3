"""Unsloth's script and its command: what an argument means, and where Unsloth itself stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.api.checks import check_job, check_jobs, command_job
from planner.api.files import CheckOptions
from planner.configs.read import read_config
from planner.configs.tools.unsloth.unsloth_cli import loaded_name
from planner.domain.scenario import Scenario
from planner.errors import ExitCode, PlannerError
from planner.intake.given.request import from_flags
from planner.report.check.checked import Checked
from tests.files import scenario_in, written

CARD = from_flags({"gpu": "a100-80-sxm"})
# The example in the docstring of unsloth-cli.py, without the dtype at which Unsloth stops.
EXAMPLE = (
    'python unsloth-cli.py --model_name "unsloth/llama-3-8b" --max_seq_length 8192 --load_in_4bit --r 64 '
    '--lora_alpha 32 --lora_dropout 0.1 --bias "none" --use_gradient_checkpointing "unsloth" '
    "--random_state 3407 --use_rslora --per_device_train_batch_size 4 --gradient_accumulation_steps 8 "
    '--warmup_steps 5 --max_steps 400 --learning_rate 2e-6 --logging_steps 1 --optim "adamw_8bit" '
    '--weight_decay 0.005 --lr_scheduler_type "linear" --seed 3407 --output_dir "outputs" '
    '--report_to "tensorboard" --save_model --save_path "model" --quantization "f16" --push_model '
    '--hub_path "hf/model" --hub_token "your_hf_token"'
)
TEXT = {
    "model": "unsloth/llama-3-8b",
    "data": {"dataset": "a/b"},
    "training": {"training_type": "lora", "load_in_4bit": False},
    "lora": {"lora_r": 8},
}


def checked(command: str) -> Checked:
    """The answer to a command."""
    return check_job(command_job(command, CheckOptions()), CARD)


def scenario(command: str) -> Scenario:
    """The job of a command that is answered."""
    return scenario_in(checked(command))


def numbers(job: Scenario) -> tuple[Any, ...]:
    """What a command says about the recipe, in short."""
    recipe, batch = job.recipe, job.recipe.batch
    adapter = None if recipe.adapter is None else (recipe.adapter.rank, recipe.adapter.dropout)
    sizes = (batch.seq_len, int(batch.micro_batch), int(batch.grad_accum))
    return recipe.numerics.quantization, adapter, sizes, recipe.optimizer, batch.padding, recipe.offload


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (EXAMPLE, ("nf4", (64, 0.1), (8192, 4, 8), "adamw_8bit", "longest", "activations")),
        (
            "python unsloth-cli.py",
            ("none", (16, 0.0), (2048, 2, 4), "adamw_8bit", "longest", "activations"),
        ),
        (
            "python unsloth-cli.py --max_seq_length 256 --optim adamw_torch --packing --load_in_4bit",
            ("nf4", (16, 0.0), (256, 2, 4), "adamw_torch", "packed", "none"),
        ),
        (
            "torchrun --nproc_per_node 1 unsloth-cli.py --raw_text_file a.txt --stride 64 --dtype bfloat16",
            ("none", (16, 0.0), (2048, 2, 4), "adamw_8bit", "longest", "activations"),
        ),
        (
            "unsloth train --model unsloth/llama-3-8b --dataset a/b --lora-r 8 --no-load-in-4bit --packing",
            ("none", (8, 0.0), (2048, 2, 4), "adamw_8bit", "packed", "activations"),
        ),
        (
            "unsloth train --model gpt2 --max-seq-length 512 --training-type full --gradient-checkpointing 0",
            ("none", None, (512, 2, 4), "adamw_8bit", "longest", "none"),
        ),
    ],
)
def test_a_command_is_the_job_of_its_arguments(command: str, meant: tuple[Any, ...]) -> None:
    """Value by value, with the defaults of the script and of ``unsloth_cli/config.py``."""
    job = scenario(command)
    assert numbers(job) == meant
    assert job.stack.id == "unsloth"


def test_a_shell_script_is_the_command_in_it(tmp_path: Path) -> None:
    """And says nothing of a guess, because the script is Unsloth's own."""
    script = written(tmp_path, f"R=64\n{EXAMPLE.replace('--r 64', '--r $R')}\n", "run.sh")
    (job,) = check_jobs([str(script)], CheckOptions(), ())
    found = check_job(job, CARD)
    assert found.subject is not None, found.failure
    assert numbers(found.subject.scenario) == numbers(scenario(EXAMPLE))
    assert not any("taken to hand" in text for _, text in found.remarks)


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        ("--dtype None", ExitCode.USAGE, "takes 'None' for no dtype"),
        ("--dtype float16", ExitCode.USAGE, "computes in bfloat16 wherever the card can"),
        ("--use_gradient_checkpointing True", ExitCode.USAGE, "only 'unsloth' is taken"),
        ("--lora_target q_proj", ExitCode.USAGE, "lora_target: Unsloth stops here: it is no argument"),
        ("--bias all", ExitCode.NOT_MODELLED, "trained biases"),
        ("--loftq_config {}", ExitCode.NOT_MODELLED, "LoftQ in Unsloth is not modelled"),
        ("--use_dora", ExitCode.NOT_MODELLED, "Nobody read how this stack computes DoRA"),
        ("--model_name Qwen/Qwen2-VL-7B-Instruct", ExitCode.NOT_MODELLED, "models that see"),
        ("--optim sophia", ExitCode.NOT_MODELLED, "optimizer 'sophia' is not modelled"),
    ],
)
def test_where_the_script_stops_or_is_not_modelled(said: str, code: ExitCode, sentence: str) -> None:
    """unsloth 2026.10.9 models/loader.py:1369, unsloth_zoo training_utils.py:340, models/rl.py:2657."""
    found = checked(f"python unsloth-cli.py {said}")
    assert found.exit_code == code
    assert sentence in found.failure
    assert found.failure.endswith("[refused-by-its-tool]") == (code == ExitCode.USAGE)


@pytest.mark.parametrize(
    ("section", "value", "sentence"),
    [
        ("training", {"batch": 2}, "training.batch: unsloth train stops at keys that it does not know"),
        ("training", {"training_type": "qlora"}, "'training.training_type' must be lora or full"),
        ("training", {"gradient_checkpointing": "maybe"}, "must be unsloth, true or none"),
        ("lora", {"lora_r": 8, "use_loftq": True}, "LoftQ in Unsloth is not modelled"),
        ("inference", {"top_k": 1}, "train.yaml:inference: unsloth train stops"),
    ],
)
def test_keys_of_a_file_that_are_refused(tmp_path: Path, section: str, value: object, sentence: str) -> None:
    """Its classes forbid others (unsloth_cli/config.py ``extra = "forbid"``)."""
    path = written(tmp_path, yaml.safe_dump(TEXT | {section: value}))
    with pytest.raises(PlannerError, match=sentence):
        read_config(path)


@pytest.mark.parametrize(
    ("word", "checkpoints", "offload"),
    [
        ("unsloth", True, "activations"),
        ("true", True, "none"),
        (False, False, "none"),
        ("", True, "activations"),
    ],
)
def test_the_words_for_checkpointing(tmp_path: Path, word: object, checkpoints: bool, offload: str) -> None:
    """YAML's booleans count as well."""
    path = tmp_path / "train.yaml"
    training = {"max_seq_length": 512, "gradient_checkpointing": word}
    path.write_text(yaml.safe_dump(TEXT | {"training": training}), encoding="utf-8")
    found = read_config(path)
    assert (found.value("gradient_checkpointing"), found.value("offload")) == (checkpoints, offload)
    assert (found.value("quantization"), found.value("double_quant")) == ("nf4", True)


@pytest.mark.parametrize(
    ("name", "four_bits", "loaded"),
    [
        ("meta-llama/Llama-3.1-8B", True, "unsloth/Llama-3.1-8B-unsloth-bnb-4bit"),
        ("unsloth/llama-3.1-8b-bnb-4bit", True, "unsloth/Llama-3.1-8B-unsloth-bnb-4bit"),
        ("unsloth/llama-3-8b", True, "unsloth/llama-3-8b"),
        ("Qwen/Qwen3-32B", True, "Qwen/Qwen3-32B"),
        ("someone/Llama-3.1-8B", True, "someone/Llama-3.1-8B"),
        ("unsloth/llama-3-8b-bnb-4bit", False, "unsloth/llama-3-8b"),
        ("unsloth/phi-4-unsloth-bnb-4bit", False, "unsloth/phi-4"),
        ("./models/Qwen3-8B", True, "./models/Qwen3-8B"),
    ],
)
def test_the_checkpoint_that_is_loaded(name: str, four_bits: bool, loaded: str) -> None:
    """Another than is named, where Unsloth has one in 4 bits of which parts are whole, or 4 bits are off."""
    assert loaded_name(name, four_bits=four_bits) == loaded


def test_a_checkpoint_with_whole_parts_is_counted_as_it_is_stored() -> None:
    """phi-4's ``config.json`` was read: more than the same model packed throughout."""
    command = "python unsloth-cli.py --load_in_4bit --model_name {}"
    partly, named = (checked(command.format(each)) for each in ("unsloth/phi-4", "microsoft/phi-4"))
    assert partly.subject is not None
    assert named.subject is not None
    assert partly.subject.prediction.memory == named.subject.prediction.memory
    assert any("Unsloth loads unsloth/phi-4-unsloth-bnb-4bit" in text for _, text in partly.remarks)
