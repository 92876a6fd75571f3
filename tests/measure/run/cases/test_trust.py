"""What records say about themselves: verdicts, repeats that disagree, environments that differ."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from measure.run.cases.trust import check_records, findings_text
from planner.domain.run_record import RunRecord
from planner.records import RecordSet
from planner.records.record_set import Quarantined


def record(number: int, **columns: Any) -> RunRecord:
    """A record of this number."""
    given = {"model": "m", "gpu": "h200", "method": "lora", "outcome": "ok", **columns}
    return RunRecord(id=f"run-{number}", source="s", source_group="g", **given)


def told(
    case: str = "c", environment: str = "e", *, reasons: tuple[str, ...] = (), **facts: str
) -> dict[str, Any]:
    """What travels with a record of this case, made in this environment."""
    verdict = "doubtful" if reasons else "good"
    return {
        "raw": {"case_key": case, "environment_key": environment},
        "environment": {"machine": environment, **facts},
        "quality": {"verdict": verdict, "reasons": list(reasons)},
    }


def findings(
    *pairs: tuple[RunRecord, dict[str, Any]], left_out: tuple[Quarantined, ...] = ()
) -> dict[str, Any]:
    """The findings about records with what travels with each, from the lines 1, 2, ... of one file."""
    records = tuple(each for each, _ in pairs)
    places = {each.id: f"a.jsonl:{line}" for line, each in enumerate(records, 1)}
    attachments = {each.id: extra for each, extra in pairs if extra}
    return check_records(
        RecordSet(records, ("a.jsonl",), MappingProxyType(places), MappingProxyType(attachments), left_out)
    )


def test_a_record_has_the_verdict_of_its_readings() -> None:
    """Good, doubtful for its reasons; and doubtful where no readings travel with it."""
    found = findings((record(1), told()), (record(2), told(reasons=("drift by +8 %",))), (record(3), {}))
    assert [(each["id"], each["place"], each["verdict"], each["reasons"]) for each in found["records"]] == [
        ("run-1", "a.jsonl:1", "good", []),
        ("run-2", "a.jsonl:2", "doubtful", ["drift by +8 %"]),
        ("run-3", "a.jsonl:3", "doubtful", ["no readings travel with this record"]),
    ]


def test_a_run_on_a_cpu_is_said_to_be_one() -> None:
    """Whatever its verdict."""
    (only,) = findings((record(1, gpu="cpu"), told()))["records"]
    assert (only["verdict"], only["reasons"]) == ("good", ["a CPU run: never used for a GPU"])


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ((1.0, 1.04), None),
        ((1.0, 1.06), "step times of one case differ by 6 %"),
        ((1.0, None), None),
        ((2.0,), None),
    ],
)
def test_repeats_differ_by_a_twentieth_at_most(times: tuple[float | None, ...], problem: str | None) -> None:
    """Of the median; a run without a time says nothing."""
    runs = [(record(number, step_time_s=time), told()) for number, time in enumerate(times)]
    assert [each["problem"] for each in findings(*runs)["repeats"]] == ([problem] if problem else [])


def test_repeats_that_ended_differently_are_named() -> None:
    """One ran and one ran out of memory."""
    found = findings((record(1), told()), (record(2, outcome="oom"), told()))
    assert found["repeats"] == [{"ids": ["run-1", "run-2"], "problem": "runs of one case ended differently"}]


def test_other_cases_and_other_environments_are_no_repeats() -> None:
    """Times are compared within one environment; that there are several is said once."""
    slow, fast = record(1, step_time_s=2.0), record(2, step_time_s=1.0)
    assert findings((slow, told("one")), (fast, told("other")))["repeats"] == []
    (only,) = findings((slow, told(environment="e1")), (fast, told(environment="e2")))["repeats"]
    assert only["problem"] == "one case in several environments: not merged"


def test_environments_are_counted_and_differ_from_the_first() -> None:
    """Two records of one, and one whose driver is another."""
    found = findings(
        (record(1), told("a", "e1", driver="575")),
        (record(2), told("b", "e1", driver="575")),
        (record(3), told("c", "e2", driver="580")),
    )
    assert found["environments"] == [
        {"key": "e1", "records": 2, "differs_by": []},
        {"key": "e2", "records": 1, "differs_by": ["driver: 575, 580", "machine: e1, e2"]},
    ]


def test_lines_left_out_are_unfinished_or_something_else() -> None:
    """The last line of a file that somebody still writes, and rubbish."""
    lines = (Quarantined("a.jsonl", 7, "ends early"), Quarantined("b.jsonl", 0, "no such file", "no_file"))
    found = findings(left_out=lines)
    assert found["unfinished_lines"] == ["a.jsonl:7: ends early"]
    assert found["other_lines_left_out"] == ["b.jsonl: no such file"]


def test_no_records_are_told_too() -> None:
    """Nothing is good and nothing is doubtful."""
    assert findings_text(findings()) == "0 records: 0 good, 0 doubtful; 0 environments\n"


def test_each_doubt_is_told_once_with_the_records_that_have_it() -> None:
    """The doubt that most have is first; of many records five are named."""
    drifting = [(record(number), told(str(number), reasons=("drift by +8 %",))) for number in range(7)]
    text = findings_text(findings(*drifting, (record(8), told("8", reasons=("few steps: 2",)))))
    assert text.splitlines() == [
        "8 records: 0 good, 8 doubtful; 1 environment",
        "",
        "drift: 7 records",
        *(f"  run-{number} (a.jsonl:{number + 1}, ok): by +8 %" for number in range(5)),
        "  and 2 more; --json names all",
        "",
        "few steps: 1 record",
        "  run-8 (a.jsonl:8, ok): 2",
    ]


def test_what_all_share_is_told_so() -> None:
    """Repeats, other environments and lines left out come behind a blank line."""
    doubt = ("the driver said nothing",)
    text = findings_text(
        findings(
            (record(1), told("c", "e1", reasons=doubt)),
            (record(2), told("c", "e2", reasons=doubt)),
            left_out=(Quarantined("a.jsonl", 3, "ends early"),),
        )
    )
    assert text.splitlines() == [
        "2 records: 0 good, 2 doubtful; 2 environments",
        "",
        "the driver said nothing: all",
        "  run-1 (a.jsonl:1, ok)",
        "  run-2 (a.jsonl:2, ok)",
        "",
        "run-1, run-2: one case in several environments: not merged",
        "environment e2 (1 record) differs: machine: e1, e2",
        "unfinished line, left out: a.jsonl:3: ends early",
    ]
