"""A matrix and its adapter as one function, which adds to the product in place and keeps the input alone.

In older ones what both matrices of the adapter make is a tensor as large as that product, before it is added
(``fused_apart``).

Source: unsloth 2026.10 ``kernels/fast_lora.py`` LoRA_W, ``kernels/utils.py`` matmul_lora, and the latter in
2024.12.4; axolotl 0.19 ``kernels/lora.py``, and 0.10.
With dropout (``fused_dropped``) it keeps the input before and after it, whose gradients are two tensors.
Ignored: query, key and value are one function there, whose gradients of the input are summed in place; that
``fused_apart`` adds the gradient through the gate's weight by a tensor of its own, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.model import LinearSpec
from planner.domain.stack_values import FUSED_KERNELS
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, costs_of, weight_copy
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.ops.work import Multiplies, Product
from planner.program.view import LayerView
from planner.program.weights.four_bit import dequantized, expanded, packed_parameter
from planner.program.weights.lora import dropped, factors

_TOGETHER = ("q_proj", "k_proj", "v_proj")
# All but the first are of gated delta layers.
_ALONE = ("o_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")


def takes_adapter(view: LayerView, spec: LinearSpec) -> bool:
    """Whether this matrix is adapted, and the stack has a function for such an adapter: over 16 or 4 bits,
    and for its dropout.  Unsloth's leaves matrices with a bias to PEFT.

    Source: unsloth 2026.10.9 models/llama.py:5345-5412.
    """
    adapter, quantization = view.recipe.adapter, view.recipe.numerics.quantization
    stored = not view.quantized(spec) or quantization in ("nf4", "fp4")
    kind = view.stack.adapter_kernels
    takes = adapter is not None and (adapter.dropout <= 0 or kind == "fused_dropped")
    takes = takes and not (kind == "fused" and spec.bias)
    return kind in FUSED_KERNELS and stored and takes and view.adapted(spec)


def is_fused(view: LayerView, spec: LinearSpec) -> bool:
    """Whether the function runs for a matrix by itself: query, key and value where all three are adapted,
    output projections; no other names.

    Source: axolotl 0.19 monkeypatch/lora_kernels.py apply_lora_kernel_patches; unsloth 2026.10
    models/llama.py patch_peft_model.
    """
    if spec.name in _TOGETHER:
        beside = [each for each in view.linears("attn_in") if each.name in _TOGETHER]
        return len(beside) > 1 and all(takes_adapter(view, each) for each in beside)
    return spec.name in _ALONE and takes_adapter(view, spec)


def fused_linear(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``x @ W``, to which ``(x @ A) @ B`` is added."""
    read = _dropped(torch, view, x)
    x = autocast(torch, view, x)
    down, up = _parameters(torch, view, spec)
    out = _forward(torch, view, spec, x, (down, up))
    needs_x = x.node is not None
    trained = (down.count, up.count)

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        seen = kept[-1]
        with torch.counted_as("adapters"):
            _copies = [_copy(torch, view, count) for count in trained]
            of_factors = _of_factors(torch, (spec,), seen)
            for count in trained:
                _product = _narrow(torch, seen, count)
                del _product
        if read:
            of_read = [_of_read(torch, view, (spec,), seen) if needs_x else None]
            return [_base_gradient(torch, view, spec, seen) if needs_x else None, *of_read, *of_factors]
        return [_of_input(torch, view, spec, seen) if needs_x else None, *of_factors]

    return record(torch, out, [x, *read, down, up], [x, *read], backward)


def _dropped(torch: Operators, view: LayerView, x: Tensor) -> list[Tensor]:
    """``x`` after dropout, which all matrices that read ``x`` share; nothing without dropout.

    Source: axolotl 0.19 kernels/lora.py apply_lora_qkv, apply_lora_mlp_swiglu (no dropout before ``down``).
    """
    if view.recipe.adapter is None or view.recipe.adapter.dropout <= 0:
        return []
    if x.dropped is None:
        with torch.counted_as("adapters"):
            x.dropped = autocast(torch, view, dropped(torch, view, x))
    return [x.dropped]


def _of_read(torch: Operators, view: LayerView, specs: Sequence[LinearSpec], x: Tensor) -> Tensor:
    """The gradient of the input after dropout: zeros, to which that of each adapter is added."""
    with torch.counted_as("adapters"):
        out = torch.like(x, "zeros_like", cost=())
    for spec in specs:
        _add_to_gradient(torch, view, spec, x, out)
    return out


