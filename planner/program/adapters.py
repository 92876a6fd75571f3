"""LoRA beside a matrix: PEFT's separate operators, compiled ones, or one function that adds to the product in place.

Source: peft 0.21 ``tuners/lora/layer.py`` Linear.forward, ``bnb.py`` Linear8bitLt and Linear4bit, ``gptq.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.domain.model import LinearSpec
from planner.program.autograd import record
from planner.program.casts import autocast, rows_of, weight_copy
from planner.program.operators import Operators
from planner.program.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

_FOUR_BIT = ("nf4", "fp4")
Base = Callable[[Operators, LayerView, LinearSpec, Tensor], Tensor]


def with_adapter(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """``base(x) + B(A(dropout(x))) * scaling``; the result of a 4-bit matrix is copied first.

    PEFT casts ``x`` to the dtype of the adapter, but leaves that to autocast over weights of bitsandbytes.  The sum has the
    dtype of the base's result again, except over those weights under autocast.
    """
    by_bitsandbytes = view.quantized(spec) and view.recipe.numerics.quantization in (*_FOUR_BIT, "int8")
    result = base(torch, view, spec, x)
    if by_bitsandbytes and view.recipe.numerics.quantization in _FOUR_BIT:
        result = torch.contiguous(result)
    given, converts = result.dtype, by_bitsandbytes and not view.dtypes.autocast
    if converts or not by_bitsandbytes:
        x = torch.to(x, view.dtypes.adapter)
    if view.stack.adapter_kernels == "compiled":
        return _scaled_sum(torch, result, _branch(torch, view, spec, x))
    output_dtype = given if converts else None
    result = torch.add(result, _scaled(torch, _branch(torch, view, spec, x), output_dtype))
    return result if by_bitsandbytes else torch.to(result, given)


def factors(torch: Operators, view: LayerView, spec: LinearSpec) -> tuple[Tensor, Tensor]:
    """The matrices ``A``, from the input to the rank, and ``B``, from the rank to the output."""
    dtype = view.dtypes.adapter
    down = torch.parameter(Unit.RANK, spec.copies * spec.in_features, dtype, trained=True, owner="lora_A")
    return down, torch.parameter(Unit.RANK, spec.copies * spec.out_features, dtype, trained=True, owner="lora_B")


def _branch(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``B(A(dropout(x)))``."""
    down, up = factors(torch, view, spec)
    rows, unit = rows_of(spec, x), x.unit
    middle = [_times(torch, view, down, _dropped(torch, view, x), (Unit.RANK_TOKENS, rows))]
    return _times(torch, view, up, middle.pop(), (unit, rows * spec.out_features))


def _scaled(torch: Operators, output: Tensor, dtype: Dtype | None) -> Tensor:
    """``(output * scaling).to(dtype)``."""
    output = torch.same(output, "mul")
    return output if dtype is None else torch.to(output, dtype)


def _times(torch: Operators, view: LayerView, weight: Tensor, x: Tensor, out: tuple[Unit, float]) -> Tensor:
    """``A`` or ``B``, each an ``nn.Linear`` without a bias; ``out`` says how many elements it returns."""
    with torch.inside("lora_A" if out[0] is Unit.RANK_TOKENS else "lora_B", torch.module):
        weight = weight_copy(torch, view, weight)
        x = autocast(torch, view, x)
        return torch.mm(x, weight, out[1], to_unit=out[0])


def _dropped(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``x`` after the adapter's dropout; compiled code makes the mask again from its seed."""
    adapter = view.recipe.adapter
    with torch.inside("lora_dropout", torch.module):
        if adapter is None or adapter.dropout <= 0:
            return x
        return torch.same(x, "dropout") if view.stack.adapter_kernels == "compiled" else dropout(torch, x)


def dropout(torch: Operators, x: Tensor) -> Tensor:
    """A mask of one byte for each element is saved; the gradient is a new tensor."""
    out = torch.like(x, "dropout")
    mask = torch.like(x, "dropout", "bool")
    dtype = x.dtype
    return record(torch, out, [x], [mask], lambda _, gradient: [torch.like(gradient, "dropout_backward", dtype)])


def _scaled_sum(torch: Operators, result: Tensor, output: Tensor) -> Tensor:
    """Scaling, addition and cast in one kernel; the gradient is scaled by another."""
    dtype = output.dtype
    out = torch.like(result, "add")
    return record(torch, out, [result, output], [], lambda _, each: [each, torch.like(each, "mul", dtype)])
