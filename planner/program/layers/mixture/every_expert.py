"""A mixture that computes all experts for all tokens:
inputs of experts that were not chosen are multiplied by zero.

Source: transformers 5.23 models/llama4/modeling_llama4.py Llama4TextMoe, Llama4Router, Llama4TextExperts.
Where a checkpoint has its experts as matrices of their own, they run one after the other: axolotl 0.19.0
monkeypatch/models/llama4/modeling.py Llama4TextExperts, over several as in ``experts_in_turn``.
Ignored: indices and weights of the chosen experts, some numbers for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.domain.model import LinearSpec
from planner.program.layers.activations import activation
from planner.program.layers.mixture.experts import expert_spec
from planner.program.layers.mixture.experts_in_turn import expert_group
from planner.program.layers.mixture.sent_rows import sum_of_experts
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, linear, weight_copy


def every_expert(torch: Operators, view: LayerView, x: Tensor, shared: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of all experts over their scaled inputs, added in place to what the ``shared`` one returns."""
    x = torch.reshaped(x)
    scores = _scores(torch, view, x)
    copies = _scaled_copies(torch, view, x, scores)
    with torch.inside("experts"):
        routed = _experts(torch, view, copies)
    out = shared(x)
    return torch.add_in_place(out, sum_of_experts(torch, view, routed, x.count))


def _scores(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The sigmoid in fp32 of the chosen logits, which lie in a tensor full of minus infinity."""
    spec = next(each for each in view.linears("mlp_in") if each.group == "router")
    logits = linear(torch, view, spec, x)
    best = torch.chosen(logits, view.block.mlp.top_k)
    unit, dtype = best.unit, logits.dtype
    filled = torch.like(logits, "full_like")

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        del gradient
        return [Tensor(None, unit, view.block.mlp.top_k, dtype)]

    filled = record(torch, filled, [best], [], backward)
    return torch.to(torch.kernel(torch.to(filled, "fp32"), "sigmoid", saves="output"), dtype)


def _scaled_copies(torch: Operators, view: LayerView, x: Tensor, scores: Tensor) -> Tensor:
    """``x.repeat(experts, 1) * scores``."""
    unit, width, dtype = x.unit, x.count, x.dtype
    repeated = torch.new(unit, width * view.block.mlp.n_experts, dtype, "repeat", cost=[x])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, width, gradient.dtype, "sum", cost=[gradient])]

    repeated = record(torch, repeated, [x], [], backward)
    by_expert = torch.contiguous(scores)
    return torch.mul(repeated, by_expert)


def _experts(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Batched products, one for each expert."""
    first, second = (expert_spec(view, reads) for reads in ("mlp_in", "mlp_mid"))
    if first.kind == "linear":
        return _in_turn(torch, view, x)
    gate, up = torch.halves(_product(torch, view, x, first))
    out = torch.mul(up, activation(torch, view, gate))
    return _product(torch, view, out, second)


def _product(torch: Operators, view: LayerView, x: Tensor, spec: LinearSpec) -> Tensor:
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    copy = weight_copy(torch, view, weight)
    return torch.mm(autocast(torch, view, x), copy, spec.copies * spec.out_features, copies=spec.copies)


def _in_turn(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The same with matrices of each expert; variables are those of the loop, kept for one turn."""
    (gate_spec, up_spec, down_spec), n_experts, n_turns = expert_group(view)
    x = torch.reshaped(x)
    out = torch.like(x, "zeros_like")
    with torch.in_manner(replace(torch.manner, calls=n_experts // n_turns)):
        for _ in range(n_turns):
            rows = torch.part(x, x.count / n_turns)
            gate = linear(torch, view, gate_spec, rows)
            up = linear(torch, view, up_spec, rows)
            state = linear(torch, view, down_spec, torch.mul(up, activation(torch, view, gate)))
            out = _written(torch, out, torch.to(state, out.dtype))
    return torch.reshaped(out)


def _written(torch: Operators, out: Tensor, part: Tensor) -> Tensor:
    """``out[i] = part``: the gradient of all is copied, and a copy of its part is set to zero.

    Source: torch 2.13 torch/csrc/autograd/functions/tensor.cpp CopySlices.
    """
    piece = shape_of(part)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        copied, cloned = torch.like(gradient, "copy"), torch.like(piece, "clone")
        _zeros = torch.like(piece, "zeros")
        return [copied, cloned]

    torch.pay([part], [part])
    return record(torch, out.alias(), [out, part], [], backward)
