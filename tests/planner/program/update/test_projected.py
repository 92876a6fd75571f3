"""APOLLO and GaLore: what they keep of a parameter, and the most bytes of a step over it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

import planner
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import Interval
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Dtype, Unit
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.program.update.optimizer import optimizer_step
from planner.program.update.projected import workspace_reach_bytes
from planner.program.update.states import states_of

RANK = 8
COPIES = 2.0
"""Of the matrix in fp32, for the workspace of its decomposition; and 256 rows."""


def matrix(rows: int, columns: int, dtype: Dtype) -> Weight:
    """A trained matrix of a layer."""
    shape = ((Unit.ONE, rows), (Unit.ONE, columns))
    return Weight("layer 0 q_proj", "matrix", shape, dtype, trained=True)


def job(optimizer: Optimizer, rank: int = RANK, **more: Any) -> Job:
    """A full fine-tune that projects to eight."""
    flags = {"model": "llama-2-7b", "method": "full", "gpu": "a100-80gb", "seq": 512, "optimizer": optimizer}
    return job_of(resolve(from_flags({**flags, "optimizer_rank": rank, **more})), Coefficients())


def kept(optimizer: Optimizer, weight: Weight, rank: int = RANK, **more: Any) -> list[float]:
    """Bytes of each state."""
    return [state.unit_bytes for state in states_of(job(optimizer, rank, **more), weight)]


def most(optimizer: Optimizer, weights: list[Weight], *, first: bool) -> int:
    """The most bytes that are there at once, with the states that a first step makes."""
    subject, stream = job(optimizer), RequestStream()
    values = unit_values(subject)
    optimizer_step(stream, subject, weights, first=first)
    sizes = [float(n * values[unit]) for n, unit in zip(stream.unit_bytes, stream.units, strict=True)]
    return round(
        max(accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in stream.events), default=0)
    )


VECTOR = Weight("norm", "norm", ((Unit.ONE, 100),), "fp32", trained=True)


def test_apollo_keeps_a_random_matrix_and_two_narrow_moments() -> None:
    """At rank 8 of a matrix of 1,000 x 200: 200 x 8 random numbers, moments of 1,000 x 8;
    of a vector two moments.

    Source: apollo-torch 1.0.3, run on a CPU with counted bytes: states to the byte,
    temporaries of a later step to the byte.
    """
    narrow = 4 * 1_000 * RANK
    assert kept("apollo_adamw", matrix(1_000, 200, "fp32")) == [4 * 200 * RANK, narrow, narrow]
    assert kept("apollo_adamw", VECTOR) == [400, 400]
    assert most("apollo_adamw", [matrix(1_000, 200, "fp32")], first=False) == 3 * narrow + 2 * 800_000


@pytest.mark.parametrize(("rows", "columns"), [(1_000, 200), (200, 1_000)])
def test_galore_keeps_singular_vectors_and_two_narrow_moments(rows: int, columns: int) -> None:
    """In 16 bits a cast makes eight vectors of 200 a tensor of their own.  In fp32 they are a slice,
    which keeps all 200 alive.
    """
    assert kept("galore_adamw", matrix(rows, columns, "bf16")) == [2 * 200 * RANK, *[2 * 1_000 * RANK] * 2]
    assert kept("galore_adamw", matrix(rows, columns, "fp32")) == [4 * 200 * 200, *[4 * 1_000 * RANK] * 2]


def test_galores_adafactor_decomposes_in_fp32_and_keeps_sums_of_what_is_narrow() -> None:
    """Sums of 1,000 rows and eight columns."""
    assert kept("galore_adafactor", matrix(1_000, 200, "bf16")) == [4 * 200 * 200, 4 * 1_000, 4 * RANK]


def test_galore_in_8_bits_has_codes_and_scales_of_what_is_narrow() -> None:
    """A scale of 4 bytes for 256; the token table is in 8 bits, too, as only bitsandbytes' class is asked
    for tables in fp32.
    """
    narrow = 1_000 * RANK
    states = [2 * 200 * RANK, narrow, narrow, 4 * narrow / 256, 4 * narrow / 256]
    assert kept("galore_adamw_8bit", matrix(1_000, 200, "bf16")) == states
    table = Weight(
        "token table", "table", ((Unit.ONE, 1_000), (Unit.ONE, 200)), "bf16", trained=True, outside=True
    )
    assert kept("galore_adamw_8bit", table, stack="hf-trainer@5")[0] == 200_000


def test_no_matrix_has_more_singular_vectors_than_its_shorter_side() -> None:
    """A rank of 256 is one of 200 there; APOLLO's random matrix has all."""
    assert kept("galore_adamw", matrix(1_000, 200, "bf16"), 256)[0] == 2 * 200 * 200
    assert kept("apollo_adamw", matrix(1_000, 200, "bf16"), 256)[0] == 2 * 200 * 256


