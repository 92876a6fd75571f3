"""LoRA targets as an expression over the paths of modules."""

from __future__ import annotations

import pytest

from planner.errors import NotModelledError, PlannerError, UsageError
from tests.jobs import resolved

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def targets_of(pattern: str, model: str = "qwen2.5-0.5b") -> tuple[str, ...]:
    """The names that become of an expression."""
    flags = {
        "model": model,
        "method": "lora",
        "gpu": "4090",
        "seq": 512,
        "lora_targets": [f"regex:{pattern}"],
    }
    adapter = resolved(flags).recipe.adapter
    assert adapter is not None
    return adapter.targets


def test_an_expression_becomes_the_names_that_it_matches() -> None:
    """The whole path has to match; models that see have their text part one level lower."""
    assert targets_of(r"model.layers.[\d]+.self_attn.(q|k|v|o)_proj") == _ATTENTION
    assert targets_of(r"model.language_model.layers.[\d]+.self_attn.(q|k|v|o)_proj") == _ATTENTION
    assert targets_of(r".*\.(q_proj|lm_head)|lm_head") == ("q_proj", "lm_head")


def test_layers_of_qwen_3_5_with_attention_have_matrices_of_their_own() -> None:
    """Every fourth layer has ``self_attn``; the others have ``linear_attn`` in its place."""
    attention = r".*\.layers\.(3|7|11|15|19|23)\.self_attn\.(q|k|v|o)_proj"
    assert targets_of(attention, "qwen3.5-0.8b") == _ATTENTION
    assert targets_of(r".*\.linear_attn\.in_proj_(a|b)", "qwen3.5-0.8b") == ("in_proj_b", "in_proj_a")


@pytest.mark.parametrize(
    ("pattern", "model", "error", "words"),
    [
        ("q_proj", "qwen2.5-0.5b", UsageError, "matches no matrix"),
        ("(", "qwen2.5-0.5b", UsageError, "no regular expression"),
        ("(a+)+b", "qwen2.5-0.5b", UsageError, "repeats a repetition"),
        (r"model\.layers\.1\.self_attn\.q_proj", "qwen2.5-0.5b", NotModelledError, "in some places only"),
        (r".*\.gate_proj", "qwen3-30b-a3b", NotModelledError, "experts"),
        (r".*attn.*", "gpt2", NotModelledError, "gpt2"),
    ],
)
def test_what_an_expression_cannot_say(
    pattern: str, model: str, error: type[PlannerError], words: str
) -> None:
    """Some layers only, experts, and models whose paths are not known."""
    with pytest.raises(error, match=words):
        targets_of(pattern, model)


def test_gemma_4_has_matrices_outside_of_its_parts() -> None:
    """Those of the inputs of each layer, in the layer itself and before all of them."""
    attention = r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj"
    assert "per_layer_input_gate" not in targets_of(attention, "gemma-4-e2b")
    assert targets_of(r".*\.per_layer_\w+", "gemma-4-e2b") == (
        "per_layer_input_gate",
        "per_layer_projection",
        "per_layer_model_projection",
    )
