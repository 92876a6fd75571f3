"""The requests of a job in order: several at once, and what is kept of them when nothing more comes."""

from __future__ import annotations

from array import array

from planner.program.ops.tensors import Unit
from planner.program.stream import Stream

PLACE = ("fsdp", "", "whole")


def test_several_at_once_are_as_one_after_the_other() -> None:
    """The same slots, events, sizes, terms and places."""
    one, other = Stream(), Stream()
    for stream in (one, other):
        stream.allocate(Unit.TOKENS, 2, "gradients", ("layer 0", "mlp", "mm"))
    slots = one.allocate_all([8.0, 16.0], "gathered_parameters", PLACE)
    assert (
        slots
        == [other.allocate(Unit.ONE, n_bytes, "gathered_parameters", PLACE) for n_bytes in (8.0, 16.0)]
        == [1, 2]
    )
    assert [*one.events] == [*other.events] == [0, 1, 2]
    assert (one.units, one.unit_bytes, one.kinds, one.streams) == (
        other.units,
        other.unit_bytes,
        other.kinds,
        other.streams,
    )
    assert [one.term(slot) for slot in range(3)] == [
        "gradients",
        "gathered_parameters",
        "gathered_parameters",
    ]
    assert [one.place(slot) for slot in slots] == [PLACE, PLACE]


def test_events_are_numbers_of_the_machine() -> None:
    """And sizes are in bytes by how many there are of each unit."""
    stream = Stream()
    stream.free(stream.allocate(Unit.TOKENS, 2, "gradients", ("layer 0", "mlp", "mm")))
    assert stream.events == array("q", [0, ~0])
    assert [*stream.sizes(dict.fromkeys(Unit, 1.0) | {Unit.TOKENS: 512.0})] == [1024]
