"""What ``measure run`` prints: a phase that runs once a step says how often it ran,
because its time is that of all steps.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from measure.run.record_text import record_text


def finished(visits: int, wall_s: float) -> Any:
    """A run of one phase."""
    phase = {
        "phase": "forward_2",
        "visits": visits,
        "wall_s": wall_s,
        "allocated_peak_bytes": 2**30,
        "reserved_peak_bytes": 2**30,
        "device_used_bytes": None,
        "host_rss_bytes": 2**30,
    }
    raw = {
        "error": None,
        "ranks": [{"phases": [phase]}],
        "step_summary": {"n_counted": 25, "n_warmup": 5, "median_s": 0.208, "iqr_s": 0.01},
        "engine_class": "",
        "workload": "random",
        "how": "the command line",
    }
    record = SimpleNamespace(outcome="ok", phase_reached=None, host_memory_mib=1024.0, id="a-run")
    attachments = {"raw": raw, "quality": {"verdict": "good", "reasons": []}}
    return SimpleNamespace(
        label="a job", measured=SimpleNamespace(record=record, attachments=attachments), path="records.jsonl"
    )


def test_the_time_of_a_phase_comes_with_how_often_it_ran() -> None:
    """A time of 3.16 s over 30 steps is shown as the mean of one visit, beside a step of 208 ms."""
    text = record_text(finished(30, 3.16))
    assert re.search(r"^forward_2 .* 30 x 105 ms$", text, re.MULTILINE)
    assert "visits of the phase over all steps" in text
    assert "step: median 208 ms" in text
