"""LoRA beside a matrix: PEFT's separate operators, compiled ones,
or one function that adds to the product in place.  VeRA: two frozen matrices that all layers share, and a
trained vector behind either.

Source: peft 0.21 ``tuners/lora/layer.py`` Linear.forward, ``bnb.py`` Linear8bitLt and Linear4bit,
``gptq.py``, ``awq.py``, ``aqlm.py``; ``tuners/vera/layer.py`` Linear.forward, ``tuners/vera/model.py``
_init_vera_A_vera_B; nemo-automodel 0.5.0 components/_peft/lora.py LinearLoRA.forward.
Ignored: ReLoRA's merge between steps (axolotl fbe54be6b monkeypatch/relora.py merge_and_save), some copies of
one matrix when there are neither activations nor gradients.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.domain.recipes.recipe import BITSANDBYTES
from planner.program.ops.autograd import record
from planner.program.ops.casts import Base, autocast, linear_function, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.dora import with_dora
from planner.program.weights.lora import FOUR_BIT, dropped, factors, times
from planner.program.weights.oft import with_rotation

LEAVES_CASTS = BITSANDBYTES | {"awq-int4", "aqlm"}
"""Bases beside which PEFT leaves casts to autocast, where that is on."""


def with_adapter(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """``base(x) + B(A(dropout(x))) * scaling``; the result of a 4-bit matrix is copied first.

    PEFT casts ``x`` to the dtype of the adapter, but leaves that to autocast over weights of bitsandbytes,
    AWQ and AQLM.  The sum has the dtype of the base's result again, except over those weights under autocast.
    OFT turns ``x`` instead, and VeRA multiplies by vectors.
    """
    if view.recipe.adapter is not None and view.recipe.adapter.oft_block_size:
        return with_rotation(torch, view, spec, x, base)
    if view.recipe.adapter is not None and view.recipe.adapter.vera:
        return _with_vectors(torch, view, spec, x, base)
    passed = [base(torch, view, spec, x)]
    with torch.counted_as("adapters"):
        return _with_branch(torch, view, spec, x, passed)


def _with_branch(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, passed: list[Tensor]
) -> Tensor:
    """What the branch makes of the base's result, which ``passed`` holds; it is emptied."""
    quantization = view.recipe.numerics.quantization if view.quantized(spec) else "none"
    leaves_casts = quantization in LEAVES_CASTS
    result = passed.pop()
    if quantization in FOUR_BIT:
        result = torch.contiguous(result)
    given, converts = result.dtype, leaves_casts and not view.dtypes.autocast
    if converts or not leaves_casts:
        wide = view.dtypes.wide_adapter_input and not (leaves_casts or _is_gathered(torch, view, spec))
        x = torch.to(x, "fp32" if wide else view.dtypes.adapter)
    if view.recipe.adapter is not None and view.recipe.adapter.dora:
        result = with_dora(torch, view, spec, x, result)
        return result if leaves_casts and not converts else torch.to(result, given)
    if view.stack.adapter_kernels == "compiled":
        return _scaled_sum(torch, result, _branch(torch, view, spec, x))
    if view.stack.adapter_kernels == "in_place":  # What is scaled has as many columns as the rank.
        return torch.add_in_place(_branch(torch, view, spec, x), result)
    branch = torch.same(_branch(torch, view, spec, x), "mul")
    branch = torch.to(branch, given) if converts else branch
    result = (torch.add_in_place if quantization == "aqlm" else torch.add)(result, branch)
    return result if leaves_casts else torch.to(result, given)


def _is_gathered(torch: Operators, view: LayerView, spec: LinearSpec) -> bool:
    """Whether FSDP1 has sent for the matrix ``A`` before it is used: that of a layer's last matrix, for which
    the backward of ``B`` does so, which begins before the layer runs again, but for reentrant checkpoints.
    """
    begun = torch.direction == "again" and not view.recipe.checkpoint_reentrant
    return begun and spec.name == view.block.linears[-1].name


def _branch(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``B(A(dropout(x)))``, or ``dropout(B(A(x)))`` where it is added in place."""
    down, up = factors(torch, view, spec)
    rows, unit = rows_of(spec, x), x.unit
    is_late = view.stack.adapter_kernels == "in_place"
    x = x if is_late else dropped(torch, view, x)
    if view.dtypes.wide_adapter_input:
        x = torch.to(x, view.dtypes.adapter)  # what FSDP1 does to the input of a unit
    middle = [times(torch, view, down, x, (Unit.RANK_TOKENS, rows))]
    out = times(torch, view, up, middle.pop(), (unit, rows * spec.out_features))
    return dropped(torch, view, out) if is_late else out


def _scaled_sum(torch: Operators, result: Tensor, output: Tensor) -> Tensor:
    """Scaling, addition and cast in one kernel; the gradient is scaled by another."""
    dtype = output.dtype
    out = torch.like(result, "add", cost=(output,))
    return record(torch, out, [result, output], [], lambda _, each: [each, torch.like(each, "mul", dtype)])


def _with_vectors(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """``base(x) + b * (B @ (d * (A @ dropout(x))))``; that of a 4-bit matrix is copied first.

    The sum has the dtype of the base's result again, then that of ``x``.
    """
    passed, given = [base(torch, view, spec, x)], x.dtype
    with torch.counted_as("adapters"):
        if view.quantized(spec) and view.recipe.numerics.quantization in FOUR_BIT:
            passed.append(torch.contiguous(passed.pop()))
        before = passed[-1].dtype
        x = torch.to(x, view.dtypes.adapter)
        passed.append(torch.add(passed.pop(), _branch_of_vectors(torch, view, spec, x)))
        passed.append(torch.to(passed.pop(), before))
        return torch.to(passed.pop(), given)


def _branch_of_vectors(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """What is added to the base's result; the layer refers to the last ``x`` until then, not to products."""
    dtype, rows, unit = view.dtypes.adapter, rows_of(spec, x), x.unit
    behind_b = torch.parameter(Unit.ONE, spec.out_features, dtype, trained=True, owner="vera_lambda_b")
    behind_a = torch.parameter(Unit.RANK, 1, dtype, trained=True, owner="vera_lambda_d")
    passed = [dropped(torch, view, x)]
    passed.append(_times_part(torch, view, spec.in_features, passed, (Unit.RANK_TOKENS, rows)))
    passed.append(torch.mul(behind_a, passed.pop()))
    passed.append(_times_part(torch, view, spec.out_features, passed, (unit, rows * spec.out_features)))
    return torch.mul(behind_b, passed.pop())


def _times_part(
    torch: Operators, view: LayerView, width: int, passed: list[Tensor], out: tuple[Unit, float]
) -> Tensor:
    """A product with a part of a shared matrix of what ``passed`` holds, until then; it is emptied.

    Autocast casts the part anew each time, as it is not trained.
    """
    x = passed.pop()
    part = autocast(torch, view, Tensor(None, Unit.RANK, width, view.dtypes.adapter))
    return linear_function(torch, view)(autocast(torch, view, x), part, out)
