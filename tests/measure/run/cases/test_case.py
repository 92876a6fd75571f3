"""A case, its file and its key."""

from __future__ import annotations

from measure.run.cases.case import RunCase, RunOptions, case_from_json, case_key
from planner.units import GIB


def test_a_case_survives_its_file_and_its_key_is_what_is_measured() -> None:
    """A default that is said makes the same case; a length or a memory limit makes another;
    patience does not.
    """
    values = {"model": "qwen2.5-0.5b", "method": "lora", "seq": 64, "gpu": "cpu", "lora_targets": ("q_proj",)}
    case = RunCase(values, RunOptions(lengths=(3, 9)))
    assert case_from_json(case.to_json()) == case
    key = case_key(case, case.scenario())
    same = RunCase({**values, "batch": 1}, RunOptions(lengths=(3, 9), timeout_s=1.0))
    other = RunCase(values, RunOptions(lengths=(3, 9), memory_limit_bytes=GIB))
    assert case_key(same, same.scenario()) == key
    assert case_key(other, other.scenario()) != key
