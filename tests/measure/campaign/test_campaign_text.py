"""What a campaign says at its end."""

from __future__ import annotations

from pathlib import Path

from measure.campaign.campaign_text import tally_text
from measure.campaign.file import read_campaign
from measure.campaign.runner import Agenda, Tally, plan_agenda
from measure.run.readings.machine import Machine
from measure.run.store import Store
from tests.measure.campaign.cases import CASE, HEAD, finished, written


def test_each_reason_is_said_once_with_its_cases(tmp_path: Path) -> None:
    """A campaign names what cannot run here, by what tells the cases apart."""
    text = HEAD + CASE + CASE.replace("lora", "full") + 'sharding = "ddp"\n'
    campaign = read_campaign(written(tmp_path, text))
    agenda = plan_agenda(campaign, Machine(None, (), None, {"machine": "x"}), Store(tmp_path), force=False)
    said = tally_text("title", agenda, Tally(), tmp_path).splitlines()
    assert said[1].startswith("not possible here (2): no GPU is here")
    assert sorted(said[2:4]) == [
        "   -  qwen2.5-0.5b full seq 64 batch 1, sharding ddp",
        "   -  qwen2.5-0.5b lora seq 64 batch 1",
    ]


def test_cases_that_all_crash_alike_are_the_machines_fault(tmp_path: Path) -> None:
    """Five of five with one message stop a campaign, with what to do; one that ran, or another message,
    does not.
    """
    alike = [finished("crash", "no CUDA device")] * 5
    tally = Tally(measured=alike, left=79)
    assert tally.same_crash == "no CUDA device"
    said = tally_text("title", Agenda((), 0, ()), tally, tmp_path)
    assert "every case crashed with: no CUDA device; when that is mended, --retry crash" in said
    assert Tally(measured=alike[1:]).same_crash is None
    assert Tally(measured=[*alike, finished("ok")]).same_crash is None
    assert Tally(measured=[*alike, finished("crash", "another")]).same_crash is None
