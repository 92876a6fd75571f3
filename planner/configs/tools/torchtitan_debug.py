"""The debug models of torchtitan: small shapes of its own, which changed with the years.

Source: torchtitan 14d422f0c (2024-05) models/llama/__init__.py; ae3d2a9bc (2024-06-17): 8 layers; f64cf3c18
(2025-04-15): 6 layers; 028a455c1 (2025-11) models/{llama3,qwen3,deepseek_v3}/__init__.py; 07c00d9c8
(2025-08-31): 6 layers of DeepSeek's.  Up to 2025-08-11 the vocabulary is that of test_tiktoken.model, 2,000
words and 256 of its tokenizer's; later shapes have 2,000 and then 2,048, which is counted.
Ignored: months in which shape and keys changed one after the other, 2024-06, 2025-03 and 2025-08.
"""

from __future__ import annotations

from planner.catalog.location import data_dir
from planner.configs.shared.keys import Keys


def debug_shape(keys: Keys, name: str, flavor: str) -> str:
    """The ``config.json`` of a debug flavor, by the age that its keys tell; empty for any other."""
    flavor = flavor.removesuffix("_flex_attn")
    model, training = (keys.part(each) or Keys(keys.path, {}) for each in ("model", "training"))
    found = ""
    if (name, flavor) == ("llama3", "debugmodel"):
        layers = 2 if training.holds("fp8_linear") else 8 if training.holds("warmup_steps") else 6
        words = 2048 if model.holds("hf_assets_path") else 2256
        found = f"llama3-debugmodel-{layers}-layers-{words}"
    elif (name, flavor) == ("deepseek_v3", "debugmodel"):
        found = f"deepseek_v3-debugmodel-{3 if training.holds('compile') else 6}-layers"
    elif name == "qwen3" and flavor in ("debugmodel", "debugmodel_moe"):
        found = f"qwen3-{flavor.replace('_', '-')}"
    return str(data_dir() / "torchtitan" / f"{found}.json") if found else ""
