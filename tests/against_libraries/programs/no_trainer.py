"""Full fine-tuning with Accelerate and without a Trainer,
as examples of Transformers do it: ``no_trainer.py MODEL``.
"""

import math
import sys
from itertools import chain

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler

BLOCK, BATCH, ACCUMULATED, EPOCHS = 512, 2, 2, 3
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED, mixed_precision="bf16")
raw = load_dataset("a-data-set-of-the-hub")
config = AutoConfig.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], config=config, dtype=torch.float32)
if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
    model.resize_token_embeddings(len(tokenizer))


def in_blocks(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """All tokens in a line, cut into blocks."""
    joined = {name: list(chain(*rows[name])) for name in rows}
    whole = len(joined["input_ids"]) // BLOCK * BLOCK
    cut = {
        name: [tokens[start : start + BLOCK] for start in range(0, whole, BLOCK)]
        for name, tokens in joined.items()
    }
    return {**cut, "labels": cut["input_ids"].copy()}


with accelerator.main_process_first():
    columns = raw["train"].column_names
    tokenized = raw.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=columns)
    blocks = tokenized.map(in_blocks, batched=True)["train"]
loader = DataLoader(blocks, shuffle=True, collate_fn=default_data_collator, batch_size=BATCH)
bare = ("bias", "layer_norm.weight", "layernorm.weight")
groups = [
    {
        "params": [each for name, each in model.named_parameters() if not name.endswith(bare)],
        "weight_decay": 0.1,
    },
    {"params": [each for name, each in model.named_parameters() if name.endswith(bare)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-5)
n_steps = EPOCHS * math.ceil(len(loader) / ACCUMULATED)
schedule = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=n_steps)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(EPOCHS):
    model.train()
    total_loss = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
