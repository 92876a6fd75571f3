"""A training script with Accelerate, which a launch file divides among processes."""

import sys

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model.config.use_cache = False
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(10):
    ids = torch.randint(0, 500, (2, 128), device=accelerator.device)
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    del loss, ids
