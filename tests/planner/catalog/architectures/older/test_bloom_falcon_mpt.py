"""What the readers of BLOOM, Falcon and MPT say: counts by hand, heads of keys, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

H, V, N = 64, 1000, 2
BLOOM = {"model_type": "bloom", "hidden_size": H, "n_head": 4, "n_layer": N, "vocab_size": V}
FALCON = {
    "model_type": "falcon", "hidden_size": H, "num_attention_heads": 4, "num_hidden_layers": N,
    "vocab_size": V,
}  # fmt: skip
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
MPT = {"model_type": "mpt", "d_model": H, "n_heads": 4, "n_layers": N, "vocab_size": V}


def spec(base: dict[str, Any], **more: Any) -> ModelSpec:
    """The model of a small configuration."""
    return model_from_config(base | more, "x")


def test_counts_by_hand() -> None:
    """One table is the head, too; BLOOM has a norm behind it, MPT's norms have no bias."""
    assert spec(BLOOM).param_count == N * (12 * H**2 + 9 * H + 4 * H) + V * H + 2 * 2 * H
    assert spec(MPT).param_count == N * (12 * H**2 + 2 * H) + V * H + H
    # One key and one value of 16 features, one norm; or two of each, and two norms.
    assert spec(FALCON).param_count == N * ((H + 32) * H + 9 * H**2 + 2 * H) + V * H + 2 * H
    assert spec(FALCON, **NEW).param_count == N * ((H + 64) * H + 9 * H**2 + 4 * H) + V * H + 2 * H


@pytest.mark.parametrize(
    ("said", "heads", "makes"),
    [
        ({}, 1, "broadcast"),
        (NEW, 2, "expanded"),
        ({"multi_query": False}, 4, "grouped"),
        ({"num_kv_heads": 3}, 1, "broadcast"),
    ],
)
def test_heads_of_keys_of_falcon(said: dict[str, Any], heads: int, makes: str) -> None:
    """Queries share one key unless the newer architecture says how many."""
    attention = spec(FALCON, **said).groups[0].block.attention
    assert (attention.n_kv_heads, attention.sdpa_input) == (heads, makes)


@pytest.mark.parametrize(
    ("said", "parallel", "norms"),
    [
        ({}, True, 1),
        (NEW, True, 2),
        ({**NEW, "num_ln_in_parallel_attn": 1}, True, 1),
        ({"parallel_attn": False}, False, 2),
    ],
)
def test_branches_and_norms_of_falcon(said: dict[str, Any], parallel: bool, norms: int) -> None:
    """One norm for both branches, or one each."""
    block = spec(FALCON, **said).groups[0].block
    assert (block.parallel, sum(norm.copies for norm in block.norms)) == (parallel, norms)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({**NEW, "parallel_attn": False}, "needs parallel_attn"),
        ({**NEW, "num_kv_heads": 3}, "not divisible by num_kv_heads 3"),
        ({"multi_query": False, "num_kv_heads": 2}, "needs new_decoder_architecture or multi_query"),
        ({"num_ln_in_parallel_attn": 2}, "does not go with new_decoder_architecture false"),
    ],
)
def test_falcons_that_no_module_builds_are_refused(said: dict[str, Any], sentence: str) -> None:
    """Their fields contradict each other."""
    with pytest.raises(InputFileError, match=sentence):
        spec(FALCON, **said)


@pytest.mark.parametrize(
    "said",
    [
        {"no_bias": False},
        {"expansion_ratio": 8},
        {"attn_config": {"attn_type": "multiquery_attention"}},
        {"attn_config": {"qk_ln": True}},
        {"attn_config": {"alibi": False}},
    ],
)
def test_mpts_that_transformers_does_not_build_are_refused(said: dict[str, Any]) -> None:
    """MosaicML's own code would."""
    with pytest.raises(NotModelledError, match="Transformers' own MPT does not build it"):
        spec(MPT, **said)


def test_positions_are_added_to_scores_or_turned() -> None:
    """ALiBi, which has no end; Falcon may have either."""
    assert spec(BLOOM).max_position_tokens is None
    assert spec(BLOOM).groups[0].block.attention.position == "alibi"
    assert spec(FALCON).groups[0].block.attention.position == "rope"
    assert spec(FALCON, alibi=True).groups[0].block.attention.position == "alibi"
