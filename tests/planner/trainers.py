"""Real Trainers of Transformers over a tiny model; whoever asks for one skips its test without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.extras import import_or_skip

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def real_model(**more: Any) -> Any:
    """A Llama of that config, with ``more`` of it."""
    transformers = import_or_skip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **more}))


def real_trainer(model: Any, folder: Path, callback: Any = None, **said: Any) -> Any:
    """A Trainer on the CPU over four samples of 16 tokens."""
    torch, transformers = import_or_skip("torch"), import_or_skip("transformers")
    sample = {"input_ids": torch.arange(16), "labels": torch.arange(16)}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, **{**quiet, **said})
    callbacks = [] if callback is None else [callback]
    return transformers.Trainer(model=model, args=args, train_dataset=[sample] * 4, callbacks=callbacks)
