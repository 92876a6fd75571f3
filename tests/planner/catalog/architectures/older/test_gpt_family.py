"""What the readers of GPT-2, GPT-J, GPT-NeoX and OPT say: counts by hand, defaults and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

H, V, N = 64, 1000, 3
GPT2 = {"model_type": "gpt2", "n_embd": H, "n_head": 4, "n_layer": N, "vocab_size": V, "n_positions": 128}
GPTJ = {"model_type": "gptj", "n_embd": H, "n_head": 4, "n_layer": N, "vocab_size": V}
NEOX = {
    "model_type": "gpt_neox", "hidden_size": H, "num_attention_heads": 4, "num_hidden_layers": N,
    "intermediate_size": 4 * H, "vocab_size": V,
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": H, "num_attention_heads": 4, "num_hidden_layers": N, "ffn_dim": 4 * H,
    "vocab_size": V,
}  # fmt: skip


def spec(base: dict[str, Any], **more: Any) -> ModelSpec:
    """The model of a small configuration."""
    return model_from_config(base | more, "x")


def test_counts_by_hand() -> None:
    """12 h^2 in matrices of every layer; biases, norms and ends as each has them."""
    norm, biases = 2 * H, (3 + 1 + 4 + 1) * H
    layer = 12 * H**2 + biases
    assert spec(GPT2).param_count == N * (layer + 2 * norm) + (V + 128) * H + norm
    # Attention of GPT-J has no biases, one norm for both branches, and a head with one.
    assert spec(GPTJ).param_count == N * (12 * H**2 + 5 * H + norm) + 2 * V * H + V + norm
    assert spec(NEOX).param_count == N * (layer + 2 * norm) + 2 * V * H + norm
    # Two rows more than positions; the head is the table.
    assert spec(OPT).param_count == N * (layer + 2 * norm) + (V + 2048 + 2) * H + norm


def test_opt_may_embed_into_fewer_features() -> None:
    """OPT-350M: two projections between, and no norm at the end."""
    narrow = spec(OPT, word_embed_proj_dim=16, do_layer_norm_before=False)
    change = -(V * (H - 16)) + 2 * 16 * H - 2 * H
    assert narrow.param_count - spec(OPT).param_count == change
    assert narrow.final_norms == ()
    assert narrow.groups[0].block.norms_sums


def test_each_width_of_turned_features() -> None:
    """A share of the head in GPT-NeoX (a quarter by default), a number in GPT-J (64)."""
    assert spec(NEOX).groups[0].block.attention.rotary_width == 4
    assert spec(NEOX, rotary_pct=1.0).groups[0].block.attention.rotary_width == 16
    assert spec(GPTJ, rotary_dim=8).groups[0].block.attention.rotary_width == 8
    assert spec(GPTJ, n_embd=256).groups[0].block.attention.rotary_width == 64


def test_dropout_counts_where_it_is_above_zero() -> None:
    """GPT-2 drops by default behind both branches, GPT-J does not."""
    assert [spec(GPT2).groups[0].block.dropouts, spec(GPTJ).groups[0].block.dropouts] == [2, 0]
    quiet = spec(GPT2, resid_pdrop=0.0, attn_pdrop=0, embd_pdrop=0)
    assert (quiet.groups[0].block.dropouts, quiet.groups[0].block.attention.dropout) == (0, False)
    assert (quiet.embedding_dropout, spec(GPT2).embedding_dropout) == (False, True)


def test_branches_run_beside_each_other_or_not() -> None:
    """GPT-NeoX may say no."""
    assert spec(GPTJ).groups[0].block.parallel
    assert spec(NEOX).groups[0].block.parallel
    assert not spec(NEOX, use_parallel_residual=False).groups[0].block.parallel


def test_what_is_no_such_model_is_refused() -> None:
    """Heads that do not divide the width, and the decoder of an encoder."""
    with pytest.raises(InputFileError, match="64 is not divisible by 5 attention heads"):
        spec(GPT2, n_head=5)
    with pytest.raises(NotModelledError, match="cross-attention"):
        spec(GPT2, add_cross_attention=True)
    with pytest.raises(InputFileError, match="above 0 and at most 1"):
        spec(NEOX, rotary_pct=1.5)
