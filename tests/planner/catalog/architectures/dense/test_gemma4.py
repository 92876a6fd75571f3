"""What the reader of Gemma 4 says beyond shapes, and what it refuses.
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
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 4,
}


def _spec(**fields: Any) -> ModelSpec:
    return model_from_config({"model_type": "gemma4_text", **_SMALL, **fields}, "gemma4_text")


def test_the_last_layer_sees_everything() -> None:
    """Whatever its list says; global layers have wider heads."""
    spec = _spec(layer_types=["sliding_attention"] * 6, sliding_window=8)
    assert [(each.block.attention.window_tokens, each.block.attention.head_dim) for each in spec.groups] == [
        (8, 8),
        (None, 16),
    ]


def test_last_layers_borrow_keys_and_may_be_twice_as_wide() -> None:
    """They have no matrices for keys and values, and only the query's norm."""
    spec = _spec(num_kv_shared_layers=1, use_double_wide_mlp=True)
    own, last = spec.groups[0].block, spec.groups[-1].block
    assert {each.name for each in own.linears} - {each.name for each in last.linears} == {"k_proj", "v_proj"}
    assert (own.mlp.width, last.mlp.width, last.attention.borrows_keys) == (80, 160, True)
    assert len([each for each in last.norms if each.on == "heads"]) == 1


def test_keys_are_values_in_global_layers_alone() -> None:
    """The number of their heads counts only then."""
    joined = _spec(attention_k_eq_v=True, num_global_key_value_heads=1).groups[-1].block
    apart = _spec(attention_k_eq_v=False, num_global_key_value_heads=1).groups[-1].block
    assert (joined.attention.key_is_value, joined.attention.n_kv_heads) == (True, 1)
    assert (apart.attention.key_is_value, apart.attention.n_kv_heads) == (False, 2)
    assert "v_proj" not in {each.name for each in joined.linears}


@pytest.mark.parametrize(
    "fields",
    [
        {"use_bidirectional_attention": "all"},
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8},
    ],
)
def test_what_is_not_modelled_is_refused(fields: dict[str, Any]) -> None:
    """An encoder; experts in layers that have inputs of their own."""
    with pytest.raises(NotModelledError):
        _spec(**fields)


def test_more_chosen_experts_than_there_are_are_refused() -> None:
    """As a field out of range."""
    with pytest.raises(InputFileError, match="top_k_experts"):
        _spec(
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=2,
            top_k_experts=4,
            moe_intermediate_size=8,
        )


def test_a_unified_model_has_its_mask_made_for_text_too() -> None:
    """Unless its file says that tokens of an image do not see each other."""
    text = {name: value for name, value in _SMALL.items() if "per_layer" not in name}
    config: dict[str, Any] = {
        "model_type": "gemma4_unified",
        "text_config": {"model_type": "gemma4_unified_text", **text},
    }

    def makes_mask(**fields: Any) -> bool:
        fields = {**config, "text_config": {**config["text_config"], **fields}}
        return model_from_config(fields, "x").groups[0].block.attention.makes_mask

    assert makes_mask()
    assert not makes_mask(use_bidirectional_attention=None)
