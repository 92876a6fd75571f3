"""The tower of a vision-language model in the step: what it keeps, and when its images go."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.runtime import Part
from planner.program.step import parts_of
from tests.jobs import job_by
from tests.planner.small_tower import JOB, PATCHES, WIDTH, written

OWN: dict[str, object] = {"gradient_checkpointing": True, "checkpoint_reentrant": False}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a small Qwen2.5-VL."""
    return written(tmp_path)


def job(model: str, **said: object) -> Job:
    """A job with one image of 24 x 36 patches."""
    return job_by({**JOB, **OWN, "model": model, **said})


def layers_of(job: Job) -> list[Part]:
    """The layers of the tower."""
    return [part for part in parts_of(job) if part.name == "vision layer"]


def kept_bytes(part: Part) -> float:
    """What the forward pass of one layer leaves, for each patch."""
    template = part.template
    freed = {~event for event in template.stages["forward"] if event < 0}
    left = [slot for slot in template.stages["forward"] if slot >= 0 and slot not in freed]
    return sum(template.unit_bytes[slot] for slot in left if template.units[slot] is Unit.PATCHES)


def test_a_frozen_tower_keeps_nothing_but_its_stream(model: str) -> None:
    """In Transformers 4 nothing makes patches require a gradient:
    2 bytes a feature go from layer to layer, and none go back.
    """
    frozen = job(
        model, freeze="vision_tower;projector", stack="hf-trainer@4", load_dtype="bf16", precision="bf16"
    )
    for part in layers_of(frozen):
        assert kept_bytes(part) == 2 * WIDTH
        assert not part.template.stages["backward"]


def test_patches_that_require_a_gradient_make_a_frozen_tower_run_backward(model: str) -> None:
    """Transformers 5 has a hook on the patches: layers run again for a gradient that nobody reads."""
    for part in layers_of(job(model, freeze="vision_tower;projector")):
        assert part.template.stages["backward"]
        assert not part.template.gradients


def test_a_checkpointed_layer_keeps_its_input_alone(model: str) -> None:
    """What one layer leaves is its output, the input of the next one;
    without checkpointing it is many times that.
    """
    trained = job(model, method="full", load_dtype="bf16", precision="bf16")
    whole = job(model, method="full", load_dtype="bf16", precision="bf16", gradient_checkpointing=False)
    assert [kept_bytes(part) for part in layers_of(trained)] == [2 * WIDTH] * 2
    assert all(kept_bytes(part) > 20 * WIDTH for part in layers_of(whole))


def test_layers_that_see_a_window_and_the_image_are_of_two_kinds(model: str) -> None:
    """Two layers see windows and one the image; they share what does not depend on that."""
    assert [part.count for part in layers_of(job(model))] == [2, 1]


def test_a_frozen_part_gets_no_adapters(model: str) -> None:
    """All matrices of the layers of tower and language model, and those of the merger,
    but for what is frozen.
    """
    # Four matrices and one more of attention and MLP in the tower, seven in the language model,
    # two in the merger.
    tower = 3 * ((WIDTH + 3 * WIDTH) + 2 * WIDTH + 3 * (WIDTH + 400))
    text = 2 * (3 * (128 + 256) + 2 * (128 + 128) + 2 * (128 + 64))
    merger = 2 * 4 * WIDTH + (4 * WIDTH + 128)
    counts = {
        frozen: job(
            model, lora_targets="all-linear", lora_rank=1, **({"freeze": frozen} if frozen else {})
        ).adapter_params
        for frozen in ("", "vision_tower;projector", "projector", "language_model")
    }
    assert counts == {
        "": tower + text + merger,
        "vision_tower;projector": text,
        "projector": tower + text,
        "language_model": tower + merger,
    }


def test_images_of_all_micro_steps_are_on_the_card(model: str) -> None:
    """The Trainer fetches a step's micro-batches at once: accumulation, samples, images, patches,
    numbers of each.
    """
    values = unit_values(job(model, grad_accum=3, batch=2, images_per_sample=1, seq=1024))
    assert values[Unit.PATCHES] == 2 * PATCHES
    assert values[Unit.PIXELS] == 3 * 2 * PATCHES * 3 * 2 * 14 * 14
    assert values[Unit.IMAGE_PATCHES] == PATCHES


@pytest.mark.parametrize(
    "frozen", ["vision_tower", "vision_tower;projector", "language_model", "vision_tower;language_model"]
)
def test_trained_counts_are_those_of_the_parts(model: str, frozen: str) -> None:
    """A full fine-tune trains what is not frozen."""
    made = job(model, method="full", freeze=frozen)
    vision = made.model.vision
    assert vision is not None
    parts = {"vision_tower": vision.tower_param_count, "projector": vision.projector_param_count}
    parts["language_model"] = made.model.param_count - vision.param_count
    assert made.trained == sum(count for name, count in parts.items() if name not in frozen.split(";"))