def fused_feed_forward(torch: Operators, view: LayerView, specs: Sequence[LinearSpec], x: Tensor) -> Tensor:
    """A gated feed-forward part as one function, of ``specs`` gate, up and down.

    It saves its input and what the gate reads; backward writes the gradients of all three over them, but
    that of the input to a tensor of its own since Axolotl 0.17.
    Source: unsloth 2026.10 kernels/fast_lora.py LoRA_MLP; axolotl 0.16 and 79884679e (0.17.0) kernels/lora.py
    LoRA_MLP, where ``out=X`` is gone.
    """
    read = _dropped(torch, view, x)
    x = autocast(torch, view, x)
    adapters = [_parameters(torch, view, spec) for spec in specs]
    gate, up = (_forward(torch, view, specs[index], x, adapters[index]) for index in (0, 1))
    out = _forward(torch, view, specs[2], torch.like(gate, "swiglu", cost=(up,)), adapters[2])

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        seen, gates = kept[-3], kept[-2:]
        _of_hidden = _of_input(torch, view, specs[2], seen)
        with torch.counted_as("adapters"):
            of_factors = _of_factors(torch, specs, seen)
        torch.pay([_of_hidden, *gates], [*gates, _of_hidden])
        of_x = torch.like(seen, "mm", cost=()) if view.stack.adapter_kernels == "fused_dropped" else seen
        for spec in specs[:2]:
            _weight = _backward_weight(torch, view, spec, seen.dtype)
            del _weight
            rows = Tensor(None, seen.unit, spec.in_features, seen.dtype)
            torch.pay(costs_of(spec, rows).of_x, [rows])
            if not read:
                _add_to_gradient(torch, view, spec, seen, rows)
        if read:
            return [of_x, _of_read(torch, view, specs[:2], seen), *of_factors]
        return [of_x, *of_factors]

    trained = [each for pair in adapters for each in pair]
    return record(torch, out, [x, *read, *trained], [x, *read, gate, up], backward)


def _forward(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, adapter: tuple[Tensor, Tensor]
) -> Tensor:
    out = _base_product(torch, view, spec, x)
    with torch.counted_as("adapters"):
        _first = _copy(torch, view, adapter[0].count)
        middle = _narrow(torch, x, adapter[0].count)
        del _first
        _second = _copy(torch, view, adapter[1].count)
        _add_adapter(torch, view, out, spec.out_features)
        del middle
    return out


def _add_adapter(torch: Operators, view: LayerView, out: Tensor, width: float) -> None:
    """The product with the adapter's second matrix, of ``width`` features, is added to ``out``."""
    cost = Multiplies(Product(out.dtype), Unit.RANK_TOKENS, width, [out])
    if view.stack.adapter_kernels != "fused_apart":
        torch.pay(cost, [out])
        return
    product = torch.new(out.unit, width, out.dtype, "mm", cost=cost)
    torch.pay([product, out], [out])


def _base_product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    expand = expanded if view.quantized(spec) else _plain_weight
    _weight = expand(torch, view, spec, x.dtype)
    return torch.new(x.unit, spec.out_features, x.dtype, "mm", cost=costs_of(spec, x).forward)


def _cost(x: Tensor, width: float) -> Multiplies:
    """Rows of so many features, in the unit of ``x``, times a matrix of the adapter."""
    rows = Tensor(None, x.unit, width, x.dtype)
    return Multiplies(Product(x.dtype), Unit.RANK_TOKENS, width, [rows])


def _narrow(torch: Operators, x: Tensor, width: float) -> Tensor:
    return torch.new(Unit.RANK_TOKENS, 1, x.dtype, "mm", cost=_cost(x, width))


def _of_factors(torch: Operators, specs: Sequence[LinearSpec], x: Tensor) -> list[Tensor | None]:
    """The gradients of both matrices of each adapter: products of the input and of the output's gradient."""
    widths = [each for spec in specs for each in (spec.in_features, spec.out_features)]
    return [torch.new(Unit.RANK, width, x.dtype, "addmm", cost=_cost(x, width)) for width in widths]


def _copy(torch: Operators, view: LayerView, count: float) -> Tensor | None:
    """``A.to(dtype)``: a copy where the adapter has another dtype than the input."""
    if view.dtypes.adapter == view.dtypes.compute:
        return None
    return torch.new(Unit.RANK, count, view.dtypes.compute, "to")


def _of_input(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The gradient of the input, to which that through the adapter is added in place."""
    out = _base_gradient(torch, view, spec, x)
    _add_to_gradient(torch, view, spec, x, out)
    return out


def _add_to_gradient(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, out: Tensor) -> None:
    with torch.counted_as("adapters"):
        _product = _narrow(torch, x, spec.out_features)
        _add_adapter(torch, view, out, spec.in_features)


def _base_gradient(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    _weight = _backward_weight(torch, view, spec, x.dtype)
    rows = Tensor(None, x.unit, spec.in_features, x.dtype)
    return torch.new(x.unit, spec.in_features, x.dtype, "mm", cost=costs_of(spec, rows).of_x)


def _backward_weight(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """The weight of a product of backward, which is expanded beside the buffer."""
    return (dequantized if view.quantized(spec) else _plain_weight)(torch, view, spec, dtype)


def _plain_weight(torch: Operators, view: LayerView, spec: LinearSpec, _: Dtype) -> Tensor:
    return weight_copy(torch, view, Tensor(None, Unit.ONE, _elements(spec), view.dtypes.base))


def _parameters(torch: Operators, view: LayerView, spec: LinearSpec) -> tuple[Tensor, Tensor]:
    """Both matrices of the adapter, behind what is stored of the matrix itself.

    The function reads them, and does not call the module that has them.
    Source: axolotl 0.19 kernels/lora.py get_lora_parameters.
    """
    owner = spec.name
    if view.quantized(spec):
        packed_parameter(torch, view, spec, owner)
    else:
        torch.parameter(Unit.ONE, _elements(spec), view.dtypes.base, trained=False, owner=owner)
    if spec.bias:
        torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=False, owner=owner)
    adapter = factors(torch, view, spec, owner)
    torch.mark("read", torch.module_number(owner))
    return adapter


def _elements(spec: LinearSpec) -> int:
    return spec.in_features * spec.out_features
