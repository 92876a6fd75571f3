"""The gated delta rule in plain torch: a loop over chunks of 64 positions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.throughput.step_time import predict_time
from tests.jobs import resolved

JOB = {"model": "qwen3.5-0.8b", "method": "full", "gpu": "a100-80gb", "precision": "bf16", "seq": 1000}
LAYERS = 18
"""Of the gated delta rule, among 24."""


def case(**changes: object) -> Scenario:
    """The job without the package, with other settings."""
    return resolved({**JOB, "switches": ("recurrent_kernels=torch",), **changes})


@pytest.mark.parametrize(("seq", "chunks"), [(64, 1), (65, 2), (1000, 16)])
def test_a_sequence_is_filled_up_to_whole_chunks(seq: int, chunks: int) -> None:
    """Three samples of 65 tokens are 3 x 128, in turns of 3 x 64."""
    values = unit_values(job_of(case(seq=seq, batch=3), Coefficients()))
    assert values[Unit.CHUNKS] == chunks
    assert values[Unit.CHUNK_ROWS] == 3 * 64
    assert values[Unit.CHUNK_TOKENS] == 3 * 64 * chunks
    assert values[Unit.LATER_CHUNK_TOKENS] == 3 * 64 * (chunks - 1)
    assert values[Unit.CHUNK_SQUARES] == 3 * 64 * chunks**2


def launch_us(scenario: Scenario) -> float:
    """Host time of a step, where an operator takes 1 us."""
    predicted = predict_time(scenario, replace(Coefficients(), launch_s=1e-6))
    assert predicted is not None
    return 1e6 * sum(term.seconds for term in predicted.terms if term.name == "launch")


def test_each_chunk_is_a_turn_of_small_operators() -> None:
    """Without autocast 9 forward and 31 backward, and for each of 10 saved tensors what two operators take;
    a layer that is recomputed pays its forward pass again.
    """
    plain, again = ({"gradient_checkpointing": each} for each in (False, True))
    one = launch_us(case(seq=1024, **plain)) - launch_us(case(seq=960, **plain))
    assert one == pytest.approx(LAYERS * (9 + 31))
    one = launch_us(case(seq=1024, **again)) - launch_us(case(seq=960, **again))
    assert one == pytest.approx(LAYERS * (2 * 9 + 31 + 10 * 2))


def test_gradients_of_a_chunk_are_copied_into_zeros_of_all() -> None:
    """What that moves grows with the square of the length: twice the tokens take more than three times as
    long, where the package takes twice as long.
    """

    def moving_s(scenario: Scenario) -> float:
        predicted = predict_time(scenario, Coefficients())
        assert predicted is not None
        return sum(term.seconds for term in predicted.terms if term.name == "elementwise")

    plain, package = (
        [moving_s(resolved({**JOB, "switches": switches, "seq": seq})) for seq in (16384, 32768)]
        for switches in (("recurrent_kernels=torch",), ("recurrent_kernels=packages",))
    )
    assert plain[1] > 3 * plain[0]
    assert package[1] == pytest.approx(2 * package[0], rel=0.03)
