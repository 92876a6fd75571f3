"""Training programs read from their text: the job that flags say, and refusals with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.api.checks import CheckJob, check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, NotModelledError, PlannerError
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import bare, written
from tests.jobs import resolved

TRAINER = """
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import *
from trl import PPOTrainer
name = "meta-llama/Llama-3.2-1B"
packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, quantization_config=packed)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.print_trainable_parameters()
def tokenized(batch):
    return tokenizer(batch["text"], truncation=True, max_length=512, padding="max_length")
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, num_train_epochs=1)
trainer = Trainer(model=model, args=args, train_dataset=rows.map(tokenized))
trainer.train()
"""
UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
from trl import SFTConfig, SFTTrainer
length = 1024 * 2
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/llama-3-8b", max_seq_length=length, dtype=None)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=16, use_gradient_checkpointing="unsloth")
trainer = SFTTrainer(
    model=model, tokenizer=tokenizer, train_dataset=data, max_seq_length=length, packing=False,
    args=SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, optim="adamw_8bit",
                   fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported(), max_steps=60),
)
trainer.train()
"""
TRL = """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
MODEL = "mistralai/Mistral-7B-v0.1"
def load(name, kernel="sdpa"):
    model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, attn_implementation=kernel)
    model.config.use_cache = False
    return model
def main():
    model = load(MODEL, kernel="flash_attention_2")
    trained = 0
    for _, weight in model.named_parameters():
        if weight.requires_grad:
            trained += weight.numel()
    args = SFTConfig(output_dir="out", per_device_train_batch_size=2, max_length=1024, packing=True)
    args.gradient_accumulation_steps = 8
    trainer = SFTTrainer(model=model, args=args, train_dataset=data, peft_config=LoraConfig(r=64))
    trainer.train()
    trainer.model.merge_and_unload()
if __name__ == "__main__":
    main()
"""


def program(folder: Path, text: str) -> Path:
    """A program with this text."""
    return written(folder, text, "train.py")


def read(path: Path, gpu: str = "rtx4090") -> ConfigFile:
    """What the text of a program says on a card."""
    return read_config_file(path, None, Beside(gpu=gpu))


def job(path: Path, gpu: str = "rtx4090") -> Scenario:
    """The job of a program on a card."""
    found = read(path, gpu)
    request = with_flags(found, from_flags({"gpu": gpu}))
    return bare(resolve(request))


