"""An optimizer that steps inside of the backward pass."""

from __future__ import annotations

from functools import partial

import pytest

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.jobs import job_by

job = partial(
    job_by, "--model llama-3.1-8b --method full --gpu h100-sxm --seq 512 --precision bf16 --load-dtype bf16"
)
"""A full fine-tune in bf16."""


def left_after(subject: Job, phase: str) -> float:
    """Bytes of gradients and states that are there when a phase ends, over those of the weights."""
    stream = step_of(subject)
    sizes = stream.sizes(unit_values(subject))
    starts = [start for start, _ in stream.phases] + [len(stream.events)]
    end = next(after for (_, name), after in zip(stream.phases, starts[1:], strict=True) if name == phase)
    terms = ("gradients", "optimizer_states")
    return sum(
        sizes[event] if event >= 0 else -sizes[~event]
        for event in stream.events[:end]
        if stream.term(event if event >= 0 else ~event) in terms
    )


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-0.5b"])
@pytest.mark.parametrize("optimizer", ["apollo_adamw", "galore_adamw", "galore_adamw_8bit", "adamw_torch"])
def test_gradients_go_as_soon_as_their_parameter_is_stepped(model: str, optimizer: str) -> None:
    """After backward the same states are there as after a step that waits for all gradients,
    and no gradient.
    """
    waits = job(model=model, optimizer=optimizer)
    states = left_after(waits, "optimizer_step")
    assert left_after(job(model=model, optimizer=optimizer, optimizer_in_backward=True), "backward") == states
    assert left_after(waits, "backward") > 1.9 * waits.model.param_count
