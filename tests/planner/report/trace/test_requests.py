"""Requests of a program and of a trace side by side: what is one request, and where two lists part."""

from __future__ import annotations

from planner.allocator.events import AllocEvent
from planner.report.trace.requests import Request, differences, first_difference, of_trace

KIB = 1024


def request(n_bytes: int, *freed: int) -> Request:
    """A request of the forward pass."""
    return Request(n_bytes, "forward", "layer 0", "mlp", "mm", list(freed))


def test_a_request_takes_what_is_freed_before_the_next_one() -> None:
    """Small tensors and ignored sizes are left out; a free that another stream delays counts once,
    when the program lets go.
    """
    events = [
        AllocEvent("alloc", 1, 8 * KIB, phase="load"),
        AllocEvent("alloc", 2, 16 * KIB, phase="forward", op="mm", module="mlp"),
        AllocEvent("alloc", 3, 1 * KIB, phase="forward"),
        AllocEvent("alloc", 4, 4 * KIB, phase="forward"),
        AllocEvent("free_requested", 2, 16 * KIB, phase="forward"),
        AllocEvent("free", 1, 8 * KIB, phase="forward"),
        AllocEvent("alloc", 5, 32 * KIB, phase="forward"),
        AllocEvent("free", 2, 16 * KIB, phase="forward"),
        AllocEvent("free", 4, 4 * KIB, phase="forward"),
    ]
    found = of_trace(events, {4 * KIB}, ("forward",))
    assert [each.key for each in found] == [(16 * KIB, 8 * KIB, 16 * KIB), (32 * KIB,)]
    assert (found[0].module, found[0].op) == ("mlp", "mm")
    assert [each.n_bytes for each in of_trace(events, {4 * KIB})] == [8 * KIB, 16 * KIB, 32 * KIB]


def test_lists_part_at_the_first_request_of_another_size_or_with_other_frees() -> None:
    """The order of frees between two requests does not matter;
    a list that ends first has no request there.
    """
    same = [request(4096), request(8192, 4096, 2048)]
    assert first_difference(same, [request(4096), request(8192, 2048, 4096)]) is None
    larger = first_difference(same, [request(4096), request(16384, 4096, 2048)])
    assert larger is not None
    assert (larger.number, larger.program, larger.trace) == (2, same[1], request(16384, 4096, 2048))
    later = first_difference(same, [request(4096, 2048), request(8192, 4096)])
    assert later is not None
    assert later.number == 1
    ended = first_difference(same, same[:1])
    assert ended is not None
    assert (ended.number, ended.program, ended.trace) == (2, same[1], None)


def test_lists_meet_again_behind_a_difference() -> None:
    """One request too many is one difference, however many equal ones follow."""
    rest = [request(4096 * number) for number in range(2, 9)]
    said = differences([request(2048), *rest], [request(2048), request(5000), *rest])
    assert [line.split()[0] for line in said] == ["---", "program", "trace", "trace"]
    assert "5000 bytes" in said[-1]
