"""Bytes of packed matrices, by hand: one of 4,096 inputs and 1,024 outputs."""

from __future__ import annotations

import pytest

from planner.anatomy.packing import Matrices, constants_bytes, packed_bytes, stored_bytes
from planner.domain.recipes.recipe import Numerics, Packing, Quantization

ONE = Matrices(4_096 * 1_024, 1_024, 4_096, 1)


@pytest.mark.parametrize(("quantization", "packing", "packed", "constants"), [
    ("gptq-int4", Packing(128), 2_097_152, [2 * 32 * 1_024, 32 * 1_024 // 2, 4 * 4_096]),
    ("gptq-int8", Packing(32), 4_194_304, [2 * 128 * 1_024, 128 * 1_024, 4 * 4_096]),
    ("gptq-int4", Packing(0), 2_097_152, [2 * 1_024, 1_024 // 2, 4 * 4_096]),
    ("awq-int4", Packing(64), 2_097_152, [2 * 64 * 1_024, 64 * 1_024 // 2]),
    ("aqlm", Packing(8, 1, 16), 2 * 512 * 1_024, [2 * 1_024, 2 * 65_536 * 8]),
    ("aqlm", Packing(8, 2, 8), 2 * 512 * 1_024, [2 * 1_024, 2 * 2 * 256 * 8]),
    ("int8", Packing(), 4_194_304, [4 * 1_024]),
    ("fp8", Packing(128), 4_194_304, [4 * 32 * 8]),
    ("fp8", Packing(0), 4_194_304, [4]),
    ("none", Packing(), 0, []),
])  # fmt: skip
def test_what_each_kind_holds(
    quantization: Quantization, packing: Packing, packed: int, constants: list[int]
) -> None:
    """Packed elements, then scales, zeros and what else unpacking reads."""
    numerics = Numerics("fp16", "fp16-mixed", quantization, packing=packing)
    assert packed_bytes(numerics, ONE.elements) == packed
    assert list(constants_bytes(numerics, ONE)) == constants
    assert stored_bytes(numerics, ONE) == packed + sum(constants)


def test_double_quantisation_shrinks_the_scales() -> None:
    """One byte and a 64th of one for 64 elements, instead of four bytes."""
    once, twice = (Numerics("bf16", "bf16-mixed", "nf4", double_quant=doubled) for doubled in (False, True))
    assert sum(constants_bytes(once, ONE)) == ONE.elements * 4 / 64
    assert sum(constants_bytes(twice, ONE)) == ONE.elements * (1 + 4 / 256) / 64
