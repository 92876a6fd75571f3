"""The run with samples of a real length, where nobody said how long they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from planner.domain.scenario import Scenario
from planner.predicting import PRIORS, predict_with
from planner.searching import run_length
from planner.searching.run_length import at_example_length
from tests.jobs import resolved, typed

JOB: dict[str, Any] = typed(
    "--model qwen2.5-0.5b --method lora --gpu 4090 --seq 1024 --batch 2 --samples 1000 --padding longest"
)


scenario = partial(resolved, JOB)
"""The job with these flags; ``None`` leaves one out."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are the same, whether the memory is replayed or not."""
    monkeypatch.setattr(run_length, "predict_with", lambda *given: predict_with(*given, quick=True))


def found(asked: Scenario) -> run_length.AtLength | None:
    """The example for a job."""
    return at_example_length(asked, predict_with(asked, PRIORS, quick=True), PRIORS)


def test_the_example_is_a_quarter_of_the_length() -> None:
    """It takes as long, and costs as much, as a job of which that was said."""
    example = found(scenario(price=2))
    said = predict_with(scenario(price=2, tokens_per_sample=256), PRIORS, quick=True).time
    assert example is not None
    assert said is not None
    assert example.tokens_per_sample == 256
    assert (example.run_time_s, example.cost_usd) == (said.run_time_s, said.cost_usd)
    full = predict_with(scenario(price=2), PRIORS, quick=True).time
    assert full is not None
    assert example.run_time_s < 0.9 * float(full.run_time_s or 0)


def test_without_a_price_there_is_no_cost() -> None:
    """The time is told all the same."""
    example = found(scenario())
    assert example is not None
    assert example.cost_usd is None


@pytest.mark.parametrize(
    "flags",
    [
        {"samples": None},
        {"tokens_per_sample": 300},
        {"seq": 124},
        {"padding": "packed"},
        {"gpu": None, "gpu_memory": "24GiB"},
    ],
    ids=["no run", "length said", "31 tokens", "no padding", "no rates"],
)
def test_where_an_example_would_say_nothing_there_is_none(flags: dict[str, object]) -> None:
    """No run is asked for, the length is known or changes nothing, or nobody knows how fast the card is."""
    assert found(scenario(**flags)) is None
