"""Accuracy on the published rows, kept in ``data/accuracy.json`` (``stored.py`` has its parts).

``python -m tests.accuracy.accuracy --write`` cross-validates (about half a minute) and writes it, and beside
it the calibration that ships, which is a part of the same fits.  ``--check`` prints the aims and fails where
the file is stale: where a held-out error or one without any fit has grown beyond its stored figure, or where
any figure is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from planner.calibration.score.cross_validate import CrossValidation, cross_validate
from planner.calibration.score.rows import QUANTITIES, RowScore
from planner.calibration.score.validate import SourceScore, score_source
from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.calibration import method_of
from planner.errors import ExitCode
from planner.records import read_records
from planner.records.calibration_file import write_calibration
from tests.accuracy.anchors import AnchorGain, anchor_gains
from tests.accuracy.budget import beyond_budget, budget_part, rounded_up
from tests.accuracy.choices import stored_choices, worst_errors
from tests.accuracy.drawn import drawn_points
from tests.accuracy.goals import Goal, goals, percent_text
from tests.accuracy.kinds import kind_coverage
from tests.accuracy.longest import longest_part
from tests.accuracy.misses import misses_part, stored_misses, unlisted
from tests.accuracy.published import published_dir, published_validation
from tests.accuracy.reliability import reliability
from tests.accuracy.stored import accuracy_text, differences, stored_accuracy, stored_or_empty, write_accuracy
from tests.accuracy.worth import worth

# Places that `--check` prints; the rest is counted.
_MOST_TOLD = 20
# How rows are put together: by document, by method, by GPU.
PARTS: Mapping[str, Callable[[RowScore], str]] = {
    "documents": lambda row: row.record.source,
    "methods": lambda row: method_of(row.scenario) if row.scenario else "",
    "gpus": lambda row: row.record.gpu,
}
_FITS = ("unfitted", "in_sample", "held_out")


def accuracy_figures(result: CrossValidation) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by part (document, method, GPU), then by name: ``n_memory``, ``held_out_memory_mape``,
    ``held_out_false_fit``...
    """
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
    """Held-out errors of documents with every choice that their own table settled read the other way,
    where that is worse.
    """
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


def accuracy_parts(
    result: CrossValidation, anchors: Sequence[AnchorGain], records: Sequence[RunRecord]
) -> dict[str, Any]:
    """The parts of the file that follow from a cross-validation: all but other estimators."""
    calibration, figures, worst = result.fitted.calibration, accuracy_figures(result), worst_figures(result)
    figures["documents"] = {name: each | worst.get(name, {}) for name, each in figures["documents"].items()}
    stored = stored_or_empty()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "formulas": calibration.formulas,
        "free_numbers": len(calibration.offsets),
        "rows": calibration.n_rows,
        "groups": len(calibration.groups),
        "coverage": {of: round(share, 3) for of, share in calibration.coverage},
        "goals": [_goal_part(goal, best_reached(stored)) for goal in goals(result, anchors)],
        "anchors": {
            gain.group: {"n": gain.n_rows, "before": rounded_up(gain.before), "after": rounded_up(gain.after)}
            for gain in anchors
        },
        "kinds": kind_coverage(result),
        "reliability": reliability(result.held_out.rows),
        "worth": worth(records),
        **figures,
        "budget": budget_part(published_validation().sources),
        "misses": misses_part(published_validation().rows, stored_misses()),
        "points": drawn_points(result.held_out.rows),
        "longest": longest_part(calibration),
    }


def _goal_part(goal: Goal, best: Mapping[str, float]) -> dict[str, Any]:
    reached = goal.rounded
    return {
        "title": goal.title,
        "fit": goal.fit,
        "n": goal.n,
        "target": goal.target,
        "reached": reached,
        "best": goal.better(best.get(goal.key, reached), reached),
        **({} if goal.met is None else {"met": goal.met}),
    }


def best_reached(stored: Mapping[str, Any]) -> dict[str, float]:
    """The best figure that each goal ever had."""
    return {f"{each['title']}, {each['fit']}": each["best"] for each in stored.get("goals", [])}


def goals_text(found: Sequence[Goal]) -> str:
    """The goals as a table for a terminal: target, what is reached, and whether that is enough."""
    lines = [f"{'':58}  {'':24}  {'rows':>5}  {'target':>12}  reached"]
    for goal in found:
        mark = {True: "", False: "  missed", None: ""}[goal.met]
        lines.append(
            f"{goal.title:58}  {goal.fit:24}  {goal.n:5}  {goal.target:>12}  "
            f"{percent_text(goal.rounded):>6}{mark}"
        )
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


def _told(over: Sequence[str]) -> str:
    if not over:
        return "data/accuracy.json is up to date\n"
    more = [f"and {len(over) - _MOST_TOLD} more"] if len(over) > _MOST_TOLD else []
    return (
        "\n".join([*over[:_MOST_TOLD], *more, "data/accuracy.json is stale: `make regenerate` writes it"])
        + "\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Cross-validate the published rows; write the file, or check against it, or print it."""
    records = read_records(
        [published_dir() / "*.csv", *sorted((data_dir() / "measurements").glob("*/*.jsonl"))]
    )
    result = cross_validate(records)
    anchors = anchor_gains(result.fitted, records.records)
    parts = accuracy_parts(result, anchors, records.records)
    if "--check" in arguments:
        stored = stored_accuracy()
        over = [*beyond_budget(published_validation().sources), *grown(result, stored)]
        over += [
            *unlisted(result.held_out.rows, stored_misses(), stored["misses"]),
            *differences(stored, parts),
        ]
        sys.stdout.write(goals_text(goals(result, anchors)) + "\n" + _told(over))
        return int(ExitCode.INTERNAL_ERROR if over else ExitCode.FITS)
    if "--write" in arguments:
        write_accuracy(parts)
        write_calibration(result.fitted.calibration, data_dir() / "calibration")
    else:
        sys.stdout.write(accuracy_text(stored_or_empty() | parts))
    return int(ExitCode.FITS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
