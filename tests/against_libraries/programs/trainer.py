"""A script with the Trainer of Transformers and LoRA, which evaluates and saves:
``trainer.py MODEL [liger]``.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 500, (128,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    options = TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        bf16=True,
        optim="adamw_torch",
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        logging_steps=1,
        report_to=[],
        dataloader_num_workers=2,
        use_liger_kernel=sys.argv[2:] == ["liger"],
    )
    Trainer(model=model, args=options, train_dataset=Rows(), eval_dataset=Rows()).train()
