"""A script with TRL's SFTTrainer, which a launcher divides among processes: ``trl_sft.py MODEL METHOD``.

Words such as ``max_length=2048`` are of its configuration; ``attention`` is of the model.  Rows are as long
as ``max_length``; packed ones are a quarter of it.
"""

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model, method = sys.argv[1:3]
said: dict[str, Any] = {"output_dir": "out", "bf16": True, "report_to": "none", "save_strategy": "no"}
for word in sys.argv[3:]:
    name, _, text = word.partition("=")
    try:
        said[name] = json.loads(text)
    except ValueError:
        said[name] = text
dtype = torch.float32 if method == "full" else torch.bfloat16
loading: dict[str, Any] = {"dtype": dtype, "attn_implementation": said.pop("attention", "sdpa")}
if method == "qlora":
    loading["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=getattr(torch, said.pop("storage", "uint8")),
    )
parts = 4 if said.get("packing") else 1
ids = [7 * number % 400 + 3 for number in range(said["max_length"] // parts)]
lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
SFTTrainer(
    model,
    args=SFTConfig(**said, model_init_kwargs=loading),
    train_dataset=Dataset.from_list([{"input_ids": ids}] * (512 * parts)),
    **({} if method == "full" else {"peft_config": lora}),
).train()
