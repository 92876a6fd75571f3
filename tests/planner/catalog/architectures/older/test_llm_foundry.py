"""What the reader of models by llm-foundry of 2023 says: counts by hand, and its attention."""

from __future__ import annotations

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import load_model
from tests.jobs import resolved

MOSAIC = {
    "model_type": "mosaic_gpt",
    "vocab_size": 1000,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 128,
}


def test_mosaic_gpt_by_hand() -> None:
    """MPT 1B: 24 layers of 12 h^2 in matrices and four norms without bias, one tied table,
    no table of positions.
    """
    spec = load_model("mosaicml/mpt-1b-redpajama-200b").spec
    hidden, table = 2048, 50_368 * 2048
    assert spec.param_count == 24 * (12 * hidden**2 + 4 * hidden) + table + hidden == 1_311_311_872
    assert [norm.on for norm in spec.groups[0].block.norms] == ["hidden", "heads"]
    assert spec.groups[0].block.attention.position == "alibi"
    assert spec.tied
    assert spec.remote_code


def test_mosaic_gpt_with_biases_and_positions() -> None:
    """By default there are biases and a table of positions, and no norms of query and key."""
    spec = model_from_config(MOSAIC, "config")
    hidden = 64
    per_layer = 12 * hidden**2 + (3 + 1 + 4 + 1) * hidden + 2 * 2 * hidden
    assert spec.param_count == 2 * per_layer + (1000 + 128) * hidden + 2 * hidden
    assert spec.groups[0].block.attention.position == "learned"


def test_mosaic_gpt_writes_attention_out() -> None:
    """Its module has no call of torch's fused kernels,
    so that an unsaid kernel is eager under every stack.
    """
    flags = {"model": "mpt-1b", "method": "lora", "gpu": "4090", "seq": 512}
    for stack in ("hf-trainer@5", "hf-trainer@4", "llama-factory"):
        assert resolved({**flags, "stack": stack}).recipe.attention == "eager"
