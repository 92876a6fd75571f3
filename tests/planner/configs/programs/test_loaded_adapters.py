"""Adapters that a program loads from a folder, merges, or hands to a trainer of preferences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file
from tests.planner.configs.programs.test_program import TRAINER, UNSLOTH, job, program, read, refusal

NEW = next(f"{line}\n" for line in TRAINER.splitlines() if "= get_peft_model(" in line)
LOADS = TRAINER.replace("get_peft_model,", "PeftModel, get_peft_model,")
LOADED = "model = PeftModel.from_pretrained(model, 'first', is_trainable=True)\n"
COMPARES = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=64, target_modules="all-linear"))
args = DPOConfig("out", per_device_train_batch_size=1, max_length=512, bf16=True)
trainer = DPOTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer)
trainer.train()
"""
GENERATES = COMPARES.replace("DPO", "GRPO").replace("max_length=512", "max_completion_length=64, beta=0.1")


def adapters(folder: Path, **settings: Any) -> None:
    """A folder of adapters, as PEFT saves one."""
    table = {"peft_type": "LORA", "base_model_name_or_path": "x", "peft_version": "0.21.2", "bias": "none"}
    (folder / "first").mkdir()
    (folder / "first" / "adapter_config.json").write_text(json.dumps(table | settings), encoding="utf-8")


def test_adapters_of_a_folder_are_those_that_it_says(tmp_path: Path) -> None:
    """PEFT's own file beside them says their size."""
    adapters(tmp_path, r=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    assert job(program(tmp_path, LOADS.replace(NEW, LOADED))) == job(program(tmp_path, TRAINER))


def test_adapters_that_are_not_here_are_asked_for(tmp_path: Path) -> None:
    """Their rank first; with the flags it is the job that those say."""
    path = program(tmp_path, LOADS.replace(NEW, LOADED))
    with pytest.raises(InputFileError, match=r"r of first/adapter_config\.json.*--lora-rank"):
        read(path)
    flags = frozenset({"lora_rank", "lora_targets"})
    found = read_config_file(path, None, Beside(gpu="rtx4090", gpus=1, flags=flags))
    assert found.request.get("lora_rank") in (None, 8)


def test_merged_adapters_leave_the_model_as_it_was(tmp_path: Path) -> None:
    """Its own weights in their place, which stay frozen under new adapters."""
    merged = "model = PeftModel.from_pretrained(model, 'first').merge_and_unload()\n"
    assert job(program(tmp_path, LOADS.replace(NEW, merged + NEW))) == job(program(tmp_path, TRAINER))
    assert "freezes all of its weights" in refusal(tmp_path, LOADS.replace(NEW, merged))


def test_adapters_that_are_not_trained_are_refused(tmp_path: Path) -> None:
    """So are adapters on others."""
    untrained = LOADED.replace(", is_trainable=True", "")
    assert "is_trainable=True" in refusal(tmp_path, LOADS.replace(NEW, untrained))
    assert "adapters on adapters" in refusal(tmp_path, LOADS.replace(NEW, NEW + LOADED))


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (COMPARES, True),
        (GENERATES, True),
        (GENERATES.replace("0.1", "0.0"), False),
        (COMPARES.replace("512", "512, max_prompt_length=64"), False),
    ],
)
def test_a_model_with_adapters_is_compared_with_a_copy_of_them(
    text: str, copies: bool, tmp_path: Path
) -> None:
    """By today's TRL, where the trainer does not make them itself; not by TRL up to 0.26."""
    found = read(program(tmp_path, text)).request.get("switches") or ()
    assert ("copies_adapters=true" in found) == copies
    made = text.replace("model = get_peft_model(model, ", "adapters = (").replace(
        "(model=", "(peft_config=adapters, model="
    )
    assert "copies_adapters=true" not in (read(program(tmp_path, made)).request.get("switches") or ())


@pytest.mark.parametrize(("dtype", "wanted"), [("float16", "bf16"), ("bfloat16", "fp16")])
def test_unsloth_stops_at_the_other_sixteen_bits(dtype: str, wanted: str, tmp_path: Path) -> None:
    """A model of these in which adapters are to train in those."""
    asked = UNSLOTH.replace("dtype=None", f"dtype=torch.{dtype}").replace(
        "from unsloth", "import torch\nfrom unsloth", 1
    )
    plain = asked.replace("fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported()", f"{wanted}=True")
    with pytest.raises(UsageError, match=f"{wanted}: Unsloth stops: .* in {dtype}"):
        read(program(tmp_path, plain))
    assert read(program(tmp_path, plain.replace("llama-3-8b", "gemma-3-1b-it"))).request


RECORDS = """
from pydantic import BaseModel, Field
class Inner(BaseModel):
    rank: int = Field(description="of the adapters")
    batch: int = Field(4, gt=0)
class Outer(BaseModel):
    inner: Inner
    name: str = "meta-llama/Llama-3.2-1B"
settings = Outer(inner=Inner(rank=16))
"""


def test_records_of_pydantic_have_what_they_are_given(tmp_path: Path) -> None:
    """Or the defaults of their fields; what checks them may change them."""
    asked = TRAINER.replace('name = "meta-llama/Llama-3.2-1B"\n', RECORDS).replace(
        "(name,", "(settings.name,"
    )
    asked = asked.replace("batch_size=4", "batch_size=settings.inner.batch").replace(
        "r=16", "r=settings.inner.rank"
    )
    assert job(program(tmp_path, asked)) == job(program(tmp_path, TRAINER))
    checks = asked.replace(
        "    inner: Inner\n",
        "    inner: Inner\n    @field_validator('name')\n    def f(cls, v):\n        return v\n",
    )
    with pytest.raises(NotModelledError, match="what Outer changes in BaseModel"):
        read(program(tmp_path, checks))
