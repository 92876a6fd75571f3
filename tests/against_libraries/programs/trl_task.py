"""A script of TRL as its documentation has them: ``trl_task.py TASK [lora]``.

For tasks that generate, the last argument may be JSON: of their configuration, of ``prompt``, the tokens of
one, and of ``reward_model``.
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


task = sys.argv[1]
model: Any = "Qwen/Qwen2.5-0.5B"
rows = load_dataset("a-data-set-of-the-hub", split="train")
tokenizer = AutoTokenizer.from_pretrained(model)
said: dict[str, Any] = {"output_dir": "out", "bf16": True, "report_to": "none"}
options: dict[str, Any] = {}
if task in GENERATES:
    own, rewarded = GENERATES[task]
    said |= {"per_device_train_batch_size": 4, **own}
    said |= json.loads(sys.argv[-1]) if sys.argv[-1][0] == "{" else {}
    words, model = rows[0]["prompt"].split(), said.pop("model", model)
    text = " ".join((words * 100)[: said.pop("prompt", 64)])
    row = {"prompt": text, "privileged_context": text} if task in ("sdft", "sdpo") else {"prompt": text}
    rows = Dataset.from_list([row] * 256)
    reward_model = said.pop("reward_model", None)
    options = {"reward_funcs": reward_model or rewards} if rewarded else {}
else:
    said |= {"per_device_train_batch_size": 2, "max_length": 512}
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
    options["teacher_model"] = model
if task in LOADED:
    model = AutoModelForCausalLM.from_pretrained(model)
adapter = LoraConfig(r=8, target_modules="all-linear") if "lora" in sys.argv else None
found(task, "Trainer")(
    model,
    args=found(task, "Config")(**said),
    train_dataset=rows,
    processing_class=tokenizer,
    **options,
    **({"peft_config": adapter} if adapter else {}),
).train()
