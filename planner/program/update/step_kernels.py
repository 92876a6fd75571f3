"""Optimizers that LLaMA-Factory brings along, one operator after the other: Adam-mini and its Muon.

Variables of a step keep what they refer to until they are bound again, in the step of the next parameter.
Source: adam_mini 1.1.1 (zyushun/Adam-mini at 402aadf) adam_mini/adam_mini.py Adam_mini.step; llamafactory
0.9.5 third_party/muon/muon.py Muon.step, zeropower_via_newtonschulz5, which axolotl 0.19.0
contribs/mit/muon/muon.py has, too, and compiles; of matrices that FSDP2 divides,
hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/plugins/trainer_plugins/optimizers/muon_optimizer.py, and
torch 2.13 distributed/tensor/placement_types.py Shard._to_replicate_tensor, _shard_tensor.
Ignored: tensors of one number for each row or head; in Adam-mini the second moments of biases; copies of
rows that do not divide by the number of GPUs.  Also that compiled iterations make fewer of these tensors, and
that Axolotl leaves parameters of one dimension as they are.  Its GPUs exchange whole matrices, as many at
once as there are GPUs (axolotl-contribs-mit 0.0.6 contribs/mit/muon/dist_muon.py), far below what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from planner.program.ops.tensors import Unit
from planner.program.parameters import Weight

_ITERATIONS = 5
"""``ns_steps`` of Muon."""
Make = Callable[[Unit, float, str, str], Any]
"""Makes a temporary of so many bytes for each unit: unit, bytes, name of the parameter, operator."""
States = Callable[[Weight], None]
"""Makes the states of a parameter, in the first step."""


def like(make: Make, weight: Weight, op: str) -> Any:
    """A temporary as large as a parameter."""
    return make(weight.unit, weight.unit_bytes, weight.name, op)


def adam_mini(make: Make, states: States, trained: Sequence[Weight]) -> None:
    """One parameter after the other: squares of the gradient, the update, and its negative."""
    update = None
    for each in trained:
        states(each)
        square = like(make, each, "mul")
        del square
        update = like(make, each, "mul")
        _negative = like(make, each, "neg")
        del _negative
    del update


def is_orthogonalized(weight: Weight) -> bool:
    """Whether Muon orthogonalises a parameter's update: matrices but for tables and the head."""
    return weight.kind == "matrix" and len(weight.shape) == 2 and not weight.name.startswith("head")


def muon(make: Make, states: States, trained: Sequence[Weight], n_parts: int = 1) -> None:
    """Matrices first; an Adam of separate operators steps the rest, beside the last matrix's update.

    Of rows that ``n_parts`` GPUs divide, each gathers the gradient, and gets its part of the update.
    """
    gradient = gathered = update = part = None
    for each in filter(is_orthogonalized, trained):
        gradient = None  # ``g = p.grad``
        states(each)
        gradient, whole = like(make, each, "add"), each
        if n_parts > 1:
            (unit, rows), columns = each.shape
            whole = replace(each, shape=((unit, rows * n_parts), columns))
            gathered = like(make, whole, "all_gather")
        update = _orthogonalized(make, whole)
        if n_parts > 1:
            part = make(each.unit, 2 * each.count, each.name, "scatter")
    del gradient  # ``g = p.grad`` of the first that Adam steps.
    _stepped_by_adam(make, states, trained)
    del gathered, update, part


def _stepped_by_adam(make: Make, states: States, trained: Sequence[Weight]) -> None:
    """What Muon does not orthogonalise: the last quotient stays until the next parameter's turn."""
    quotient = None
    for each in trained:
        if not is_orthogonalized(each):
            quotient = None
            states(each)
            square = like(make, each, "square")
            del square
            root = like(make, each, "sqrt")
            divisor = like(make, each, "add")
            del root
            quotient = like(make, each, "div")
            del divisor
    del quotient


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
