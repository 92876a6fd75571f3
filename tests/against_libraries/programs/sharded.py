"""A training script with Accelerate, which a launch file divides among processes.

The second argument, where there is one: how many of the last layers are trained, and nothing else.
"""

import sys

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model.config.use_cache = False
model.train()
if sys.argv[2:]:
    model.requires_grad_(False)
    model.model.layers[-int(sys.argv[2]) :].requires_grad_(True)
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-5)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(10):
    ids = torch.randint(0, 500, (2, 128), device=accelerator.device)
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    del loss, ids
