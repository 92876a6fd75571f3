"""One config that was checked: its exit code, and what nobody said about it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.domain.origin import ASSUMED
from planner.domain.scenario import Assumption
from planner.errors import ExitCode
from planner.report.check.checked import Checked, Written, worst_exit_code
from planner.report.check.traced import Traced
from planner.report.prediction.subject import Subject
from tests.jobs import resolved
from tests.planner.report.prediction import made

ANSWERED = Checked("a.yaml", subject=made.subject())
FAILED = Checked("b.yaml", failure="no such key", failure_code=ExitCode.USAGE)
UNMODELLED = Checked("c.yaml", failure="no formula", failure_code=ExitCode.NOT_MODELLED)


def traced(code: ExitCode, *, answered: bool = True) -> Traced:
    """A dry run that ended so."""
    return cast("Traced", SimpleNamespace(code=code, answered=answered))


def test_a_config_ends_with_its_verdict_or_with_its_failure() -> None:
    """Of the answer where there is one."""
    assert (ANSWERED.exit_code, ANSWERED.answered) == (ExitCode.FITS, ANSWERED)
    assert (FAILED.exit_code, FAILED.answered) == (ExitCode.USAGE, None)
    assert replace(ANSWERED, subject=made.subject(verdict="uncertain")).exit_code == ExitCode.UNCERTAIN


def test_a_file_that_was_written_decides() -> None:
    """What was read of it, whatever the first file says."""
    tight = Checked("a.yaml", subject=made.subject(verdict="does_not_fit"))
    assert tight.exit_code == ExitCode.GPU_MEMORY_SHORT
    assert replace(tight, written=Written(("a-fits.yaml",), ANSWERED)).exit_code == ExitCode.FITS


def test_a_dry_run_answers_where_nothing_is_modelled() -> None:
    """A mistake in the file stays one, and a dry run without an answer says nothing."""
    short = traced(ExitCode.GPU_MEMORY_SHORT)
    assert replace(UNMODELLED, traced=short).exit_code == ExitCode.GPU_MEMORY_SHORT
    assert (
        replace(UNMODELLED, traced=traced(ExitCode.FITS, answered=False)).exit_code == ExitCode.NOT_MODELLED
    )
    assert replace(FAILED, traced=short).exit_code == ExitCode.USAGE
    assert replace(ANSWERED, traced=short).exit_code == ExitCode.FITS


def test_several_configs_end_with_the_worst() -> None:
    """A mistake before a verdict, memory before doubt; what is allowed counts as fitting."""
    unsure = Checked("d.yaml", subject=made.subject(verdict="uncertain"))
    short = Checked("e.yaml", subject=made.subject(verdict="does_not_fit"))
    assert worst_exit_code([ANSWERED, unsure]) == ExitCode.UNCERTAIN
    assert worst_exit_code([unsure, short, ANSWERED]) == ExitCode.GPU_MEMORY_SHORT
    assert worst_exit_code([short, UNMODELLED]) == ExitCode.NOT_MODELLED
    assert worst_exit_code([short, UNMODELLED, FAILED]) == ExitCode.USAGE
    assert worst_exit_code([unsure, ANSWERED], [ExitCode.UNCERTAIN]) == ExitCode.FITS
    assert worst_exit_code([unsure, short], [ExitCode.UNCERTAIN]) == ExitCode.GPU_MEMORY_SHORT


def assumed(checked: dict[str, Any] | None = None, **flags: object) -> list[tuple[str, str, tuple[str, ...]]]:
    """What nobody said of a job with these flags."""
    job = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090:2", "seq": 2048, "padding": "longest"}
    scenario = resolved({name: value for name, value in (job | flags).items() if value is not None})
    found = Checked("a.yaml", subject=Subject(scenario, made.prediction()), **(checked or {})).assumed
    return [(each.setting, each.value, each.flags) for each in found]


LENGTH = ("tokens_per_sample", "2048", ("--data FILE", "--tokens-per-sample N"))


@pytest.mark.parametrize(
    ("candidates", "flags"),
    [
        ((), ("--accelerate FILE", "--sharding NAME")),
        (("ds.json", "fsdp.yaml"), ("--deepspeed ds.json", "--accelerate fsdp.yaml", "--sharding NAME")),
        (
            ("1.json", "2.json", "3.json", "4.json"),
            (*(f"--deepspeed {n}.json" for n in "123"), "--sharding NAME"),
        ),
    ],
)
def test_copies_on_each_gpu_are_told_with_the_files_that_could_be_meant(
    candidates: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    """Three of them at most."""
    assert assumed({"candidates": candidates}) == [("sharding", "ddp", flags), LENGTH]


@pytest.mark.parametrize("flags", [{"padding": "max_length"}, {"switches": "expandable_segments=on"}])
def test_no_file_of_lengths_is_asked_for_where_lengths_leave_nothing(flags: dict[str, Any]) -> None:
    """Rows of one length leave no blocks of other sizes in the cache, nor do segments that grow."""
    assert assumed(**flags)[-1] == ("tokens_per_sample", "2048", ("--tokens-per-sample N",))


@pytest.mark.parametrize(
    ("checked", "flags", "settings"),
    [
        ({"launch_file": "l.yaml"}, {}, ["tokens_per_sample"]),
        ({}, {"sharding": "ddp"}, ["tokens_per_sample"]),
        ({}, {"gpu": "4090"}, ["tokens_per_sample"]),
        ({}, {"tokens_per_sample": 300}, ["sharding"]),
        ({}, {"padding": "packed"}, ["sharding"]),
        ({}, {"padding": "packed", "gpu": "4090"}, []),
    ],
)
def test_what_is_said_or_decides_nothing_is_not_told(
    checked: dict[str, Any], flags: dict[str, Any], settings: list[str]
) -> None:
    """A launch file, a sharding, one GPU; a mean length, or no padding."""
    assert [setting for setting, _, _ in assumed(checked, **flags)] == settings
    assert FAILED.assumed == ()


@pytest.mark.parametrize(
    ("number", "origin", "note", "flags"),
    [
        ("2", ASSUMED, "", ("--images-per-sample N", "--image-size WxH")),
        ("2", "a.yaml:max_pixels", "the data decide", ("--images-per-sample N", "--image-size WxH")),
        ("2", "cli", "", None),
    ],
)
def test_images_that_nobody_counted_are_told(
    number: str, origin: str, note: str, flags: tuple[str, ...] | None
) -> None:
    """Assumed, or read with a remark; 3,328 tokens each."""
    job = {"model": "internvl3-1b", "method": "lora", "gpu": "4090", "seq": 8192, "padding": "packed"}
    scenario = resolved({**job, "images_per_sample": number, "image_size": "640x480"})
    entry = Assumption("images_per_sample", number, origin, note)
    others = tuple(each for each in scenario.assumptions if each.name != entry.name)
    found = Checked(
        "a.yaml", subject=Subject(replace(scenario, assumptions=(*others, entry)), made.prediction())
    )
    assert [(each.setting, each.value, each.flags) for each in found.assumed] == (
        [] if flags is None else [("images_per_sample", number, flags)]
    )
    assert all("2 images of 640x480 pixels, 6,656 of its tokens" in each.text for each in found.assumed)


def test_a_config_is_named_with_its_launch_file_where_there_are_several() -> None:
    """Else by its own name."""
    assert (ANSWERED.name, replace(ANSWERED, accelerate="l.yaml").name) == ("a.yaml", "a.yaml + l.yaml")
