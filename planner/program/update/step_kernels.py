"""Optimizers that LLaMA-Factory brings along, one operator after the other: Adam-mini and its Muon.

Variables of a step keep what they refer to until they are bound again, in the step of the next parameter.
Source: adam_mini 1.1.1 (zyushun/Adam-mini at 402aadf) adam_mini/adam_mini.py Adam_mini.step; llamafactory
0.9.5 third_party/muon/muon.py Muon.step, zeropower_via_newtonschulz5.
Ignored: tensors of one number for each row or head; in Adam-mini the second moments of biases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight

_ITERATIONS = 5
"""``ns_steps`` of Muon."""
Make = Callable[[Unit, float, str, str], Any]
"""Makes a temporary of so many bytes for each unit: unit, bytes, name of the parameter, operator."""
States = Callable[[Weight], None]
"""Makes the states of a parameter, in the first step."""


def adam_mini(make: Make, states: States, trained: Sequence[Weight]) -> None:
    """One parameter after the other: squares of the gradient, the update, and its negative."""
    update = None
    for each in trained:

        def new(op: str, weight: Weight = each) -> Any:
            return make(weight.unit, weight.unit_bytes, weight.name, op)

        states(each)
        square = new("mul")
        del square
        update = new("mul")
        _negative = new("neg")
        del _negative
    del update


def is_orthogonalized(weight: Weight) -> bool:
    """Whether Muon orthogonalises the update of a parameter:
    matrices that are neither a table nor the head.
    """
    return weight.kind == "matrix" and len(weight.shape) == 2 and not weight.name.startswith("head")


def muon(make: Make, states: States, trained: Sequence[Weight]) -> None:
    """Matrices first; what they are not is stepped by an Adam of separate operators,
    beside the last matrix's update.
    """
    gradient = update = None
    for each in trained:
        if is_orthogonalized(each):
            gradient = None  # ``g = p.grad``
            states(each)
            gradient = make(each.unit, each.unit_bytes, each.name, "add")
            update = _orthogonalized(make, each)
    for each in trained:
        if not is_orthogonalized(each):

            def new(op: str, weight: Weight = each) -> Any:
                return make(weight.unit, weight.unit_bytes, weight.name, op)

            gradient = None
            states(each)
            square = new("square")
            del square
            root = new("sqrt")
            divisor = new("add")
            del root
            gradient = new("div")
            del divisor
    del gradient, update


def _orthogonalized(make: Make, weight: Weight) -> Any:
    """Newton and Schulz's iteration in bf16, on a matrix whose shorter side has ``k`` elements."""
    (_, rows), (_, columns) = weight.shape
    shorter = min(rows, columns)

    def whole(op: str) -> Any:
        return make(weight.unit, 2 * weight.count, weight.name, op)

    def small(op: str) -> Any:
        return make(Unit.ONE, 2 * shorter * shorter, weight.name, op)

    copy = whole("to") if weight.dtype != "bf16" else None
    x = whole("div")
    del copy
    square = polynomial = None
    for _ in range(_ITERATIONS):
        square = small("mm")
        scaled, other = small("mul"), small("mul")
        product = small("mm")
        del other
        polynomial = small("add")
        del scaled, product
        left, right = whole("mul"), whole("mm")
        x = whole("add")
        del left, right
    del square, polynomial
    return x
