"""The two matrices of an adapter and the products with them.

Source: peft 0.21 ``tuners/lora/layer.py`` LoraLayer, Linear.forward.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, linear_function, weight_copy
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView

FOUR_BIT = ("nf4", "fp4")
"""Matrices whose result PEFT copies before it adds to it."""


def factors(torch: Operators, view: LayerView, spec: LinearSpec, owner: str = "") -> tuple[Tensor, Tensor]:
    """The matrices ``A``, from the input to the rank, and ``B``, from the rank to the output.

    ``owner``: the module inside the running one that has both; each is one of its own without a name.
    """

    def matrix(width: int, name: str) -> Tensor:
        count, dtype = spec.copies * width, view.dtypes.adapter
        return torch.parameter(Unit.RANK, count, dtype, trained=True, owner=owner or name)

    return matrix(spec.in_features, "lora_A"), matrix(spec.out_features, "lora_B")


def times(torch: Operators, view: LayerView, weight: Tensor, x: Tensor, out: tuple[Unit, float]) -> Tensor:
    """``A`` or ``B``, each an ``nn.Linear`` without a bias; ``out`` says how many elements it returns."""
    with torch.inside("lora_A" if out[0] in (Unit.RANK_TOKENS, Unit.RANK) else "lora_B", torch.module):
        weight = weight_copy(torch, view, weight)
        # The input is an argument of the module, alive until the product is there.
        return linear_function(torch, view)(autocast(torch, view, x), weight, out)


def dropped(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``x`` after the adapter's dropout; compiled code makes the mask again from its seed."""
    adapter = view.recipe.adapter
    with torch.inside("lora_dropout", torch.module):
        if adapter is None or adapter.dropout <= 0:
            # A module all the same, to which DeepSpeed ties hooks: the graph has functions of these.
            return torch.reshaped(x) if view.recipe.sharding.is_zero3 else x
        return torch.same(x, "dropout") if view.stack.adapter_kernels == "compiled" else dropout(torch, x)


def dropout(torch: Operators, x: Tensor) -> Tensor:
    """A mask of one byte for each element is saved; the gradient is a new tensor."""
    out = torch.like(x, "dropout")
    mask = torch.like(x, "dropout", "bool", cost=None)
    torch.spend("bytes", mask.unit, mask.count)
    dtype = x.dtype

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "dropout_backward", dtype, cost=(kept[0],))]

    return record(torch, out, [x], [mask], backward)
