"""The verdict in its first line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.errors import ExitCode
from planner.report.prediction.subject import Subject, exit_code_of
from planner.report.prediction.to_json import to_json
from planner.units import GIB
from tests.planner.report.prediction.made import draw, prediction, scenario, subject


def test_the_verdict_comes_first_with_peak_and_limit() -> None:
    """The first line says whether it fits, the peak against the limit in GiB,
    and that nothing is calibrated.
    """
    first = draw(subject()).splitlines()[0]
    assert first == "FITS: needs 5.03 of 23.03 GiB per GPU; not calibrated, no interval"


def test_a_calibrated_verdict_gives_its_probability() -> None:
    """With a calibration the first line gives the chance that the job fits."""
    first = draw(subject(fits_probability=0.973, calibration="fit-2024")).splitlines()[0]
    assert first.endswith("chance to fit 97 %")


@pytest.mark.parametrize(
    ("verdict", "words", "code"),
    [
        ("fits", "FITS", ExitCode.FITS),
        ("does_not_fit", "DOES NOT FIT", ExitCode.GPU_MEMORY_SHORT),
        ("uncertain", "UNCERTAIN", ExitCode.UNCERTAIN),
        ("host_memory_short", "HOST RAM TOO SMALL", ExitCode.HOST_MEMORY_SHORT),
        ("no_verdict", "NO VERDICT", ExitCode.NOT_MODELLED),
    ],
)
def test_each_verdict_has_its_words_and_exit_code(verdict: str, words: str, code: ExitCode) -> None:
    """Words on the first line, exit code and JSON agree on the verdict."""
    made = subject(verdict=verdict)
    assert draw(made).startswith(f"{words}: ")
    assert exit_code_of(made.prediction) == code
    assert json.loads(to_json(made))["exit_code"] == code


def test_a_job_that_fits_rests_on_host_ram_that_nobody_said() -> None:
    """With states in host RAM of unknown size the verdict names the condition; known RAM,
    or a job that fails, has none.
    """
    made = prediction()
    offloads = replace(scenario(), recipe=replace(scenario().recipe, offload="optimizer"))
    said = replace(made, host=replace(made.host, required_per_node_bytes=9 * GIB))
    first = draw(Subject(offloads, said), width=120).splitlines()[0]
    assert first == (
        "FITS IF A NODE HAS 9.00 GiB OF RAM: needs 5.03 of 23.03 GiB per GPU; not calibrated, no interval"
    )
    known = replace(said, host=replace(said.host, available_bytes=64 * GIB))
    assert draw(Subject(offloads, known)).startswith("FITS: ")
    assert draw(Subject(offloads, replace(said, verdict="does_not_fit"))).startswith("DOES NOT FIT: ")
