"""Programs that parse arguments: values of a command line, else the defaults of their text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import CheckJob, check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, NotModelledError
from planner.intake.given.config_file import ConfigFile, read_config_file
from planner.intake.given.request import from_flags
from tests.files import answer_to, filled, written
from tests.jobs import resolved
from tests.planner.configs.programs.test_program import TRAINER, bare, program

WITH_TRL = """
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config
def main(script_args, training_args, model_args):
    kind = model_args.dtype if model_args.dtype in ["auto", None] else getattr(torch, model_args.dtype)
    kwargs = dict(attn_implementation=model_args.attn_implementation, dtype=kind)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **kwargs)
    last = None
    if os.path.isdir(training_args.output_dir):
        last = newest(training_args.output_dir)
    trainer = SFTTrainer(
        model=model, args=training_args, peft_config=get_peft_config(model_args),
        train_dataset=load_dataset(script_args.dataset_name),
    )
    if trainer.accelerator.is_main_process:
        trainer.model.print_trainable_parameters()
    trainer.train(resume_from_checkpoint=last)
if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script, training, model = parser.parse_args_and_config()
    main(script, training, model)
"""
WITH_CLASSES = """
import os
import sys
from dataclasses import dataclass, field
from typing import List, Optional
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer
@dataclass
class Base:
    model_id: str
    cache: Optional[str] = None
