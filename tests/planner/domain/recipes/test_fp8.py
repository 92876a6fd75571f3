"""Names of products in 8 bits, and how cards keep what is cast."""

from __future__ import annotations

import pytest

from planner.catalog.gpus import load_gpu
from planner.domain.recipes.fp8 import FP8S, Fp8, keeps_fp8_weights, te_scaling
from planner.domain.recipes.fp8_scaling import scaling_of, takes_blocks, workspace_bytes
from planner.domain.recipes.recipe import Numerics


def test_names_tell_whose_they_are() -> None:
    """Transformer Engine's begin with it, and end where weights are kept in 8 bits."""
    assert [each for each in FP8S if not te_scaling(each)] == [
        "none", "tensorwise", "tensorwise-gathered", "rowwise", "rowwise-gw-hp",
    ]  # fmt: skip
    assert te_scaling("te-blockwise-gathered") == "blockwise"
    assert [keeps_fp8_weights(each) for each in ("te-blockwise-gathered", "te-delayed")] == [True, False]
    assert not keeps_fp8_weights("tensorwise-gathered")


@pytest.mark.parametrize(
    ("fp8", "gpu", "turned", "takes"),
    [
        ("te-delayed", "h100-sxm", True, True),
        ("te-delayed", "rtx4090", True, True),
        ("te-tensorwise", "b200", False, True),
        ("te-tensorwise", "rtx5090", True, True),
        ("te-blockwise", "b200", True, True),
        ("te-blockwise", "rtx4090", True, False),
        ("te-mxfp8", "b200", True, True),
        ("te-mxfp8", "h100-sxm", True, False),
        ("te-mxfp8", "rtx5090", True, False),
    ],
)
def test_cards_differ_in_layouts_and_scales(fp8: Fp8, gpu: str, turned: bool, takes: bool) -> None:
    """Blackwell of data centres multiplies in any layout; the others of its name do not."""
    numerics, card = Numerics(load_dtype="bf16", precision="bf16", fp8=fp8), load_gpu(gpu)
    how = scaling_of(numerics, card)
    assert how is not None
    assert (how.turned, takes_blocks(numerics, card)) == (turned, takes)


def test_products_have_room_to_work_in() -> None:
    """From Hopper on eight times as much."""
    assert [workspace_bytes(load_gpu(name)) for name in ("h100-sxm", "rtx4090")] == [33_555_456, 4_194_304]
