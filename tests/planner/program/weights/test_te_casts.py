"""Products of Transformer Engine in 8 bits: one matrix by hand, and whole jobs against the dry run.

Transformer Engine does not run without CUDA.  In the dry run modules stand in for it that allocate what its
code does; Transformers, Accelerate's conversion of the model and PyTorch are their own.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.recipes.fp8_scaling import Scaling
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.program.job import job_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.weights.matrices import linear
from planner.throughput.step_time import predict_time
from tests.planner.program.matrix_runs import OTHER, Run, view_of

ROWS = Path(__file__).parents[3] / "against_libraries/programs/te.csv"
IN, OUT, WEIGHT = 64, 128, 64 * 128
TENSORS = Scaling(by_tensor=True, delayed=True, turned=True, scale_bytes=0, square=False)


def run(how: Scaling = TENSORS, *, dtype: str = "bf16", again: bool = False) -> Run:
    """One matrix under autocast, with an input in bf16; ``again``: as a checkpoint runs it once more."""
    view = replace(view_of("full", numerics={"fp8": "te-delayed"}, base=dtype, autocast=True), narrow=how)

    def layer(torch: Operators, x: Tensor) -> Tensor:
        if again:
            torch.direction = "again"
        return linear(torch, view, OTHER, x)

    return Run(layer, "bf16", IN)


def sizes(found: Run, stage: str) -> list[float]:
    """Of all that a stage allocates."""
    return [size for _, _, size in found.made(stage)]


def test_an_operand_is_kept_along_columns_and_a_weight_along_both_sides() -> None:
    """Both ways of each are made in forward; backward casts the gradient alone."""
    found = run()
    assert sizes(found, "forward") == [IN, IN, WEIGHT, WEIGHT, OUT * 2]
    kept = sorted(size for (_, _, size), count in found.kept.items() for _ in range(count))
    assert kept == [IN, WEIGHT, WEIGHT]
    assert sizes(found, "backward") == [OUT, OUT, IN * 2, WEIGHT * 2]


def test_a_card_that_takes_any_layout_has_one_tensor() -> None:
    """Scales of blocks make two of it all the same, each a 32nd larger; squares of weights have few."""
    whole = replace(TENSORS, turned=False)
    assert sizes(run(whole), "forward") == [IN, WEIGHT, OUT * 2]
    blocks = replace(TENSORS, by_tensor=False, delayed=False, scale_bytes=1 / 32)
    assert sizes(run(blocks), "forward")[:3] == [IN * 33 / 32, IN * 33 / 32, WEIGHT * 33 / 32]
    assert sizes(run(replace(blocks, square=True)), "forward")[2] == WEIGHT


def test_weights_in_fp32_are_cast_to_8_bits_as_they_are() -> None:
    """Their gradient comes in bf16, and autograd widens it."""
    found = run(dtype="fp32")
    assert sizes(found, "forward") == [IN, IN, WEIGHT, WEIGHT, OUT * 2]
    assert sizes(found, "backward")[-2:] == [WEIGHT * 2, WEIGHT * 4]


def test_what_a_checkpoint_computes_again_is_in_16_bits() -> None:
    """The region in 8 bits is the model's forward alone; a copy of the weight is the function's own."""
    assert sizes(run(again=True), "forward") == [OUT * 2]
    assert sizes(run(again=True), "backward") == [IN * 2, WEIGHT * 2]
    assert sizes(run(again=True, dtype="fp32"), "forward") == [WEIGHT * 2, OUT * 2]


@pytest.mark.parametrize("row", list(csv.DictReader(ROWS.open(encoding="utf-8"))), ids=lambda row: row["job"])
def test_peaks_are_those_of_the_emulated_modules(row: dict[str, str]) -> None:
    """Allocated within 0.5 %, reserved within 2 %; heads are no token tables, and in 8 bits, too."""
    words = dict(word.split("=") for word in row["job"].split())
    common = {"method": "full", "stack": "hf-trainer", "batch": "1", "load_dtype": "bf16"}
    plain = {"optimizer": "adamw_torch_fused", "gradient_checkpointing": "false"}
    phases = replayed(job_of(resolve(from_flags({**common, **plain, **words})), Coefficients())).phases
    for name, near in (("allocated", 0.005), ("reserved", 0.02)):
        found = max(int(getattr(each, f"{name}_bytes")) for each in phases)
        assert found == pytest.approx(int(row[f"{name}_bytes"]), rel=near), name


def seconds(**flags: Any) -> float:
    """Of one step on an H100."""
    said = {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm", "seq": 4096, "batch": 4}
    scenario = resolve(from_flags({**said, "gradient_checkpointing": False, **flags}))
    time = predict_time(scenario, Coefficients())
    assert time is not None
    return float(time.step_s)


def test_products_take_less_time_and_casts_take_some() -> None:
    """Scales that are not known before cost one more reading."""
    assert 0.55 < seconds(fp8="te-delayed") / seconds(fp8="none") < 0.85
    assert seconds(fp8="te-delayed") < seconds(fp8="te-tensorwise")