@dataclass
class Which(Base):
    lora: bool = field(default=True, metadata={"help": "adapters"})
    rank: int = field(default=8)
    targets: List[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    kind: Optional[str] = "bfloat16"
    def __post_init__(self):
        if self.rank > 100:
            self.rank = 100
@dataclass
class How(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
    model_max_length: int = 512
parser = HfArgumentParser((Which, How))
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    which, how = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
else:
    which, how = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(which.model_id, torch_dtype=getattr(torch, which.kind))
if which.lora:
    model = get_peft_model(model, LoraConfig(r=which.rank, target_modules=which.targets))
rows = tokenizer(text, truncation=True, max_length=how.model_max_length)
trainer = Trainer(model=model, args=how, train_dataset=rows)
trainer.train()
"""
WITH_ARGPARSE = """
import argparse
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-name", "-m", type=str, required=True)
    group = parser.add_argument_group("training")
    group.add_argument("-b", "--batch", type=int, default="4", help="per card")
    group.add_argument("--rank", type=int, choices=[8, 16], default=8)
    group.add_argument("--packing", action="store_true")
    parser.set_defaults(packing=False, rank=8)
    group.add_argument("--checkpoints", type=str2bool, default=True)
    return parser.parse_args()
args = parsed()
config = SFTConfig(
    output_dir="out", per_device_train_batch_size=args.batch, packing=args.packing, max_length=1024,
    gradient_checkpointing=args.checkpoints,
)
model = AutoModelForCausalLM.from_pretrained(args.model_name, dtype="bfloat16")
trainer = SFTTrainer(model, config, peft_config=LoraConfig(r=args.rank), train_dataset=rows)
trainer.train()
"""
WITH_FIRE = """
import fire
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
def train(base_model: str = "", batch: int = 4, targets=("q_proj", "v_proj"), steps=2, cutoff_len: int = 256):
    model = AutoModelForCausalLM.from_pretrained(base_model, dtype="bfloat16")
    model = get_peft_model(model, LoraConfig(r=8, target_modules=targets))
    rows = tokenizer(text, truncation=True, max_length=cutoff_len)
    args = TrainingArguments("out", per_device_train_batch_size=batch, gradient_accumulation_steps=steps)
    Trainer(model=model, args=args, train_dataset=rows).train()
if __name__ == "__main__":
    fire.Fire(train)
"""
LLAMA = "meta-llama/Llama-3.2-1B"


def read(path: Path, words: Sequence[str] | None) -> ConfigFile:
    """What a program says with these words behind it."""
    given = None if words is None else tuple(words)
    return read_config_file(path, None, Beside(gpu="rtx4090", words=given))


def job(path: Path, words: Sequence[str]) -> Scenario:
    """The job of a program with these words behind it."""
    return bare(filled(read(path, words), {"gpu": "rtx4090"}))


def said(flags: dict[str, Any]) -> Scenario:
    """The job that flags say."""
    given = {name: value for name, value in flags.items() if value is not None}
    return bare(resolved({"gpu": "rtx4090", "model": "llama-3.2-1b", **given}))


TRL_JOB = {
    "stack": "trl", "method": "lora", "lora_rank": 32, "lora_dropout": 0.05, "lora_targets": "q_proj;v_proj",
    "load_dtype": "bf16", "attention": "flash2", "batch": 2, "grad_accum": 4, "epochs": 3.0, "seq": 2048,
    "gradient_checkpointing": False, "precision": "bf16-mixed", "padding": "packed",
    "switches": "loads_tower=false",
}  # fmt: skip
TRL_WORDS = (
    f"--model_name_or_path {LLAMA} --dtype bfloat16 --attn_implementation flash_attention_2 --use_peft "
    "--lora_r 32 --lora_target_modules q_proj v_proj --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps=4 --gradient_checkpointing False --max_length 2048 --packing "
    "--dataset_name notes --output_dir out"
)
HF_JOB = {
    "stack": "hf-trainer@5", "method": "lora", "lora_rank": 8, "lora_targets": "q_proj;v_proj", "seq": 512,
    "load_dtype": "bf16", "batch": 2, "precision": "bf16-mixed", "optimizer": "adamw_torch",
    "lora_dropout": 0, "epochs": 3.0,
}  # fmt: skip
OTHERS = "--rank 200 --model_max_length 128 --targets o_proj k_proj --optim adafactor --kind float16"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "trl": (WITH_TRL, TRL_WORDS, TRL_JOB),
    "defaults": (
        WITH_CLASSES, f"--model_id {LLAMA} --per_device_train_batch_size 2 --bf16 --output_dir o", HF_JOB,
    ),
    "classes": (
        WITH_CLASSES,
        f"--model-id {LLAMA} --per_device_train_batch_size 2 --bf16 True {OTHERS}",
        {**HF_JOB, "lora_rank": 100, "seq": 128, "lora_targets": "o_proj;k_proj", "optimizer": "adafactor",
         "load_dtype": "fp16"},
    ),
    "without": (
        WITH_CLASSES,
        f"--model_id={LLAMA} --per_device_train_batch_size 2 --bf16 True --no_lora",
        {name: value for name, value in HF_JOB.items() if "lora" not in name} | {"method": "full"},
    ),
    "argparse": (
        WITH_ARGPARSE,
        f"-m {LLAMA} --rank 16 --pack --checkpoints no",
        {**TRL_JOB, "lora_rank": 16, "lora_dropout": 0, "lora_targets": "peft-default", "seq": 1024,
         "batch": 4, "grad_accum": 1, "attention": "sdpa"},
    ),
    "fire": (
        WITH_FIRE,
        f"--base_model '{LLAMA}' --targets [q_proj,k_proj] --batch=2",
        {**HF_JOB, "batch": 2, "grad_accum": 2, "seq": 256, "lora_targets": "q_proj;k_proj",
         "optimizer": None, "precision": "bf16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_words_behind_a_program_are_its_arguments(name: str, tmp_path: Path) -> None:
    """Of TRL's parser, of dataclasses, of argparse and of fire."""
    text, words, flags = CASES[name]
    assert job(program(tmp_path, text), words.replace("'", "").split()) == said(flags)


def test_a_file_of_arguments_is_read_and_words_win_over_it(tmp_path: Path) -> None:
    """YAML of TrlParser, and JSON alone behind a program of HfArgumentParser."""
    words = TRL_WORDS.split()
    table = {"per_device_train_batch_size": 16, "use_peft": True, "lora_r": 32, "packing": True}
    config = written(tmp_path, json.dumps({**table, "env": {"WANDB_MODE": "off"}}), "c.yaml")
    left = [word for word in words if word not in ("--use_peft", "--packing", "--lora_r", "32")]
    path = program(tmp_path, WITH_TRL)
    assert job(path, [*left, "--config", str(config)]) == said(TRL_JOB)
    config.write_text(json.dumps({"env": {"ACCELERATE_USE_FSDP": "1"}}), encoding="utf-8")
    with pytest.raises(NotModelledError, match="what this variable changes"):
        read(path, ["--config", str(config)])
    arguments = tmp_path / "a.json"
    table = {"model_id": LLAMA, "per_device_train_batch_size": 2, "bf16": True, "output_dir": "o", "rank": 16}
    arguments.write_text(json.dumps(table), encoding="utf-8")
    assert job(program(tmp_path, WITH_CLASSES), [str(arguments)]) == said({**HF_JOB, "lora_rank": 16})


def test_what_neither_a_command_nor_the_text_gives_is_asked_for_by_name(tmp_path: Path) -> None:
    """Without a command the flag answers; with one, the program stops at what it lacks."""
    path = program(tmp_path, WITH_ARGPARSE)
    with pytest.raises(
        InputFileError, match=r"model_name_or_path.*--model-name of its command line.*--model"
    ):
        read(path, None)
    found = read_config_file(path, None, Beside(flags=frozenset({"model"})))
    assert found.request.get("lora_rank") == 8
    with pytest.raises(InputFileError, match="stops without its argument --model-name"):
        read(path, ["--rank", "16"])


@pytest.mark.parametrize(
    ("text", "words", "stops"),
    [
        (WITH_ARGPARSE, "-m x --rank 9", "invalid choice"),
        (WITH_ARGPARSE, "-m x --batch many", "invalid int value"),
        (WITH_ARGPARSE, "-m x --lr 1", "'--lr', which is none of its arguments"),
        (WITH_ARGPARSE, "-m x --batch", "expected one argument"),
        (WITH_CLASSES, "--model_id x --rank many", "invalid int value"),
        (WITH_CLASSES, "--model_id x --lora perhaps", "neither true nor false"),
        (WITH_CLASSES, "--model_id x $MORE", "may hold several arguments"),
    ],
)  # fmt: skip
def test_words_at_which_the_program_stops_are_told(text: str, words: str, stops: str, tmp_path: Path) -> None:
    """As its parser does, in one sentence."""
    with pytest.raises(Exception, match=stops) as error:
        job(program(tmp_path, text), words.split())
    assert "\n" not in str(error.value)


def test_a_variable_of_a_shell_is_a_value_that_is_asked_for(tmp_path: Path) -> None:
    """Where it moves memory; where it does not, it stays open."""
    path = program(tmp_path, WITH_ARGPARSE)
    with pytest.raises(InputFileError, match=r"per_device_train_batch_size.*BATCH.*--batch"):
        read(path, ["-m", LLAMA, "--batch", "$BATCH"])
    read(program(tmp_path, WITH_TRL), [*TRL_WORDS.split(), "--learning_rate", "$RATE"])


def test_truth_is_what_the_type_makes_of_a_word(tmp_path: Path) -> None:
    """To ``type=bool`` of Python any word is true."""
    words = ["-m", LLAMA, "--checkpoints", "False"]
    as_bool = program(tmp_path, WITH_ARGPARSE.replace("type=str2bool", "type=bool"))
    assert job(as_bool, words).recipe.gradient_checkpointing
    of_text = program(tmp_path, WITH_ARGPARSE)
    assert not job(of_text, words).recipe.gradient_checkpointing
    open_ = program(tmp_path, WITH_ARGPARSE.replace("type=str2bool", "type=chosen"))
    with pytest.raises(InputFileError, match="gradient_checkpointing"):
        read(open_, words)


def test_tables_of_settings_are_followed(tmp_path: Path) -> None:
    """Items, updates and what a branch that is not known may put into them."""
    setup = """kwargs = dict(dtype=kind)
    kwargs["quantization_config"] = transformers.BitsAndBytesConfig(load_in_8bit=True)
    kwargs.update(attn_implementation=kwargs.pop("attention", model_args.attn_implementation))
"""
    text = WITH_TRL.replace("import torch\n", "import torch, transformers\n", 1)
    text = text.replace(
        "kwargs = dict(attn_implementation=model_args.attn_implementation, dtype=kind)\n", setup
    )
    words = TRL_WORDS.split()
    recipe = job(program(tmp_path, text), words).recipe
    assert (recipe.numerics.quantization, recipe.attention) == ("int8", "flash2")
    unsure = text.replace('    kwargs["quant', '    if os.path.exists("x"):\n        kwargs["quant')
    assert "how the model is quantised" in refusal_of(tmp_path, unsure, words)
    changed = WITH_TRL.replace(
        "    last = None\n", "    if newest():\n        training_args.max_length = 9\n    last = None\n"
    )
    with pytest.raises(InputFileError, match="max_length"):
        read(program(tmp_path, changed), words)


def refusal_of(folder: Path, text: str, words: Sequence[str]) -> str:
    """Why a program with these words is not answered."""
    with pytest.raises((NotModelledError, InputFileError)) as error:
        read(program(folder, text), words)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("HfArgumentParser((Which, How))", "HfArgumentParser(chosen)"), "its parser is not read"),
        (("class How(tr", "class Mine(HfArgumentParser):\n    x = 1\np = Mine(Which)\nclass How(tr"), "Mine"),
        (("dataclasses()", "dataclasses(args=words())"), "which arguments are parsed here"),
        (("parser = Hf", "setattr(Which, chosen(), 1)\nparser = Hf"), "which attribute this sets"),
    ],
)  # fmt: skip
def test_a_parser_that_is_not_known_is_refused(change: tuple[str, str], why: str, tmp_path: Path) -> None:
    """With its line, where the text does not say which arguments there are."""
    assert change[0] in WITH_CLASSES
    assert (
        why in refusal_of(tmp_path, WITH_CLASSES.replace(*change), ["--model_id", LLAMA, "--bf16"]) or not why
    )