def refusal(folder: Path, text: str) -> str:
    """Why a program is not answered."""
    with pytest.raises((NotModelledError, InputFileError)) as error:
        read(program(folder, text))
    return str(error.value)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "trainer": (
        TRAINER,
        {
            "stack": "hf-trainer@5", "model": "llama-3.2-1b", "method": "lora", "quantization": "nf4",
            "double_quant": True, "lora_rank": 16, "lora_targets": "q_proj;v_proj", "load_dtype": "bf16",
            "seq": 512, "padding": "max_length", "batch": 4, "epochs": 1, "precision": "bf16-mixed",
            "gradient_checkpointing": True, "lora_dropout": 0, "switches": "kbit_upcast=all",
        },
    ),
    "unsloth": (
        UNSLOTH,
        {
            "stack": "unsloth", "model": "unsloth/llama-3-8b", "method": "lora", "quantization": "nf4",
            "double_quant": True, "lora_rank": 32, "seq": 2048, "batch": 2, "grad_accum": 4,
            "optimizer": "adamw_8bit", "offload": "activations", "gradient_checkpointing": True,
        },
    ),
    "trl": (
        TRL,
        {
            "stack": "trl", "model": "mistral-7b-v0.1", "method": "lora", "lora_rank": 64, "lora_dropout": 0,
            "lora_targets": "peft-default", "load_dtype": "bf16", "seq": 1024, "padding": "packed",
            "batch": 2, "grad_accum": 8, "epochs": 3, "precision": "bf16-mixed", "attention": "flash2",
            "switches": "loads_tower=false",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_the_job_that_flags_say(name: str, tmp_path: Path) -> None:
    """Trainers of Transformers, TRL and Unsloth."""
    text, flags = CASES[name]
    assert job(program(tmp_path, text)) == bare(resolved({**flags, "gpu": "rtx4090"}))


def test_a_notebook_is_the_program_of_its_cells(tmp_path: Path) -> None:
    """Magics, shell lines and what goes on behind a backslash are left out, and prose is no code."""
    first = ["%%capture\n", "import os\n", "if True:\n", "    !pip install \\\n", "        unsloth\n"]
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# Title: not ( Python"]},
        {"cell_type": "code", "source": first},
        {"cell_type": "code", "source": UNSLOTH},
    ]
    notebook = written(tmp_path, json.dumps({"cells": cells, "nbformat": 4}), "train.ipynb")
    assert job(notebook) == job(program(tmp_path, UNSLOTH))
    cells[2]["source"] = UNSLOTH.replace("trainer.train()", "model.half()")
    notebook.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    with pytest.raises(NotModelledError, match=r"cell 2 line 12: model.half\(\)"):
        read(notebook)


def test_the_card_settles_what_the_program_asks_of_it(tmp_path: Path) -> None:
    """A T4 has no bf16: Unsloth's question is answered by the card, that of torch is left open there."""
    path = program(tmp_path, UNSLOTH)
    assert job(path, "t4").recipe.numerics.precision == "fp16-mixed"
    assert job(path).recipe.numerics.precision == "bf16-mixed"
    asks = TRAINER.replace("bf16=True", "bf16=torch.cuda.is_bf16_supported()")
    path = program(tmp_path, asks)
    assert job(path).recipe.numerics.precision == "bf16-mixed"
    with pytest.raises(InputFileError, match="'bf16' holds the placeholder"):
        read(path, "t4")


def test_a_condition_on_the_card_is_taken_as_the_card_is(tmp_path: Path) -> None:
    """A kernel and a dtype that are chosen by compute capability."""
    chosen = """if torch.cuda.get_device_capability()[0] >= 8:
    kernel, kind = "flash_attention_2", torch.bfloat16
else:
    kernel, kind = "sdpa", torch.float16
"""
    text = TRL.replace("def load", f"{chosen}def load")
    text = text.replace('kernel="flash_attention_2")\n', "kernel=kernel)\n").replace(
        "torch.bfloat16,", "kind,"
    )
    assert job(program(tmp_path, text)).recipe.attention == "flash2"
    old = job(program(tmp_path, text.replace("max_length=1024", "max_length=1024, fp16=True")), "t4")
    assert (old.recipe.attention, old.recipe.numerics.load_dtype) == ("sdpa", "fp16")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("trainer = T", "for p in model.parameters():\n    p.data = half(p)\ntrainer = T"), "15: for p"),
        (("trainer = T", "model.half()\ntrainer = T"), "line 15: model.half()"),
        (("trainer = T", "torch.set_default_dtype(torch.half)\ntrainer = T"), "15: torch.set_default"),
        (("trainer = T", "apply_liger_kernel_to_llama()\ntrainer = T"), "15: apply_liger"),
        (("trainer = T", "model.to(dtype=torch.half)\ntrainer = T"), "15: model.to"),
        (("trainer = T", "x = AutoModelForCausalLM.from_pretrained(name)\ntrainer = T"), "another model"),
        (("trainer = T", "import os; os.environ['ACCELERATE_USE_FSDP'] = '1'\ntrainer = T"), "variable"),
        (("trainer.train()", "with torch.autocast('cuda'):\n    trainer.train()"), "16: torch.autocast"),
        (("trainer = T", "model.model.layers.requires_grad_(False)\ntrainer = T"), "15: model.model"),
        (("trainer = T", "convert(model.model.layers[0])\ntrainer = T"), "15: convert"),
        (("trainer = T", "model.config = other\ntrainer = T"), "15: model.config"),
        (('"nf4", bnb', '"nf4", llm_int8_skip_modules=["lm_head"], bnb'), "llm_int8_skip_modules"),
        (("trainer = T", "convert(model)\ntrainer = T"), "line 15: convert(model)"),
        (("trainer = T", "torch.nn.Linear.forward = mine\ntrainer = T"), "changes in torch.nn.Linear"),
        (("trainer = Trainer(", "class Mine(Trainer):\n    x = 1\ntrainer = Mine("), "Mine changes in"),
        (("trainer = T", "if wide:\n    model = other()\ntrainer = T"), "whether this is done"),
        (("model=model, args", "model=model, optimizers=(mine, None), args"), "optimizers of Trainer"),
        (('task_type="CAUSAL_LM"', 'bias="all"'), "trained biases"),
        (('task_type="CAUSAL_LM"', "layers_to_transform=[1]"), "layers_to_transform"),
        (("LoraConfig(r=16", "PromptTuningConfig(r=16"), "not LoRA"),
        (("BitsAndBytesConfig(load", "AqlmConfig(load"), "how the model is quantised"),
        (("AutoModelForCausalLM.from_pre", "AutoModelForSeq2SeqLM.from_pre"), "not read from a program"),
        (("Trainer(model=", "PPOTrainer(model="), "PPOTrainer is not read"),
        (("model=model, args=args", "model=model, args=parsed"), "arguments of the trainer are not"),
        (("TrainingArguments(\"out\"", "TrainingArguments(**settings"), "not all arguments"),
    ],
)  # fmt: skip
def test_what_may_change_memory_is_refused_with_its_line(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    """Each changes what trains in a way that no text tells."""
    assert change[0] in TRAINER
    text = TRAINER.replace(*change)
    assert said in refusal(tmp_path, text)


def test_what_only_looks_on_is_passed_over(tmp_path: Path) -> None:
    """Settings of libraries, counts, tokens and files leave the job as it is."""
    harmless = """
os.environ["WANDB_DISABLED"] = "true"
torch.backends.cuda.matmul.allow_tf32 = True
model.config.use_cache = False
def count(model):
    total = 0
    for name, p in model.named_parameters():
        total += p.numel()
    print(total)
count(model)
rows = tokenizer("a", return_tensors="pt").to(model.device)
print(model.model.layers, model.config.to_dict())
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
try:
    import wandb
except ImportError:
    wandb = None
with open("notes.txt") as file:
    notes = file.read()
args.logging_steps = 5
"""
    text = TRAINER.replace("trainer = T", f"{harmless}trainer = T").replace(
        "import torch\n", "import os, torch\n"
    )
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))


