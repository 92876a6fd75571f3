"""Experts that are taken out of parameters of all one after the other, each with a gradient of all (DBRX);
and experts that are drawn by chance, weighed by a function of their own (Phi-3.5-MoE).

Source: transformers 5.23 models/dbrx/modeling_dbrx.py DbrxRouter, DbrxFFN, DbrxExperts, DbrxExpertGLU,
models/phimoe/modeling_phimoe.py PhimoeTopKRouter, sparsemixer, PhimoeSparseMoeBlock.
More than eight experts of DBRX are counted as up to eight groups, as in ``experts_in_turn``.
Ignored: indices of the chosen rows; what drawing saves for each expert and token: masks, random numbers,
copies of the scores.
"""

from __future__ import annotations

from planner.program.layers.activations import activation
from planner.program.layers.mixture.experts import experts
from planner.program.layers.mixture.experts_in_turn import chosen_rows, index_add, n_turns_of
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, linear


def selected_experts(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What the experts add to the stream; variables are those of the loop, which keeps them for one turn."""
    mlp = view.block.mlp
    if mlp.jitters:
        x = _jittered(torch, x)
    chooser = next(each for each in view.linears("mlp_in") if each.group == "router")
    logits = linear(torch, view, chooser, torch.reshaped(x))
    weights = torch.chosen(torch.softmax(logits), mlp.top_k)
    rows = torch.reshaped(x)
    out = torch.new(x.unit, x.count, x.dtype, "zeros")
    _mask = torch.new(x.unit, mlp.top_k * (mlp.n_experts + 1), "int64", "one_hot")
    parts = [
        torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
        for spec in view.block.linears
        if spec.group == "expert"
    ]
    n_turns = n_turns_of(mlp.n_experts)
    for _ in range(n_turns):
        chosen = [torch.part(each, each.count / n_turns) for each in parts]
        state = _expert(torch, view, chosen_rows(torch, rows, mlp.top_k / n_turns), chosen)
        state = torch.mul(state, chosen_rows(torch, weights, 1 / n_turns))
        out = index_add(torch, out, torch.to(state, out.dtype))
    return out


def sampled_experts(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What the experts add to the stream; their input is multiplied by noise twice, by block and router."""
    mlp = view.block.mlp
    x = _jittered(torch, x) if mlp.jitters else x
    rows = torch.reshaped(x)
    rows = _jittered(torch, rows) if mlp.jitters else rows
    chooser = next(each for each in view.linears("mlp_in") if each.group == "router")
    scores = torch.softmax(linear(torch, view, chooser, rows))
    return experts(torch, view, rows, torch.chosen(scores, mlp.top_k))


def _jittered(torch: Operators, x: Tensor) -> Tensor:
    """``x`` times numbers around 1, in place."""
    noise = torch.like(x, "empty_like")
    torch.pay([x, noise], [x])

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "mul", cost=(kept[0],))]

    return record(torch, x.alias(), [x], [noise], backward)


def _expert(torch: Operators, view: LayerView, x: Tensor, parts: list[Tensor]) -> Tensor:
    width, hidden = view.block.mlp.width, x.count
    first, second, last = (torch.to(each, view.product_dtype(each.dtype)) for each in parts)
    share = view.block.mlp.top_k / n_turns_of(view.block.mlp.n_experts)
    copies = view.block.mlp.n_experts / n_turns_of(view.block.mlp.n_experts)
    given = autocast(torch, view, x)
    gate = torch.mm(given, first, share * width, copies=copies)
    up = torch.mm(given, second, share * width, copies=copies)
    gate = activation(torch, view, gate)
    middle = torch.mul(gate, up)
    return torch.mm(middle, last, hidden, copies=copies)
