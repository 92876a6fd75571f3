"""What a traced step records: allocations and frees of blocks,
each with its place in the program and what it is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from planner.allocator.events import NO_BLOCK

HostKind = Literal["pageable", "pinned", "managed"]
HostName = Literal[
    "offloaded_optimizer",
    "offloaded_gradients",
    "upload_buffer",
    "offloaded_parameters",
    "paged_optimizer",
    "pinned_cache",
]
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
    "master_weights",
    "gradient_buckets",
    "gathered_parameters",
    "optimizer_temporaries",
    "mark",
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the program is: which pass, of which micro-step, in which decoder layer (-1:
    outside of the layers).
    """

    stage: Stage
    micro_step: int
    layer: int = OUTSIDE


@dataclass(frozen=True, slots=True)
class ParameterNote:
    """The parameter that a block was loaded for.

    ``name``: in its module.  ``element_bytes``: of each element as modules see it; ``stored_bytes``: before
    an engine cast it.  ``group``: that of the optimizer, -1 where frozen.  ``unit``, ``stays_whole``: what
    FSDP gathers it with outside of layers, and whether that stays until its backward.  ``is_float``: whether
    an engine can divide it.  ``n_names``: modules that have it.  ``in_graph``: the graph has a view of it.
    ``number``: its place among the parameters of the model that was traced.
    """

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    group: int
    unit: str = ""
    stays_whole: bool = False
    stored_bytes: int = 0
    is_float: bool = True
    n_names: int = 1
    in_graph: bool = False
    number: int = 0


@dataclass(slots=True)
class TracedBlock:
    """One allocation of ``n_bytes`` requested bytes.

    ``parameter``: what was loaded into it, for weights.  ``stream``: the CUDA stream whose pool it is from.
    ``host_name``: what it is for where it is host memory, whose kind is then in place of the stream
    (:mod:`measure.trace.host_records`).  ``recomputed``: made by a module that runs again in backward.
    ``part_layers``: the layers of the tensors that it holds one element of each for, where its size grows
    with the depth of the model.  ``marked``: for a mark of a gradient, the block that holds it.
    """

    id: int
    n_bytes: int
    place: Place
    op: str
    module: str
    recomputed: bool = False
    role: Role = ""
    part_layers: tuple[int, ...] = ()
    parameter: ParameterNote | None = None
    stream: int = 0
    host_name: HostName | None = None
    marked: TracedBlock | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One allocation (``alloc``) or free of a block; ``place`` is where the program was at that moment.

    ``waits``: the program lets go of what another stream still uses; a second free follows when that is done.
    ``empties``: it gives the allocator's cache back instead; see :func:`emptied`.
    """

    alloc: bool
    block: TracedBlock
    place: Place
    waits: bool = False
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