def checked(command: str, tool: str | None = None, **flags: Any) -> Any:
    """The answer for a command."""
    return answer_to(command, {"gpu": "rtx4090", **flags}, tool=tool)


def test_the_answer_says_which_values_come_from_where(tmp_path: Path) -> None:
    """From the command line, and from the defaults of the program's own arguments."""
    path = program(tmp_path, WITH_ARGPARSE)
    answer = checked(f"python {path} -m {LLAMA} --batch 2")
    remarks = dict(answer.remarks)
    assert remarks["command line"] == f"says batch=2, model_name={LLAMA}"
    assert remarks[str(path)] == "defaults of its arguments count: checkpoints=True, rank=8"
    alone = check_job(CheckJob(str(path), CheckOptions()), from_flags({"gpu": "rtx4090", "model": LLAMA}))
    assert "batch=4" in dict(alone.remarks)[str(path)]


def test_a_script_of_commands_starts_programs_with_their_arguments(tmp_path: Path) -> None:
    """With the launcher's file; other programs that stand there train nothing."""
    program(tmp_path, WITH_ARGPARSE)
    (tmp_path / "make_data.py").write_text("print(1)", encoding="utf-8")
    (tmp_path / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n",
        encoding="utf-8",
    )
    script = written(
        tmp_path,
        f"python make_data.py --out x\naccelerate launch --config_file zero.yaml train.py -m {LLAMA} -b 3\n",
        "run.sh",
    )
    answer = check_job(CheckJob(str(script), CheckOptions()), from_flags({"gpu": "rtx4090:2"}), advise=False)
    assert answer.subject is not None, answer.failure
    recipe = answer.subject.scenario.recipe
    assert (recipe.sharding.name, recipe.batch.micro_batch, recipe.adapter.rank) == ("zero3", 3, 8)


