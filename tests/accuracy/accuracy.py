"""Held-out accuracy on the published rows, kept in ``data/accuracy.toml``, shown in the README and checked by ``make accuracy``.

``python -m tests.accuracy.accuracy --write`` cross-validates (about half a minute) and writes the file, and beside it the
calibration that ships, which is a part of the same fits; ``--check`` fails where a held-out error has grown beyond its stored
figure, or an error without any fit beyond ``data/error_budget.toml``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from planner.calibration.score.cross_validate import CrossValidation, cross_validate
from planner.calibration.score.rows import QUANTITIES, RowScore
from planner.calibration.score.validate import SourceScore, score_source
from planner.catalog.location import data_dir
from planner.domain.calibration import method_of
from planner.errors import ExitCode
from planner.files.structured import read_toml
from planner.records import read_records
from planner.records.calibration_file import write_calibration
from planner.records.previous_calibration import keep_previous
from tests.accuracy.anchors import AnchorGain, anchor_gains
from tests.accuracy.budget import beyond_budget, rounded_up, stored_budget
from tests.accuracy.choices import stored_choices, worst_errors
from tests.accuracy.drawn import POINTS_FILE, drawn_points_csv
from tests.accuracy.goals import Goal, goals, percent_text
from tests.accuracy.misses import stored_misses, unlisted
from tests.accuracy.published import published_dir

FILE_NAME = "accuracy.toml"
# How rows are put together: by document, by method, by GPU.
PARTS: Mapping[str, Callable[[RowScore], str]] = {
    "documents": lambda row: row.record.source,
    "methods": lambda row: method_of(row.scenario) if row.scenario else "",
    "gpus": lambda row: row.record.gpu,
}
_FITS = ("unfitted", "in_sample", "held_out")
_HEADER = """\
# Mean absolute errors on the published rows: unfitted (priors only), in-sample (fitted to all rows) and held out (by a fit that
# never saw the source group).  Fractions, rounded up at the second digit.  held_out figures of documents are also limits: `make
# accuracy` fails where one of them has grown.  anchors: throughput of a held-out group before and after one measured row of its
# machine (median over the choice of row).  worst_reading: held out, with each choice of data/published/choices.toml read
# the other way where that is worse.  coverage: of 90 % intervals whose scale and quantiles are made from the other sources;
# scale: how much each cause of scatter counts in the intervals that ship.  goals: what is aimed at beside what is reached; best
# is the best figure that a goal ever had, and where reached is worse by more than a point, data/loosened.toml says why.
# Written by: python -m tests.accuracy.accuracy --write
"""


def accuracy_figures(result: CrossValidation) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by part (document, method, GPU), then by name: ``n_memory``, ``held_out_memory_mape``, ``held_out_false_fit``..."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    validations = dict(zip(_FITS, (result.prior, result.in_sample, result.held_out), strict=True))
    for part, key in PARTS.items():
        table: dict[str, dict[str, float]] = {}
        for fit, validation in validations.items():
            for name, rows in _grouped(validation.rows, key).items():
                table.setdefault(name, {}).update(_figures(fit, score_source(name, rows)))
        figures[part] = table
    return figures


def _grouped(rows: Sequence[RowScore], key: Callable[[RowScore], str]) -> dict[str, list[RowScore]]:
    found: dict[str, list[RowScore]] = {}
    for row in rows:
        if row.scenario is not None:
            found.setdefault(key(row), []).append(row)
    return found


def _figures(fit: str, score: SourceScore) -> dict[str, float]:
    found: dict[str, float] = {}
    for quantity in QUANTITIES:
        summary = getattr(score, quantity)
        if summary is not None:
            found[f"n_{quantity}"] = summary.n
            found[f"{fit}_{quantity}_mape"] = rounded_up(summary.mape)
    if fit == "held_out":
        oom = score.oom
        uncertain = oom.uncertain_ok + oom.uncertain_oom
        found |= {"ran": oom.n_ok, "ran_out": oom.n_oom, "uncertain": uncertain}
        found |= {"false_fit": oom.false_fit, "false_oom": oom.false_oom}
    return found


def worst_figures(result: CrossValidation) -> dict[str, dict[str, float]]:
    """Held-out errors of documents with every choice that their own table settled read the other way, where that is worse."""
    fitted, found = result.fitted, dict[str, dict[str, float]]()
    for quantity in ("memory", "throughput"):
        errors = worst_errors(
            result.held_out.rows,
            stored_choices(),
            lambda record: fitted.without.get(record.source_group, fitted.calibration),
            quantity,
        )
        for source, error in errors.items():
            found.setdefault(source, {})[f"worst_reading_{quantity}_mape"] = rounded_up(error)
    return found


def stored_accuracy() -> dict[str, Any]:
    """Content of ``data/accuracy.toml``.

    Raises:
        InputFileError: missing or malformed.
    """
    return read_toml(data_dir() / FILE_NAME)


def accuracy_toml(result: CrossValidation, anchors: Sequence[AnchorGain]) -> str:
    """Content of the file for a cross-validation."""
    calibration = result.fitted.calibration
    worst = worst_figures(result)
    lines = [
        _HEADER,
        f"date = {datetime.now(UTC).date().isoformat()}",
        f'formulas = "{calibration.formulas}"',
        f"free_numbers = {result.fitted.free_numbers}",
        f"rows = {calibration.n_rows}",
        f"groups = {len(calibration.groups)}",
        "",
        "[coverage]",
        *(f"{of} = {share:.3f}" for of, share in calibration.coverage),
        "",
        "[scale]",
        *(f"{each.name} = {float(getattr(calibration.scale, each.name))}" for each in fields(calibration.scale)),
    ]
    for goal in goals(result, anchors):
        lines += ["", "[[goals]]", *_goal_lines(goal, best_reached())]
    for gain in anchors:
        lines += ["", f'[anchors."{gain.group}"]', f"n = {gain.n_rows}"]
        lines += [f"before = {rounded_up(gain.before)}", f"after = {rounded_up(gain.after)}"]
    for part, table in accuracy_figures(result).items():
        for name, figures in table.items():
            all_figures = figures | (worst.get(name, {}) if part == "documents" else {})
            lines += ["", f'[{part}."{name}"]', *(f"{key} = {value}" for key, value in all_figures.items())]
    return "\n".join(lines) + "\n"


def _goal_lines(goal: Goal, best: Mapping[str, float]) -> list[str]:
    reached = goal.rounded
    before = best.get(goal.key, reached)
    return [
        f'title = "{goal.title}"',
        f'fit = "{goal.fit}"',
        f"n = {goal.n}",
        f'target = "{goal.target}"',
        f"reached = {reached}",
        f"best = {goal.better(before, reached)}",
        *([] if goal.met is None else [f"met = {str(goal.met).lower()}"]),
    ]


def best_reached() -> dict[str, float]:
    """The best figure that each goal ever had, as the stored file keeps it; empty without one."""
    if not (data_dir() / FILE_NAME).is_file():
        return {}
    return {f"{each['title']}, {each['fit']}": each["best"] for each in stored_accuracy().get("goals", [])}


def goals_text(found: Sequence[Goal]) -> str:
    """The goals as a table for a terminal: target, what is reached, and whether that is enough."""
    lines = [f"{'':58}  {'':24}  {'rows':>5}  {'target':>12}  reached"]
    for goal in found:
        mark = {True: "", False: "  missed", None: ""}[goal.met]
        lines.append(f"{goal.title:58}  {goal.fit:24}  {goal.n:5}  {goal.target:>12}  {percent_text(goal.rounded):>6}{mark}")
    return "\n".join(lines) + "\n"


def grown(result: CrossValidation, stored: Mapping[str, Any]) -> list[str]:
    """Held-out figures of documents that are above the stored ones, each in one line."""
    found = []
    for name, figures in accuracy_figures(result)["documents"].items():
        allowed = stored["documents"].get(name, {})
        for key, value in figures.items():
            limited = key.startswith("held_out_") or key in ("false_fit", "false_oom")
            if limited and value > allowed.get(key, 0.0):
                found.append(f"{name}: {key} is {value}, {allowed.get(key, 'nothing')} was stored")
    return found


def main(arguments: Sequence[str]) -> int:
    """Cross-validate the published rows; write the file, or check against it, or print it."""
    records = read_records([published_dir() / "*.csv", *sorted((data_dir() / "measurements").glob("*/*.jsonl"))])
    result = cross_validate(records)
    anchors = anchor_gains(result.fitted, records.records)
    if "--check" in arguments:
        published = [score for score in result.prior.sources if score.source in stored_budget()]
        over = [*beyond_budget(published), *grown(result, stored_accuracy()), *unlisted(result.held_out.rows, stored_misses())]
        sys.stdout.write(goals_text(goals(result, anchors)) + "\n")
        sys.stdout.write(
            "\n".join(over or ["errors are within data/error_budget.toml (no fit) and data/accuracy.toml (held out)"]) + "\n"
        )
        return int(ExitCode.INTERNAL_ERROR if over else ExitCode.FITS)
    text = accuracy_toml(result, anchors)
    if "--write" in arguments:
        (data_dir() / FILE_NAME).write_text(text, encoding="utf-8")
        points = drawn_points_csv(result.held_out.rows, result.fitted.calibration)
        (data_dir() / POINTS_FILE).write_text(points, encoding="utf-8")
        keep_previous(result.fitted.calibration, data_dir() / "calibration")
        write_calibration(result.fitted.calibration, data_dir() / "calibration")
    else:
        sys.stdout.write(text)
    return int(ExitCode.FITS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
