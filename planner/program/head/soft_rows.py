"""Rows of tables for marks of images and sounds, made for all tokens and chosen where such marks are.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py Gemma3nModel.forward, Gemma3nMultimodalEmbedder;
torch 2.13 derivatives.yaml ``where``.
Ignored: masks and numbers of tokens, some bytes for each.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import ModelSpec
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, row_numbers
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def with_soft_rows(
    torch: Operators, view: LayerView, model: ModelSpec, number: int, rows: Tensor, stream: Tensor
) -> Tensor:
    """``where(mask, norm(project(norm(rows))), stream)`` of a table; a variable keeps its rows."""
    before = [each for each in model.final_norms if each.on == "soft_rows"][number]
    spec = [each for each in model.extra_linears if each.reads == "soft_rows"][number]
    made = linear(torch, view, spec, norm(torch, view, before, rows))
    del rows
    made = torch.to(
        norm(torch, view, replace(before, width=spec.out_features, weight=False), made), stream.dtype
    )
    torch.shared[f"soft_rows {number}"] = made
    needs = made.node is not None, stream.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "where") if each else None for each in needs]

    return record(torch, torch.like(stream, "where"), [made, stream], [row_numbers()], backward)
