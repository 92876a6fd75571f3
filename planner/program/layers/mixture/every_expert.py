"""A mixture that computes all experts for all tokens:
inputs of experts that were not chosen are multiplied by zero.

Source: transformers 5.23 models/llama4/modeling_llama4.py Llama4TextMoe, Llama4Router, Llama4TextExperts.
Ignored: indices and weights of the chosen experts, some numbers for each token.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.domain.model import LinearSpec
from planner.program.layers.activations import activation
from planner.program.layers.mixture.experts import expert_spec, sum_of_experts
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
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
    gate, up = torch.halves(_product(torch, view, x, first))
    out = torch.mul(up, activation(torch, view, gate))
    return _product(torch, view, out, second)


def _product(torch: Operators, view: LayerView, x: Tensor, spec: LinearSpec) -> Tensor:
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    copy = weight_copy(torch, view, weight)
    return torch.mm(autocast(torch, view, x), copy, spec.copies * spec.out_features, copies=spec.copies)
