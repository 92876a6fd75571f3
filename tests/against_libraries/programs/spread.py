"""A script with the Trainer of Transformers whose layers are spread over the GPUs that it finds:
``spread.py MODEL --method=qlora --seq=1024 --batch=2``.
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    """Rows of random tokens."""

    def __init__(self, n_tokens: int, n_padded: int) -> None:
        self._n_tokens, self._n_padded = n_tokens, n_padded

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 500, (self._n_tokens,))
        mask = torch.arange(self._n_tokens).ge(self._n_padded).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def loaded(asked: argparse.Namespace) -> torch.nn.Module:
    """The model over all GPUs, with adapters where they are asked for."""
    packed = BitsAndBytesConfig(
        load_in_4bit=asked.method == "qlora",
        load_in_8bit=asked.method == "int8",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = AutoModelForCausalLM.from_pretrained(
        asked.model,
        dtype=torch.float32 if asked.method == "full" else torch.bfloat16,
        device_map="auto",
        quantization_config=packed if asked.method in ("qlora", "int8") else None,
    )
    if asked.method == "full":
        return model
    if asked.method in ("qlora", "int8"):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=asked.again)
    lora = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--method", default="lora")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--padded", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    options = TrainingArguments(
        output_dir="out",
        max_steps=4,
        per_device_train_batch_size=asked.batch,
        gradient_accumulation_steps=asked.accumulate,
        gradient_checkpointing=asked.again,
        bf16=True,
        optim="adamw_torch",
        save_strategy="no",
        logging_steps=1,
        report_to=[],
    )
    Trainer(model=loaded(asked), args=options, train_dataset=Rows(asked.seq, asked.padded)).train()
