"""The order in which a loader brings tensors to the card, and what it and the Trainer do around them.

Source: transformers 5.23 modeling_utils.py caching_allocator_warmup, core_model_loading.py dot_natural_key,
trainer.py _inner_training_loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from measure.trace.record import OUTSIDE, Place, Record, TracedBlock, emptied
from planner.domain.recipes.recipe import BITSANDBYTES
from planner.domain.scenario import Scenario

_LOADING = ("load", "adapters")


def loader_places(scenario: Scenario) -> bool:
    """Whether the loader brings the model to the card, tensor by tensor (``device_map``)."""
    return scenario.recipe.numerics.quantization in BITSANDBYTES or scenario.stack.loader_places != "kbit"


def sorts(scenario: Scenario) -> bool:
    """Whether tensors come by their names."""
    return scenario.stack.loads_sorted and loader_places(scenario)


def by_name(name: str) -> tuple[tuple[int, int, str], ...]:
    """Where a name stands: numbers as numbers, and before words."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("."))


def with_loader(records: Sequence[Record], scenario: Scenario) -> list[Record]:
    """``records`` with one piece for all that comes before it, which goes at once, and with the cache given
    back when the Trainer begins.

    Ignored: that the piece leaves 1.2 GiB of the card; a loader of Transformers 4, which is not installed.
    """
    found = list(records)
    end = next((n for n, each in enumerate(found) if each.place.stage not in _LOADING), len(found))
    if scenario.stack.runs_trainer:
        found.insert(end, emptied(found[end - 1].place))
    if scenario.stack.loader_reserves != "nothing" and loader_places(scenario):
        place = Place("load", 0, OUTSIDE)
        number = 1 + max(each.block.id for each in found)
        piece = TracedBlock(
            number, _stored_bytes(found), place, "caching_allocator_warmup", "", role="workspace"
        )
        found[:0] = [Record(True, piece, place), Record(False, piece, place)]
    return found


def _stored_bytes(records: Iterable[Record]) -> int:
    """Bytes of the weights of the first model as they come, without constants of packed ones; the first one
    that goes has been cast.
    """
    n_bytes = last = 0
    for each in records:
        if each.place.stage != "load" or each.place.micro_step:
            break
        if each.block.role == "weights" and not each.alloc:
            return n_bytes - last
        last = each.block.n_bytes if each.block.role == "weights" else 0
        n_bytes += last
    return n_bytes
