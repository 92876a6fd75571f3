"""The requests of a job in order: several at once, and what is kept of them when nothing more comes."""

from __future__ import annotations

from array import array
from itertools import chain

from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream, instances
from planner.program.step import parts_of
from tests.jobs import job_by

PLACE = ("fsdp", "", "whole")


def test_several_at_once_are_as_one_after_the_other() -> None:
    """The same slots, events, sizes, terms and places."""
    one, other = RequestStream(), RequestStream()
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
    stream = RequestStream()
    stream.free(stream.allocate(Unit.TOKENS, 2, "gradients", ("layer 0", "mlp", "mm")))
    assert stream.events == array("q", [0, ~0])
    assert [*stream.sizes(dict.fromkeys(Unit, 1.0) | {Unit.TOKENS: 512.0})] == [1024]


def test_between_marks_lie_all_events_of_a_stage() -> None:
    """Also where a part is not asked for what others free, which moves the marks behind it."""
    job = job_by({"model": "gpt2", "method": "full", "gpu": "4090", "seq": "64"})
    n_gradients = 0
    parts = ((part.name, part.template, part.count) for part in parts_of(job))
    for part in instances(RequestStream(), parts):
        for stage in ("forward", "backward"):
            pieces = [*part.between_marks(stage, ("before_forward", "gradient"))]
            assert array("q", chain.from_iterable(events for events, _ in pieces)) == part.events(stage)
            assert pieces[-1][1] is None
            held: set[int] = set()
            for made, mark in pieces:
                held |= {event for event in made if event >= 0}
                held -= {~event for event in made if event < 0}
                if mark is not None and mark.slot is not None and part.name.startswith("layer"):
                    # A gradient is there when its mark comes.
                    assert part.slot(mark.slot) in held
                    n_gradients += 1
    assert n_gradients > 100


def test_what_is_put_off_comes_right_before_the_operator_that_needs_it() -> None:
    """Phases that begin between keep what they begin with; where no such operator comes, nothing moves."""
    stream = RequestStream()
    stream.enter("load")
    stream.allocate(Unit.ONE, 2, "weights", ("load", "", "weight"))
    stream.enter("forward")
    late = stream.allocate(Unit.ONE, 8, "other_temporaries", ("products", "", "workspace"))
    for op in ("embedding", "mm"):
        stream.allocate(Unit.TOKENS, 2, "saved_activations", ("layer 0", "", op))
        stream.enter("loss" if op == "embedding" else "backward")
    stream.put_off(late, {"conv"})
    assert [*stream.events] == [0, 1, 2, 3]
    stream.put_off(late, {"mm", "bmm"})
    assert [*stream.events] == [0, 2, 1, 3]
    assert stream.phases == [(0, "load"), (1, "forward"), (2, "loss"), (4, "backward")]
