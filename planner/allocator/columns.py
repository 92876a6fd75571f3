"""What is done with the requests of a program in one pass: sizes, what is held of each kind,
the most of each phase, and the same requests of other slots.

``events`` hold the slot of an allocation when it is made, and its complement when it is freed.  Where the
package was installed with a C compiler, ``replay.c`` has the same loops; tests hold both to each other.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import neg

from planner.allocator import compiled


def in_bytes(units: array[int], unit_bytes: array[float], values: Sequence[float]) -> Sequence[int]:
    """Bytes of every slot, of so many ``unit_bytes`` for each of its unit; ``values``:
    how many of each unit there are.
    """
    made = compiled.in_bytes(units, unit_bytes, values)
    return (
        [round(each * values[unit]) for unit, each in zip(units, unit_bytes, strict=True)]
        if made is None
        else made
    )


def held_at(
    events: Sequence[int], sizes: Sequence[int], kinds: array[int], n_kinds: int, moments: Sequence[int]
) -> list[list[int]]:
    """Bytes of each kind by its number, below ``n_kinds``, after each of the events ``moments``,
    which are in order.
    """
    if isinstance(events, array) and isinstance(sizes, array):
        return compiled.held_at(events, sizes, kinds, n_kinds, moments)
    held, found, start = [0] * n_kinds, [], 0
    for moment in moments:
        for event in events[start : moment + 1]:
            if event >= 0:
                held[kinds[event]] += sizes[event]
            else:
                held[kinds[~event]] -= sizes[~event]
        start = max(moment + 1, start)
        found.append([*held])
    return found


def shifted(events: array[int], base: int, most: int) -> array[int]:
    """The same events of slots that begin ``base`` later; numbers from ``most`` on are no slots, and stay."""
    made = compiled.shifted(events, base, most)
    if made is not None:
        return made
    moved = (event if event >= most else event + base if event >= 0 else event - base for event in events)
    return array("q", moved)


def passing(events: Sequence[int], n_slots: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Events that may come a second time, those of slots that these allocate and free; their places;
    and the places of the others.

    What they do not free stays, and what they free of before is gone: neither is done twice.
    """
    made = compiled.passing(events, n_slots) if isinstance(events, array) else None
    if made is not None:
        return made
    slots = {event for event in events if event >= 0} & {~event for event in events if event < 0}
    places: tuple[list[int], list[int]] = [], []
    for place, event in enumerate(events):
        places[(event if event >= 0 else ~event) in slots].append(place)
    return [events[place] for place in places[1]], places[1], places[0]


def fullest(events: Sequence[int], sizes: Sequence[int], begins: Sequence[int]) -> list[int]:
    """Most bytes held in each of the phases that begin at the events ``begins``;
    what is there when one begins counts, too.
    """
    if isinstance(events, array) and isinstance(sizes, array):
        return compiled.fullest(events, sizes, begins)
    # A free is the complement of its slot: from the end, -1 is slot 0.
    changes = [*sizes, *map(neg, reversed(sizes))]
    levels = [*accumulate(map(changes.__getitem__, events), initial=0)]
    ends = [*begins[1:], len(events)]
    return [max(levels[begin : end + 1]) for begin, end in zip(begins, ends, strict=True)]
