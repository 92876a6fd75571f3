"""APOLLO and GaLore: moments of a gradient that a product makes narrower, one parameter after the other.

Matrices of the layers are projected.  Token table, norms and biases are stepped without that, and so is the
head, which only ``all-linear`` of Transformers projects (switch ``projects_head``).
APOLLO multiplies with random numbers, GaLore with singular vectors of the gradient, and makes the update wide
again.
Locals of the step keep what they refer to until they are bound again, in the step of the next parameter.
Source: apollo-torch 1.0.3 apollo.py AdamW.step, random_projector.py GradientProjector; galore-torch 1.0
adamw.py, adamw8bit.py, galore_projector.py; llamafactory 0.9.5 train/trainer_utils.py
_create_apollo_optimizer and _create_galore_optimizer, whose groups are vectors, then table and head, then
what is projected; transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer.
Ignored: one number for each row; a new random matrix every 200 steps, which takes no more than the first.  In
8 bits also that a weight moves, and that the gradient of a matrix goes as soon as it is narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Unit
from planner.program.parameters import Weight
from planner.program.update.step_kernels import Make, States, like

_WORKSPACES = (0.0, 2.0, 4.0)
"""Of cuSOLVER's decomposition, in tensors of the matrix in fp32: the least, what is counted, the most.

