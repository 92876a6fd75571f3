"""FSDP1 of a tiny InternVL that reads text alone, for real:
what is gathered, given back and reduced, in order.

Run as a process of its own, because it makes a process group, which is a fake one of two: prints rows of
[what, elements] of one step for each case, and behind them ["states", elements], as JSON.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import torch
import transformers
from fsdp_units import Recorded
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.testing._internal.distributed.fake_pg import FakeStore

CONFIG: dict[str, Any] = {
    "model_type": "internvl", "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
    },
    "vision_config": {
        "model_type": "internvl_vision", "hidden_size": 40, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 2, "attention_bias": True, "image_size": [28, 28], "patch_size": [14, 14],
    },
}  # fmt: skip
CASES = {"layers": ("InternVLVisionLayer", "Qwen2DecoderLayer"), "in_root": ("Qwen2DecoderLayer",)}
"""The classes of the units by where the layers of the tower are."""


def build(names: tuple[str, ...]) -> Any:
    """The model, wrapped as Accelerate does it."""
    config = transformers.AutoConfig.for_model(**CONFIG)
    config.text_config.use_cache = False
    loader: Any = transformers.AutoModelForImageTextToText
    model = loader.from_config(config, dtype=torch.float32)
    found = {type(each) for each in model.modules() if type(each).__name__ in names}
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=found)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return FullyShardedDataParallel(
        model.train(), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=False
    )


def rows(names: tuple[str, ...]) -> list[tuple[str, int]]:
    """What one step does, after a first one that makes buffers and states."""
    model, ids = build(names), torch.zeros(1, 8, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    found: list[tuple[str, int]] = []
    with Recorded(found):
        model(input_ids=ids, labels=ids).loss.backward()
    states = sum(each["exp_avg"].numel() for each in optimizer.state.values())
    return [*found, ("states", states)]


def main() -> None:
    """Each case by its name."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    sys.stdout.write(json.dumps({name: rows(case) for name, case in CASES.items()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
