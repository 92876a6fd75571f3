"""InternLM 1 and 2, which bring code of their own: counts by hand, and names of modules."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.models import load_model, model_entry
from planner.errors import PlannerError
from tests.jobs import resolved


def _internlm_params(config: dict[str, Any]) -> int:
    hidden, width, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    keys = hidden // heads * config["num_key_value_heads"]
    biases = (2 * hidden + 2 * keys) if config["bias"] else 0
    layer = 2 * hidden * hidden + 2 * hidden * keys + biases + 3 * hidden * width + 2 * hidden
    return 2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden


@pytest.mark.parametrize(
    "name", ["internlm-7b", "internlm-20b", "internlm2-1.8b", "internlm2-7b", "internlm2-20b"]
)
def test_remote_code_count_by_hand(name: str) -> None:
    """InternLM 1 and 2 agree with the sum written out from their modelling files."""
    config, spec = model_entry(name).config, load_model(name).spec
    assert spec.param_count == _internlm_params(config)
    assert spec.remote_code
    assert spec.fp32_logits == (config["model_type"] == "internlm2")


def test_internlm2_module_names() -> None:
    """InternLM2 fuses query, key and value, and calls gate, up and down w1, w3 and w2."""
    (group,) = load_model("internlm2-7b").spec.groups
    assert [linear.name for linear in group.block.linears] == ["wqkv", "wo", "w1", "w3", "w2"]
    assert group.block.linears[0].out_features == (32 + 2 * 8) * 128


def test_internlm_writes_attention_out() -> None:
    """The module of InternLM 1 has no call of torch's fused kernels; it has one of FlashAttention 2."""
    flags = {"model": "internlm-7b", "method": "lora", "gpu": "4090", "seq": 512, "stack": "swift@1"}
    assert resolved(flags).recipe.attention == "eager"
    assert resolved({**flags, "attention": "flash2"}).recipe.attention == "flash2"
    with pytest.raises(PlannerError, match="no such attention kernel"):
        resolved({**flags, "attention": "sdpa"})
