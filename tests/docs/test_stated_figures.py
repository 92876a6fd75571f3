"""What README and docs/accuracy.md state of accuracy in round numbers holds, and could not be much lower.

Refits change figures by little, so pages state bounds; ``make figures`` prints the figures themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

import pytest
from blocks import ROOT

from tests.accuracy.aims import stored_aims
from tests.accuracy.stored import stored_accuracy

# The README's table: title of a line, then the goals whose figures its two cells bound.
WIDTHS = {
    "GPU memory, median half-width of the 90 % interval": (
        "four reports, memory, median half-width",
        "other sources, memory, median half-width",
    ),
    "time, median half-width of the 90 % interval": (
        "four reports, time, median half-width",
        "other sources, time, median half-width",
    ),
}
# Titles of its other lines, and what they compare.
ERRORS = {"GPU memory, mean error": "memory", "time of a step, mean error": "throughput"}
GRADE_A = (
    "other grade-A sources, peak memory, macro-average",
    "other grade-A sources, throughput, macro-average",
)
# A bound that is further above its figure says too little.
_LOOSEST = 2.0


@cache
def _readme() -> str:
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def _held_out(title: str) -> float:
    held_out = {each["title"]: each for each in stored_accuracy()["goals"] if each["fit"] == "held out"}
    return float(held_out[title]["reached"])


def _stated(pattern: str) -> tuple[float, ...]:
    """Shares that the README states where ``pattern`` has groups."""
    found = re.findall(pattern, _readme())
    assert len(found) == 1, f"the README does not say: {pattern}"
    words = found[0] if isinstance(found[0], tuple) else found
    return tuple(int(each) / 100 for each in words)


def _bounds(title: str) -> tuple[float, ...]:
    return _stated(rf"\| {re.escape(title)} \| at most (\d+) % \| at most (\d+) % \|")


def _assert_near(bounds: Sequence[float], figures: Mapping[str, float]) -> None:
    """No figure is above its bound, nor below half of it."""
    for bound, (what, figure) in zip(bounds, figures.items(), strict=True):
        assert bound / _LOOSEST < figure <= bound, f"{what}: {figure:.1%}"


@pytest.mark.parametrize("title", WIDTHS)
def test_widths_are_within_the_bounds_of_the_readme(title: str) -> None:
    """Of both kinds of sources."""
    _assert_near(_bounds(title), {goal: _held_out(goal) for goal in WIDTHS[title]})


@pytest.mark.parametrize("title", ERRORS)
def test_errors_are_within_the_bounds_of_the_readme(title: str) -> None:
    """All rows of the four reports, and all other sources, whatever they leave unsaid."""
    of, documents = ERRORS[title], stored_accuracy()["documents"]
    found = {
        name: (int(each[f"n_{of}"]), float(each[f"held_out_{of}_mape"]))
        for name, each in documents.items()
        if each.get(f"n_{of}")
    }
    reports = [each for name, each in found.items() if name in stored_aims().sources.values()]
    others = [error for name, (_, error) in found.items() if name not in stored_aims().sources.values()]
    of_reports = sum(count * error for count, error in reports) / sum(count for count, _ in reports)
    _assert_near(_bounds(title), {"four reports": of_reports, "others": fmean(others)})


def test_sources_that_publish_every_setting_are_as_near_as_the_readme_says() -> None:
    """Those of grade A."""
    bounds = _stated(r"every setting are off by at most (\d+) % in memory and (\d+) % in time")
    _assert_near(bounds, {goal: _held_out(goal) for goal in GRADE_A})


def test_intervals_contain_what_the_readme_says() -> None:
    """At least that share of memory and of times, and not five points more."""
    shares = _stated(r"contain at least (\d+) % of memory readings and (\d+) % of times")
    for share, of in zip(shares, ("memory", "time"), strict=True):
        assert share <= _held_out(f"{of}, inside the 90 % interval") < share + 0.05


def test_wrong_verdicts_are_as_few_as_the_readme_says() -> None:
    """The shares of both kinds of wrong verdict over all sources."""
    fits, fits_not = _stated(
        r"at most (\d+) % are answered FITS\. Of those that ran, at most (\d+) % are answered DOES NOT FIT"
    )
    documents = stored_accuracy()["documents"].values()

    def counted(key: str) -> int:
        return sum(int(each.get(key, 0)) for each in documents)

    assert counted("false_fit") / counted("ran_out") <= fits
    assert counted("false_oom") / counted("ran") <= fits_not


def test_the_dry_run_is_as_near_as_the_page_says() -> None:
    """The worst peaks of real models, in the table that ``make differential`` writes."""
    page = " ".join((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").split())
    stated = re.search(r"peaks of real models within ([\d.]+) %, reserved peaks within ([\d.]+) %", page)
    summary = (ROOT / "data" / "differential" / "summary.md").read_text(encoding="utf-8")
    worst = re.search(r"^\| real \| all .*worst ([\d.]+) % .*worst ([\d.]+) %", summary, re.MULTILINE)
    assert stated
    assert worst
    for bound, found in zip(map(float, stated.groups()), map(float, worst.groups()), strict=True):
        assert bound / _LOOSEST < found <= bound