``cusolverDnSgesvdj_bufferSize`` is not in torch's code, and nobody printed it for such a matrix.  For 3 rows
of 2^20 numbers in complex128 it is 4.10 GiB with CUDA 12.8 (pytorch#155811): 262 numbers for each column,
which is what two matrices and 256 rows take.
"""


def is_projected(weight: Weight, *, head: bool = False) -> bool:
    """Whether it is a matrix of a layer, or that of the ``head``."""
    inside = not weight.outside or (head and weight.name.startswith("head"))
    return weight.kind == "matrix" and len(weight.shape) == 2 and inside


def narrowed(weight: Weight, rank: int) -> Weight:
    """A parameter as large as the projected gradient: the shorter side gets ``rank``."""
    rows, columns = weight.shape
    narrow = (Unit.ONE, float(rank))
    return replace(weight, shape=(rows, narrow) if rows[1] >= columns[1] else (narrow, columns))


def singular_vectors(weight: Weight, rank: int) -> int:
    """As many as GaLore keeps: slices end with the matrix."""
    return int(min(rank, *(count for _, count in weight.shape)))


def kept_bytes(weight: Weight, rank: int, dtype: Dtype, *, decomposed: bool) -> float:
    """Bytes of the matrix that a gradient of ``dtype`` is multiplied with.

    GaLore's is a slice of all singular vectors, of which it keeps alive the whole: in fp32, where no cast
    makes it a tensor of its own.
    """
    shorter = min(count for _, count in weight.shape)
    whole = decomposed and dtype == "fp32"
    return shorter * (shorter if whole else rank) * ELEMENT_BYTES[dtype]


def workspace_reach_bytes(job: Job) -> tuple[float, float]:
    """How far down and up the unknown workspace of a decomposition may move a peak: that of the largest
    matrix.
    """
    least, counted, most = _WORKSPACES
    largest = max(
        (
            4 * each.weight.count
            for each in job.trained_parameters
            if is_projected(each.weight, head=job.stack.projects_head)
        ),
        default=0.0,
    )
    return (counted - least) * largest, (most - counted) * largest


def in_order(trained: Sequence[Weight], *, head: bool) -> list[tuple[Weight, bool]]:
    """Parameters in the order of the groups, and whether each is projected."""
    marked = [(each, is_projected(each, head=head)) for each in trained]
    return sorted(marked, key=lambda each: (each[1], each[0].decays))


Project = Callable[[Make, Weight], Weight]
"""Makes what a gradient is multiplied with; gives a parameter as large as the product."""
Widen = Callable[[Make, Weight], Any]
"""Makes the update of a parameter of what was narrow."""


def projected_adamw(
    make: Make, states: States, order: Sequence[tuple[Weight, bool]], project: Project, widen: Widen
) -> None:
    """AdamW of separate operators over parameters, of which some are projected."""
    gradient = root = update = None
    for each, projected in order:
        gradient, narrow = None, each  # ``grad = p.grad``
        if projected:
            narrow = project(make, each)
            gradient = like(make, narrow, "matmul")
        states(each)
        root = like(make, narrow, "sqrt")
        update = like(make, narrow, "div")
        if projected:
            update = widen(make, each)
    del gradient, root, update


def apollo(rank: int, *, first: bool) -> tuple[Project, Widen]:
    """APOLLO's; ``first``: projections are made, and nothing limits how updates grow."""

    def project(make: Make, weight: Weight) -> Weight:
        if first:
            _make_random(make, weight, kept_bytes(weight, rank, "fp32", decomposed=False))
        return narrowed(weight, rank)

    def widen(make: Make, weight: Weight) -> Any:
        scaled = like(make, weight, "mul")
        return scaled if first else like(make, weight, "div")

    return project, widen


def _make_random(make: Make, weight: Weight, n_bytes: float) -> None:
    """Random numbers beside a copy of the gradient, both in fp32; what they are divided to is the state."""
    copy = make(weight.unit, 4 * weight.count, weight.name, "float") if weight.dtype != "fp32" else None
    numbers = make(Unit.ONE, n_bytes, weight.name, "randn")
    quotient = make(Unit.ONE, n_bytes, weight.name, "div") if weight.dtype != "fp32" else None
    del numbers, copy, quotient


def galore(rank: int) -> tuple[Project, Widen]:
    """GaLore's, as in a step that decomposes every gradient: the first, and every 200th or so."""
    return partial(decomposed, rank=rank), multiplied_back


def decomposed(make: Make, weight: Weight, rank: int) -> Weight:
    """Singular vectors of a gradient in fp32, of which the longer ones are also scaled, to no use.

    The solver overwrites a copy of the matrix, and has a workspace.
    Source: galore-torch 1.0 galore_projector.py get_orthogonal_matrix; torch 2.13
    ATen/native/BatchLinearAlgebra.cpp _linalg_svd (outputs), cuda/linalg/BatchLinearAlgebraLib.cpp
    svd_cusolver: gesvdj of a copy (cloneBatchedColumnMajor).  ms-swift has the same code.
    """
    rank = singular_vectors(weight, rank)
    shorter, longer = sorted(count for _, count in weight.shape)
    new = partial(make, Unit.ONE)
    matrix = new(4 * weight.count, weight.name, "float") if weight.dtype != "fp32" else None
    vectors = [new(4 * side * shorter, weight.name, "linalg_svd") for side in (longer, shorter)]
    copy = new(4 * weight.count, weight.name, "columns")
    workspace = new(4 * (_WORKSPACES[1] * weight.count + 256 * longer), weight.name, "gesvdj")
    del copy, workspace
    diagonal = new(4 * rank * rank, weight.name, "diag")
    scaled = new(4 * rank * longer, weight.name, "matmul")
    del diagonal
    n_bytes = kept_bytes(weight, rank, weight.dtype, decomposed=True)
    kept = new(n_bytes, weight.name, "type") if weight.dtype != "fp32" else None
    del kept, scaled, vectors, matrix
    return narrowed(weight, rank)


def multiplied_back(make: Make, weight: Weight) -> Any:
    """A product as large as the parameter, and the same scaled."""
    product = like(make, weight, "matmul")
    scaled = like(make, weight, "mul")
    del product
    return scaled


def galore_8bit(make: Make, states: States, order: Sequence[tuple[Weight, bool]], rank: int) -> None:
    """The kernels of bitsandbytes take a narrow tensor for the weight, of which there is a copy meanwhile."""
    gradient = None
    for each, projected in order:
        if not projected:
            states(each)
            continue
        narrow = decomposed(make, each, rank)
        gradient = like(make, narrow, "matmul")
        saved = like(make, each, "clone")
        weight = like(make, narrow, "clone")
        del saved
        states(each)
        _update = multiplied_back(make, each)
        del _update, weight
    del gradient
