"""Events between the processes of a run."""

from __future__ import annotations

from pathlib import Path

from measure.run.protocol import EventReader, Reporter


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    """Complete lines once each; an unfinished one when its end is there."""
    reporter, reader = Reporter(tmp_path / "events"), EventReader(tmp_path / "events")
    assert list(reader.new()) == []
    reporter.say("phase", phase="load")
    with (tmp_path / "events").open("a") as stream:
        stream.write('{"event": "st')
    assert [event["event"] for event in reader.new()] == ["phase"]
    with (tmp_path / "events").open("a") as stream:
        stream.write('ep"}\n')
    assert [event["event"] for event in reader.new()] == ["step"]
    assert reporter.phase == "load"
