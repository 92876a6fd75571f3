"""BAdam: fp32 copies of the one layer that is trained, counted by hand."""

from __future__ import annotations

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.jobs import job_by, typed

# A layer of Llama 3.1 8B: query, output, key, value,
# the three matrices of the feed-forward part and two norms.
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096


def job(optimizer: str) -> Job:
    """The first layer, trained in bf16."""
    flags = typed(
        "--model llama-3.1-8b --method full --gpu h100-sxm --seq 512 --precision bf16 --load-dtype bf16"
    )
    said = {**flags, "optimizer": optimizer, "train_layers": "first:1", "switches": "trainable_fp32=false"}
    return job_by(said)


def at_the_end(subject: Job, phase: str) -> dict[str, float]:
    """Bytes of each term that are there when a phase ends."""
    stream = step_of(subject)
    sizes = stream.sizes(unit_values(subject))
    starts = [start for start, _ in stream.phases] + [len(stream.events)]
    end = [after for (_, name), after in zip(stream.phases, starts[1:], strict=True) if name == phase][-1]
    found: dict[str, float] = {}
    for event in stream.events[:end]:
        slot = event if event >= 0 else ~event
        found[stream.term(slot)] = found.get(stream.term(slot), 0) + (
            sizes[slot] if event >= 0 else -sizes[slot]
        )
    return found


def highest(subject: Job, phase: str) -> float:
    """Most bytes of the optimizer's own temporaries and states at once in a phase."""
    stream = step_of(subject)
    sizes = stream.sizes(unit_values(subject))
    starts = [start for start, _ in stream.phases] + [len(stream.events)]
    spans = [
        (start, after)
        for (start, name), after in zip(stream.phases, starts[1:], strict=True)
        if name == phase
    ]
    now = most = 0.0
    for index, event in enumerate(stream.events):
        slot = event if event >= 0 else ~event
        if stream.term(slot).startswith("optimizer"):
            now += sizes[slot] if event >= 0 else -sizes[slot]
        if any(start <= index < after for start, after in spans):
            most = max(most, now)
    return most


def test_copies_and_states_of_one_layer_stay() -> None:
    """After the step: a copy of 4 bytes and two states of 4 bytes for each parameter of the layer,
    and no gradient.
    """
    found = at_the_end(job("badam"), "optimizer_step")
    assert found["master_weights"] == 4 * LAYER
    assert found["optimizer_states"] == 8 * LAYER
    assert found.get("gradients", 0) == 0
    assert found.get("optimizer_temporaries", 0) == 0
    assert found["weights"] == at_the_end(job("adamw_torch"), "optimizer_step")["weights"]


def test_the_step_holds_gradients_and_roots_in_fp32() -> None:
    """States, gradients in fp32 and the roots of the matrices' second moments;
    norms are stepped after the matrices.
    """
    norms = 2 * 4096
    assert highest(job("badam"), "optimizer_step") == 16 * LAYER - 4 * norms
