"""Which dtype an engine leaves adapters in."""

from __future__ import annotations

import pytest

from planner.anatomy.regime import regime_of
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve


@pytest.mark.parametrize(
    ("flags", "adapter"),
    [
        ({"method": "qlora", "sharding": "zero3", "quant_storage": "bf16"}, 2),
        ({"method": "lora", "sharding": "zero3"}, 4),
        ({"method": "lora", "sharding": "zero3", "versions": "deepspeed==0.19.1"}, 2),
        ({"method": "lora", "sharding": "zero2"}, 2),
        ({"method": "lora", "sharding": "fsdp"}, 4),
    ],
)
def test_deepspeed_casts_adapters_of_a_model_that_it_finds_whole(flags: dict[str, str], adapter: int) -> None:
    """Transformers loads a k-bit model without zero.Init, so that DeepSpeed casts it;
    PEFT's fp32 adapters stay over others since DeepSpeed 0.19.2.
    """
    base = {"model": "qwen2.5-7b", "gpu": "a100-80gb", "gpus": "4", "seq": "1024", "stack": "hf-trainer@5"}
    assert regime_of(resolve(from_flags({**base, **flags}))).adapter == adapter
