"""The records of four traced periods become those of all."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

from measure.trace.expansion import repeat
from measure.trace.period import Irregular, Pattern
from measure.trace.record import OUTSIDE, Place, Record, TracedBlock

DEPTH = 10
PATTERN = Pattern(0, 1, DEPTH, "layers")


def test_layers_that_differ_are_not_repeated() -> None:
    """When one of the inner periods allocates something else,
    the records are refused rather than repeated.
    """
    blocks = [
        TracedBlock(i, 512 * (2 if i == 2 else 1), Place("forward", 0, i), "op", f"layers.{i}")
        for i in range(4)
    ]
    records = [Record(True, block, block.place) for block in blocks]
    with pytest.raises(Irregular, match="forward"):
        repeat(records, Pattern(0, 1, 8, "layers"))


def test_blocks_of_neighbours_move_along() -> None:
    """A block that the next layer frees is freed by the next layer of the whole model too."""
    records: list[Record] = []
    previous: TracedBlock | None = None
    for layer in range(4):
        block = TracedBlock(layer, 512, Place("forward", 0, layer), "op", f"layers.{layer}")
        records.append(Record(True, block, block.place))
        if previous is not None:
            records.append(Record(False, previous, block.place))
        previous = block
    whole = repeat(records, Pattern(0, 1, 10, "layers"))
    assert [(each.alloc, each.block.module, each.place.layer) for each in whole if not each.alloc] == [
        (False, f"layers.{layer - 1}", layer) for layer in range(1, 10)
    ]


def forward_blocks() -> list[TracedBlock]:
    """One block of each traced layer."""
    return [
        TracedBlock(layer, 512, Place("forward", 0, layer), "op", f"layers.{layer}.mlp") for layer in range(4)
    ]


def allocated(blocks: list[TracedBlock]) -> list[Record]:
    """Their allocations."""
    return [Record(True, block, block.place) for block in blocks]


def test_what_forward_keeps_backward_frees_in_every_layer() -> None:
    """Blocks pair across passes: each of ten layers frees its own, the last layer first."""
    blocks = forward_blocks()
    frees = [Record(False, block, Place("backward", 0, block.place.layer)) for block in reversed(blocks)]
    whole = repeat([*allocated(blocks), *frees], PATTERN)
    modules = [f"layers.{layer}.mlp" for layer in range(DEPTH)]
    assert [each.block.module for each in whole] == [*modules, *reversed(modules)]
    assert [each.alloc for each in whole] == [True] * DEPTH + [False] * DEPTH
    made, gone = whole[:DEPTH], whole[DEPTH:]
    assert [each.block for each in gone] == [each.block for each in reversed(made)]
    assert len({each.block.id for each in made}) == DEPTH


def test_layers_before_the_pattern_are_there_once() -> None:
    """A dense first layer is no part of what repeats."""
    prefix = TracedBlock(9, 64, Place("forward", 0, 0), "op", "layers.0")
    blocks = [
        TracedBlock(layer, 512, Place("forward", 0, layer), "op", f"layers.{layer}") for layer in range(1, 5)
    ]
    whole = repeat(allocated([prefix, *blocks]), Pattern(1, 1, DEPTH, "layers"))
    assert [each.block.n_bytes for each in whole] == [64] + [512] * DEPTH
    assert [each.place.layer for each in whole] == list(range(DEPTH + 1))


def test_a_block_with_a_number_for_each_tensor_grows_with_the_depth() -> None:
    """Norms of four layers' two matrices and of the table are nine numbers of 4 bytes; of ten layers, 21."""
    parts = (OUTSIDE, 0, 0, 1, 1, 2, 2, 3, 3)
    norms = TracedBlock(7, 4 * 9, Place("optimizer_step", 0), "stack", "", part_layers=parts)
    whole = repeat([*allocated(forward_blocks()), *allocated([norms])], PATTERN)
    assert whole[-1].block.n_bytes == 4 * (2 * DEPTH + 1)


def test_a_pass_that_frees_the_traced_layers_only_is_refused() -> None:
    """Four frees outside of every pass would leave six of ten blocks for good."""
    blocks = forward_blocks()
    frees = [Record(False, block, Place("eval", 0)) for block in blocks]
    with pytest.raises(Irregular, match="a block of op is not freed in every period"):
        repeat([*allocated(blocks), *frees], PATTERN)
