"""Experts that read the stream before the dense part of the same layer, and are added to what that returns.

Source: transformers 5.23 models/gemma4/modeling_gemma4.py Gemma4TextDecoderLayer, Gemma4TextRouter.
Ignored: indices and weights of the chosen experts, some numbers for each token.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.model import NormSpec
from planner.program.layers.mixture.experts import experts
from planner.program.layers.norms import norm
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def beside_dense(
    torch: Operators, view: LayerView, dense: Tensor, stream: Tensor, norms: Sequence[NormSpec]
) -> Tensor:
    """The sum of both parts; ``norms``: of the dense part's output, of the experts' input and output."""
    first = norm(torch, view, norms[0], dense)
    rows = torch.reshaped(stream)
    weights = _router(torch, view, rows)
    second = experts(torch, view, norm(torch, view, norms[1], rows), weights)
    return torch.add(first, norm(torch, view, norms[2], second))


def _router(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Weights of the chosen experts, of the stream without its size, times a parameter and a number."""
    mlp, width = view.block.mlp, x.count
    with torch.inside("router"):
        given = norm(torch, view, NormSpec("rms", int(width), weight=False), x)
        scale = torch.parameter(Unit.ONE, width, view.dtypes.norm, trained=view.trains_base)
        given = torch.same(torch.mul(given, scale), "mul")
        spec = next(each for each in view.linears("mlp_in") if each.group == "router")
        scores = torch.softmax(torch.to(linear(torch, view, spec, given), "fp32"))
        return torch.chosen(scores, mlp.top_k)