def test_a_list_is_made_of_the_parts_of_a_text(tmp_path: Path) -> None:
    """As arguments name modules; what is made of something unknown is asked for."""
    made = "[each.strip() for each in {}.split(',') if each.strip()]"
    known, open_ = (
        TRAINER.replace('["q_proj", "v_proj"]', made.format(text))
        for text in ("'q_proj, v_proj,'", "settings.modules")
    )
    assert job(program(tmp_path, known)) == job(program(tmp_path, TRAINER))
    with pytest.raises(InputFileError, match="target_modules"):
        job(program(tmp_path, open_))


def test_defaults_of_variables_of_the_environment_count_and_are_told(tmp_path: Path) -> None:
    """What the program sets itself counts before them; launchers' variables, and others without a default,
    are known to a run alone.
    """
    start = "import os, torch\nos.environ['MINE'] = '2'\n"
    text = TRAINER.replace("import torch\n", start)
    batches = {"'BATCH', '3'": 3, "'MINE', '3'": 2, "'LOCAL_RANK', '3'": 0, "'BATCH'": 0}
    for asked, batch in batches.items():
        for call in ("os.getenv", "os.environ.get"):
            given = f"train_batch_size=int({call}({asked}))"
            path = program(tmp_path, text.replace("train_batch_size=4", given))
            if batch:
                assert job(path).recipe.batch.micro_batch == batch
                assert ("BATCH=3" in " ".join(read(path).notes)) == (batch == 3)
            else:
                with pytest.raises(InputFileError, match=r"--batch"):
                    read(path)


def test_a_value_that_is_not_in_the_text_is_asked_for(tmp_path: Path) -> None:
    """By a flag where one says it; what moves no memory may be open."""
    path = program(tmp_path, TRAINER.replace("train_batch_size=4", "train_batch_size=settings.batch"))
    with pytest.raises(InputFileError, match=r"per_device_train_batch_size.*settings\.batch.*--batch"):
        read(path)
    found = read_config_file(path, None, Beside(flags=frozenset({"batch"})))
    assert found.request.get("batch") is None or found.request.get("batch") == 8
    open_rate = TRAINER.replace("bf16=True", "bf16=True, learning_rate=settings.rate")
    assert job(program(tmp_path, open_rate)) == job(program(tmp_path, TRAINER))