def test_a_script_called_as_one_of_trl_is_read_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the text is here: it may be changed.  ``--tool trl`` takes its arguments' names alone."""
    monkeypatch.chdir(tmp_path)
    command = f"python sft.py {TRL_WORDS}"
    named = checked(command, seq=2048, switches="loads_tower=false")
    Path("sft.py").write_text(WITH_TRL, encoding="utf-8")
    assert bare(checked(command).subject.scenario) == bare(named.subject.scenario)
    Path("sft.py").write_text(
        WITH_TRL.replace("    last = None\n", "    model.half()\n    last = None\n"), encoding="utf-8"
    )
    refused = checked(command)
    assert "model.half()" in refused.failure
    assert "--tool trl" in refused.failure
    assert checked(command, "trl").subject is not None


def test_a_class_of_arguments_may_have_the_name_of_its_base(tmp_path: Path) -> None:
    """It is derived from what had the name before."""
    own = "class TrainingArguments(TrainingArguments):\n    bits: int = 16\n"
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        f"from dataclasses import dataclass\n@dataclass\n{own}"
        + TRAINER.replace(
            'args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, num_train_epochs=1)',
            "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()",
        )
    )
    path = program(tmp_path, text)
    command = f"python {path} --output_dir out --per_device_train_batch_size 4 --bf16 True --bits 16"
    given = from_flags({"gpu": "rtx4090"})
    found = check_job(command_job(f"{command} --num_train_epochs 1", CheckOptions()), given)
    assert found.subject is not None, found.failure
    assert found.subject.scenario.recipe.batch.micro_batch == 4


