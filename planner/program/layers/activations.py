"""Activation functions: one kernel, or the operators that the Python code spells out.

Source: transformers 5.23 activations.py, models/{bloom,gpt_oss}/modeling_*.py; torch 2.13
``ATen/autocast_mode.h`` (powers run in fp32).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.domain.model import LinearSpec
from planner.program.layers.xielu import xielu
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def activation(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """The activation function of the layer over ``x``."""
    name = view.block.mlp.activation
    with torch.inside("act_fn"):
        if name == "gelu_new" and not view.stack.one_gelu_kernel:
            return _by_tanh(torch, x, partial(_cubic, view))
        if name == "gelu_fast":
            return _by_tanh(torch, x, _inner)
        if name == "quick_gelu":
            return torch.mul(x, torch.kernel(torch.same(x, "mul"), "sigmoid", saves="output"))
        if name == "bloom_gelu":
            return _bloom_gelu(torch, x)
        if name == "relu2":
            return _squared(torch, view, torch.kernel(x, "relu", saves="output"))
        if name == "xielu":
            return xielu(torch, view, x)
        return torch.kernel(x, name, saves="output" if name == "relu" else "input")


def gated(torch: Operators, view: LayerView, matrices: tuple[LinearSpec, LinearSpec], x: Tensor) -> Tensor:
    """``act(gate(x)) * up(x)``."""
    gate, up = matrices
    return torch.mul(activation(torch, view, linear(torch, view, gate, x)), linear(torch, view, up, x))


def largest(torch: Operators, x: Tensor) -> Tensor:
    """``relu(x - (mean(x) + std(x) * number))``.

    Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py Gemma3nTextMLP._gaussian_topk; torch 2.13
    FunctionsManual.cpp std_backward, var_backward.
    """

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        difference = torch.like(kept[0], "sub")
        return [torch.like(difference, "mul", cost=(difference,))]

    mean = torch.mean_of_rows(x)
    deviation = torch.new(x.unit, 1, x.dtype, "std", cost=[x])
    deviation = record(torch, deviation, [x], [x, deviation], backward)
    return torch.kernel(torch.sub(x, torch.add(mean, deviation)), "relu", saves="output")


def fused_gate(torch: Operators, gate: Tensor, up: Tensor) -> Tensor:
    """``act(gate) * up`` in one kernel, whose gradients are written over the saved tensors.

    Source: Liger-Kernel 0.5 ops/swiglu.py ``swiglu_backward``, ops/geglu.py.
    """

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        torch.pay([gradient, *kept], kept)
        return [kept[0], kept[1]]

    return record(torch, torch.like(gate, "swiglu", cost=(up,)), [gate, up], [gate, up], backward)


def clamped_gate(torch: Operators, gate_up: Tensor) -> Tensor:
    """The gate of gpt-oss: both halves clamped, ``(up + 1) * gate * sigmoid(gate * alpha)``."""
    gate, up = torch.part(gate_up, gate_up.count / 2), torch.part(gate_up, gate_up.count / 2)
    gate = _clamp(torch, gate, 1)
    up = _clamp(torch, up, 2)
    glu = torch.mul(gate, torch.kernel(torch.same(gate, "mul"), "sigmoid", saves="output"))
    return torch.mul(torch.shifted(up), glu)


def _clamp(torch: Operators, x: Tensor, limits: int, *, in_place: bool = False) -> Tensor:
    """``clamp``: backward compares the input with its limits, and takes the gradient where it lies within.

    ``in_place``: a copy of the input is saved, and the result takes its place.
    """
    kept = torch.like(x, "clone") if in_place else x

    def backward(saved: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _within = [torch.like(saved[0], "le", "bool") for _ in range(limits)]
        return [torch.like(gradient, "where")]

    return record(torch, x.alias() if in_place else torch.like(x, "clamp"), [x], [kept], backward)


def clamped(torch: Operators, x: Tensor, *, in_place: bool = True) -> Tensor:
    """``clamp_`` or ``clamp`` between two limits."""
    return _clamp(torch, x, 2, in_place=in_place)


def _by_tanh(torch: Operators, x: Tensor, inner: Callable[[Operators, Tensor], Tensor]) -> Tensor:
    """``0.5 * x * (1 + tanh(inner(x)))``."""
    return torch.mul(
        torch.same(x, "mul"), torch.shifted(torch.kernel(inner(torch, x), "tanh", saves="output"))
    )


def _cubic(view: LayerView, torch: Operators, x: Tensor) -> Tensor:
    """``c * (x + 0.044715 * x ** 3)``."""
    return torch.same(torch.add(x, torch.same(_squared(torch, view, x), "mul")), "mul")


def _squared(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    return torch.square(torch.to(x, "fp32") if view.dtypes.autocast else x)


def _inner(torch: Operators, x: Tensor) -> Tensor:
    """``c * x * (1 + 0.044715 * x * x)``."""
    return torch.mul(torch.same(x, "mul"), torch.shifted(torch.mul(torch.same(x, "mul"), x)))


def _bloom_gelu(torch: Operators, x: Tensor) -> Tensor:
    """A function with a backward pass of its own, which saves its input and works everything out again."""
    with torch.no_grad():
        out = _by_tanh(torch, x, _inner)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.mul(_bloom_slope(torch, kept[0]), gradient)]

    return record(torch, out, [x], [x], backward)


def _bloom_slope(torch: Operators, x: Tensor) -> Tensor:
    """``0.5 * x * ((1 - tanh ** 2) * (a + b * x * x)) + 0.5 * (1 + tanh)``."""
    tanh = torch.kernel(_inner(torch, x), "tanh", saves="output")
    slope = torch.mul(
        torch.same(x, "mul"),
        torch.mul(torch.shifted(torch.mul(tanh, tanh)), torch.shifted(torch.mul(torch.same(x, "mul"), x))),
    )
    return torch.add(slope, torch.same(torch.shifted(tanh), "mul"))
