"""Attention that is written out: its requests for two heads of four features, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from planner.domain.attention_shape import AttentionSpec
from planner.program.layers.attention.eager import eager
from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Node, Tensor, Unit
from planner.program.recorded_part import Shape, Terms, run
from planner.program.view import Dtypes, LayerView

LLAMA = AttentionSpec(n_heads=2, n_kv_heads=2, head_dim=4, value_head_dim=4)
BF16 = Dtypes("bf16", "bf16", "bf16", "bf16", "bf16", autocast=False)
FP16 = Dtypes("fp16", "fp16", "fp16", "fp16", "fp16", autocast=False)
MIXED = Dtypes("bf16", "fp32", "fp32", "fp32", "fp32", autocast=True)
PAIRS, TOKENS, SINK = Unit.PAIRS, Unit.TOKENS, Unit.SINK_PAIRS


def _view(
    spec: AttentionSpec, dtypes: Dtypes = BF16, *, single: bool = True, caps: str = "logits"
) -> LayerView:
    block, stack = SimpleNamespace(attention=spec), SimpleNamespace(soft_caps=caps)
    made = SimpleNamespace(block=block, dtypes=dtypes, single=single, trains_base=True, stack=stack)
    return cast("LayerView", made)


class _Run:
    """One forward and backward pass; requests are (unit, bytes for each of it)."""

    def __init__(self, view: LayerView, dtype: Dtype = "bf16") -> None:
        spec = view.block.attention
        self.torch = torch = Operators()
        torch.enter("inputs")
        inputs: list[Tensor] = []
        for count in (spec.q_width, spec.k_width, spec.v_width):
            tensor = torch.new(TOKENS, count, dtype, "input")
            tensor.node = Node("input", 10**6, None)
            inputs.append(tensor)
        first = len(torch.units)
        torch.enter("forward")
        out, self.variables = eager(torch, view, *inputs)
        self.in_variables = [torch.units[each.storage.slot] for each in self.variables if each.storage]
        freed = {~event for event in torch.events if event < 0}
        self.forward = self._requests(first)
        self.alive = [
            each for slot, each in zip(range(first, 10**6), self.forward, strict=False) if slot not in freed
        ]
        first = len(torch.units)
        torch.enter("backward")
        assert out.node is not None
        run_backward(torch, out.node, [torch.new(out.unit, out.count, out.dtype, "gradient")])
        self.backward = self._requests(first)[1:]

    def _requests(self, first: int) -> list[tuple[Unit, float]]:
        return list(zip(self.torch.units, self.torch.unit_bytes, strict=True))[first:]


def test_one_sample_takes_heads_as_they_lie() -> None:
    """Scores of two heads: product, scale, mask, fp32 copy, softmax, cast;
    then the weighted values and their rows.
    """
    run_ = _Run(_view(LLAMA))
    scores = [(PAIRS, 4), (PAIRS, 4), (PAIRS, 4), (PAIRS, 8), (PAIRS, 8), (PAIRS, 4)]
    assert run_.forward == [*scores, (TOKENS, 16), (TOKENS, 16)]
    # The softmax, its cast for the product, and the rows.
    assert run_.alive == [(PAIRS, 8), (PAIRS, 4), (TOKENS, 16)]
    # Value, probabilities; fp32 gradient, its product with the output, that of the softmax,
    # to 16 bits; scale; key, query.
    of_softmax = [(PAIRS, 8), (PAIRS, 8), (PAIRS, 8)]
    made = [(TOKENS, 16), (PAIRS, 4), *of_softmax, (PAIRS, 4), (PAIRS, 4), (TOKENS, 16), (TOKENS, 16)]
    assert run_.backward == made


def test_several_samples_copy_each_operand_and_one_gradient() -> None:
    """Query, key and value are laid out head by head, and the gradient of what the heads return."""
    one, several = _Run(_view(LLAMA)), _Run(_view(LLAMA, single=False))
    assert len(several.forward) == len(one.forward) + 3
    assert several.backward == [(TOKENS, 16), *one.backward]


def test_fp16_is_read_by_the_softmax_without_a_copy() -> None:
    """So there is no fp32 copy of the scores; the softmax's own product with the gradient is fp32."""
    run_ = _Run(_view(LLAMA, FP16), "fp16")
    assert [size for unit, size in run_.forward if unit is PAIRS] == [4, 4, 4, 8, 4]
    assert [size for unit, size in run_.backward if unit is PAIRS] == [4, 8, 8, 4, 4]


