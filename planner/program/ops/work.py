"""What operators cost: multiplications by kind of kernel, bytes of device memory read and written,
kernels launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from planner.program.ops.tensors import Dtype, Tensor, Unit

Direction = Literal["forward", "again", "backward"]
"""A forward pass, the recomputation of one, or a backward pass."""
Share = Literal["elementwise", "matmul", "attention", "adapters", "weight_casts", "dequantization", "int8"]
"""The part of the step's time that an operator belongs to, where its part of the model does not say so."""
_ALIGNED_BYTES = 16


@dataclass(frozen=True, slots=True)
class Product:
    """Products of matrices that run alike, counted in multiply-accumulates.

    ``rows``: of each stored matrix, so many for each of a unit; ``None`` where the other operand is as long,
    or a few ranks wide.  ``aligned``: whether rows of the result begin at multiples of 16 bytes.
    ``chunked``: those of a delta rule, of a chunk of tokens each.
    """

    dtype: Dtype
    rows: tuple[Unit, float] | None = None
    aligned: bool = True
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Calls of one attention kernel, counted in multiply-accumulates over all pairs of a query and a key.

    ``widths``: features of a head of queries and keys, and of one of values.  ``pairs``: which of them the
    kernel computes: those of the causal triangle, of the square, of the window in it, or of a piece
    (``window`` tokens, or an image).  ``backward``: whether it makes gradients.
    """

    kernel: Literal["flash", "efficient"]
    widths: tuple[int, int]
    pairs: Literal["triangle", "square", "band", "piece"]
    window: int | None = None
    backward: bool = False

    @property
    def width(self) -> float:
        """Features of a head, mean of keys and values."""
        return sum(self.widths) / 2


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Weights of 4 bits that one kernel unpacks, of which it reads and writes so many bytes each."""

    weight_bytes: float


@dataclass(frozen=True, slots=True)
class ToHost:
    """Saved tensors that go to host RAM, of so many bytes each, counted in bytes."""

    unit_bytes: float


@dataclass(frozen=True, slots=True)
class SummedInPlace:
    """What GPUs that divide matrices sum over themselves without a new tensor, counted in bytes."""


Kind = (
    Product
    | FusedAttention
    | Unpacking
    | ToHost
    | SummedInPlace
    | Literal["bytes", "launches", "waits", "calls"]
)
"""``waits``: launches between which the host waits for the GPU; ``calls``: Python that launches nothing,
counted in operators that take the host as long.
"""
Key = tuple[Direction, Share, Kind]
Work = Mapping[Key, Mapping["Unit", float]]
"""So much of each kind for each of a unit."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How operators run: their part of the time, how often each is called, and whether the host waits.

    ``waits``: before each call of a forward pass the GPU must have done the one before.
    ``per``: they are called so often for each of a unit; ``None``: in all.
    """

    share: Share = "elementwise"
    calls: float = 1
    waits: bool = False
    per: Unit | None = None


@dataclass(frozen=True, slots=True)
class Multiplies:
    """One product or attention: ``macs`` for each of ``unit``; ``reads``: operands not read while it runs."""

    kind: Product | FusedAttention
    unit: Unit
    macs: float
    reads: Sequence[Tensor] = ()


Cost = Sequence["Tensor"] | Multiplies | None
"""What a new tensor costs beside being written: the tensors read, a product, or (``None``) nothing at all."""


def in_units(work: Work, units: Mapping[Unit, Unit]) -> Work:
    """The same with other units in place of those named; a vision tower's attention sees pieces."""
    made: dict[Key, dict[Unit, float]] = {}
    for (direction, share, known), counts in work.items():
        kind = known
        if isinstance(known, Product) and known.rows:
            kind = replace(known, rows=(units.get(known.rows[0], known.rows[0]), known.rows[1]))
        elif isinstance(known, FusedAttention):
            kind = replace(known, pairs="piece")
        made[direction, share, kind] = {units.get(unit, unit): count for unit, count in counts.items()}
    return made


def is_aligned(n_bytes: float) -> bool:
    """Whether rows of so many bytes all begin where tensor cores can load them.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", tensor core requirements.
    """
    return not n_bytes % _ALIGNED_BYTES
