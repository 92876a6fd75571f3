"""The quick answer: beside the replayed one, by hand, and point by point of a grid."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.quick import SLACK_SHARE, predict_quick
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from planner.searching.variants import with_sizes
from planner.words import words
from tests.jobs import resolved, typed

_BATCH, _LENGTH = (1, 2, 7, 16), (256, 1024, 5000)
_LEVELS = words("allocated_peak_bytes reserved_peak_bytes must_have_bytes state_bytes order_spread_bytes")


def _job(coefficients: Coefficients | None = None, **flags: object) -> Job:
    given = {"gpu": "h200-sxm", "seq": 1024, "batch": 4, "method": "lora", **flags}
    return job_of(resolved(given), coefficients or Coefficients())


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "llama-2-7b", "gradient_checkpointing": True},
        {"model": "llama-3.1-8b", "method": "qlora", "seq": 2048},
        {"model": "qwen2-0.5b", "method": "full", "padding": "longest", "tokens_per_sample": 400},
        {"model": "phi-2", "method": "int8"},
        {"model": "gemma-2b", "gradient_checkpointing": True, "grad_accum": 2},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "zero2", "gpus": 8},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "zero3", "gpus": 8},
        {"model": "qwen2.5-7b", "method": "full", "sharding": "fsdp", "gpus": 8},
        {"model": "qwen2.5-7b", "sharding": "ddp", "gpus": 2},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_allocated_is_that_of_the_replay(flags: dict[str, object]) -> None:
    """To 0.5 %, which blocks are rounded by; the minimum to 10 %, the states to the byte."""
    quick, replayed = predict_quick(_job(**flags)), predict_replayed(_job(**flags))
    assert float(quick.allocated_peak_bytes) == pytest.approx(float(replayed.allocated_peak_bytes), rel=5e-3)
    assert float(quick.must_have_bytes) == pytest.approx(float(replayed.must_have_bytes), rel=0.1)
    assert quick.limiting_phase == replayed.limiting_phase
    assert [each.phase for each in quick.phases] == [each.phase for each in replayed.phases]
    assert quick.state_bytes == replayed.state_bytes


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "llama-2-7b", "method": "full"},
        {"model": "llama-3.1-70b", "method": "qlora"},
        {"model": "llama-3.1-70b", "method": "full", "sharding": "zero3", "gpus": 8},
        {"model": "llama-2-7b", "method": "full", "sharding": "zero2", "gpus": 8},
        {"model": "llama-3.2-3b", "sharding": "zero3", "offload": "optimizer+params", "gpus": 8},
        {"model": "llama-3.1-70b", "method": "full", "sharding": "fsdp", "gpus": 8},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_shallow_models_say_what_a_deep_one_takes(flags: dict[str, object]) -> None:
    """Every layer adds as much: what is read from shallow models is what all events of the deep one add up
    to.
    """
    job = _job(**flags)
    stream, values = step_of(job), unit_values(job)
    sizes = stream.sizes({unit: float(count) for unit, count in values.items()})
    level = accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in stream.events)
    assert float(predict_quick(job).allocated_peak_bytes) == pytest.approx(max(level), rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        ({"model": "qwen2-0.5b", "grad_accum": 2}, 0.0),
        ({"model": "llama-2-7b", "method": "full", "gradient_checkpointing": True}, 0.001),
        (
            typed("--model llama-3.1-70b --method qlora --attention eager --gradient-checkpointing"),
            0.001,
        ),
        ({"model": "phi-2", "method": "int8"}, 0.005),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_phase_is_as_full_as_its_fullest_event(flags: dict[str, object], allowed: float) -> None:
    """Added up request by request, of all layers; what is there when a phase begins counts in it.

    Of more than 24 layers a few stand for all, which is off by a few thousandths at most.
    """
    job = _job(**flags)
    stream, values = step_of(job), unit_values(job)
    sizes = stream.sizes({unit: float(count) for unit, count in values.items()})
    level = [0, *accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in stream.events)]
    bounds = [*(begin for begin, _ in stream.phases), len(stream.events)]
    most: dict[str, int] = {}
    for (begin, phase), end in zip(stream.phases, bounds[1:], strict=True):
        most[phase] = max(most.get(phase, 0), *level[begin : end + 1])
    found = {each.phase: float(each.allocated_bytes) for each in predict_quick(job).phases}
    assert found == pytest.approx({phase: float(n_bytes) for phase, n_bytes in most.items()}, rel=allowed)


def test_the_slack_is_a_share_of_what_comes_and_goes() -> None:
    """Of what the peak has beside weights, adapters and states; the minimum has it too."""
    made = predict_quick(_job(model="llama-2-7b"))
    allocated = float(made.allocated_peak_bytes)
    slack = SLACK_SHARE * (allocated - float(made.state_bytes))
    around = sum(float(term.n_bytes) for term in made.terms if term.name == "context")
    assert slack > 0
    assert float(made.reserved_peak_bytes) == pytest.approx(allocated + slack)
    assert float(made.must_have_bytes) == pytest.approx(allocated + slack + around)
    assert float(made.driver_peak_bytes) == pytest.approx(allocated + slack + around)


def test_outlier_columns_are_on_top() -> None:
    """Of a tenth of the columns of older int8 layers, at every level."""
    plain, more = (
        predict_quick(
            _job(
                Coefficients(int8_outlier_fraction=share),
                model="llama-2-7b",
                method="int8",
                stack="hf-trainer@4",
            )
        )
        for share in (0.0, 0.1)
    )
    (added,) = (float(term.n_bytes) for term in more.terms if term.name == "dequantization")
    assert added > 0
    for level in ("allocated_peak_bytes", "reserved_peak_bytes", "must_have_bytes", "driver_peak_bytes"):
        assert float(getattr(more, level)) - float(getattr(plain, level)) == pytest.approx(added)


def test_drawn_lengths_widen_the_interval() -> None:
    """What they pile up is not predicted: it may be as much as comes and goes."""
    natural, fixed = (
        predict_quick(_job(model="qwen2.5-7b", tokens_per_sample=400, padding=padding))
        for padding in ("longest", "max_length")
    )
    assert natural.reserved_peak_bytes == fixed.reserved_peak_bytes
    assert fixed.order_spread_bytes == 0
    assert float(natural.order_spread_bytes) == pytest.approx(
        float(natural.allocated_peak_bytes) - float(natural.state_bytes), rel=1e-6
    )


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "qwen2-0.5b", "method": "full"},
        {"model": "mistral-7b-v0.1", "method": "qlora", "attention": "sdpa"},
        {"model": "gemma-2-2b", "method": "lora", "attention": "eager", "gradient_checkpointing": True},
        {"model": "phi-2", "method": "int8", "optimizer": "adamw_8bit"},
        {"model": "qwen2-0.5b", "method": "lora", "padding": "longest"},
        {"model": "qwen2-0.5b", "method": "full", "sharding": "zero2", "gpus": 2},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_a_point_of_a_grid_has_its_own_answer(flags: dict[str, Any]) -> None:
    """All levels, the states and the spread, with masks and windows that only some points have."""
    base = resolved({"gpu": "a100-80gb", "seq": 1024, **flags})

    def at(batch: Any, length: Any, tokens: Any) -> Job:
        return job_of(with_sizes(base, batch, length, tokens), Coefficients())

    batch, length = (np.array(each, dtype=float) for each in (_BATCH, _LENGTH))
    axes = batch.reshape(-1, 1), length.reshape(1, -1)
    many = predict_quick(at(*axes, np.minimum(axes[1], 1024.0)))
    shape = len(_BATCH), len(_LENGTH)
    found = {name: np.broadcast_to(getattr(many, name), shape) for name in _LEVELS}
    for place in random.Random(1).sample([*np.ndindex(shape)], 8):
        sizes = _BATCH[place[0]], _LENGTH[place[1]]
        one = predict_quick(at(*sizes, min(sizes[1], 1024)))
        assert {name: float(found[name][place]) for name in _LEVELS} == pytest.approx(
            {name: float(getattr(one, name)) for name in _LEVELS}, rel=1e-9
        )
