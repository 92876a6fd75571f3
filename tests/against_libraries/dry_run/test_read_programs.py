"""A program that is read as text is the job that its dry run finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from measure.cli.main import main
from planner.api.checks import CheckJob, check_job
from planner.api.files import CheckOptions
from planner.intake.given.request import from_flags
from tests.extras import needs
from tests.in_process import called

pytestmark = [
    pytest.mark.real,
    needs("torch", "transformers", "peft", "accelerate", "bitsandbytes"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
PROGRAM = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

LENGTH = 512


def load(name):
    kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    packed = BitsAndBytesConfig(load_in_4bit=True, **kind)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, quantization_config=packed)
    return prepare_model_for_kbit_training(model)


def trained(model):
    lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    print(sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
    rows = [dict.fromkeys(("input_ids", "labels", "attention_mask"), [1] * LENGTH) for _ in range(64)]
    args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, max_steps=3, report_to="none")
    args.gradient_accumulation_steps = 2
    return Trainer(model=model, args=args, train_dataset=rows)


if __name__ == "__main__":
    trained(load("meta-llama/Llama-3.2-1B")).train()
"""


def test_a_read_program_needs_what_its_dry_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated and reserved memory of a QLoRA program, within half a per cent."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM, encoding="utf-8")
    code, out, err = called(main, ("trace", "--gpu", "4090", "--json", "--", "python", "train.py"))
    assert code == 0, err
    peak = json.loads(out[out.index("{") :])
    checked = check_job(CheckJob("train.py", CheckOptions()), from_flags({"gpu": "4090", "seq": "512"}))
    assert checked.subject is not None, checked.failure
    memory = checked.subject.prediction.memory
    assert float(memory.allocated_peak_bytes) == pytest.approx(peak["allocated_peak_bytes"], rel=0.005)
    assert float(memory.reserved_peak_bytes) == pytest.approx(peak["reserved_peak_bytes"], rel=0.005)
