"""The parts before the first layer of a model that sees, and the pixels of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job, job_of
from planner.program.ops.tensors import Unit
from planner.program.recorded_part import NO_INPUT, Terms, run
from planner.program.request_stream import RequestStream
from planner.program.runtime import Part
from planner.program.step import parts_of
from planner.program.vision.seeing import joined, seeing_view, take_pixels
from tests.jobs import job_by
from tests.planner.small_tower import JOB, written


def job(tmp_path: Path, **said: object) -> Job:
    """A small Qwen2.5-VL with one image of 24 x 36 patches."""
    return job_by({**JOB, "model": written(tmp_path), **said})


def test_what_runs_before_the_first_layer(tmp_path: Path) -> None:
    """Patches, three layers of the tower, the projector, and image tokens in their places."""
    before = parts_of(job(tmp_path))
    names = [part.name for part in before for _ in range(part.count)]
    assert names[: names.index("layer")] == ["embeddings", *["vision layer"] * 3, "projector", "scatter"]
    stream = {part.name: part.template.out for part in before}
    assert (stream["vision layer"].unit, stream["vision layer"].count) == (Unit.PATCHES, 160)
    assert (stream["scatter"].unit, stream["scatter"].count) == (Unit.TOKENS, 128)


@pytest.mark.parametrize(
    ("flags", "hooked", "differentiated"),
    [
        ({"stack": "hf-trainer@4", "freeze": "vision_tower;projector"}, False, False),
        ({"freeze": "vision_tower;projector"}, True, True),
        ({"freeze": "vision_tower;projector", "gradient_checkpointing": False}, False, False),
        ({"method": "full", "gradient_checkpointing": False}, False, True),
    ],
)
def test_a_tower_runs_backward_where_something_asks_for_it(
    tmp_path: Path, flags: dict[str, object], hooked: bool, differentiated: bool
) -> None:
    """A hook on the patches of newer Transformers under checkpointing, or trained weights of its own."""
    asked = job(tmp_path, **{"gradient_checkpointing": True, **flags})
    assert asked.model.vision is not None
    seeing = seeing_view(asked, asked.model.vision)
    assert (seeing.hooked, seeing.differentiated) == (hooked, differentiated)


def test_pixels_of_one_step_meet_those_of_the_next(tmp_path: Path) -> None:
    """Four bytes a number; a batch of text alone has none."""
    asked, stream = job(tmp_path), RequestStream()
    first = take_pixels(stream, asked)
    second = take_pixels(stream, asked, first)
    assert first is not None
    assert second is not None
    assert stream.events.tolist() == [first, second, ~first]
    assert (Unit(stream.units[second]), stream.unit_bytes[second]) == (Unit.PIXELS, 4)
    recipe = replace(asked.recipe, batch=replace(asked.recipe.batch, images=None))
    blind = job_of(replace(asked.scenario, recipe=recipe), Coefficients())
    assert take_pixels(stream, blind) is None


def test_equal_parts_in_a_row_are_one() -> None:
    """The same ones with another between them are not."""
    one, other = (
        run(lambda torch, _: torch.new(Unit.TOKENS, 64, "bf16", "x"), NO_INPUT, Terms("weights", "weights"))
        for _ in "ab"
    )
    row = [Part("a", each, 1) for each in (one, one, other, one)]
    assert [(part.template is one, part.count) for part in joined(row)] == [(True, 2), (False, 1), (True, 1)]
    assert joined([]) == []
