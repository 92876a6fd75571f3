"""Which parameters are whole when, under ZeRO-3 on two processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from measure.trace.record import Place
from measure.trace.sharding.coordinator import TracedCoordinator, TracedUse
from measure.trace.sharding.shard_records import RankRecords
from measure.trace.sharding.sharded_parameters import FROZEN
from tests.measure.trace.sharding.made import FIRST_ID, held, parameter, taken, zero

FLAT, WHOLE = "all_gather flat_tensor", "gathered parameter"


class Rank:
    """Three modules in a row: two matrices, one, one."""

    def __init__(self, **changes: Any) -> None:
        self.stream = RankRecords(FIRST_ID)
        self.stream.place = Place("forward", 0)
        sizes = {"a": (9, 20), "b": (30,), "c": (40,)}
        self.uses = {
            name: [TracedUse(parameter(f"w{n}", size, module=name), False) for n, size in enumerate(each)]
            for name, each in sizes.items()
        }
        self.all = [use for each in self.uses.values() for use in each]
        self.coordinator = TracedCoordinator(
            self.stream, zero(**changes), lambda name: self.uses.get(name, [])
        )

    def statuses(self) -> dict[str, str]:
        """Where the first matrix of each module is."""
        return {name: each[0].status for name, each in self.uses.items()}

    def forward(self) -> None:
        """A whole pass."""
        self.coordinator.new_pass(self.all)
        for name in self.uses:
            self.coordinator.fetch(name, forward=True)
            self.coordinator.release(name, forward=True)


def test_several_parameters_arrive_in_one_buffer_and_are_copied_out() -> None:
    """9 and 20 elements are 5 and 10 for each process: 60 bytes, gone when both have been asked for."""
    rank = Rank()
    rank.coordinator.new_pass(rank.all)
    rank.coordinator.fetch("a", forward=True)
    assert taken(rank.stream, FLAT) == [2 * (5 + 10) * 2]
    assert taken(rank.stream, WHOLE) == [9 * 2, 20 * 2]
    assert held(rank.stream) == {WHOLE: (9 + 20) * 2}
    assert rank.statuses() == {"a": "here", "b": "away", "c": "away"}


def test_one_parameter_arrives_in_its_own_memory() -> None:
    """30 elements are 15 for each process, and no flat buffer."""
    rank = Rank()
    rank.coordinator.new_pass(rank.all)
    rank.coordinator.fetch("b", forward=True)
    assert (taken(rank.stream, FLAT), taken(rank.stream, WHOLE)) == ([], [2 * 15 * 2])


@pytest.mark.parametrize(
    ("limit", "statuses"),
    [
        (0, {"a": "here", "b": "away", "c": "away"}),
        (30, {"a": "here", "b": "in flight", "c": "away"}),
        (31, {"a": "here", "b": "in flight", "c": "in flight"}),
    ],
)
def test_the_second_pass_looks_ahead(limit: int, statuses: dict[str, str]) -> None:
    """As many elements as prefetching may have; the parameter that reaches the limit is the last."""
    rank = Rank(prefetch_elements=limit, max_reuse_elements=0)
    rank.forward()
    rank.coordinator.new_pass(rank.all)
    rank.coordinator.fetch("a", forward=True)
    assert rank.statuses() == statuses


@pytest.mark.parametrize(("distance", "status"), [(0, "away"), (70, "away"), (71, "here")])
def test_what_comes_again_soon_is_kept(distance: int, status: str) -> None:
    """Two modules of 30 and 40 elements lie between two uses of the first."""
    rank = Rank(prefetch_elements=0, max_reuse_elements=distance)
    rank.coordinator.new_pass(rank.all)
    for name in ("a", "b", "c", "a"):
        rank.coordinator.fetch(name, forward=True)
        rank.coordinator.release(name, forward=True)
    rank.coordinator.new_pass(rank.all)
    rank.coordinator.fetch("a", forward=True)
    rank.coordinator.release("a", forward=True)
    assert rank.statuses()["a"] == status


@pytest.mark.parametrize(("keeps", "after"), [(True, "away"), (False, "here")])
def test_what_no_hook_has_released_goes_when_the_backward_ends(keeps: bool, after: str) -> None:
    """A module whose input needs no gradient is not told that its backward is over.

    Before DeepSpeed 0.19.3 it stays until the next forward has run it.
    """
    rank = Rank(prefetch_elements=0, keeps_recomputed=keeps)
    rank.forward()
    rank.stream.place = Place("backward", 0)
    rank.coordinator.fetch("a", forward=False)
    assert rank.statuses()["a"] == "here"
    rank.coordinator.end_of_backward()
    assert rank.statuses()["a"] == after
    rank.coordinator.fetch("a", forward=True)
    rank.coordinator.release("a", forward=True)
    assert rank.statuses()["a"] == "away"


@pytest.mark.parametrize("makes_graph", [True, False])
def test_what_the_graph_has_a_view_of_stays_until_it_goes(makes_graph: bool) -> None:
    """DeepSpeed lets go of a packed matrix behind its forward, and bitsandbytes' context has it still."""
    rank = Rank(makes_graph=makes_graph)
    (use,) = rank.uses["b"]
    use.parameter = replace(use.parameter, in_graph=True)
    rank.coordinator.new_pass(rank.all)
    rank.coordinator.fetch("b", forward=True)
    rank.coordinator.release("b", forward=True)
    assert use.status == "away"
    assert sum(not each.alloc for each in rank.stream.records) == (not makes_graph)
    rank.coordinator.end_of_graph()
    assert sum(not each.alloc for each in rank.stream.records) == 1


