"""APOLLO: moments of a gradient that a random matrix makes narrower, one parameter after the other.

Matrices of the layers are projected; token table, head, norms and biases get an AdamW of separate operators.
Locals of the step keep what they refer to until they are bound again, in the step of the next parameter.
Source: apollo-torch 1.0.3 apollo.py AdamW.step, random_projector.py GradientProjector; llamafactory 0.9.5
train/trainer_utils.py _create_apollo_optimizer, whose groups are vectors, then table and head, then what is
projected; transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer.
Ignored: one number for each row; a new random matrix every 200 steps, which takes no more than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.parameters import Weight
from planner.program.update.step_kernels import Make, States

APOLLO = ("apollo_adamw", "apollo_adamw_layerwise")


def is_projected(weight: Weight) -> bool:
    """Whether it is a matrix of a layer; ``all`` and ``all-linear`` leave the head out, too."""
    return weight.kind == "matrix" and len(weight.shape) == 2 and not weight.outside


def projection_elements(weight: Weight, rank: int) -> tuple[float, float]:
    """Elements of the random matrix, and of the projected gradient:
    the shorter side of the parameter is what gets narrower.
    """
    rows, columns = (count for _, count in weight.shape)
    return rank * min(rows, columns), rank * max(rows, columns)


def apollo(make: Make, states: States, trained: Sequence[Weight], rank: int, *, first: bool) -> None:
    """The step over ``trained``; ``first``: projections are made, and nothing limits how updates grow."""
    order = sorted(trained, key=lambda each: (is_projected(each), each.decays))
    gradient = root = update = scaled = None
    for each in order:
        projected = is_projected(each)

        def new(op: str, weight: Weight = each) -> Any:
            return make(weight.unit, weight.unit_bytes, weight.name, op)

        def narrow(op: str, weight: Weight = each) -> Any:
            elements = projection_elements(weight, rank)[1] if is_projected(weight) else weight.count
            return make(Unit.ONE, ELEMENT_BYTES[weight.dtype] * elements, weight.name, op)

        gradient = None  # ``grad = p.grad``
        if projected and first:
            _make_projection(make, each, projection_elements(each, rank)[0])
        if projected:
            gradient = narrow("matmul")
        states(each)
        root = narrow("sqrt")
        update = narrow("div")
        if projected:
            scaled = new("mul")
            if not first:
                scaled = new("div")
            update = scaled
    del gradient, root, update, scaled


def _make_projection(make: Make, weight: Weight, elements: float) -> None:
    """Random numbers beside a copy of the gradient, both in fp32; what they are divided to is the state,
    or cast to it.
    """
    copy = make(weight.unit, 4 * weight.count, weight.name, "float") if weight.dtype != "fp32" else None
    numbers = make(Unit.ONE, 4 * elements, weight.name, "randn")
    quotient = make(Unit.ONE, 4 * elements, weight.name, "div") if weight.dtype != "fp32" else None
    del numbers, copy, quotient
