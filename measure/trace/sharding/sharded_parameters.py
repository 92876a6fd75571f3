"""The parameters of a model as a sharding runtime sees them, read from the records of loading."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from measure.trace.record import OUTSIDE, Record, TracedBlock

Loaded = TypeVar("Loaded")
FROZEN = -1
"""Group of a parameter that no optimizer has."""


@dataclass(frozen=True, slots=True)
class TracedParameter:
    """One parameter.

    ``key`` is its module and its name there; ``element_bytes`` is what the modules compute with,
    ``stored_bytes`` what was there before an engine cast it.  ``is_float``: whether an engine can divide it.

    ``unit``: the modules that FSDP gathers it with, for parameters outside of the layers.  ``stays_whole``:
    from its forward to its backward.  ``n_names``: modules that have it.
    """

    key: tuple[str, str]
    shape: tuple[int, ...]
    element_bytes: int
    group: int
    layer: int
    unit: str = ""
    stays_whole: bool = False
    stored_bytes: int = 0
    is_float: bool = True
    n_names: int = 1
    in_graph: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.elements * self.element_bytes

    @property
    def trained(self) -> bool:
        """Whether an optimizer has it."""
        return self.group != FROZEN


def parameter_of(record: Record) -> TracedParameter | None:
    """The parameter that a record loads, if it loads one."""
    block, note = record.block, record.block.parameter
    if note is None or not record.alloc:
        return None
    place = block.place.layer, note.unit, note.stays_whole
    return TracedParameter(
        (block.module, note.name),
        note.shape,
        note.element_bytes,
        note.group,
        *place,
        note.stored_bytes,
        note.is_float,
        note.n_names,
        note.in_graph,
    )


def in_module_order(several: Sequence[Loaded], block_of: Callable[[Loaded], TracedBlock]) -> list[Loaded]:
    """Parameters in the order of ``Module.parameters``; a loader brings them in another one.

    Of repeated layers each has the numbers of the one that was traced.
    """
    notes = [(block.parameter, block.place.layer) for block in map(block_of, several) if block.parameter]
    inside = min((note.number for note, layer in notes if layer != OUTSIDE), default=0)

    def place(each: Loaded) -> tuple[int, int, int]:
        block = block_of(each)
        number, layer = block.parameter.number if block.parameter else 0, block.place.layer
        return 1 if layer != OUTSIDE else 2 * (number > inside), layer, number

    return sorted(several, key=place)
