"""What the records themselves say about how far to trust them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from measure.run.readings.environment import differences
from planner.domain.run_record import RunRecord
from planner.records import Quarantined, RecordSet

# Medians of repeated runs of one case that differ by more than this are no repeats of one thing.
_MAX_REPEAT_SPREAD = 0.05
# Records that are named under one doubt.
_SHOWN = 5


def check_records(records: RecordSet) -> dict[str, Any]:
    """Findings as JSON values: each record with its verdict, repeats, environments, unfinished lines."""
    attachments = records.attachments
    by_case: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records.records:
        key = attachments.get(record.id, {}).get("raw", {}).get("case_key")
        if key is not None:
            by_case[key].append(record)
    return {
        "records": [
            _finding(record, attachments.get(record.id, {}), records.places[record.id])
            for record in records.records
        ],
        "repeats": [each for same in by_case.values() for each in _repeats(same, attachments)],
        "environments": _environments(attachments),
        "unfinished_lines": [_told(each) for each in records.quarantined if each.rule == "unfinished"],
        "other_lines_left_out": [_told(each) for each in records.quarantined if each.rule != "unfinished"],
    }


def _told(line: Quarantined) -> str:
    return f"{line.place}: {line.reason}"


def _finding(record: RunRecord, extra: Mapping[str, Any], place: str) -> dict[str, Any]:
    quality = extra.get("quality")
    reasons = list(quality["reasons"]) if quality else ["no readings travel with this record"]
    verdict = quality["verdict"] if quality else "doubtful"
    if record.gpu == "cpu":
        reasons.append("a CPU run: never used for a GPU")
    return {
        "id": record.id,
        "place": place,
        "outcome": record.outcome,
        "verdict": verdict,
        "reasons": reasons,
    }


def _repeats(same: Sequence[RunRecord], attachments: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs of one case in one environment whose results disagree, and in several environments,
    which are not repeats.
    """
    groups: dict[str, list[RunRecord]] = defaultdict(list)
    for record in same:
        groups[attachments[record.id]["raw"]["environment_key"]].append(record)
    findings = []
    for group in groups.values():
        if len({record.outcome for record in group}) > 1:
            findings.append(
                {"ids": [each.id for each in group], "problem": "runs of one case ended differently"}
            )
        times = [record.step_time_s for record in group if record.step_time_s is not None]
        if len(times) > 1 and (max(times) - min(times)) / statistics.median(times) > _MAX_REPEAT_SPREAD:
            spread = (max(times) - min(times)) / statistics.median(times)
            findings.append(
                {
                    "ids": [each.id for each in group],
                    "problem": f"step times of one case differ by {100 * spread:.0f} %",
                }
            )
    if len(groups) > 1:
        findings.append(
            {"ids": [each.id for each in same], "problem": "one case in several environments: not merged"}
        )
    return findings


def _environments(attachments: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each environment with the number of its records, and how it differs from the first."""
    found: dict[str, tuple[Mapping[str, Any], int]] = {}
    for extra in attachments.values():
        if "environment" in extra and "raw" in extra:
            key = extra["raw"]["environment_key"]
            found[key] = (extra["environment"], found.get(key, ({}, 0))[1] + 1)
    first = next((environment for environment, _ in found.values()), {})
    return [
        {"key": key, "records": count, "differs_by": differences(first, environment)}
        for key, (environment, count) in found.items()
    ]


def findings_text(findings: Mapping[str, Any]) -> str:
    """Findings for people: the counts, then each doubt once with the records that have it."""
    records = findings["records"]
    good = sum(record["verdict"] == "good" for record in records)
    counts = f"{_counted(len(records), 'record')}: {good} good, {len(records) - good} doubtful"
    lines = [f"{counts}; {_counted(len(findings['environments']), 'environment')}"]
    doubts: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record["verdict"] != "good":
            for reason in record["reasons"]:
                doubt = reason.partition(":")[0].partition(" by ")[0]
                details = reason.removeprefix(doubt).lstrip(": ")
                doubts[doubt].append(f"{record['id']} ({record['place']}, {record['outcome']}): {details}")
    for doubt, those in sorted(doubts.items(), key=lambda each: -len(each[1])):
        lines += [
            "",
            f"{doubt}: {'all' if len(those) == len(records) > 1 else _counted(len(those), 'record')}",
        ]
        lines += [f"  {each}".rstrip(": ") for each in those[:_SHOWN]]
        lines += [f"  and {len(those) - _SHOWN} more; --json names all"] if len(those) > _SHOWN else []
    left_out = [f"unfinished line, left out: {each}" for each in findings["unfinished_lines"]]
    left_out += [f"left out: {each}" for each in findings["other_lines_left_out"]]
    lines += [""] if doubts and (findings["repeats"] or findings["environments"][1:] or left_out) else []
    lines += [f"{', '.join(each['ids'])}: {each['problem']}" for each in findings["repeats"]]
    for environment in findings["environments"][1:]:
        differs = "; ".join(environment["differs_by"])
        lines.append(
            f"environment {environment['key']} ({_counted(environment['records'], 'record')}) "
            f"differs: {differs}"
        )
    lines += left_out
    return "\n".join(lines) + "\n"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
