"""The figures of ``data/accuracy.json`` as tables.

``python -m tests.accuracy.figures [NAME ...]`` (``make figures``) prints all of them, or those that are
named.
They stand on no page, which every refit would rewrite.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from planner.calibration.score.rows import QUANTITIES
from planner.catalog.location import data_dir
from planner.errors import ExitCode
from tests.accuracy.goals import percent_text
from tests.accuracy.interval_tables import kinds_table, reliability_table, worth_table
from tests.accuracy.longest import longest_table, stored_answers
from tests.accuracy.misses import Evidence, stored_misses
from tests.accuracy.other_tools import stored_other_tools
from tests.accuracy.stored import stored_accuracy

_DATE = re.compile(r"\b20[12]\d-[01]\d(?:-[0-3]\d)?\b")
_WORDS = {"memory": "GPU memory", "throughput": "throughput", "host_memory": "host RAM"}


def table(head: str, align: str, rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown: names of columns with ``|`` between them, their alignment, and the cells."""
    lines = [f"| {head} |", f"|{align}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def share(value: float | None) -> str:
    """``4.5 %``; empty where there is none."""
    return "" if value is None else percent_text(value).replace("%", " %")


def made_of() -> str:
    """When the figures were made, from how many rows."""
    stored = stored_accuracy()
    return (
        f"Made on {stored['date']} from {stored['rows']} published rows of {stored['groups']} source groups, "
        f"with {stored['free_numbers']} fitted numbers. Errors are means of absolute values, rounded up.\n"
    )


def aims_table() -> str:
    """How many aims are met, and which are not."""
    judged = [goal for goal in stored_accuracy()["goals"] if "met" in goal]
    missed = [goal for goal in judged if not goal["met"]]
    rows = [(goal["title"], goal["fit"], share(goal["reached"]), goal["target"]) for goal in missed]
    head = f"{len(judged) - len(missed)} of {len(judged)} aims are met. Not met:\n\n"
    return head + table("what | fit | reached | aimed at", "---|---|--:|--:", rows)


def _errors_by(part: str, title: str) -> Callable[[], str]:
    """The table of errors by source, method or GPU."""

    def made() -> str:
        errors = "rows | {} unfitted | in-sample | held out"
        rows = []
        for name, figures in stored_accuracy()[part].items():
            cells = [
                cell for quantity in ("memory", "throughput") for cell in _error_cells(figures, quantity)
            ]
            if any(cells):
                rows.append([f"`{name}`", *([_dated(name)] if part == "documents" else []), *cells])
        dated = ("dated | ", "---|") if part == "documents" else ("", "")
        head = f"{title} | {dated[0]}{errors.format('memory')} | {errors.format('time')}"
        return table(head, f"---|{dated[1]}{'|'.join(['--:'] * 8)}", rows)

    return made


def _error_cells(figures: Mapping[str, float], quantity: str) -> list[str]:
    fits = ("unfitted", "in_sample", "held_out")
    errors = (share(figures.get(f"{fit}_{quantity}_mape")) for fit in fits)
    return [str(figures.get(f"n_{quantity}", "")), *errors]


def _dated(source: str) -> str:
    """When a source's figures were published, as the locators of its rows say; empty where they do not."""
    with (data_dir() / "published" / f"{source}.csv").open(encoding="utf-8", newline="") as file:
        dates = sorted(date for row in csv.DictReader(file) for date in _DATE.findall(row["locator"]))
    months = [date[:7] for date in dates[:1] + dates[-1:]]
    return " to ".join(dict.fromkeys(months))


def unfitted_table() -> str:
    """Errors and wrong verdicts of each source by literature values alone."""
    rows = []
    for source, each in stored_accuracy()["budget"]["documents"].items():
        errors = [share(each.get(f"{name}_mape")) for name in QUANTITIES]
        counts = [str(each.get(name, "")) for name in ("not_modelled", "false_fit", "false_oom")]
        rows.append([f"`{source}`", *errors, *counts])
    head = f"source | {' | '.join(_WORDS[name] for name in QUANTITIES)} | not modelled"
    return table(f"{head} | ran out: FITS | ran: DOES NOT FIT", "---|--:|--:|--:|--:|--:|--:", rows)


def verdicts_table() -> str:
    """Held-out verdicts beside what happened, by source."""
    keys = ("ran", "false_oom", "ran_out", "false_fit", "uncertain")
    rows = [
        [f"`{name}`", *(f"{each[key]:g}" for key in keys)]
        for name, each in stored_accuracy()["documents"].items()
        if each.get("ran", 0) + each.get("ran_out", 0)
    ]
    head = "source, held out | ran | of these DOES NOT FIT | ran out of memory | of these FITS | UNCERTAIN"
    return table(head, "---|--:|--:|--:|--:|--:", rows)


def readings_table() -> str:
    """Held-out errors where what only a source's own table settled is read the other way."""
    rows = []
    for name, each in stored_accuracy()["documents"].items():
        if "worst_reading_memory_mape" in each:
            keys = [f"{way}_{of}_mape" for of in QUANTITIES[:2] for way in ("held_out", "worst_reading")]
            rows.append([f"`{name}`", *(share(each.get(key)) for key in keys)])
    head = "source | memory, held out | read the other way | time, held out | read the other way"
    return table(head, "---|--:|--:|--:|--:", rows)


def anchors_table() -> str:
    """Errors of time by source group, before and after one of its rows is known."""
    rows = [
        [f"`{group}`", str(gain["n"]), share(gain["before"]), share(gain["after"])]
        for group, gain in stored_accuracy()["anchors"].items()
    ]
    return table("source group | timed rows | held out | one row known", "---|--:|--:|--:", rows)


def misses_table() -> str:
    """How many rows are predicted badly, and how many of these have a mechanism, tested or suspected."""
    stored, rows = stored_misses(), []
    for quantity in QUANTITIES:
        found = stored_accuracy()["misses"][quantity]
        counts = Counter[Evidence]({"none": len(found["unlisted"])})
        for group in stored.get(quantity, ()):
            counts[group.evidence] += len(set(group.rows) - set(found["recovered"]))
        cells = (found["compared"], found["far_off"], *(counts[each] for each in get_args(Evidence)))
        rows.append([_WORDS[quantity], *map(str, cells)])
    head = "quantity | rows compared | far off | mechanism tested | mechanism suspected | unexplained"
    return table(head, "---|--:|--:|--:|--:|--:", rows)


def other_tools_table() -> str:
    """Errors of other estimators on the rows that they speak of, and ours without a fit on these rows."""
    rows = [
        [tool.name, str(tool.n_rows), f"{tool.mape:.0%}", f"{tool.ours_mape:.0%}", tool.applies_to]
        for tool in stored_other_tools()
    ]
    text = table("estimator | rows | its error | ours, unfitted | asked about", "---|--:|--:|--:|---", rows)
    return text.replace("%", " %")


def sources_table() -> str:
    """Held-out errors by source in whole percent."""
    rows = []
    for source, each in stored_accuracy()["documents"].items():
        pairs = [(f"n_{of}", f"held_out_{of}_mape") for of in QUANTITIES[:2]]
        cells = [
            (f"{each[count]}", f"{each[error]:.0%}".replace("%", " %")) if count in each else ("", "")
            for count, error in pairs
        ]
        if any(map(any, cells)):
            rows.append([f"`{source}`", *(text for pair in cells for text in pair)])
    return table("source | memory rows | error | time rows | error", "---|--:|--:|--:|--:", rows)


def longest_tables() -> str:
    """Longest sequences that Unsloth publishes beside ours, by the calibration that ships."""
    return longest_table(stored_answers()) + "\n"


FIGURES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "aims": ("Aims that are missed", aims_table),
    "misses": ("Rows that are far off", misses_table),
    "sources": ("Errors by source", _errors_by("documents", "source")),
    "methods": ("Errors by method", _errors_by("methods", "method")),
    "gpus": ("Errors by GPU", _errors_by("gpus", "GPU")),
    "verdicts": ("Verdicts", verdicts_table),
    "anchors": ("Time, with one row of the machine known", anchors_table),
    "readings": ("Sources that can be read in two ways", readings_table),
    "kinds": ("Kinds of job that no source had", kinds_table),
    "reliability": ("Is P(fits) right?", reliability_table),
    "longest": ("Longest sequences", longest_tables),
    "unfitted": ("Literature values alone", unfitted_table),
    "worth": ("What each fitted coefficient is worth", worth_table),
    "other-tools": ("Other estimators on the same rows", other_tools_table),
}


def main(names: Sequence[str]) -> int:
    """Print the tables that are named, or all."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        sys.stderr.write(f"no figures are named {', '.join(unknown)}; there are {', '.join(FIGURES)}\n")
        return int(ExitCode.USAGE)
    parts = [f"## {FIGURES[name][0]}\n\n{FIGURES[name][1]()}" for name in names or FIGURES]
    sys.stdout.write("\n".join([made_of(), *parts]))
    return int(ExitCode.FITS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
