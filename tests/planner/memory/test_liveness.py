"""The fullest moments of a step: by hand, and against every event of the whole step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import pytest

from planner.arrays import maximum
from planner.domain.recipes.recipe import Number
from planner.memory.liveness import phase_bytes, state_bytes
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.request_stream import RequestStream
from planner.program.step import step_of
from tests.jobs import job_by

PLACE = ("part", "module", "op")


def values_of(**given: object) -> dict[Unit, object]:
    """So many of each unit; one of ``ONE``, none of what is not named."""
    return {unit: 1 if unit is Unit.ONE else given.get(unit.name, 0) for unit in Unit}


def fullest(stream: RequestStream, values: Mapping[Unit, Number]) -> Number:
    """The fullest of all phases."""
    return maximum(*phase_bytes(stream, values).values())


def test_moments_by_hand() -> None:
    """10 bytes stay; 3 for each token, then 2 for each token, then 40 come and go:
    at 14 tokens 3 for each are more.
    """
    stream = RequestStream()
    stream.enter("load")
    stream.allocate(Unit.ONE, 10, "weights", PLACE)
    stream.enter("forward")
    for unit, n_bytes in ((Unit.TOKENS, 3), (Unit.TOKENS, 2), (Unit.ONE, 40)):
        stream.free(stream.allocate(unit, n_bytes, "saved_activations", PLACE))
    tokens = np.array([0.0, 5.0, 13.0, 14.0, 100.0])
    found = fullest(stream, values_of(TOKENS=tokens))  # type: ignore[arg-type]
    assert np.array_equal(found, [50, 50, 50, 52, 310])
    assert state_bytes(stream, values_of(TOKENS=tokens)) == 10  # type: ignore[arg-type]


def test_a_moment_that_is_less_by_one_unit_and_more_by_another_is_kept() -> None:
    """4 for each token or 30 or 2 for each token and 12 more, of 0 to 20 tokens:
    each is the fullest somewhere.
    """
    stream = RequestStream()
    stream.enter("forward")
    for made in ([(Unit.TOKENS, 4)], [(Unit.ONE, 30)], [(Unit.TOKENS, 2), (Unit.ONE, 12)]):
        slots = [stream.allocate(unit, n_bytes, "saved_activations", PLACE) for unit, n_bytes in made]
        for slot in slots:
            stream.free(slot)
    tokens = np.arange(21.0)
    expected = np.maximum(np.maximum(4 * tokens, 30), 2 * tokens + 12)
    assert np.array_equal(fullest(stream, values_of(TOKENS=tokens)), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "llama-3.1-8b", "method": "full"},
        {"model": "gemma-2-2b", "method": "qlora", "attention": "eager", "gradient_checkpointing": True},
        {"model": "qwen1.5-moe-a2.7b", "method": "lora"},
        {"model": "gpt2-large", "method": "full", "attention": "eager", "grad_accum": 4},
        {"model": "llama-3.1-8b", "method": "lora", "sharding": "zero3", "gpus": 4},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_no_event_of_the_step_is_fuller(flags: dict[str, object]) -> None:
    """At each length what is allocated after every event, added up one by one."""
    base = {"gpu": "h200-sxm", "batch": 3, "seq": 1024}
    jobs = [job_by({**base, **flags, "seq": length}) for length in (64, 512, 1000)]
    stream, units = step_of(jobs[0]), [unit_values(job) for job in jobs]
    grid = {unit: np.array([float(values[unit]) for values in units]) for unit in Unit}
    found = np.broadcast_to(fullest(stream, grid), 3)
    for at, values in enumerate(units):
        sizes = [
            n_bytes * float(values[unit])
            for unit, n_bytes in zip(stream.units, stream.unit_bytes, strict=True)
        ]
        most = max(accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in stream.events))
        assert float(found[at]) == pytest.approx(most, rel=1e-9)
