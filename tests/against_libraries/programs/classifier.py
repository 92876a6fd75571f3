"""BERT-large as a classifier under the Trainer, on random tokens of 512: ``NAME=VALUE`` are arguments of the
Trainer, and ``adam8bit`` takes the 8-bit optimizer of bitsandbytes.

The jobs of https://github.com/huggingface/transformers/blob/0016acf/docs/source/en/perf_train_gpu_one.mdx.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

LENGTH, ROWS = 512, 64
# What the arguments are with which the page was made, in Transformers of January 2022.
USUAL = {"optim": "adamw_hf", "gradient_accumulation_steps": "1"}


def value(text: str) -> Any:
    """A whole number, yes or no, or a word."""
    return int(text) if text.isdigit() else {"True": True, "False": False}.get(text, text)


def eight_bit(model: Any, arguments: Any) -> Any:
    """Adam with states of 8 bits, where biases and norms do not decay."""
    import bitsandbytes

    apart = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [each for name, each in named if not name.endswith(apart)]},
        {"params": [each for name, each in named if name.endswith(apart)], "weight_decay": 0.0},
    ]
    return bitsandbytes.optim.Adam8bit(groups, lr=arguments.learning_rate)


def main(words: list[str]) -> None:
    """Train one epoch."""
    given = USUAL | dict(word.split("=", 1) for word in words if "=" in word)
    arguments = TrainingArguments(
        output_dir="out", report_to="none", **{name: value(text) for name, text in given.items()}
    )
    rows = [{"input_ids": torch.randint(100, 30_000, (LENGTH,)), "labels": 0} for _ in range(ROWS)]
    model = AutoModelForSequenceClassification.from_pretrained("bert-large-uncased").to("cuda")
    optimizer = eight_bit(model, arguments) if "adam8bit" in words else None
    Trainer(model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, None)).train()


if __name__ == "__main__":
    main(sys.argv[1:])