def test_the_head_is_projected_where_all_linear_layers_are() -> None:
    """``optim_target_modules: all-linear`` of Transformers."""
    head = replace(matrix(1_000, 200, "bf16"), name="head", outside=True)
    assert kept("galore_adamw", head) == [400_000, 400_000]
    assert kept("galore_adamw", head, switches="projects_head=true")[0] == 2 * 200 * RANK


def test_what_a_decomposition_holds_is_worked_out_from_its_source() -> None:
    """In bf16: the gradient in fp32, both kinds of singular vectors, a copy that the solver overwrites, and
    its workspace.
    """
    whole = 4 * 1_000 * 200
    workspace = COPIES * whole + 4 * 256 * 1_000
    held = whole + (whole + 4 * 200 * 200) + whole + workspace
    assert most("galore_adamw", [matrix(1_000, 200, "bf16")], first=True) == held
    assert most("galore_adamw", [matrix(1_000, 200, "bf16")], first=False) == held
    # Beside it lies the update of the matrix before, wide and scaled, and its narrow root.
    two = [matrix(1_000, 200, "bf16")] * 2
    assert most("galore_adamw", two, first=False) == held + 2 * 1_000 * 200 + 2 * 1_000 * RANK


OF_BF16: Any = {"gpu": "a100-80-sxm", "method": "full", "precision": "bf16", "load_dtype": "bf16"}
COMMON = OF_BF16 | {"gradient_checkpointing": True, "stack": "hf-trainer@5"}
QWEN_05 = {"model": "qwen2.5-0.5b", "seq": 512, "batch": 2}
LLAMA = {"model": "llama-3.2-1b", "seq": 1024, "batch": 2}
QWEN_15 = {"model": "qwen2.5-1.5b", "seq": 2048, "batch": 1, "optimizer_rank": 256}
MIXED = {"precision": "bf16-mixed", "load_dtype": "fp32"}
LAYERWISE = {"optimizer_in_backward": True}
MOVES = 0.14


