"""DoRA beside a matrix: the sum of base and adapter is scaled by a trained magnitude over its norm,
row by row.

Source: peft 0.21 and 0.18 ``tuners/lora/dora.py`` DoraLinearLayer, 0.21 ``tuners/lora/variants.py``
DoraLinearVariant, ``utils/integrations.py`` dequantize_module_weight; torchtune 0.6.1
``modules/peft/dora.py`` DoRALinear (``adapter_first``), which scales the base's result whatever dropout
leaves.
Ignored: norms that are made once when the adapters are.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, linear_function, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.four_bit import loaded
from planner.program.weights.lora import dropped, factors, times


def with_dora(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, result: Tensor) -> Tensor:
    """The base's ``result`` and the branch beside it.

    Without dropout ``result`` itself is scaled; with it the base multiplies what is left of ``x`` once more.
    """
    left = dropped(torch, view, x)
    reads_result = left is x or view.stack.dora == "adapter_first"
    return torch.add(result, _branch(torch, view, spec, left, result if reads_result else None))


def _branch(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base_result: Tensor | None
) -> Tensor:
    """What is added to the base's result; variables live until then, as ``x_eye`` does before peft 0.19."""
    pair = factors(torch, view, spec)
    magnitude = torch.parameter(
        Unit.ONE, spec.out_features, view.dtypes.adapter, trained=True, owner="lora_magnitude_vector"
    )
    first = view.stack.dora == "adapter_first"
    lora_result = _through_both(torch, view, spec, pair, x, rows_of(spec, x)) if first else None
    keeps = first or view.stack.dora == "keeps_eye"
    x_eye = torch.new(Unit.ONE, spec.in_features**2, x.dtype if keeps else view.dtypes.adapter, "eye")
    lora_weight = _through_both(torch, view, spec, pair, x_eye, spec.in_features)
    if not keeps:
        del x_eye
        lora_weight = torch.to(lora_weight, x.dtype)
    # The base's own weight, or a copy of a quantised one in the dtype that was quantised.
    own = Tensor(None, Unit.ONE, spec.in_features * spec.out_features, view.dtypes.base)
    weight = torch.to(loaded(torch, view, spec) if view.quantized(spec) else own, x.dtype)
    weight_norm = _norm_of_sum(torch, view, weight, (lora_weight.dtype, spec.out_features))
    scale = torch.reshaped(_divided(torch, magnitude, weight_norm))
    if lora_result is None:
        lora_result = _through_both(torch, view, spec, pair, x, rows_of(spec, x))
    if base_result is None:
        base_result = _base_again(torch, view, spec, x, weight)
    elif spec.bias and not first:
        base_result = torch.contiguous(base_result, "sub")
    return torch.add(
        torch.mul(torch.shifted(scale), base_result), torch.same(torch.mul(scale, lora_result), "mul")
    )


def _through_both(
    torch: Operators, view: LayerView, spec: LinearSpec, pair: tuple[Tensor, Tensor], x: Tensor, rows: float
) -> Tensor:
    """``B(A(x))``, of ``x`` with so many rows for each of its unit."""
    units = (Unit.RANK, Unit.ONE) if x.unit is Unit.ONE else (Unit.RANK_TOKENS, Unit.TOKENS)
    middle = [times(torch, view, pair[0], x, (units[0], rows))]
    del x
    return times(torch, view, pair[1], middle.pop(), (units[1], rows * spec.out_features))


def _norm_of_sum(torch: Operators, view: LayerView, weight: Tensor, other: tuple[Dtype, int]) -> Tensor:
    """``norm(weight + scaling * lora_weight, dim=1)`` of two detached tensors, which autocast makes in fp32.

    ``other``: the dtype of ``lora_weight``, and how many rows both have.
    """
    scaled = torch.like(Tensor(None, Unit.ONE, weight.count, other[0]), "mul")
    total = torch.new(Unit.ONE, weight.count, weight.dtype, "add", cost=[weight, scaled])
    del scaled
    dtype = "fp32" if view.dtypes.autocast else weight.dtype
    norm = torch.new(Unit.ONE, other[1], dtype, "linalg_vector_norm", cost=[total])
    norm = torch.to(norm, weight.dtype)
    del total
    return norm


def _divided(torch: Operators, magnitude: Tensor, norm: Tensor) -> Tensor:
    """``magnitude / norm``, of which the norm is a constant."""
    out = torch.like(magnitude, "div")
    return record(torch, out, [magnitude], [norm], lambda _, gradient: [torch.like(gradient, "div")])


def _base_again(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weight: Tensor) -> Tensor:
    """``F.linear(x, weight)``: autocast casts both, and the weight's copy is saved."""
    if view.dtypes.autocast and weight.dtype != view.dtypes.compute:
        weight = torch.like(weight, "to", view.dtypes.compute)
    times = linear_function(torch, view)
    return times(autocast(torch, view, x), weight, rows_of(spec, x) * spec.out_features)
