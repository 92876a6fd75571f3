"""Which cases are run, and again, and within which time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from measure.campaign import runner
from measure.campaign.campaign_text import tally_text
from measure.campaign.file import read_campaign
from measure.campaign.runner import plan_agenda, run_agenda
from measure.run.assemble import MeasuredRecord
from measure.run.cases.case import case_key
from measure.run.cases.run_options import outcomes
from measure.run.readings.environment import collect_environment
from measure.run.readings.host_memory import HostPeaks
from measure.run.readings.machine import Machine
from measure.run.readings.nvml import Gpu
from measure.run.store import Store
from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.errors import UsageError
from planner.units import MIB
from tests.extras import needs
from tests.measure.campaign.cases import CASE, HEAD, finished, written

CAMPAIGNS = sorted((data_dir() / "campaigns").glob("*.toml"))


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_shipped_campaigns_resolve(path: Path) -> None:
    """Every case of the shipped files is a job that the intake accepts."""
    campaign = read_campaign(path)
    card = Gpu(0, "NVIDIA H200", "0" * 12, 143771 * MIB, "580.1", "13.0")
    machine = Machine(None, (card,), "h200-sxm", {"machine": "x"})
    agenda = plan_agenda(campaign, machine, Store(Path("/nowhere")), force=False)
    on_gpu = path.stem != "cpu"
    bad = [each for each in agenda.refused if "is not installed" not in each.reason]
    assert bad == []
    assert len(agenda.queue) + len(agenda.refused) == len(campaign.cases)
    assert len(campaign.cases) >= (70 if on_gpu else 3)


def test_a_campaign_for_a_gpu_does_not_fall_back_to_the_cpu() -> None:
    """Large models would fill the host: a case runs on the CPU only where the file says so.  So does
    ``measure run``, which asks the same machine.
    """
    campaign = read_campaign(data_dir() / "campaigns" / "first.toml")
    agenda = plan_agenda(
        campaign, Machine(None, (), None, {"machine": "x"}), Store(Path("/nowhere")), force=False
    )
    assert agenda.queue == ()
    assert {each.reason for each in agenda.refused} == {
        "no GPU is here; measure trace counts memory without one, and --gpu cpu runs the steps on the CPU"
    }


@needs("psutil")
def test_what_failed_is_run_again_where_that_is_asked(tmp_path: Path) -> None:
    """A recorded crash counts as recorded; with --retry crash its case is on the agenda once more,
    and an ok one is not.
    """
    campaign = read_campaign(
        written(tmp_path, HEAD + CASE + 'gpu = "cpu"\n' + CASE.replace("64", "128") + 'gpu = "cpu"\n')
    )
    machine, store = Machine(None, (), None, collect_environment(None, ())), Store(tmp_path / "out")
    store.prepare()
    crashed, fine = plan_agenda(campaign, machine, store, force=False).queue
    for queued, outcome in ((crashed, "crash"), (fine, "ok")):
        key = case_key(queued.prepared.case, queued.prepared.scenario)
        record = RunRecord(
            id=f"run-{key}",
            source="s",
            source_group="g",
            model="m",
            gpu="cpu",
            method="lora",
            seq_len=8,
            outcome=outcome,
        )
        run = {
            "started_at": "2026-01-01",
            "duration_s": 1.0,
            "how": "fork",
            "said": {},
            "options": {},
            "workload": "loop",
            "ranks": [],
        }
        host = asdict(HostPeaks(None, None, None, None, None, None, 0, 0.05))
        raw = {"case_key": key, "environment_key": "e", **run, "host": host}
        store.add(MeasuredRecord(record, {"raw": raw, "environment": machine.environment}))
    assert plan_agenda(campaign, machine, store, force=False).queue == ()
    again = plan_agenda(campaign, machine, store, force=False, retry=outcomes("--retry", "crash,timeout"))
    assert [queued.label for queued in again.queue] == [crashed.label]
    assert again.recorded == 1
    with pytest.raises(UsageError, match="allowed: ok, oom"):
        outcomes("--retry", "sadness")


class Clock:
    """Seconds that pass only when something is done."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        """Now."""
        return self.now_s


def test_the_first_start_is_no_part_of_the_first_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of imports, then cases of five seconds: the estimate of the rest counts cases only,
    and the minute is said.
    """
    clock, left = Clock(), []

    def spend(seconds: float, answer: Any = None) -> Any:
        clock.now_s += seconds
        return answer

    class Parent:
        """The launcher as the campaign sees it."""

        def __init__(self, _nvml: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def warm_up(self) -> float:
            """A minute."""
            return float(spend(60.0, 60.0))

    measured: Any = finished("ok")[1]
    monkeypatch.setattr(runner, "time", clock)
    monkeypatch.setattr(runner, "Launcher", Parent)
    monkeypatch.setattr(runner, "run_prepared", lambda *_: spend(5.0, measured))
    text = HEAD + "".join(CASE.replace("64", str(64 * number)) + 'gpu = "cpu"\n' for number in (1, 2, 3))
    campaign = read_campaign(written(tmp_path, text))
    machine = Machine(None, (), None, {"machine": "x"})
    agenda = plan_agenda(campaign, machine, Store(tmp_path / "out"), force=False)
    progress: Any = SimpleNamespace(begin=lambda _, eta_s: left.append(eta_s), end=lambda *_: None)
    store: Any = SimpleNamespace(add=lambda _: None)
    tally = run_agenda(agenda, machine, store, progress, budget_s=73.0)
    # Three seconds are left of the budget after two cases, too few for a third.
    assert (left, tally.warm_up_s, tally.left, tally.stopped) == ([None, 10.0], 60.0, 1, True)
    tally.measured.clear()
    assert "torch and Transformers were imported once, in 60" in tally_text("title", agenda, tally, tmp_path)
