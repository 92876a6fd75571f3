"""Numbers of GPUs that are tried for the fewest on which something fits."""

from __future__ import annotations

from collections.abc import Iterator

from planner.intake.given.fields import split_count
from planner.searching.recipes.space import Space, TypedFlags

# GPUs in one node unless something else is given, and the counts of whole nodes that are tried after one.
_NODE_GPUS = 8
_NODES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def counted_places(space: Space, card: TypedFlags) -> Iterator[dict[str, str | bool]]:
    """The place with 1, 2, 4... GPUs of a node, then with whole nodes;
    ``X:n`` and ``--gpus`` say how many one node has.
    """
    place, per_node = dict(card), space.values_of("gpus")[0] if space.is_given("gpus") else _NODE_GPUS
    name, counted = split_count(str(card.get("gpu") or space.of_file("gpu") or ""))
    if counted is not None:
        place["gpu"], per_node = name, counted
    below = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    for count in (*below, per_node):
        yield {**place, "gpus": str(count)}
    for nodes in _NODES:
        yield {**place, "gpus": str(per_node), "nodes": str(nodes)}


def world_of(place: TypedFlags) -> int:
    """All GPUs of a place."""
    return int(str(place["gpus"])) * int(str(place.get("nodes", 1)))