def test_a_mask_of_the_embeddings_widens_scores() -> None:
    """Under autocast with fp32 embeddings: fp32 masked scores need no copy,
    and their gradient is cast to bf16.
    """
    run_ = _Run(_view(LLAMA, MIXED))
    assert [size for unit, size in run_.forward if unit is PAIRS] == [4, 4, 8, 8, 4]


def test_shared_keys_are_copied_for_all_heads_but_one_key_head_is_not() -> None:
    """Two heads of keys and values for four of queries; then one for two."""
    four = replace(LLAMA, n_heads=4, n_kv_heads=2)
    assert _Run(_view(four)).forward[:2] == [(TOKENS, 32), (TOKENS, 32)]
    # Gradients of key and query, of four heads each; those of value and key are summed to two.
    assert _Run(_view(four)).backward[-4:] == [(TOKENS, 32), (TOKENS, 32), (TOKENS, 16), (TOKENS, 16)]
    assert _Run(_view(replace(LLAMA, n_kv_heads=1))).forward[0] == (PAIRS, 4)


def test_a_soft_cap_keeps_its_tanh() -> None:
    """Beside the softmax, its cast, and the rows."""
    run_ = _Run(_view(replace(LLAMA, softcap=True)))
    assert run_.alive == [(PAIRS, 4), (PAIRS, 8), (PAIRS, 4), (TOKENS, 16)]


@pytest.mark.parametrize("window", [None, 512])
def test_torchtune_makes_a_mask_in_each_layer(window: int | None) -> None:
    """In fp32, which widens the sum; where there is a window, ones and those inside of it stay beside."""
    spec = replace(LLAMA, softcap=True, window_tokens=window)
    run_ = _Run(_view(spec, caps="stream"))
    masks = [size for unit, size in run_.forward if unit is Unit.LENGTH_PAIRS]
    assert masks == [1, 1, 1, 4, *([4, 4, 4, 4, 1, 4] if window else [])]
    assert run_.in_variables == [Unit.LENGTH_PAIRS] * (3 if window else 1)
    scores = [size for unit, size in run_.forward if unit is PAIRS]
    assert scores == [4, 4, 4, 4, 8, 8, 4]


def test_dropout_keeps_a_mask_and_what_it_returns() -> None:
    """The softmax's cast has gone: nothing needs it."""
    run_ = _Run(_view(replace(LLAMA, dropout=True)))
    assert run_.alive == [(PAIRS, 8), (PAIRS, 4), (PAIRS, 2), (TOKENS, 16)]


def test_a_sink_is_one_key_more() -> None:
    """Joined scores, what is left of them, their softmax; backward: slice, the softmax's two, negated,
    zeros, scattered.
    """
    run_ = _Run(_view(replace(LLAMA, sinks=True)))
    assert [size for unit, size in run_.forward if unit is SINK] == [4, 4, 4]
    assert [size for unit, size in run_.backward if unit is SINK] == [4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        (replace(LLAMA, eager_scores="fp32_biased", returned_scores="cast"), [PAIRS]),
        (replace(LLAMA, returned_scores="cast"), [TOKENS, TOKENS, TOKENS, PAIRS, PAIRS]),
        (replace(LLAMA, eager_scores="compute", returned_scores="softmax"), []),
        (replace(LLAMA, eager_scores="compute", returned_scores="softmax", position="alibi"), [PAIRS] * 3),
        (replace(LLAMA, eager_scores="fp32"), []),
        (replace(LLAMA, eager_scores="compute"), []),
    ],
)
def test_what_variables_keep_until_the_output_projection(spec: AttentionSpec, kept: list[Unit]) -> None:
    """MPT its masked scores; BLOOM heads, raw and masked scores;
    Falcon with a bias the product and what came of it.
    """
    assert _Run(_view(spec)).in_variables == kept


def test_gptj_works_in_fp32() -> None:
    """Query and key are cast, and scores are fp32 up to the softmax, which needs no copy."""
    run_ = _Run(_view(replace(LLAMA, eager_scores="fp32")))
    sizes = [(TOKENS, 32), (TOKENS, 32), (PAIRS, 8), (PAIRS, 8), (PAIRS, 8), (PAIRS, 8), (PAIRS, 4)]
    assert run_.forward[: len(sizes)] == sizes


def test_returned_probabilities_go_when_the_next_layer_has_run() -> None:
    """A part that returns them frees them in the stage after its own."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        torch.returned.append(torch.new(PAIRS, 2, "fp32", "softmax"))
        return torch.same(x, "mul")

    template = run(part, Shape(4, "bf16", needs_grad=True), Terms("saved_activations", "block_recompute"))
    slot = template.units.index(PAIRS)
    assert ~slot not in template.stages["forward"]
    assert [*template.stages["forward_next"]] == [~slot]
