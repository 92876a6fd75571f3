"""Counts of parameters from shapes, on models of a few numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.attention_shape import NO_ATTENTION, AttentionSpec
from planner.domain.model import (
    BlockGroup,
    BlockSpec,
    EmbeddingSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
)

ATTENTION = AttentionSpec(4, 2, 8, 6)
Q = LinearSpec("q_proj", "attention", 10, 32, "attn_in", bias=True)
# Eight experts of 10 to 20 features, each with a bias, of which two see a token.
EXPERTS = LinearSpec("gate", "expert", 10, 20, "mlp_in", bias=True, copies=8, active_copies=2)
NORM = NormSpec("layer", 10, bias=True)
DENSE = BlockSpec(ATTENTION, MlpSpec(20, True, "silu"), (Q,), (NORM,))
MIXED = replace(
    DENSE, mlp=MlpSpec(20, True, "silu", n_experts=8, top_k=2), linears=(Q, EXPERTS), extra_params=7
)
TABLE = EmbeddingSpec("embed_tokens", 100, 10)
HEAD = LinearSpec("head", "head", 10, 100, "head_in")
MODEL = ModelSpec(
    "m", "", "test", 10, 100, (BlockGroup(3, DENSE), BlockGroup(2, MIXED)), TABLE, HEAD, False, 64, (NORM,)
)
OF_DENSE = 10 * 32 + 32 + 20
OF_MIXED = OF_DENSE + 8 * (10 * 20 + 20) + 7


def test_a_matrix_counts_its_copies_and_their_biases() -> None:
    """Eight of 10 x 20, and eight biases of 20."""
    assert (Q.weight_count, Q.bias_count) == (320, 32)
    assert (EXPERTS.weight_count, EXPERTS.bias_count) == (1600, 160)
    assert replace(EXPERTS, bias=False).bias_count == 0


@pytest.mark.parametrize(("names", "factor"), [((), 1), (("w1",), 1), (("w1", "w3"), 2)])
def test_an_adapter_of_joined_matrices_has_a_rank_for_each(names: tuple[str, ...], factor: int) -> None:
    """Gate and up that one parameter holds have two."""
    assert replace(EXPERTS, legacy_names=names).rank_factor == factor


@pytest.mark.parametrize(
    ("weight", "bias", "count"), [(True, True, 60), (True, False, 30), (False, True, 30), (False, False, 0)]
)
def test_a_norm_has_a_weight_and_a_bias_where_it_has_them(weight: bool, bias: bool, count: int) -> None:
    """Three copies over ten features."""
    assert NormSpec("layer", 10, copies=3, weight=weight, bias=bias).param_count == count


def test_a_layer_is_its_matrices_norms_and_what_else_it_has() -> None:
    """One without attention says so."""
    assert (DENSE.param_count, MIXED.param_count) == (OF_DENSE, OF_MIXED)
    assert DENSE.attends
    assert not replace(DENSE, attention=NO_ATTENTION).attends


def test_a_model_is_its_layers_tables_norms_and_head() -> None:
    """A head that is the table counts once, its bias all the same."""
    layers = 3 * OF_DENSE + 2 * OF_MIXED
    assert MODEL.param_count == layers + 20 + 1000 + 1000
    assert replace(MODEL, tied=True).param_count == layers + 20 + 1000
    assert replace(MODEL, tied=True, head=replace(HEAD, bias=True)).param_count == layers + 20 + 1000 + 100
    positions = EmbeddingSpec("positions", 64, 10)
    more = replace(MODEL, extra_embeddings=(positions,), extra_linears=(Q,))
    assert more.param_count == MODEL.param_count + 640 + 352


def test_a_token_passes_the_experts_that_see_it() -> None:
    """Six of eight are idle in each of two layers, with their biases; a dense model has no idle ones."""
    assert MODEL.active_param_count == MODEL.param_count - 2 * 6 * (10 * 20 + 20)
    dense = replace(MODEL, groups=(BlockGroup(5, DENSE),))
    assert dense.active_param_count == dense.param_count
    assert (MODEL.is_moe, dense.is_moe) == (True, False)


def test_layers_and_their_windows() -> None:
    """Each window once, from the smallest on; full attention has none."""
    near, far = (replace(DENSE, attention=replace(ATTENTION, window_tokens=tokens)) for tokens in (128, 4096))
    model = replace(MODEL, groups=tuple(BlockGroup(2, each) for each in (far, DENSE, near, far)))
    assert (model.n_layers, model.windows) == (8, (128, 4096))
    assert (MODEL.n_layers, MODEL.windows) == (5, ())


def test_matrices_are_listed_with_how_many_layers_have_them() -> None:
    """Three layers of the first kind and two of the second."""
    assert list(MODEL.linears()) == [(Q, 3), (Q, 2), (EXPERTS, 2)]


def test_the_text_part_of_a_checkpoint_has_no_published_count() -> None:
    """The authors counted the tower, too."""
    text = replace(MODEL, published_params=9000, params_origin="published-exact").text_part()
    assert (text.published_params, text.params_origin, text.vision) == (None, "config-only", None)
    assert "tower" in text.omits


def test_widths_of_heads() -> None:
    """Four heads of 8 features, two of keys, and values of 6."""
    widths = (ATTENTION.q_width, ATTENTION.k_width, ATTENTION.v_width, ATTENTION.out_width)
    assert widths == (32, 16, 12, 24)


def test_models_that_differ_anywhere_are_not_equal() -> None:
    """Though their hashes may be the same."""
    other = replace(MODEL, scales_logits=True)
    assert other != MODEL
    assert hash(other) == hash(MODEL)
    assert {MODEL: 1}.get(other) is None
