"""A training script as people write one: a model of Transformers, PEFT or bitsandbytes where asked for,
and a plain loop.
"""

import argparse

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--method", default="full")
parser.add_argument("--mixed", action="store_true")
parser.add_argument("--checkpointing", choices=("reentrant", "not"))
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--seq", type=int, default=128)
args = parser.parse_args()

options = {}
if args.method == "qlora":
    options["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
if args.method == "int8":
    options["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
full_in_fp32 = args.method == "full" and args.mixed
model = AutoModelForCausalLM.from_pretrained(
    args.model, dtype=torch.float32 if full_in_fp32 else torch.bfloat16, **options
)
model.config.use_cache = False
again = {"use_reentrant": args.checkpointing == "reentrant"}
if args.method in ("qlora", "int8"):
    from peft import prepare_model_for_kbit_training

    model = prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=bool(args.checkpointing), gradient_checkpointing_kwargs=again
    )
if args.method != "full":
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=8, lora_alpha=16, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
if args.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=again)
    if args.method != "full":
        model.enable_input_require_grads()
model = Accelerator(mixed_precision="bf16" if args.mixed else "no").prepare_model(model)
model.train()
trained = [each for each in model.parameters() if each.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
for step in range(10):
    ids = torch.randint(0, 500, (args.batch, args.seq)).cuda()
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), torch.cuda.max_memory_allocated())  # noqa: T201
    del loss, ids
