"""What makes several streams of the embeddings, and one of them behind the layers.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py Gemma3nTextModel.forward; torch 2.13
derivatives.yaml ``div`` and ``mean``.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec, ModelSpec
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def split_streams(torch: Operators, view: LayerView, model: ModelSpec, first: Tensor) -> Tensor:
    """The embeddings and what matrices make of them, each as large as these; all live until the last norm."""
    made = [first]
    target = _size_of(torch, view, first)
    for number, spec in enumerate(_matrices(model, "streams")):
        made.append(_resized(torch, view, linear(torch, view, spec, first), target))
        torch.shared[f"stream {number}"] = made[-1]
    return torch.cat(made)


def joined_streams(torch: Operators, view: LayerView, model: ModelSpec, streams: Tensor) -> Tensor:
    """The mean of the first stream and of what matrices make of the others; two lists refer to all."""
    width = model.hidden_size
    made = [torch.part(streams, width)]
    target = _size_of(torch, view, made[0])
    made += [
        _resized(torch, view, linear(torch, view, spec, torch.part(streams, width)), target)
        for spec in _matrices(model, "joined_streams")
    ]
    whole = torch.cat(made)
    out = torch.new(whole.unit, width, whole.dtype, "mean", cost=[whole])
    shape = shape_of(whole)
    return record(torch, out, [whole], [], lambda *_: [torch.like(shape, "div")])


def _matrices(model: ModelSpec, reads: str) -> list[LinearSpec]:
    return [each for each in model.extra_linears if each.reads == reads]


def _size_of(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Autocast computes powers in fp32."""
    return torch.mean_of_rows(torch.square(torch.to(x, "fp32") if view.dtypes.autocast else x))


def _resized(torch: Operators, view: LayerView, x: Tensor, target: Tensor) -> Tensor:
    """``x * target / size``; a variable refers to ``x`` until the next one is there."""
    size = _size_of(torch, view, x)
    product = torch.mul(x, target)
    shape = shape_of(product)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_product = torch.like(gradient, "div")
        quotient = torch.like(kept[0], "div")
        quotient = torch.like(quotient, "div")
        negative = torch.like(gradient, "neg")
        return [of_product, torch.like(negative, "mul", cost=(quotient,))]

    return record(torch, torch.like(shape, "div"), [product, size], [product, size], backward)
