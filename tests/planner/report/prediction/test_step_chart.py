"""Where a job that does not fit stops, and the chart of the step, from values made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.allocator.documents.timeline import Moment, Span, Timeline
from planner.domain.prediction import FailedRequest
from planner.report.prediction.subject import Subject
from planner.units import GIB, MIB
from tests.planner.report.prediction.made import draw, scenario, short_of_memory, subject

FAILED = FailedRequest(
    "backward", "layer 17", "q_proj", "mm", 64 * MIB, 96 * MIB, 3, 40 * MIB, 2 * MIB, 5, None
)


def failing(helps: bool | None, *, limit_bytes: int = 4 * GIB) -> Subject:
    """A job that stops at that request."""
    made = short_of_memory(limit_bytes)
    memory = replace(made.memory, failed=replace(FAILED, fits_expandable=helps))
    return Subject(scenario(), replace(made, memory=memory))


def timeline(limit_bytes: int) -> Timeline:
    """Two phases of five events, of which the fourth of the second one fails."""
    moments = tuple(
        Moment(event, "load" if event < 5 else "backward", "mm", "", (event + 1) * GIB, 10 * GIB, {})
        for event in range(10)
    )
    return Timeline((Span("load", 0, 5), Span("backward", 5, 10)), moments, 10, limit_bytes, 8)


def test_the_request_that_fails_is_named_with_what_was_free() -> None:
    """Phase, part, module, operator, size, and the pieces of the cache."""
    text = " ".join(draw(failing(None)).split())
    assert "when backward, 1st micro-batch where layer 17, q_proj operator mm asks for 64.0 MiB" in text
    assert (
        "2.0 MiB outside of the cache; 3 free pieces of the cache, 96.0 MiB in all, the largest of 40.0 MiB"
        in text
    )


@pytest.mark.parametrize(
    ("helps", "says"),
    [
        (True, "expandable_segments:True the job fits."),
        (False, "expandable_segments:True a later request fails."),
        (None, "so expandable segments do not help."),
    ],
)
def test_it_says_whether_expandable_segments_help(*, helps: bool | None, says: str) -> None:
    """All three answers."""
    assert says in " ".join(draw(failing(helps)).split())


def test_less_memory_kept_for_others_is_named_where_it_is_enough() -> None:
    """The job lacks 1 GiB; 3 GiB are taken by others, so at most 2 may be."""
    made = failing(None)
    memory = replace(made.prediction.memory, must_have_bytes=5 * GIB)
    hardware = replace(made.scenario.hardware, gpu_reserved_bytes=3 * GIB)
    short = replace(
        made,
        scenario=replace(made.scenario, hardware=hardware),
        prediction=replace(made.prediction, memory=memory),
    )
    assert "With a --gpu-reserved of at most 2.00 GiB the job fits." in " ".join(draw(short).split())
    less = replace(
        short, scenario=replace(short.scenario, hardware=replace(hardware, gpu_reserved_bytes=GIB // 2))
    )
    assert "--gpu-reserved" not in draw(less).partition("Assumptions")[0]


def test_the_chart_has_the_limit_where_it_is_near() -> None:
    """A limit of 8 of 10 GiB is drawn with the failure; one of 40 GiB is said."""
    near = draw(replace(subject(), timeline=timeline(8 * GIB)), width=120)
    assert any(line.startswith("  8.0 |") and "X" in line for line in near.splitlines())
    assert "- the card leaves 8.00 GiB" in near
    assert "X out of memory" in near
    far = draw(replace(subject(), timeline=timeline(40 * GIB)))
    assert "; the card leaves 40.00 GiB" in far
    assert "- the card leaves" not in far
    assert "Memory over the step" not in draw(subject())


def test_a_part_that_repeats_the_phase_is_not_named() -> None:
    """What loads says the module alone; a layer keeps its number."""
    loading = replace(FAILED, phase="load", part="load", module="head")
    assert loading.where == "head"
    assert replace(FAILED, part="layer 3", module="up_proj").where == "layer 3, up_proj"
    assert replace(FAILED, part="buffers of DeepSpeed", module="").where == "buffers of DeepSpeed"
