"""Products in 8-bit floats, with 64 features in and 128 out.

Sizes and their order are those of torchao 0.18.0's own ``Float8Linear``, run on fake tensors of torch 2.13.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.model import LinearSpec
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.step import step_of
from planner.program.weights.float8 import in_float8
from planner.program.weights.matrices import linear
from tests.jobs import job_by, typed
from tests.planner.program.matrix_runs import OTHER, Run, view_of

IN, OUT, WEIGHT = 64, 128, 64 * 128


def run(fp8: str, *, dtype: str = "bf16", linears: str = "eager", spec: LinearSpec = OTHER) -> Run:
    """One matrix of which all is in ``dtype``, with an input in bf16."""
    view = view_of("full", numerics={"fp8": fp8}, base=dtype, autocast=False, fp8_linears=linears)

    def layer(torch: Operators, x: Tensor) -> Tensor:
        return linear(torch, view, spec, x)

    return Run(layer, "bf16", IN)


def cast(count: int, width: int = 2) -> list[float]:
    """Absolute values, fp32 unless it is that, scaled, clamped, in 8 bits."""
    return [count * width, *([count * 4] if width < 4 else []), count * 4, count * 4, count]


def test_both_operands_are_cast_for_each_of_three_products() -> None:
    """Input and weight are kept as they are; the second operand is turned, and both in the last product."""
    found = run("tensorwise")
    assert [size for _, _, size in found.made("forward")] == [*cast(IN), *cast(WEIGHT), OUT * 2]
    backward = [*cast(OUT), *cast(WEIGHT), WEIGHT, IN * 2]
    backward += [*cast(OUT), *cast(IN), OUT, IN, WEIGHT * 2]
    assert [size for _, _, size in found.made("backward")] == backward


def test_weights_in_fp32_are_cast_from_it() -> None:
    """Autocast leaves them alone; their gradient is made in bf16 and widened."""
    found = run("tensorwise", dtype="fp32")
    assert [size for _, _, size in found.made("forward")] == [*cast(IN), *cast(WEIGHT, 4), OUT * 2]
    assert [size for _, _, size in found.made("backward")][-2:] == [WEIGHT * 2, WEIGHT * 4]


def test_products_scaled_by_rows_are_multiplied_by_scales_as_large_as_they_are() -> None:
    """But the forward one, whose kernel does it."""
    sizes = [size for op, _, size in run("rowwise").made("backward") if op == "mul"]
    assert IN * 4 in sizes
    assert sizes.count(WEIGHT * 4) == 2
    wide = run("rowwise-gw-hp").made("backward")
    assert [size for _, _, size in wide][-4:] == [WEIGHT, IN * 4, IN * 2, WEIGHT * 2]


def test_compiled_casts_are_one_kernel_each() -> None:
    """What is kept is the same, and gradients are cast once."""
    sizes = [size for _, _, size in run("tensorwise", linears="compiled").made("forward")]
    assert sizes == [IN, WEIGHT, OUT * 2]
    sizes = [size for _, _, size in run("tensorwise", linears="compiled").made("backward")]
    assert sizes == [OUT, WEIGHT, WEIGHT, IN * 2, IN, OUT, IN, WEIGHT * 2]


def test_weights_that_were_gathered_in_8_bits_are_not_cast() -> None:
    """Only turned for the gradient of the input."""
    assert [size for _, _, size in run("tensorwise-gathered").made("forward")] == [*cast(IN), OUT * 2]
    assert run("tensorwise-gathered").made("backward")[5][2] == WEIGHT


def test_sides_are_multiples_of_16() -> None:
    """Of an ``nn.Linear``."""
    numerics = view_of("full", numerics={"fp8": "rowwise"}).recipe.numerics
    assert in_float8(numerics, OTHER)
    assert not in_float8(numerics, replace(OTHER, out_features=136))
    assert not in_float8(numerics, replace(OTHER, kind="conv1d"))


@pytest.mark.parametrize("fp8", ["tensorwise", "tensorwise-gathered"])
def test_fsdp2_receives_matrices_of_layers_in_8_bits(fp8: str) -> None:
    """One byte for each element of a layer's matrices, two of its norms."""
    flags = typed("--model llama-3.1-8b --method full --gpu h100-sxm:8 --stack torchtitan --seq 512")
    stream = step_of(job_by({**flags, "batch": 1, "fp8": fp8}))
    made = {slot for slot in stream.events if slot >= 0}
    received = {stream.unit_bytes[slot] for slot in made if stream.place(slot)[2] == "all_gather_output"}
    matrices, norms = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336, 2 * 4096
    width = 1 if fp8 == "tensorwise-gathered" else 2
    assert matrices * width + norms * 2 in received