def test_an_evaluation_that_may_be_is_counted(tmp_path: Path) -> None:
    """Whether there is a set for it is known to a run alone; which is told."""
    asked = TRAINER.replace("bf16=True", "bf16=True, eval_strategy='steps' if rows_to_ask else 'no'")
    found = read(program(tmp_path, asked))
    assert any("counted as if it evaluates" in note for note in found.notes)
    sure = TRAINER.replace("bf16=True", "bf16=True, eval_strategy='steps'")
    assert job(program(tmp_path, asked)) == job(program(tmp_path, sure))
    assert found.request.get("eval_batch") is not None


def test_settings_may_stand_in_a_class_or_a_text(tmp_path: Path) -> None:
    """As constants of a class, by its name or an instance, with an argument in place of one, or split."""
    settings = """
class Settings:
    batch: int = 4
    rank = 8
    targets = "q_proj,v_proj"
settings = Settings(rank=16)
settings.show()
"""
    text = TRAINER.replace("import torch", f"{settings}import torch", 1).replace(
        "size=4", "size=Settings.batch"
    )
    text = text.replace("r=16", "r=settings.rank").replace(
        '["q_proj", "v_proj"]', 'settings.targets.split(",")'
    )
    assert job(program(tmp_path, text)) == job(program(tmp_path, TRAINER))


def test_a_cell_that_is_no_python_is_left_out_unless_it_trains(tmp_path: Path) -> None:
    """Cells of a shell, and output that was pasted into one."""
    cells = [
        {"cell_type": "code", "source": text} for text in ("%%bash\nfor x in *; do", "| a | b |", TRAINER)
    ]
    notebook = written(tmp_path, json.dumps({"cells": cells}), "train.ipynb")
    assert job(notebook) == job(program(tmp_path, TRAINER))
    cells[1]["source"] = "trainer = Trainer("
    notebook.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    with pytest.raises(InputFileError, match="not Python 3"):
        read(notebook)


def test_unsloths_own_start_of_a_training_is_one(tmp_path: Path) -> None:
    """What stands behind it is no part of the job; rows that are padded are told."""
    text = UNSLOTH.replace(
        "trainer.train()", "from unsloth import unsloth_train\nunsloth_train(trainer)\nmodel.half()"
    )
    assert job(program(tmp_path, text)) == job(program(tmp_path, UNSLOTH))
    padded = read(program(tmp_path, UNSLOTH.replace("packing=False", "padding_free=False")))
    assert any(remark.origin.endswith("padding_free") for remark in padded.remarks)


def test_data_of_the_trainer_may_be_shown(tmp_path: Path) -> None:
    """As notebooks do between making the trainer and training."""
    shown = "tokenizer.decode(trainer.train_dataset[5]['input_ids'])\ntrainer.train()"
    shows = program(tmp_path, UNSLOTH.replace("trainer.train()", shown))
    assert job(shows) == job(program(tmp_path, UNSLOTH))


@pytest.mark.parametrize(
    ("loads", "tower"), [("AutoModelForCausalLM", False), ("AutoModelForImageTextToText", True)]
)
def test_the_class_that_loads_says_whether_the_tower_comes_along(
    loads: str, tower: bool, tmp_path: Path
) -> None:
    """TRL loads the class with the tower where it is given a name, 0.62 GiB more of Qwen3.5 4B."""
    text = (
        "from transformers import *\nfrom trl import SFTConfig, SFTTrainer\n"
        f'model = {loads}.from_pretrained("Qwen/Qwen3.5-4B", dtype="bfloat16")\n'
        'args = SFTConfig(output_dir="out", max_length=512, bf16=True)\n'
        "SFTTrainer(model=model, args=args, train_dataset=data).train()\n"
    )
    assert (job(program(tmp_path, text)).model.vision is not None) is tower


