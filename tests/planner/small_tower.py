"""A small Qwen2.5-VL whose numbers are worked out by hand, and an image for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH, PATCHES = 160, 24 * 36
VISION = {
    "depth": 3, "hidden_size": WIDTH, "intermediate_size": 400, "num_heads": 2, "out_hidden_size": 128,
    "patch_size": 14,
    "window_size": 112, "fullatt_block_indexes": [2],
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 1000, "vision_config": VISION,
}  # fmt: skip
JOB: dict[str, object] = {
    "method": "lora", "gpu": "a100-80-sxm", "seq": 512, "images_per_sample": 1, "image_size": "504x336",
}  # fmt: skip


def written(folder: Path) -> str:
    """The path of its config, in ``folder``."""
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)