def test_one_process_has_all_of_each_parameter() -> None:
    """Nothing is gathered, and after a step nothing is allocated for what is whole."""
    rank = Rank(world=1)
    rank.forward()
    rank.coordinator.release_all(rank.all)
    rank.coordinator.gather_now(rank.all[:1])
    assert rank.stream.records == []
    assert rank.statuses()["a"] == "here"


@pytest.mark.parametrize(("for_model", "after"), [(False, "away"), (True, "here")])
def test_what_is_gathered_to_recompute_stays_as_long_as_the_module_around(
    for_model: bool, after: str
) -> None:
    """Until the backward of the layer that it began in is done, or that of the model; all goes at its end."""
    rank = Rank(for_model=for_model)
    for use in rank.all:
        use.parameter = replace(use.parameter, group=FROZEN)
    rank.stream.place = Place("backward", 0)
    for around in ("", "layer"):
        rank.coordinator.fetch(around, forward=False)
    rank.coordinator.fetch("b", forward=True)
    rank.coordinator.release("b", forward=True)
    assert rank.statuses()["b"] == "here"
    rank.coordinator.release("layer", forward=False)
    assert rank.statuses()["b"] == after
    rank.coordinator.end_of_backward()
    assert rank.statuses()["b"] == "away"


@pytest.mark.parametrize(("early", "ahead"), [(False, "away"), (True, "in flight")])
def test_what_is_released_after_a_backward_allows_more_prefetch_before_0_15_4(
    early: bool, ahead: str
) -> None:
    """29 elements may be whole, as the first module has.  The last one's are taken off a new count."""
    rank = Rank(max_live_elements=29, prefetch_elements=29, max_reuse_elements=0, counts_early=early)
    for _ in range(2):
        rank.coordinator.new_pass(rank.all, trains=True)
        for name in ("a", "b"):
            rank.coordinator.fetch(name, forward=True)
            rank.coordinator.release(name, forward=True)
        rank.coordinator.fetch("c", forward=False)
        rank.coordinator.end_of_backward()
    rank.coordinator.new_pass(rank.all, trains=True)
    rank.coordinator.fetch("a", forward=True)
    assert rank.statuses()["b"] == ahead
