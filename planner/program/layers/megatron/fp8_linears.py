"""Matrices of Transformer Engine in 8 bits beside GPUs that divide them: tokens are cast, and gathered so.

Weights lie in 8 bits beside the layer (:mod:`planner.program.engines.megatron`).  What is scaled by whole
tensors is gathered along rows alone, and turned behind that; what is scaled by blocks is gathered along
columns piece by piece, and put in order by a copy.
Source: TransformerEngine d0067d0d (2.20.0.dev0) pytorch/module/layernorm_linear.py _LayerNormLinear:160-1240,
module/linear.py _linear_forward_impl, _linear_backward, distributed.py _all_gather_fp8:989,
_start_all_gather_fp8_blockwise:1083, _all_gather_mxfp8:1527, csrc/extensions/normalization.cpp rmsnorm_fwd;
megatron-core 0.16.1 transformer/attention.py:363 (``set_save_original_input``).
Ignored: casts of weights, once a step; what :mod:`planner.program.weights.te_casts` ignores.
"""

from __future__ import annotations

from planner.domain.recipes.fp8_scaling import Scaling
from planner.program.layers.megatron.matrix import Matrix, of_weight, scattered
from planner.program.ops.autograd import record
from planner.program.ops.collectives import ALL_GATHER
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.weights.te_casts import Cast, Sides, cast, empty_cast


def fp8_product(
    torch: Operators,
    how: Scaling,
    matrix: Matrix,
    x: Tensor,
    gain: Tensor | None = None,
    *,
    whole: bool = False,
) -> Tensor:
    """``Linear``, or ``LayerNormLinear`` where ``gain`` is its norm's; ``whole``: it keeps its input in 16
    bits, as the layer keeps it anyway.
    """
    entry, weight, bias = shape_of(x), matrix.weight, matrix.bias
    total = Tensor(None, x.unit, x.count * matrix.gathers, "fp8")
    costs = Costs(total, weight, (matrix.out[0], matrix.out[1] * matrix.gathers), matrix.copies)
    along_rows = how.by_tensor and matrix.gathers > 1
    turns = torch.grad_enabled and not along_rows and not whole
    mine = _cast_input(torch, how, x, gain, "both" if turns else "rows")
    out = [_product(torch, matrix, mine, costs, x.dtype)]
    kept = [each for each in (mine.rows if along_rows else mine.columns,) if each is not None]
    if whole:
        kept = [x]
    elif gain is not None:
        kept.append(x)
    made = scattered(torch, out, matrix.scatters)
    del mine
    x_needs = x.node is not None

    def backward(saved: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        narrow = _cast_gradient(torch, how, gradient, matrix.scatters)
        again = _input_again(torch, how, saved[0], entry, matrix.gathers, whole=whole)
        size = (total.unit, total.count, gradient.dtype)
        made = [torch.new(*size, "gemm", cost=costs.of_x)] if x_needs else []
        # A variable of the function refers to the sum over all GPUs until it returns.
        _summed = [each for each in made if matrix.gathers > 1]
        of_x = scattered(torch, made, matrix.gathers) if made else None
        if along_rows and how.turned:
            again[1:] = [torch.new(total.unit, total.count, "fp8", "fp8_transpose", cost=again[:1])]
        else:
            del again[1:]
        gradient_of_weight = of_weight(torch, matrix, costs) if weight.node is not None else None
        again.clear()
        del narrow
        of_bias = [] if bias is None else [torch.new(Unit.ONE, bias.count, bias.dtype, "sum", cost=None)]
        if gain is None:
            return [of_x, gradient_of_weight, *of_bias]
        through = None if of_x is None else torch.like(of_x, "rmsnorm_bwd", entry.dtype, cost=(entry,))
        of_gain = torch.new(Unit.ONE, gain.count, gain.dtype, "rmsnorm_bwd", cost=None)
        return [through, gradient_of_weight, *of_bias, of_gain]

    inputs = [each for each in (x, weight, bias, gain) if each is not None]
    return record(torch, made, inputs, kept, backward)


def _cast_input(torch: Operators, how: Scaling, x: Tensor, gain: Tensor | None, sides: Sides) -> Cast:
    """The input in 8 bits; a norm writes it in 16 bits before, where the scale is not known before."""
    if gain is None:
        return cast(torch, how, x, sides)
    mine = empty_cast(torch, how, x, sides)
    if how.delayed:
        torch.pay([x], mine.parts())
        return mine
    normed = torch.like(shape_of(x), "rmsnorm_fwd")
    torch.pay([normed], mine.parts())
    return mine


def _product(torch: Operators, matrix: Matrix, mine: Cast, costs: Costs, dtype: Dtype) -> Tensor:
    """That of the tokens of all GPUs, whose input goes when it is made."""
    assert mine.rows is not None
    _total = [] if matrix.gathers == 1 else [_of_all(torch, mine.rows, matrix.gathers)]
    return torch.new(matrix.out[0], matrix.out[1] * matrix.gathers, dtype, "gemm", cost=costs.forward)


def _of_all(torch: Operators, mine: Tensor, parts: int, op: str = ALL_GATHER) -> Tensor:
    return torch.new(mine.unit, mine.count * parts, "fp8", op, cost=None)


def _cast_gradient(torch: Operators, how: Scaling, gradient: Tensor, parts: int) -> list[Tensor]:
    """The gradient of all tokens in 8 bits, both ways."""
    mine = cast(torch, how, gradient, "rows" if parts > 1 and how.by_tensor else "both")
    if parts == 1:
        return mine.parts()
    assert mine.rows is not None
    rows = _of_all(torch, mine.rows, parts)
    if not how.turned:
        return [rows]
    if how.by_tensor:
        return [rows, torch.like(rows, "fp8_transpose")]
    # Both directions are gathered; columns of squares and rows of tokens lie in pieces first.
    columns = _of_all(torch, mine.rows, parts)
    if how.square:
        _pieces = _of_all(torch, mine.rows, parts, "interleaved")
        torch.pay([_pieces], [columns])
    return [rows, columns]


def _input_again(
    torch: Operators, how: Scaling, saved: Tensor, entry: Tensor, parts: int, *, whole: bool
) -> list[Tensor]:
    """What the product of the weight's gradient reads: cast now, gathered, or as it was kept; behind it the
    pieces that it is put together of, which stay until the gradient of the input is made.
    """
    if whole:
        return cast(torch, how, entry, "both" if how.by_tensor else "columns").parts()
    if parts == 1:
        return [saved]
    total = [_of_all(torch, saved, parts)]
    if how.square:
        total.append(_of_all(torch, saved, parts, "interleaved"))
        torch.pay(total[1:], total[:1])
    return total
