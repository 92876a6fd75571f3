"""Which dtype an engine leaves adapters in."""

from __future__ import annotations

import pytest

from planner.anatomy.regime import frozen_regime, regime_of
from tests.jobs import resolved


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
    assert regime_of(resolved({**base, **flags})).adapter == adapter


@pytest.mark.parametrize(
    ("flags", "width"),
    [({"sharding": "zero2"}, 2), ({"sharding": "zero3"}, 2), ({"sharding": "ddp"}, 4)],
)
def test_deepspeed_casts_what_is_frozen_with_the_rest(flags: dict[str, str], width: int) -> None:
    """Under autocast frozen weights stay as they were loaded.

    Trace of SmolLM2 135M, fp32, last four layers, 2 x 512, two cards: ZeRO-2 2,368.5 MiB, ZeRO-3 998.1 MiB;
    with frozen layers in fp32 the answers were 7 and 33 % above.
    """
    base = {"model": "smollm2-135m", "method": "full", "gpu": "a100-80gb", "gpus": "2", "seq": "512"}
    more = {"stack": "hf-trainer@5", "load_dtype": "fp32", "train_layers": "last:4"}
    scenario = resolved({**base, **more, "gradient_checkpointing": "false", **flags})
    found = frozen_regime(regime_of(scenario), scenario.recipe)
    assert (found.base, found.outside, found.token_table, found.norm_weight) == (width,) * 4


@pytest.mark.parametrize(
    ("flags", "autocast"),
    [
        ({"sharding": "fsdp1"}, True),
        ({"sharding": "fsdp"}, False),
        ({"sharding": "fsdp1", "stack": "plain-torch", "precision": "bf16-mixed"}, False),
        ({"sharding": "fsdp1", "precision": "bf16"}, False),
    ],
)
def test_accelerate_puts_a_model_under_autocast_before_fsdp1_wraps_it(
    flags: dict[str, str], autocast: bool
) -> None:
    """Layer norms are fp32 then.

    Dry run of Pythia 410M, 2 x 1,024, two cards: 6.05 GB; without autocast the answer was 5 % below.
    """
    base = {"model": "pythia-410m", "method": "full", "gpu": "a100-80gb", "gpus": "2", "seq": "1024"}
    found = regime_of(resolved({**base, "stack": "hf-trainer@5", **flags}))
    assert found.autocast == autocast
    assert (found.norm_out == 4) == autocast
