"""A plain loop around an adapter of PEFT: ``adapter.py NAME``."""

import sys

import torch
from peft import (
    AdaLoraConfig,
    BOFTConfig,
    C3AConfig,
    HiraConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    MissConfig,
    OFTConfig,
    PromptTuningConfig,
    RandLoraConfig,
    TrainableTokensConfig,
    VeraConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM

targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
config = {
    "lora": lambda: LoraConfig(r=8, target_modules=targets),
    "dora": lambda: LoraConfig(r=8, target_modules=targets, use_dora=True),
    "oft": lambda: OFTConfig(r=0, oft_block_size=32, target_modules=targets),
    "vera": lambda: VeraConfig(r=64, target_modules=["q_proj", "o_proj"]),
    "adalora": lambda: AdaLoraConfig(init_r=12, target_r=8, total_step=10, target_modules=targets),
    "boft": lambda: BOFTConfig(boft_block_size=4, target_modules=["q_proj", "o_proj"]),
    "loha": lambda: LoHaConfig(r=8, target_modules=targets),
    "ia3": lambda: IA3Config(target_modules=targets, feedforward_modules=["down_proj"]),
    "hira": lambda: HiraConfig(r=16, target_modules=targets),
    "miss": lambda: MissConfig(r=64, target_modules=targets),
    "randlora": lambda: RandLoraConfig(r=16, target_modules=targets),
    "c3a": lambda: C3AConfig(block_size=64, target_modules=["q_proj", "o_proj"]),
    "tokens": lambda: TrainableTokensConfig(token_indices=[0, 5, 7, 400]),
    "prompt": lambda: PromptTuningConfig(num_virtual_tokens=20, task_type="CAUSAL_LM"),
}[sys.argv[1]]()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype=torch.bfloat16).cuda()
model.config.use_cache = False
model = get_peft_model(model, config)
model.train()
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
for _ in range(10):
    ids = torch.randint(0, 500, (2, 512), device="cuda")
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
