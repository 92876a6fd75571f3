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
from functools import partial

from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.parameters import Weight
from planner.program.update.step_kernels import Make, States, like


def is_projected(weight: Weight) -> bool:
    """Whether it is a matrix of a layer; ``all`` and ``all-linear`` leave the head out, too."""
    return weight.kind == "matrix" and len(weight.shape) == 2 and not weight.outside


def projection_elements(weight: Weight, rank: int) -> tuple[float, float]:
    """Elements of the random matrix and of the projected gradient: the shorter side gets narrower."""
    rows, columns = (count for _, count in weight.shape)
    return rank * min(rows, columns), rank * max(rows, columns)


def apollo(make: Make, states: States, trained: Sequence[Weight], rank: int, *, first: bool) -> None:
    """The step over ``trained``; ``first``: projections are made, and nothing limits how updates grow."""
    order = sorted(trained, key=lambda each: (is_projected(each), each.decays))
    gradient = root = update = scaled = None
    for each in order:
        projected = is_projected(each)
        matrix, low = projection_elements(each, rank) if projected else (0, each.count)
        narrow = partial(make, Unit.ONE, ELEMENT_BYTES[each.dtype] * low, each.name)
        gradient = None  # ``grad = p.grad``
        if projected and first:
            _make_projection(make, each, matrix)
        if projected:
            gradient = narrow("matmul")
        states(each)
        root = narrow("sqrt")
        update = narrow("div")
        if projected:
            scaled = like(make, each, "mul")
            if not first:
                scaled = like(make, each, "div")
            update = scaled
    del gradient, root, update, scaled


def _make_projection(make: Make, weight: Weight, elements: float) -> None:
    """Random numbers beside a copy of the gradient, both in fp32; what they are divided to is the state."""
    copy = make(weight.unit, 4 * weight.count, weight.name, "float") if weight.dtype != "fp32" else None
    numbers = make(Unit.ONE, 4 * elements, weight.name, "randn")
    quotient = make(Unit.ONE, 4 * elements, weight.name, "div") if weight.dtype != "fp32" else None
    del numbers, copy, quotient
