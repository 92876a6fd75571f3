"""Inputs of each layer beside the stream, rows of a table of their own, summed with a product of the stream;
and rows for marks of images and sounds, made for all tokens and chosen where such marks are.

Source: transformers 5.23 models/gemma4/modeling_gemma4.py Gemma4TextModel.get_per_layer_inputs and
project_per_layer_inputs, Gemma4TextDecoderLayer.forward; models/gemma3n/modeling_gemma3n.py
Gemma3nModel.forward, Gemma3nMultimodalEmbedder; torch 2.13 derivatives.yaml ``select``, ``where``.
Ignored: that these inputs have no gradient where the stream has one only behind the first layer; masks and
numbers of tokens, some bytes for each.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import ModelSpec, NormSpec
from planner.program.layers.activations import activation
from planner.program.layers.norms import norm
from planner.program.ops.autograd import LEAF_ORDER, record
from planner.program.ops.operators import Operators, row_numbers
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def with_layer_inputs(
    torch: Operators, view: LayerView, model: ModelSpec, stream: Tensor, rows: Tensor
) -> Tensor:
    """``stream``, with the inputs of all layers alive beside it until backward has come back to it.

    ``rows``: those of the table, already scaled.
    """
    spec = next(each for each in model.extra_linears if each.reads == "layer_inputs")
    made = linear(torch, view, spec, stream)
    made = torch.in_place(made, "mul") if view.block.streams > 1 else torch.same(made, "mul")
    made = norm(torch, view, next(each for each in model.final_norms if each.on == "layer_inputs"), made)
    made = torch.same(torch.add(made, rows), "mul")
    torch.shared["per_layer_inputs"] = made
    count, dtype = made.count, made.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient, torch.new(Unit.TOKENS, count, dtype, "select_backward")]

    if stream.node is None and made.node is None:
        torch.outputs.append(made.alias())
        return stream
    return record(torch, stream.alias(), [stream, made], [made], backward)


def of_whole_layer(torch: Operators, x: Tensor, held: list[Tensor]) -> Tensor:
    """``x``, whose backward lets ``held`` go."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        held.clear()
        return [gradient]

    return record(torch, x.alias(), [x], [], backward)


def add_layer_input(
    torch: Operators, view: LayerView, spec: NormSpec, x: Tensor, held: list[Tensor]
) -> Tensor:
    """``x + norm(up(act(down(x)) * input))``, scaled in place."""
    down, up = (view.linears(reads)[0] for reads in ("layer_gate", "layer_mid"))
    gate = activation(torch, view, linear(torch, view, down, x))
    out = torch.mul(gate, given_input(torch, view, x, held))
    del gate
    out = norm(torch, view, spec, linear(torch, view, up, out))
    return torch.add(x, out)


def given_input(torch: Operators, view: LayerView, x: Tensor, held: list[Tensor]) -> Tensor:
    """This layer's part of the inputs of all, with a gradient where the stream ``x`` has one.

    Backward: the gradient in zeros of all layers', and the sum of those before, which are ``held``.
    """
    width, whole = view.linears("layer_gate")[0].out_features, view.block.layer_inputs_width
    given = Tensor(None, Unit.TOKENS, width, view.embedded)

    def of_input(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        held.append(torch.new(Unit.TOKENS, whole, gradient.dtype, "select_backward"))
        held.append(torch.new(Unit.TOKENS, whole, gradient.dtype, "add"))
        held.pop(0)
        return []

    if x.node is not None and torch.grad_enabled:
        given.node = Node("per_layer_input", LEAF_ORDER, of_input)
    return given


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
