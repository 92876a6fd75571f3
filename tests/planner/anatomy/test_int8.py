"""What older int8 layers keep beside their weights, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.anatomy.int8 import int8_column_bytes
from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.weights import outlier_weight_bytes
from planner.program.job import Job, job_of

# Llama-2-7b: per layer four matrices of 4096 x 4096 and three of 4096 x 11008, in 32 layers.
_HIDDEN, _MLP, _LAYERS = 4096, 11008, 32
_ELEMENTS = 4 * _HIDDEN * _HIDDEN + 3 * _HIDDEN * _MLP


# The stack of older layers, whose script does not call PEFT's k-bit preparation.
UNPREPARED = "hf-trainer@4 kbit_upcast=none"


def _scenario(stack: str, method: str = "int8") -> Scenario:
    name, _, switches = stack.partition(" ")
    flags = {"model": "llama-2-7b", "method": method, "gpu": "rtx3090", "seq": 512, "stack": name, "precision": "fp16-mixed"}
    return resolve(from_flags({**flags, **({"switches": switches, "attention": "eager"} if switches else {})}))


def _job(stack: str, fraction: float, method: str = "int8") -> Job:
    return job_of(_scenario(stack, method), replace(Coefficients(), int8_outlier_fraction=fraction))


def test_older_layers_keep_outlier_columns_in_the_dtype_of_their_input() -> None:
    """Without k-bit preparation the stream is 16-bit: two bytes for each element of the columns that met an outlier."""
    assert outlier_weight_bytes(_job(UNPREPARED, 0.125)) == pytest.approx(0.125 * 2 * _ELEMENTS * _LAYERS)


def test_prepared_bases_keep_them_in_fp32_where_a_norm_feeds_the_matrix() -> None:
    """K-bit preparation makes norms fp32, so what they feed is kept twice as wide; the attention output stays 16-bit."""
    prepared = float(outlier_weight_bytes(_job("hf-trainer@4", 0.125)))
    plain = float(outlier_weight_bytes(_job(UNPREPARED, 0.125)))
    assert 1.5 * plain < prepared <= 2 * plain


@pytest.mark.parametrize(("stack", "method"), [("hf-trainer@5", "int8"), ("hf-trainer@4", "qlora")])
def test_newer_layers_and_other_bases_keep_none(stack: str, method: str) -> None:
    """bitsandbytes 0.46 drops the columns after the product, and 4-bit bases never had any."""
    assert outlier_weight_bytes(_job(stack, 0.125, method)) == 0


def test_each_older_matrix_keeps_its_input_by_columns_too() -> None:
    """One byte per input feature and matrix: q, k, v and the output read 4096 features, gate and up too, down 11008."""
    old, new = _job(UNPREPARED, 0.0), _job("hf-trainer@5", 0.0)
    block = old.model.groups[0].block
    assert int8_column_bytes(old.view(block), block.linears) == 6 * _HIDDEN + _MLP
    assert int8_column_bytes(new.view(block), block.linears) == 0
