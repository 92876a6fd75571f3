"""Experts that are modules of their own, which run one after the other, as Transformers 4 has them.

What one expert makes goes before the next one runs, forward, back and in a recomputation, but for what is
saved of all.  Tokens are taken to be spread evenly.  More than eight experts are counted as up to eight
groups that run in turn, so that programs stay short.
Source: transformers 4.46.3 and 4.57.1 models/mixtral/modeling_mixtral.py MixtralSparseMoeBlock.forward, and
the same in qwen2_moe, qwen3_moe, olmoe and ernie4_5_moe; models/deepseek_v3 and glm4_moe, ``moe``.
Ignored: indices of the chosen rows.  DeepSeek V2 sorts its tokens first, and joins what the experts return.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import LinearSpec
from planner.program.layers.activations import gated
from planner.program.ops.autograd import record, save
from planner.program.ops.operators import Operators, row_numbers
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear

Expert = tuple[LinearSpec, LinearSpec, LinearSpec]
_MOST_TURNS = 8
_KEEPS_FP32 = ("sigmoid", "sigmoid_divided", "sigmoid_fp32", "sigmoid_module")
"""Routers whose weights stay in fp32, and so does the sum over experts."""


def in_turn(torch: Operators, view: LayerView, x: Tensor, weights: Tensor) -> Tensor:
    """What the experts add to the stream; variables are those of the loop, which keeps them for one turn."""
    top_k, given = view.block.mlp.top_k, x.dtype
    expert, n_experts, n_turns = expert_group(view)
    if view.block.mlp.router not in _KEEPS_FP32:
        weights = torch.to(weights, given)
    out = torch.new(x.unit, x.count, weights.dtype, "zeros")
    _expert_mask = torch.new(x.unit, top_k * n_experts, "int64", "one_hot")
    with torch.in_manner(replace(torch.manner, calls=n_experts // n_turns, waits=True)):
        for _ in range(n_turns):
            state = chosen_rows(torch, x, top_k / n_turns)
            added = linear(torch, view, expert[2], gated(torch, view, expert[:2], state))
            added = torch.mul(added, chosen_rows(torch, weights, 1 / n_turns))
            added = torch.to(added, out.dtype)
            out = index_add(torch, out, added)
    return torch.to(out, given)


def expert_group(view: LayerView) -> tuple[Expert, int, int]:
    """The matrices of the experts that run together, how many experts there are, and in how many turns."""
    gate, up = (spec for spec in view.linears("mlp_in") if spec.group == "expert")
    down = next(spec for spec in view.linears("mlp_mid") if spec.group == "expert")
    n_experts = down.copies
    n_turns = n_turns_of(n_experts)
    n_together = n_experts // n_turns
    gate, up, down = (replace(spec, copies=n_together, active_copies=1) for spec in (gate, up, down))
    return (gate, up, down), n_experts, n_turns


def n_turns_of(n_experts: int) -> int:
    """How many groups of experts run one after the other."""
    return next(turns for turns in range(_MOST_TURNS, 0, -1) if n_experts % turns == 0)


def chosen_rows(torch: Operators, x: Tensor, share: float) -> Tensor:
    """``x[rows]``: its gradient is added in place to zeros in the shape of ``x``, a view of which is sent on.

    Source: torch 2.13 torch/csrc/autograd/FunctionsManual.cpp index_backward.
    """
    unit, whole, dtype = x.unit, x.count, x.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        zeros = torch.new(unit, whole, dtype, "new_zeros")
        torch.pay([gradient, gradient], [gradient])
        zeros.is_view = True
        return [zeros]

    rows = Tensor(None, unit, share * whole, dtype)
    out = torch.new(unit, rows.count, dtype, "index", cost=[rows])
    return record(torch, out, [x], [row_numbers()], backward)


def index_add(torch: Operators, out: Tensor, added: Tensor) -> Tensor:
    """``out.index_add_(0, rows, added)``, of which ``added`` is saved for its shape alone.

    Source: torch 2.13 tools/autograd/derivatives.yaml index_add (``expand_as(source)``).
    """
    unit, count, dtype = added.unit, added.count, added.dtype
    saved = save(torch, [out, added], [row_numbers(), added])
    torch.pay([added, added], [added])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        rows = Tensor(None, unit, count, dtype)
        return [gradient, torch.new(unit, count, dtype, "index_select", cost=[rows])]

    return record(torch, out.alias(), [out, added], saved, backward)
