"""Campaign files and the order of their cases; no framework needed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from measure.campaign import remote, runner
from measure.campaign.file import PlannedCase, read_campaign
from measure.campaign.order import in_teaching_order
from measure.campaign.remote import Submission, share_command, take_share
from measure.campaign.runner import Agenda, Tally, plan_agenda, run_agenda
from measure.campaign.summary import tally_text
from measure.cli.main import main
from measure.run.assemble import Measured
from measure.run.case import RunOptions, case_key
from measure.run.options import duration_s, outcomes
from measure.run.readings.environment import collect_environment
from measure.run.readings.host import HostPeaks
from measure.run.readings.machine import Machine
from measure.run.readings.nvml import Gpu
from measure.run.store import Store
from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UsageError
from planner.units import MIB
from tests.extras import import_or_skip, needs

CAMPAIGNS = sorted((data_dir() / "campaigns").glob("*.toml"))
HEAD = "schema = 1\n"
CASE = '[[case]]\nmodel = "qwen2.5-0.5b"\nmethod = "lora"\nseq = 64\n'


def written(folder: Path, text: str) -> Path:
    """A campaign file with this text."""
    path = folder / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_grid_is_every_combination_over_the_defaults(tmp_path: Path) -> None:
    """Two methods and two lengths are four cases; a repeat makes second ones; options and job are told apart."""
    grid = '[[grid]]\nmodel = "qwen2.5-0.5b"\nmethod = ["lora", "full"]\nseq = [64, 128]\nrepeat = 2\n'
    text = HEAD + "[defaults]\nsteps = 7\nbatch = 2\n" + grid
    cases = read_campaign(written(tmp_path, text)).cases
    assert len(cases) == 8
    assert {(case.values["method"], case.values["seq"], case.number) for case in cases} == {
        (method, seq, number) for method in ("lora", "full") for seq in (64, 128) for number in (0, 1)
    }
    assert {case.options.steps for case in cases} == {7}
    assert {case.values["batch"] for case in cases} == {2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "schema must be 1"),
        ("schema = 2\n" + CASE, "newer"),
        (HEAD, "holds no cases"),
        (HEAD + "[[case]]\nmethod = 'lora'\nseq = 1\n", "case 1: missing model"),
        (HEAD + CASE + "sequence = 3\n", "case 1: unknown key 'sequence'"),
        (HEAD + "colour = 3\n", "unknown key 'colour'"),
        (HEAD + CASE + "repeat = 0\n", "repeat must be"),
        (HEAD + CASE + "steps = 'many'\n", "steps must be"),
        (HEAD + CASE + "memory_limit = 'huge'\n", "memory_limit must be"),
        (HEAD + CASE + "workload = 'treadmill'\n", "unknown workload"),
        (HEAD + CASE + "rendezvous = 3\n", "rendezvous must be a text"),
        (HEAD + CASE + "rendezvous = 'node'\n", "a host and a port"),
        (HEAD + CASE.replace("lora", "lorra"), "unknown method"),
        (HEAD + "[case]\nseq = 1\n", "must be written"),
        (HEAD + "[[", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_whole(tmp_path: Path, text: str, problem: str) -> None:
    """One sentence with the file, the place and the problem, before anything runs."""
    path = written(tmp_path, text)
    with pytest.raises(InputFileError, match=str(path)) as raised:
        read_campaign(path)
    assert problem in str(raised.value)


def case(number: int = 0, **values: object) -> PlannedCase:
    """A case with these values."""
    return PlannedCase({"model": "a", "method": "lora", "seq": 64, **values}, RunOptions(), number)


def test_new_methods_and_models_come_before_more_of_the_same() -> None:
    """After one case the next differs in model and method; repeats come when everything was seen once."""
    cases = [case(), case(1), case(seq=128), case(model="b"), case(method="full"), case(model="b", method="full", seq=256)]
    ordered = in_teaching_order(cases)
    assert ordered[0] == cases[0]
    assert ordered[1] == cases[5]
    assert ordered[-1] == cases[1]
    assert sorted(map(id, ordered)) == sorted(map(id, cases))


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
    """Large models would fill the host: a case runs on the CPU only where the file says so."""
    campaign = read_campaign(data_dir() / "campaigns" / "first.toml")
    agenda = plan_agenda(campaign, Machine(None, (), None, {"machine": "x"}), Store(Path("/nowhere")), force=False)
    assert agenda.queue == ()
    assert {each.reason for each in agenda.refused} == {"no GPU is here; a case runs on the CPU only where it says gpu = 'cpu'"}


def test_each_reason_is_said_once_with_its_cases(tmp_path: Path) -> None:
    """A campaign names what cannot run here, by what tells the cases apart."""
    text = HEAD + CASE + CASE.replace("lora", "full") + 'sharding = "ddp"\n'
    campaign = read_campaign(written(tmp_path, text))
    agenda = plan_agenda(campaign, Machine(None, (), None, {"machine": "x"}), Store(tmp_path), force=False)
    said = tally_text("title", agenda, Tally(), tmp_path).splitlines()
    assert said[1].startswith("not possible here (2): no GPU is here")
    assert sorted(said[2:4]) == ["   -  qwen2.5-0.5b full seq 64 batch 1, sharding ddp", "   -  qwen2.5-0.5b lora seq 64 batch 1"]


@needs("psutil")
def test_what_failed_is_run_again_where_that_is_asked(tmp_path: Path) -> None:
    """A recorded crash counts as recorded; with --retry crash its case is on the agenda once more, and an ok one is not."""
    campaign = read_campaign(written(tmp_path, HEAD + CASE + 'gpu = "cpu"\n' + CASE.replace("64", "128") + 'gpu = "cpu"\n'))
    machine, store = Machine(None, (), None, collect_environment(None, ())), Store(tmp_path / "out")
    store.prepare()
    crashed, fine = plan_agenda(campaign, machine, store, force=False).queue
    for queued, outcome in ((crashed, "crash"), (fine, "ok")):
        key = case_key(queued.prepared.case, queued.prepared.scenario)
        record = RunRecord(
            id=f"run-{key}", source="s", source_group="g", model="m", gpu="cpu", method="lora", seq_len=8, outcome=outcome
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
        store.add(Measured(record, {"raw": raw, "environment": machine.environment}))
    assert plan_agenda(campaign, machine, store, force=False).queue == ()
    again = plan_agenda(campaign, machine, store, force=False, retry=outcomes("--retry", "crash,timeout"))
    assert [queued.label for queued in again.queue] == [crashed.label]
    assert again.recorded == 1
    with pytest.raises(UsageError, match="allowed: ok, oom"):
        outcomes("--retry", "sadness")


def test_times_are_read_with_their_units() -> None:
    """Hours, minutes, seconds and bare seconds."""
    assert [duration_s("--time-budget", text) for text in ("9m", "90", "1h30m", "45s", "1m30s")] == [540, 90, 5400, 45, 90]
    for text in ("", "0", "soon", "-5m"):
        with pytest.raises(UsageError, match="must be a time"):
            duration_s("--time-budget", text)


def test_shares_are_disjoint_and_whole() -> None:
    """Every case is in one share; what is no share is refused."""
    cases = tuple(case(seq=number) for number in range(1, 8))
    shares = [take_share(cases, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(each.values["seq"] for share in shares for each in share) == list(range(1, 8))
    assert take_share(cases, None) == cases
    for text in ("0/3", "4/3", "x", "1"):
        with pytest.raises(UsageError, match="--share must be"):
            take_share(cases, text)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["--partition", "gpu"], "--partition says nothing without Slurm"),
        (["--executor", "local", "--slurm", "account=lab"], "--slurm says nothing without Slurm"),
        (["--executor", "slurm", "--retry", "sadness"], "allowed: ok, oom"),
    ],
)
def test_what_no_job_would_heed_is_refused_before_one_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: list[str], reason: str
) -> None:
    """Slurm's options without Slurm and outcomes that do not exist: exit code 2 and a sentence, and nothing is started."""
    assert main(["campaign", str(written(tmp_path, HEAD + CASE)), "--out", str(tmp_path / "out"), *said]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Clock:
    """Seconds that pass only when something is done."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        """Now."""
        return self.now_s


def test_the_first_start_is_no_part_of_the_first_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of imports, then cases of five seconds: the estimate of the rest counts cases only, and the minute is said."""
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


def test_a_job_keeps_the_environment_that_its_scheduler_gives_it(tmp_path: Path) -> None:
    """Which cards are the job's own is said there: the command adds where the package is, and nothing else."""
    command = share_command(Path("a.toml"), tmp_path, "2/4", Submission("slurm", 4, None, None))
    assert command[0] == "env"
    assert command[1].startswith("PYTHONPATH=")
    assert command[2:6] == [sys.executable, "-m", "measure", "campaign"]


def finished(outcome: str, error: str | None = None) -> tuple[str, Any]:
    """A case that ended so."""
    record = SimpleNamespace(outcome=outcome, peak_memory_mib=None, step_time_s=None)
    return "case", SimpleNamespace(record=record, attachments={"raw": {"error": error}, "quality": {"verdict": "doubtful"}})


def test_cases_that_all_crash_alike_are_the_machines_fault(tmp_path: Path) -> None:
    """Five of five with one message stop a campaign, with what to do; one that ran, or another message, does not."""
    alike = [finished("crash", "no CUDA device")] * 5
    tally = Tally(measured=alike, left=79)
    assert tally.same_crash == "no CUDA device"
    said = tally_text("title", Agenda((), 0, ()), tally, tmp_path)
    assert "every case crashed with: no CUDA device; when that is mended, --retry crash" in said
    assert Tally(measured=alike[1:]).same_crash is None
    assert Tally(measured=[*alike, finished("ok")]).same_crash is None
    assert Tally(measured=[*alike, finished("crash", "another")]).same_crash is None


def test_jobs_on_this_machine_have_a_card_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's local executor hides all cards; jobs run at once, so more of them than cards would measure each other."""
    submitted: list[list[str]] = []
    submitit = import_or_skip("submitit")
    executor: Any = SimpleNamespace(update_parameters=lambda **_: None, submit=lambda wrapped: submitted.append(wrapped.command))
    monkeypatch.setattr(submitit, "AutoExecutor", lambda **_: executor)
    cards = tuple(Gpu(index, "NVIDIA H200", "0" * 12, 143771 * MIB, "580.1", "13.0") for index in (2, 3))
    monkeypatch.setattr(remote, "look_for_gpus", lambda: (None, cards, None))
    remote.submit(tmp_path / "a.toml", tmp_path, Submission("local", 2, None, None))
    assert [command[2] for command in submitted] == ["CUDA_VISIBLE_DEVICES=2", "CUDA_VISIBLE_DEVICES=3"]
    with pytest.raises(UsageError, match="3 jobs on this machine would share 2 GPUs"):
        remote.submit(tmp_path / "a.toml", tmp_path, Submission("local", 3, None, None))
    submitted.clear()
    remote.submit(tmp_path / "a.toml", tmp_path, Submission("slurm", 3, None, None))
    assert not [part for command in submitted for part in command if "CUDA" in part]