WORLD = """
import os
world = int(os.environ.get("WORLD_SIZE", 1))
steps = 128 // 4
if world != 1:
    steps = steps // world
"""


@pytest.mark.parametrize(
    ("launch", "gpu", "steps"),
    [
        ("torchrun --nproc_per_node 4", "rtx4090:4", 8),
        ("torchrun --nproc_per_node 4", "rtx4090:2", 16),
        ("accelerate launch", "rtx4090:8", 4),
        ("python", "rtx4090", 32),
    ],
)
def test_a_program_knows_how_many_processes_there_are(
    launch: str, gpu: str, steps: int, tmp_path: Path
) -> None:
    """As the flags say, else as its launcher does."""
    text = WORLD + TRAINER.replace("num_train_epochs=1", "gradient_accumulation_steps=steps")
    words = f"{launch} {program(tmp_path, text)} --x 1"
    found = check_job(command_job(words, CheckOptions()), from_flags({"gpu": gpu}))
    assert found.subject is not None, found.failure
    assert found.subject.scenario.recipe.batch.grad_accum == steps


@pytest.mark.parametrize(
    ("fields", "length"),
    [("model_max_length: int = 512", 256), ("model_max_length: int = 512\n    block_size: int = 64", None)],
)
def test_a_length_that_the_command_line_has_a_name_for_counts(
    fields: str, length: int | None, tmp_path: Path
) -> None:
    """Where the text has no call that cuts samples; with two names it is asked for."""
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        f"class Own(TrainingArguments):\n    {fields}\n"
        + TRAINER.replace('args = TrainingArguments("out", ', "args, = HfArgumentParser(Own).parse_args_into")
        .replace("per_device_train_batch_size=4, bf16=True, num_train_epochs=1)", "_dataclasses()")
        .replace(', truncation=True, max_length=512, padding="max_length"', "")
    )
    words = "--output_dir out --per_device_train_batch_size 4 --bf16 True --num_train_epochs 1"
    command = f"python {program(tmp_path, text)} {words} --model_max_length 256"
    found = check_job(command_job(command, CheckOptions()), from_flags({"gpu": "rtx4090"}))
    if length is None:
        assert "the length is the script's" in found.failure
    else:
        assert found.subject is not None, found.failure
        assert found.subject.scenario.recipe.batch.seq_len == length
