"""A full fine-tune with the Trainer, which Accelerate converts to Transformer Engine as it does to the real
one: ``te_trainer.py MODEL SEQ [again] [reentrant] [mxfp8] [float32] [bf16]``.
"""

import os
import sys

from emulated_te import install

install()
os.environ |= {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "TE"}
if "mxfp8" in sys.argv:
    os.environ["ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING"] = "true"

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

SEQ = int(sys.argv[2])


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 500, (SEQ,))
        return {"input_ids": ids, "labels": ids}


if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained(
        sys.argv[1], dtype=torch.float32 if "float32" in sys.argv else torch.bfloat16
    )
    again = "again" in sys.argv
    options = TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=1,
        gradient_checkpointing=again,
        gradient_checkpointing_kwargs={"use_reentrant": "reentrant" in sys.argv} if again else None,
        optim="adamw_torch_fused",
        bf16="bf16" in sys.argv,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
    )
    Trainer(model=model, args=options, train_dataset=Rows()).train()
