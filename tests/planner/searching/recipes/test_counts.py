"""Numbers of GPUs that are tried for the fewest: parts of a node, then whole nodes."""

from __future__ import annotations

import pytest

from planner.searching.recipes.counts import counted_places, world_of
from planner.searching.recipes.space import Space


@pytest.mark.parametrize(
    ("fixed", "card", "below"),
    [
        ({}, "4090", [1, 2, 4, 8]),
        ({"gpus": "6"}, "4090", [1, 2, 4, 6]),
        ({"gpus": "1"}, "4090", [1]),
        ({}, "4090:4", [1, 2, 4]),
        ({"gpus": "6"}, "4090:4", [1, 2, 4]),
    ],
)
def test_powers_of_two_lead_to_a_whole_node(fixed: dict[str, str], card: str, below: list[int]) -> None:
    """A node has eight, or as many as the flags say; a count behind the card is over that of the flag."""
    places = list(counted_places(Space(fixed, {}), {"gpu": card}))
    alone = [place for place in places if "nodes" not in place]
    assert [int(str(place["gpus"])) for place in alone] == below
    assert {place["gpu"] for place in places} == {"4090"}


def test_nodes_are_whole_and_reach_512_gpus() -> None:
    """From two nodes on each has all of its GPUs."""
    nodes = [place for place in counted_places(Space({}, {}), {"gpu": "4090"}) if "nodes" in place]
    assert {place["gpus"] for place in nodes} == {"8"}
    assert [world_of(place) for place in nodes] == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert world_of({"gpus": "3"}) == 3
