"""Seconds of a vision tower: its arithmetic counted by hand, and what makes it longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.throughput.flop import model_flop
from planner.throughput.terms import pass_seconds, tower_seconds
from planner.throughput.time_inputs import TimedJob, job_of
from tests.planner.small_tower import JOB, PATCHES, written

OWN: dict[str, object] = {"stack": "hf-trainer@4", "freeze": "vision_tower;projector"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a small Qwen2.5-VL."""
    return written(tmp_path)


def job(model: str, **said: object) -> TimedJob:
    """A job with one image of 24 x 36 patches, whose tower is frozen."""
    made = job_of(resolve(from_flags({**JOB, **OWN, "model": model, **said}), force=True), Coefficients())
    assert made is not None
    return made


def tower_flop(model: str, **said: object) -> float:
    """What an image adds to the arithmetic of a job."""
    seen, text = (job(model, **said, images_per_sample=number) for number in (1, 0))
    return float(model_flop(seen) - model_flop(text))


def test_the_forward_pass_of_a_frozen_tower_is_counted_by_hand(model: str) -> None:
    """Patches, three layers of six matrices, a merger over four patches at once;
    windows of 64 patches and the whole image.
    """
    layer = 4 * 160 * 160 + 3 * 160 * 400
    products = 3 * 2 * 14 * 14 * 160 + 3 * layer + (640 * 640 + 640 * 128) / 4
    keys = 2 * 64 + PATCHES
    assert tower_flop(model) == pytest.approx(2 * PATCHES * (products + 2 * 160 * keys))


def test_a_tower_that_is_trained_takes_longer(model: str) -> None:
    """Backward is twice the forward pass in products, and its launches add."""
    frozen = job(model)
    said = {"method": "full", "freeze": "projector", "stack": "hf-trainer@5"}
    trained = job(model, **said)
    assert 2.5 * tower_flop(model) < tower_flop(model, **said) < 3.1 * tower_flop(model)
    assert tower_seconds(trained) > 2 * tower_seconds(frozen)
    assert pass_seconds(trained, "training")["launches"] > pass_seconds(frozen, "training")["launches"]


def test_no_image_no_time(model: str) -> None:
    """Text alone leaves the tower where it is."""
    assert tower_seconds(job(model, images_per_sample=0)) == 0
