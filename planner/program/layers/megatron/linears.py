"""Matrices of Transformer Engine beside GPUs that divide them, and adapters beside these.

With sequence parallelism the input of a matrix with divided outputs is gathered, and gathered again in
backward: this GPU's tokens alone are kept.  The gradient of a weight is added to Megatron's buffer by the
product itself, or is a tensor, where the two are not fused.  The first dimension of the stream is that of
positions, so no collective needs a copy.
Source: TransformerEngine d0067d0d pytorch/module/layernorm_linear.py _LayerNormLinear, module/linear.py
_Linear; megatron-core 0.16.1 tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication;
mcore-bridge 1.6.5 tuners/lora.py LoraParallelLinear.
Ignored: one number for each row of a norm; what cuBLAS needs to sum a bias's gradient.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec, NormSpec
from planner.program.layers.megatron.fp8_linears import fp8_product
from planner.program.layers.megatron.matrix import Matrix, gathered, of_weight, scattered
from planner.program.ops.autograd import record
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.lora import dropout


def normed_linear(torch: Operators, view: LayerView, norm: NormSpec, spec: LinearSpec, x: Tensor) -> Tensor:
    """``LayerNormLinear``, which keeps the stream and what its norm made of it."""
    with torch.inside(spec.name):
        gain = torch.parameter(Unit.ONE, norm.width, view.dtypes.norm, trained=view.trains_base)
        if view.narrow is not None:
            return fp8_product(torch, view.narrow, _matrix(torch, view, spec, x), x, gain=gain)
        normed = _norm(torch, x, gain)
        return _adapted(torch, view, spec, normed, keeps=True)


def linear(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``Linear``, which keeps its input where the weight is trained."""
    with torch.inside(spec.name):
        if view.narrow is not None:
            whole = spec.reads == "attn_out" and not view.narrow.delayed
            return fp8_product(torch, view.narrow, _matrix(torch, view, spec, x), x, whole=whole)
        return _adapted(torch, view, spec, x, keeps=False)


def fused_norm(torch: Operators, view: LayerView, spec: NormSpec, x: Tensor) -> Tensor:
    """``RMSNorm`` or ``LayerNorm`` as a module of its own: it keeps its input."""
    return _norm(torch, x, torch.parameter(Unit.ONE, spec.width, view.dtypes.norm, trained=view.trains_base))


def _norm(torch: Operators, x: Tensor, gain: Tensor) -> Tensor:
    """One kernel; that of backward makes the gradients of input and weight."""
    shape, trained = shape_of(x), gain.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(gradient, "rmsnorm_bwd", shape.dtype, cost=(shape,))
        of_gain = torch.new(Unit.ONE, gain.count, gain.dtype, "rmsnorm_bwd", cost=None) if trained else None
        return [of_x, of_gain]

    return record(torch, torch.like(x, "rmsnorm_fwd"), [x, gain], [x], backward)


def _adapted(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, *, keeps: bool) -> Tensor:
    """The product, and an adapter's beside it, which is scaled and added by kernels of its own."""
    base = _matrix(torch, view, spec, x)
    if not view.adapted(spec):
        return product(torch, base, x)
    result = product(torch, base, x, keeps=keeps)
    with torch.counted_as("adapters"):
        return torch.add(result, torch.same(_branch(torch, view, spec, x), "mul"))


