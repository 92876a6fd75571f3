"""What the readers of the later dense architectures say beyond shapes, and what they refuse.
Needs no torch.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


def _spec(kind: str, **fields: Any) -> ModelSpec:
    return model_from_config({"model_type": kind, **_SMALL, **fields}, kind)


def _layers(spec: ModelSpec) -> list[tuple[int, int | None, str]]:
    """Layers in a row, their window and kind of positions."""
    return [
        (each.count, each.block.attention.window_tokens, each.block.attention.position)
        for each in spec.groups
    ]


@pytest.mark.parametrize("kind", ["cohere2", "exaone4"])
def test_every_fourth_layer_attends_fully_and_has_no_positions(kind: str) -> None:
    """The others turn query and key, and see 4096 tokens where the file names no window."""
    turned, full = (4096, "rope"), (None, "none")
    assert _layers(_spec(kind, num_key_value_heads=2)) == [(3, *turned), (1, *full)] * 2
    every_other = _layers(_spec(kind, num_key_value_heads=2, sliding_window_pattern=2))
    assert every_other == [(1, *turned), (1, *full)] * 4


def test_exaone_without_a_window_turns_every_layer() -> None:
    """Its small model has none."""
    assert _layers(_spec("exaone4", num_key_value_heads=2, sliding_window=None)) == [(8, None, "rope")]


def test_dropouts_are_those_of_the_file() -> None:
    """Seed-OSS drops a tenth unless it says otherwise, StarCoder2 nothing unless it says so;
    both inside their parts.
    """
    seed, silent = _spec("seed_oss", num_key_value_heads=2), _spec("starcoder2", num_key_value_heads=2)
    assert (seed.groups[0].block.dropouts, seed.groups[0].block.attention.dropout) == (2, True)
    assert _spec("seed_oss", num_key_value_heads=2, residual_dropout=0.0).groups[0].block.dropouts == 0
    assert (silent.groups[0].block.dropouts, silent.embedding_dropout) == (0, False)
    drops = _spec("starcoder2", num_key_value_heads=2, residual_dropout=0.1, embedding_dropout=0.1)
    assert (drops.groups[0].block.drops_inside, drops.embedding_dropout) == (True, True)


def test_scores_are_dropped_where_the_file_says_so() -> None:
    """Any model that reads the usual field, which nearly all leave at zero."""
    found = [_spec("olmo2", num_key_value_heads=2, **said) for said in ({}, {"attention_dropout": 0.1})]
    assert [spec.groups[0].block.attention.dropout for spec in found] == [False, True]


def test_olmo_has_no_trained_norms() -> None:
    """Its layer norms are plain numbers, and its products are clamped only where the file says so."""
    spec = _spec("olmo")
    assert sum(norm.param_count for norm in (*spec.groups[0].block.norms, *spec.final_norms)) == 0
    assert not spec.groups[0].block.attention.clips_products
    assert _spec("olmo", clip_qkv=8.0).groups[0].block.attention.clips_products


def test_what_cannot_be_built_is_refused() -> None:
    """Ministral needs the size of its heads; layers of unknown kinds are not guessed."""
    with pytest.raises(InputFileError, match="head_dim"):
        _spec("ministral")
    with pytest.raises(NotModelledError, match="linear_attention"):
        _spec("ministral", head_dim=12, layer_types=["linear_attention"] * 8)
