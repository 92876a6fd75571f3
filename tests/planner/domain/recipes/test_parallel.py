"""Groups of GPUs that share a batch."""

from __future__ import annotations

import pytest

from planner.domain.recipes.parallel import ALONE, HEAD, TABLE, Parallel, Stage


@pytest.mark.parametrize(
    ("parallel", "gpus"),
    [
        (ALONE, 1),
        (Parallel(tensor=2, context=4), 8),
        (Parallel(pipeline=3, tensor=2), 6),
        (Parallel(replicas=4, hpz=8, experts=8), 1),
    ],
)
def test_degrees_of_a_batch_multiply(parallel: Parallel, gpus: int) -> None:
    """Copies, second copies and experts have batches of their own."""
    assert (parallel.gpus, parallel.divides) == (gpus, gpus > 1)


@pytest.mark.parametrize(
    ("pipeline", "schedule", "n_layers", "layers"),
    [
        (2, "1f1b", 4, (2, 2)),
        (4, "1f1b", 32, (8, 9, 8, 7)),
        (4, "gpipe", 30, (7, 8, 8, 7)),
        (2, "interleaved", 6, (1, 2, 2, 1)),
        (1, "1f1b", 32, (32,)),
    ],
)
def test_token_table_and_head_count_as_a_layer_each(
    pipeline: int, schedule: str, n_layers: int, layers: tuple[int, ...]
) -> None:
    """The first runs have what does not divide evenly; all layers are in one of them."""
    found = Parallel(pipeline=pipeline, schedule=schedule).layers_of_stages(n_layers)  # type: ignore[arg-type]
    assert found == layers
    assert sum(found) == n_layers


def test_the_ends_of_a_pipeline() -> None:
    """A pipeline of one group has both."""
    first, middle, last, only = (
        Stage(rank, ranks, (1,), "1f1b", 8) for rank, ranks in ((0, 3), (1, 3), (2, 3), (0, 1))
    )
    assert [(each.has(TABLE), each.has(HEAD)) for each in (first, middle, last, only)] == [
        (True, False),
        (False, False),
        (False, True),
        (True, True),
    ]
