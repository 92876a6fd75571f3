"""Layers without attention that keep a state by the gated delta rule, or convolve between two gates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from planner.domain.attention_shape import NO_ATTENTION
from planner.domain.mixer_specs import GatedDeltaSpec, ShortConvSpec
from planner.domain.model import BlockSpec, LinearSpec
from planner.domain.stack_values import GatedDelta
from planner.program.layers.mixers import mixer
from planner.program.view import LayerView
from tests.planner.program.layer_views import HIDDEN, layer_of
from tests.planner.program.layers.test_state_space import NO_MLP
from tests.planner.program.matrix_runs import Run

CONV = ShortConvSpec(HIDDEN, kernel=3)
# Two heads of keys serve four of values, 16 features each.
DELTA = GatedDeltaSpec(key_heads=2, value_heads=4, key_dim=16, value_dim=16, kernel=4)
K, V = 2 * 16, 4 * 16


def view_of(spec: GatedDeltaSpec | ShortConvSpec, widths: dict[str, int], inner: int) -> LayerView:
    """A full fine-tune in bf16 without autocast."""
    linears = (
        *(LinearSpec(name, "mixer", HIDDEN, width, "attn_in") for name, width in widths.items()),
        LinearSpec("out_proj", "mixer", inner, HIDDEN, "attn_out"),
    )
    view = layer_of("full", NO_MLP, linears)
    return replace(view, single=True, block=BlockSpec(NO_ATTENTION, NO_MLP, linears, (), mixer=spec))


def run_of(view: LayerView) -> Run:
    """Forward and backward."""
    return Run(lambda torch, x: mixer(torch, view, x), "bf16")


def test_a_short_convolution_keeps_one_product_of_three_parts() -> None:
    """And what each gate multiplies: the convolution's input and its output, and the result."""
    run = run_of(view_of(CONV, {"in_proj": 3 * HIDDEN}, HIDDEN))
    assert run.kept == Counter(
        {
            ("mm", "TOKENS", 3 * 2 * HIDDEN): 1,
            ("mul", "TOKENS", 2 * HIDDEN): 2,
            ("causal_conv1d", "TOKENS", 2 * HIDDEN): 1,
        }
    )


def test_padding_multiplies_the_stream_by_a_mask() -> None:
    """One tensor more as wide as the stream, which the product then keeps."""
    view = view_of(CONV, {"in_proj": 3 * HIDDEN}, HIDDEN)
    masked = run_of(replace(view, masked=True))
    assert masked.kept - run_of(view).kept == Counter({("mul", "TOKENS", 2 * HIDDEN): 1})


def delta(way: GatedDelta = "grouped", **changes: object) -> Run:
    """A layer of the gated delta rule whose inputs are four products."""
    spec = replace(DELTA, **changes)  # type: ignore[arg-type]
    widths = {"qkv": spec.conv_width, "z": spec.v_width, "b": spec.value_heads, "a": spec.value_heads}
    view = view_of(spec, widths, spec.v_width)
    return run_of(replace(view, stack=replace(view.stack, gated_delta=way)))


def test_the_delta_rule_keeps_normed_queries_and_keys_and_the_inverse_of_each_chunk() -> None:
    """With an fp32 number for each of their heads.  An inverse has 64 numbers for each head of values."""
    run = delta()
    assert run.kept["l2norm", "TOKENS", 2 * K] == run.kept["l2norm", "TOKENS", 4 * 2] == 2
    assert run.kept["clone", "TOKENS", 2 * V] == 1
    assert run.kept["cumsum", "TOKENS", 4 * 4] == 1
    assert run.kept["zeros", "TOKENS", 2 * 4 * 64] == 1
    assert run.kept["empty", "TOKENS", 2 * V] == 0, "the chunks are computed again"


def test_gradients_of_shared_keys_are_summed_over_heads() -> None:
    """Two sums where four heads of values share two of keys, none where each has its own."""
    for key_heads, n_sums in ((2, 2), (4, 0)):
        made = delta(key_heads=key_heads).made("backward")
        assert [op for op, _, _ in made].count("l2norm_backward") == 2
        assert sum(each == ("sum", "TOKENS", 2 * key_heads * 16) for each in made) == n_sums


def test_older_versions_repeat_shared_keys_before_the_rule() -> None:
    """Queries and keys are then as wide as values, without a copy of their own, and each copy's gradient is
    normed before they are summed.  LLaMA-Factory's Qwen3.5 35B, which runs Transformers 5.6, was told 1.8 %
    too much with the shared keys and the plain norm of 5.23.
    """
    run, grouped = delta("repeated"), delta()
    assert run.kept["l2norm", "TOKENS", 2 * V] == run.kept["l2norm", "TOKENS", 4 * 4] == 2
    made = [op for op, _, size in run.made("forward") if op == "clone" and size == 2 * V]
    assert len(made) == 3, "query and key for all heads, and the view of the value"
    assert run.made("backward").count(("sum", "TOKENS", 2 * K)) == 2
    assert delta("repeated", key_heads=4).kept == delta(key_heads=4).kept != grouped.kept


def test_the_kernel_of_the_gated_norm_saves_what_it_reads() -> None:
    """Its input, the gate and a number for each head in place of the tensors in fp32; its output is that
    of the product behind it.
    """
    run, apart = delta("fused_norm"), delta("repeated")
    wide = dict.fromkeys((("delta_rule", "TOKENS", 2 * V), ("mm", "TOKENS", 2 * V)), 1)
    behind = {("empty", "TOKENS", 4 * 4): 1, ("empty_like", "TOKENS", 2 * V): 1}
    assert run.kept - apart.kept == Counter(wide | behind)
    assert ("to", "TOKENS", 4 * V) in apart.kept - run.kept


def test_joined_inputs_are_taken_apart_and_joined_for_the_convolution() -> None:
    """Qwen3-Next: two products, whose parts are copied before one tensor is made of three of them."""
    spec = replace(DELTA, fused_inputs=True)
    widths = {"in_proj_qkvz": 2 * K + 2 * V, "in_proj_ba": 2 * 4}
    run = run_of(view_of(spec, widths, V))
    assert run.kept["cat", "TOKENS", 2 * (2 * K + V)] == 1, "the convolution's input"
    forward = run.made("forward")
    before = forward[: forward.index(("cat", "TOKENS", 2 * (2 * K + V)))]
    # Value, gate, beta and decay; then query and key.
    assert [size for op, _, size in before if op == "clone"] == [2 * V, 2 * V, 8, 8, 2 * K, 2 * K]
