"""What a traced step records: allocations and frees of blocks,
each with its place in the program and what it is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from planner.allocator.events import NO_BLOCK

OUTSIDE = -1
"""Number of the layer of what is outside of the decoder layers."""
Stage = Literal[
    "load",
    "adapters",
    "forward",
    "divergence",
    "reference",
    "reference_2",
    "metrics",
    "backward",
    "optimizer_step",
    "eval",
]
ASIDES = frozenset({"divergence", "reference", "reference_2"})
"""Stages of passes without gradients beside the one that is trained."""
Role = Literal[
    "",
    "weights",
    "quantization_constants",
    "adapters",
    "gradients",
    "gradient_parts",
    "optimizer_states",
    "autocast_copies",
    "dequantization",
    "workspace",
    "gathered_parameters",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the program is: which pass, of which micro-step, in which decoder layer (-1:
    outside of the layers).
    """

    stage: Stage
    micro_step: int
    layer: int = OUTSIDE


@dataclass(slots=True)
class TracedBlock:
    """One allocation of ``n_bytes`` requested bytes.

    ``stream``: the CUDA stream whose pool it is from.  ``on_host``: it is host memory, where an optimizer
    keeps states in pages.  ``recomputed``: made by a module that runs again in backward.  ``part_layers``:
    the layers of the tensors that it holds one element of each for, where its size grows with the depth of
    the model.
    """

    id: int
    n_bytes: int
    place: Place
    op: str
    module: str
    recomputed: bool = False
    role: Role = ""
    part_layers: tuple[int, ...] = ()
    stream: int = 0
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One allocation (``alloc``) or free of a block; ``place`` is where the program was at that moment.

    ``empties``: the program gives the allocator's cache back instead; see :func:`emptied`.
    """

    alloc: bool
    block: TracedBlock
    place: Place
    empties: bool = False


def emptied(place: Place) -> Record:
    """The program calls ``torch.cuda.empty_cache``; the block stands for none and has no bytes."""
    return Record(False, TracedBlock(NO_BLOCK, 0, place, "torch.cuda.empty_cache", ""), place, empties=True)


@dataclass(slots=True)
class Trace:
    """What a run recorded, in program order.  ``operators`` are the operators in dispatch order,
    if they were kept.
    """

    records: list[Record] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
