"""A fine-tune as Unsloth's notebooks write it: ``unsloth_sft.py FOLDER full|lora|qlora LENGTH BATCH
[unsloth|True|False]``, the last for ``use_gradient_checkpointing``.
"""

import sys

# It has to be imported before what it changes.
from unsloth import FastLanguageModel

# isort: split
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

name, method, length, batch, *rest = sys.argv[1:]
checkpointing = {"True": True, "False": False}.get(*rest, *rest) if rest else "unsloth"
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name=name,
    max_seq_length=int(length),
    load_in_4bit=method == "qlora",
    full_finetuning=method == "full",
    use_gradient_checkpointing=checkpointing,
)
if method != "full":
    model = FastLanguageModel.get_peft_model(
        model,
        r=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        lora_alpha=16,
        lora_dropout=0,
        bias="none",
        use_gradient_checkpointing=checkpointing,
        random_state=3407,
    )
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=load_dataset("json", data_files="rows.jsonl", split="train"),
    args=SFTConfig(
        dataset_text_field="text",
        max_length=int(length),
        per_device_train_batch_size=int(batch),
        gradient_accumulation_steps=2,
        warmup_steps=1,
        max_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        optim="adamw_8bit",
        output_dir="outputs",
        report_to="none",
    ),
)
trainer.train()
