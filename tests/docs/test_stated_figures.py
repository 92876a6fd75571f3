"""What README and docs/accuracy.md state of accuracy in round numbers holds, and could not be much lower.

Refits change figures by little, so pages state bounds; ``make figures`` prints the figures themselves.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from blocks import ROOT

from tests.accuracy.goals import percent_text
from tests.accuracy.stored import stored_accuracy

# The README's table: title of a line, then the goals whose figures its two cells bound.
TABLE = {
    "GPU memory, mean error": (
        "four reports, peak memory, mean error",
        "other grade-A sources, peak memory, macro-average",
    ),
    "time of a step, mean error": (
        "four reports, throughput, mean error, without offload",
        "other grade-A sources, throughput, macro-average",
    ),
    "GPU memory, median half-width of the 90 % interval": (
        "four reports, memory, median half-width",
        "other sources, memory, median half-width",
    ),
    "time, median half-width of the 90 % interval": (
        "four reports, time, median half-width",
        "other sources, time, median half-width",
    ),
}
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


@pytest.mark.parametrize("title", TABLE)
def test_errors_are_within_the_bounds_of_the_readme(title: str) -> None:
    """No figure is above its bound, nor below half of it."""
    bounds = _stated(rf"\| {re.escape(title)} \| at most (\d+) % \| at most (\d+) % \|")
    for bound, goal in zip(bounds, TABLE[title], strict=True):
        assert bound / _LOOSEST < _held_out(goal) <= bound, f"{goal}: {percent_text(_held_out(goal))}"


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