@pytest.mark.parametrize(
    ("optimizer", "flags", "allocated", "reserved", "within"),
    [
        ("galore_adamw", QWEN_05, 3_751_873_024, 5_261_754_368, 0.005),
        ("galore_adamw", LLAMA, 7_380_737_024, 10_783_555_584, 0.005),
        ("galore_adamw", QWEN_15, 9_138_636_800, 13_096_714_240, 0.005),
        ("galore_adamw", QWEN_05 | MIXED, 7_005_073_920, 7_897_874_432, 0.005),
        ("galore_adamw_8bit", QWEN_05, 3_364_294_144, 4_718_592_000, MOVES),
        ("galore_adamw_8bit", LLAMA, 6_729_915_904, 8_780_775_424, MOVES),
        ("galore_adamw_8bit", QWEN_15, 8_216_569_344, 12_012_486_656, 0.005),
        ("galore_adafactor", QWEN_05, 4_593_907_200, 6_207_569_920, 0.005),
        ("galore_adafactor", LLAMA, 10_545_461_248, 12_807_307_264, 0.005),
        ("galore_adafactor", QWEN_15, 11_271_756_800, 15_523_119_104, 0.005),
        ("galore_adamw", QWEN_05 | LAYERWISE, 3_760_097_280, 4_628_414_464, 0.005),
        ("galore_adamw_8bit", QWEN_05 | LAYERWISE, 3_358_908_416, 4_074_766_336, 0.005),
        ("galore_adamw_8bit", LLAMA | LAYERWISE, 6_526_774_272, 7_698_644_992, 0.005),
        ("galore_adamw_8bit", QWEN_15 | LAYERWISE, 8_155_101_184, 9_453_961_216, 0.005),
        ("apollo_adamw", QWEN_05, 3_743_767_040, 5_261_754_368, 0.005),
    ],
)
def test_a_trainer_with_galore(
    optimizer: Optimizer, flags: dict[str, Any], allocated: int, reserved: int, within: float
) -> None:
    """The dry run of Transformers 5.23's Trainer with galore-torch 1.0 or apollo-torch 1.0.3, three steps,
    over attention and MLP, on an A100.

    There cuSOLVER has no workspace.  In 8 bits weights move in every step, which may leave 14 % more
    reserved.
    """
    subject = job_of(resolve(from_flags({**COMMON, **flags, "optimizer": optimizer})), Coefficients())
    phases = replayed(subject).phases
    assert max(float(each.allocated_bytes) for each in phases) == pytest.approx(allocated, rel=0.015)
    assert max(float(each.reserved_bytes) for each in phases) == pytest.approx(reserved, rel=within)


LLAMA_2: Any = {"model": "llama-2-7b", "batch": 1, "optimizer": "galore_adamw_8bit"}
TINY: Any = {"model": "tinyllama-1.1b", "seq": 1024, "batch": 1, "switches": "projects_head=true"}
LARGEST = {"llama-2-7b": (11_008, 4_096), "tinyllama-1.1b": (32_000, 2_048)}


@pytest.mark.parametrize(
    ("flags", "allocated"),
    [
        (LLAMA_2 | {"seq": 512, "optimizer": "galore_adamw"}, 29_858_003_968),
        (LLAMA_2 | {"seq": 1024} | LAYERWISE, 15_854_671_360),
        (TINY, 5_857_463_296),
        (TINY | LAYERWISE, 3_889_573_888),
    ],
)
def test_a_peak_of_a_decomposition_has_its_workspace(flags: dict[str, Any], allocated: int) -> None:
    """The same dry run, decomposing in every step, where the largest matrix sets the peak: what it allocates,
    and what cuSOLVER takes beside.  TinyLlama has all linear layers projected, and the head is the largest.
    """
    subject = job_of(resolve(from_flags({**COMMON, "optimizer": "galore_adamw", **flags})), Coefficients())
    longer, shorter = LARGEST[flags["model"]]
    workspace = 4 * (COPIES * longer * shorter + 256 * longer)
    found = max(float(each.allocated_bytes) for each in replayed(subject).phases)
    assert found == pytest.approx(allocated + workspace, rel=0.005)


def test_intervals_reach_over_what_the_workspace_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies of the largest matrix in fp32 less, or two more: of Llama 2 7B one of 11,008 x 4,096."""
    two = 2 * 4 * 11_008 * 4_096
    assert workspace_reach_bytes(job("galore_adamw")) == (two, two)

    def interval() -> Interval:
        answer = planner.estimate(model="7b", seq=512, optimizer="galore_adamw", **OF_BF16)
        assert answer.peak.allocated_interval is not None
        return answer.peak.allocated_interval

    wide = interval()
    monkeypatch.setattr("planner.predicting.workspace_reach_bytes", lambda _: (0.0, 0.0))
    narrow = interval()
    assert (narrow.low - wide.low, wide.high - narrow.high) == (pytest.approx(two), pytest.approx(two))