@pytest.mark.parametrize("named", ["[MistralDecoderLayer]", '["MistralDecoderLayer"]'])
def test_modules_that_a_program_has_gathered_whole(named: str, tmp_path: Path) -> None:
    """By ``set_z3_leaf_modules``; which modules must be known from the text."""
    imports = "from transformers.models.mistral.modeling_mistral import MistralDecoderLayer\n"
    call = f"deepspeed.utils.set_z3_leaf_modules(model, {named})"
    text = f"import deepspeed\n{imports}{TRL}".replace("    trained = 0", f"    {call}\n    trained = 0")
    said = read(program(tmp_path, text)).request.values["switches"].value
    assert "zero3_leaves=MistralDecoderLayer" in said
    with pytest.raises(NotModelledError, match="which modules of which model ZeRO-3 gathers whole"):
        read(program(tmp_path, text.replace(named, "[each for each in blocks]")))


def test_ends_among_unsloths_targets_are_trained_whole(tmp_path: Path) -> None:
    """They are moved to modules_to_save (unsloth models/llama.py get_peft_model)."""
    targets = 'r=32, target_modules=["q_proj", "lm_head", "embed_tokens"]'
    adapter = job(program(tmp_path, UNSLOTH.replace("r=32", targets))).recipe.adapter
    assert adapter is not None
    assert (adapter.targets, set(adapter.modules_to_save)) == (("q_proj",), {"lm_head", "embed_tokens"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no statement"),
        ("def (", "not Python 3: line 1"),
        ("x = 1\0", "not Python"),
        ("x = " + "(" * 500 + ")" * 500, "not Python"),
        ("x = " + "-" * 10_000 + "1", "not Python"),
        ("from trl import SFTTrainer\ndef f():\n    f()\nf()", "calls itself without end"),
        ("from trl import SFTTrainer\ndef f():\n    f()\n    f()\nf()", "calls itself without end"),
        ("import torch\nprint(torch.ones(1))", "it makes no trainer"),
        ("from transformers import HfArgumentParser\np = HfArgumentParser(A)", "its settings are arguments"),
    ],
)  # fmt: skip
def test_what_is_no_such_program_is_refused_in_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    """Text that is empty, no Python, without end, or trains otherwise."""
    path = program(tmp_path, text)
    with pytest.raises(PlannerError) as error:
        read(path)
    assert said in str(error.value) or "nested" in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_of_a_program_is_run(tmp_path: Path) -> None:
    """A program that would write a file when it runs, or is imported, is only read."""
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w').write('x')\n{TRAINER}"
    job(program(tmp_path, text))
    assert not mark.exists()


def test_a_check_of_a_program_says_how_to_start_it(tmp_path: Path) -> None:
    """With Python or torchrun; its keys are not edited."""
    path = program(tmp_path, TRAINER)
    answers = {
        gpu: check_job(CheckJob(str(path), CheckOptions()), from_flags({"gpu": gpu}))
        for gpu in ("rtx4090", "rtx4090:2")
    }
    assert answers["rtx4090"].launch == f"python {path}"
    assert answers["rtx4090:2"].launch == f"torchrun --nproc_per_node 2 {path}"
    small = check_job(CheckJob(str(path), CheckOptions()), from_flags({"gpu": "rtx4090", "batch": "64"}))
    assert small.fixes
    assert all(not fix.edits for fix in small.fixes)


@pytest.mark.parametrize("command", ["python {}", "accelerate launch --num_processes 1 {}", "torchrun {}"])
def test_a_command_without_arguments_is_the_program_that_it_runs(command: str, tmp_path: Path) -> None:
    """Also one that is called as a script of TRL is."""
    path = program(tmp_path, TRAINER).rename(tmp_path / "sft.py")
    checked = check_job(command_job(command.format(path), CheckOptions()), from_flags({"gpu": "rtx4090"}))
    assert checked.subject is not None, checked.failure
    assert bare(checked.subject.scenario) == job(path)
    gone = check_job(command_job("python gone.py", CheckOptions()), from_flags({"gpu": "rtx4090"}))
    assert "no command that starts a training" in gone.failure


@pytest.mark.parametrize(("text", "said"), [(TRL, True), (TRAINER, False)])
def test_the_class_of_a_model_is_said_where_the_trainer_would_load_another(
    text: str, said: bool, tmp_path: Path
) -> None:
    """TRL loads a vision tower by itself; nothing beside a program with the Trainer of Transformers does."""
    assert ("loads_tower" in str(read(program(tmp_path, text)))) is said
