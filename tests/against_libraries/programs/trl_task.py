"""A script of TRL as its documentation has them: ``trl_task.py TASK [lora]``.

Words such as ``max_length=256`` are of its configuration.  So are ``model``, ``dtype``, ``lora_rank``,
``reward_model``, ``teacher_model``, ``prompt``, its words where completions are generated, and
``completion``, its words behind a prompt of one word.
"""

import importlib
import json
import sys
from typing import Any

import trl
from datasets import Dataset, load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

NAMES = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "orpo": "ORPO", "reward": "Reward", "cpo": "CPO",
    "tpo": "TPO", "gkd": "GKD", "grpo": "GRPO", "rloo": "RLOO", "gmpo": "GMPO", "online_dpo": "OnlineDPO",
    "sdft": "SDFT", "sdpo": "SDPO", "distillation": "Distillation"}  # fmt: skip
COLUMNS = {"sft": ["text"], "reward": ["chosen", "rejected"], "kto": ["prompt", "completion", "label"]}
SAYS = {"num_generations": 4, "max_completion_length": 16}
# What each that generates is told, and whether it takes rewards.
GENERATES = {"grpo": (SAYS, True), "rloo": (SAYS, True), "gmpo": (SAYS, True), "sdpo": (SAYS, True),
    "sdft": (SAYS, False), "online_dpo": ({"max_new_tokens": 16}, True),
    "distillation": ({"max_completion_length": 16}, False)}  # fmt: skip
# Trainers that take no name of a model.
LOADED = ("orpo", "cpo")


def found(task: str, kind: str) -> Any:
    """A class of TRL itself, or of its experiments, which is where some of them went to or came from."""
    name = f"{NAMES[task]}{kind}"
    try:
        return getattr(trl, name)
    except (AttributeError, ImportError):
        return getattr(importlib.import_module(f"trl.experimental.{task}"), name)


def rewards(completions: list[str], **_: Any) -> list[float]:
    """One number for each completion."""
    return [float(number) for number in range(len(completions))]


def value_of(text: str) -> Any:
    """A number, a truth, or the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


task = sys.argv[1]
model: Any = "Qwen/Qwen2.5-0.5B"
rows = load_dataset("a-data-set-of-the-hub", split="train")
tokenizer = AutoTokenizer.from_pretrained(model)
own, rewarded = GENERATES.get(task, ({"max_length": 512}, False))
said: dict[str, Any] = {"output_dir": "out", "bf16": True, "report_to": "none", **own}
said |= {"per_device_train_batch_size": 4 if task in GENERATES else 2}
said |= {name: value_of(text) for name, sign, text in (word.partition("=") for word in sys.argv) if sign}
if "dtype" in said:
    said["model_init_kwargs"] = {"dtype": said.pop("dtype")}
model, rank, teacher = said.pop("model", model), said.pop("lora_rank", 8), said.pop("teacher_model", model)
words = rows[0]["text"].split() * 100
options: dict[str, Any] = {}
if task in GENERATES:
    text = " ".join(words[: said.pop("prompt", 64)])
    row = {"prompt": text, "privileged_context": text} if task in ("sdft", "sdpo") else {"prompt": text}
    rows = Dataset.from_list([row] * 256)
    reward_model = said.pop("reward_model", None)
    options = {"reward_funcs": reward_model or rewards} if rewarded else {}
elif "completion" in said:
    rows = Dataset.from_list([{"prompt": "w0", "chosen": " ".join(words[: said.pop("completion")])}] * 256)
if task == "gkd":
    sides = {"user": "prompt", "assistant": "chosen"}
    rows = Dataset.from_list(
        [{"messages": [{"role": who, "content": row[what]} for who, what in sides.items()]} for row in rows]
    )
elif task not in GENERATES:
    rows = rows.select_columns(COLUMNS.get(task, ["prompt", "chosen", "rejected"]))
if task == "tpo":
    rows = rows.add_column("reference", rows["chosen"])
if task in ("gkd", "distillation"):
    options["teacher_model"] = teacher
if task in LOADED:
    model = AutoModelForCausalLM.from_pretrained(model)
adapter = LoraConfig(r=rank, target_modules="all-linear") if "lora" in sys.argv else None
found(task, "Trainer")(
    model,
    args=found(task, "Config")(**said),
    train_dataset=rows,
    processing_class=tokenizer,
    **options,
    **({"peft_config": adapter} if adapter else {}),
).train()