def _matrix(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Matrix:
    """That of ``spec``, for an input such as ``x``."""
    trained, dtype = view.trains_base, view.dtypes.base
    weight = torch.parameter(Unit.ONE, spec.weight_count, dtype, trained=trained)
    bias = torch.parameter(Unit.ONE, spec.bias_count, dtype, trained=trained) if spec.bias else None
    gathers, scatters = _parts(view, spec)
    out = (x.unit, spec.out_features * x.count / spec.in_features)
    return Matrix(weight, out, gathers, scatters, spec.copies, bias, view.stack.adds_gradients)


def _parts(view: LayerView, spec: LinearSpec) -> tuple[int, int]:
    parts = view.recipe.parallel.tensor
    return parts if spec.divided == "outputs" else 1, parts if spec.divided == "inputs" else 1


def _branch(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``B(A(dropout(x)))``: the side that GPUs divide is divided, ranks are whole."""
    dtype, adapter, adds = view.dtypes.adapter, view.recipe.adapter, view.stack.adds_gradients
    gathers, scatters = _parts(view, spec)
    factors = [
        torch.parameter(Unit.RANK, spec.copies * width, dtype, trained=True, owner=owner)
        for width, owner in ((spec.in_features, "lora_A"), (spec.out_features, "lora_B"))
    ]
    unit, rows = x.unit, x.count / spec.in_features
    if adapter is not None and adapter.dropout > 0:
        x = dropout(torch, x)
    down = Matrix(factors[0], (Unit.RANK_TOKENS, rows), scatters=scatters, copies=spec.copies, adds=adds)
    middle = product(torch, down, x)
    del x
    rows = middle.count * spec.out_features
    up = Matrix(factors[1], (unit, rows), gathers, copies=spec.copies, adds=adds)
    return product(torch, up, middle)


def product(torch: Operators, matrix: Matrix, x: Tensor, *, keeps: bool = False) -> Tensor:
    """One function: gather, product, and the sum over GPUs; ``keeps``: its input, trained or not.

    A bias gets its gradient from the product that makes that of the weight.
    """
    weight, bias, entry = matrix.weight, matrix.bias, shape_of(x)
    trained, x_needs = weight.node is not None, x.node is not None
    whole = Tensor(None, x.unit, x.count * matrix.gathers, x.dtype)
    out = (matrix.out[0], matrix.out[1] * matrix.gathers)
    costs = Costs(whole, weight, out, matrix.copies)
    total = [gathered(torch, whole, matrix.gathers)]
    made = torch.new(*out, x.dtype, "mm", cost=costs.forward)
    total.clear()
    made = scattered(torch, [made], matrix.scatters)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        summed = Tensor(None, gradient.unit, gradient.count * matrix.scatters, gradient.dtype)
        came = [gathered(torch, summed, matrix.scatters), gradient]
        again = [gathered(torch, whole, matrix.gathers if trained else 1)]
        of_x = None
        if x_needs:
            made = [torch.new(whole.unit, whole.count, entry.dtype, "mm", cost=costs.of_x)]
            of_x = scattered(torch, made, matrix.gathers)
        gradient_of_weight = of_weight(torch, matrix, costs) if trained else None
        again.clear()
        came.clear()
        of_bias = None
        if bias is not None and bias.node is not None:
            of_bias = torch.new(Unit.ONE, bias.count, bias.dtype, "mm", cost=None)
        return [of_x, gradient_of_weight, of_bias][: 2 if bias is None else 3]

    saved = [x] if trained or keeps else []
    return record(torch, made, [x, weight] if bias is None else [x, weight, bias], saved, backward)


def output_layer(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, x: Tensor) -> Tensor:
    """The head, whose input is gathered into a buffer that stays; autograd gets its weight's gradient, or a
    dummy of that size where the product adds it to Megatron's buffer.

    Source: megatron-core 0.16.1 tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication.
    """
    parts, entry, trained, x_needs = (
        view.recipe.parallel.tensor,
        shape_of(x),
        weight.node is not None,
        x.node is not None,
    )
    whole = Tensor(None, x.unit, x.count * parts, x.dtype)
    costs = Costs(whole, weight, (x.unit, spec.out_features))
    made = torch.new(x.unit, spec.out_features, x.dtype, "matmul", cost=costs.forward)

    def backward(*_: object) -> list[Tensor | None]:
        of_x = None
        if x_needs:
            of_x = scattered(
                torch, [torch.new(whole.unit, whole.count, entry.dtype, "matmul", cost=costs.of_x)], parts
            )
        dummy = None
        if trained:
            dummy = torch.new(weight.unit, weight.count, weight.dtype, "empty", cost=costs.of_weight)
        return [of_x, dummy]

    return record(torch, made, [x, weight], [x] if trained else [], backward)
