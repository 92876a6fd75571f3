"""Several streams of which each layer computes one: it predicts all of them, and corrects them by what it
computed.  A branch of few ranks stands beside attention.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py Gemma3nTextAltUp, Gemma3nTextLaurelBlock,
Gemma3nTextDecoderLayer; torch 2.13 torch/csrc/autograd/functions/tensor.cpp CopySlices, derivatives.yaml
``select`` and ``repeat``.
Ignored: casts of a few numbers for each token.
"""

from __future__ import annotations

from planner.program.layers.activations import activation
from planner.program.layers.attention.attention import attention
from planner.program.layers.feed_forward import feed_forward
from planner.program.layers.layer_inputs import given_input, of_whole_layer
from planner.program.layers.norms import norm
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def layer_of_streams(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """All streams after one layer, with the variables of its code."""
    norms = [spec for spec in view.block.norms if spec.on == "hidden" for _ in range(spec.copies)]
    held: list[Tensor] = []
    x = of_whole_layer(torch, x, held)
    predictions = _predicted(torch, view, x)
    width = x.count / view.block.streams
    active = torch.part(predictions, width)
    normed = norm(torch, view, norms[0], active)
    beside = _of_few_ranks(torch, view, normed)
    attended = norm(torch, view, norms[1], attention(torch, view, normed))
    gated = torch.add(active, attended)
    stream = torch.same(torch.add(gated, beside), "div")
    given = norm(torch, view, norms[2], stream)
    fed = feed_forward(torch, view, given)
    fed_normed = norm(torch, view, norms[3], fed)
    activated = torch.add(stream, fed_normed)
    corrected = _corrected(torch, view, predictions, activated)
    first = _scaled(torch, view, torch.contiguous(torch.part(corrected, width)))
    down, up = (view.linears(reads)[0] for reads in ("layer_gate", "layer_mid"))
    first = activation(torch, view, linear(torch, view, down, first))
    first = torch.mul(first, given_input(torch, view, x, held))
    first = norm(torch, view, norms[4], linear(torch, view, up, first))
    return _added_to_others(torch, corrected, first)


def _of_few_ranks(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    left, right = view.linears("low_rank")
    made = linear(torch, view, right, linear(torch, view, left, x))
    return torch.add(x, norm(torch, view, view.block.norms[0], made))


def _weights_of(torch: Operators, view: LayerView, x: Tensor, which: int) -> Tensor:
    """Numbers for each token, one or more for each stream, that matrices and a hyperbolic tangent make."""
    spec = view.linears("streams")
    given = torch.same(norm(torch, view, view.block.norms[0], x), "mul")
    routed = torch.to(linear(torch, view, spec[2], given), "fp32")
    routed = torch.to(torch.kernel(routed, "tanh", saves="output"), x.dtype)
    return linear(torch, view, spec[which], routed)


def _predicted(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """A product over the streams of each feature, to which they are added, laid out as they are."""
    weights = _weights_of(torch, view, torch.part(x, x.count / view.block.streams), 1)
    narrow = torch.to(x, view.product_dtype(x.dtype))
    out = torch.bmm(narrow, weights, (x.unit, x.count), inner=view.block.streams)
    del narrow
    return torch.to(torch.contiguous(torch.add_in_place(out, x)), x.dtype)


def _corrected(torch: Operators, view: LayerView, predictions: Tensor, activated: Tensor) -> Tensor:
    """What the layer found beyond its own prediction, weighed for each stream."""
    weights = torch.shifted(_weights_of(torch, view, activated, 0))
    innovation = torch.sub(activated, torch.part(predictions, activated.count))
    shape = shape_of(innovation)
    repeated = torch.new(shape.unit, predictions.count, shape.dtype, "repeat", cost=[innovation])
    repeated = record(torch, repeated, [innovation], [], lambda *_: [torch.like(shape, "sum")])
    del innovation
    return torch.add_in_place(torch.mul(repeated, weights), predictions)


def _scaled(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The product with a parameter, in its dtype."""
    scale = torch.parameter(Unit.ONE, x.count, view.dtypes.base, trained=view.trains_base)
    return torch.to(torch.mul(torch.to(x, scale.dtype), scale), x.dtype)


def _added_to_others(torch: Operators, x: Tensor, other: Tensor) -> Tensor:
    """``x[1:] += other``: added in place, and then copied over itself, each with a copy of the gradient."""
    whole_shape, others, of_other = shape_of(x), shape_of(x), shape_of(other)
    others.count = x.count - other.count

    def of_sum(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        whole, _part = torch.like(gradient, "copy"), torch.like(others, "clone")
        return [whole, torch.new(of_other.unit, of_other.count, gradient.dtype, "sum")]

    def of_copy(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        whole, part = torch.like(gradient, "copy"), torch.like(others, "clone")
        _zeros = torch.like(others, "zeros")
        return [whole, part]

    def of_view(*_: object) -> list[Tensor | None]:
        return [torch.like(whole_shape, "as_strided")]

    torch.pay([x, other], [x])
    summed = record(torch, x.alias(), [x, other], [], of_sum)
    view = Tensor(x.storage, x.unit, others.count, x.dtype)
    view = record(torch, view, [summed], [], of_view)
    return record(torch, x.alias(), [summed, view], [], of_copy)
