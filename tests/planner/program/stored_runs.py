"""Dry runs that were stored before they took the workspace of autograd's thread."""

from __future__ import annotations

from planner.units import KIB, MIB

STORED_RESERVED = 0.15
"""How far reserved peaks may be from stored ones.

The second workspace splits a cached block, and the order of addresses decides between blocks of equal size.
Both were seen on a card, and these peaks know of neither.  To be narrow again when they are stored anew.
"""


def with_engine_workspace(n_bytes: int, *, is_hopper: bool = True) -> int:
    """A stored peak of a step with the second workspace of cuBLAS, as dry runs have it from now on."""
    return n_bytes + (32 * MIB if is_hopper else 2 * 4 * MIB + 8 * 16 * KIB)
