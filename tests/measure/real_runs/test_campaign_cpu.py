"""Campaigns for real, on the CPU: recorded case by case, resumed, and never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from measure.run.launcher import Launcher
from measure.run.readings.machine import Machine
from measure.run.store import Store
from planner.records import read_records
from tests.extras import import_or_skip

psutil = import_or_skip("psutil")
ROOT = Path(__file__).resolve().parents[3]


def campaign_file(folder: Path, config: str, cases: int) -> Path:
    """A campaign of small cases that differ in length."""
    text = (
        f'schema = 1\n[defaults]\nmodel = "{config}"\ngpu = "cpu"\nworkload = "loop"\nwarmup = '
        "1\nsteps = 1\nmax_steps = 1\n"
    )
    text += f'[[grid]]\nmethod = "lora"\nseq = {[16 * (number + 1) for number in range(cases)]}\n'
    path = folder / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    return path


def command(file: Path, out: Path, *more: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "measure", "campaign", str(file), "--out", str(out), *more]


def lines(out: Path) -> list[str]:
    """All lines of the record files."""
    return [
        line for path in sorted(out.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def wait_for(condition: object, timeout_s: float = 120.0) -> bool:
    """Whether ``condition()`` came true in time."""
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_killed_campaign_goes_on_where_it_stopped(launcher: Launcher, config: str, tmp_path: Path) -> None:
    """``kill -9`` loses at most the running case and leaves no process and, from the next start on,
    no folder.

    A torn line is put aside, a bad one before it is left out and said, and the rest is run once.
    """
    file, out, temporary = campaign_file(tmp_path, config, 3), tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    here = {**os.environ, "TMPDIR": str(temporary)}
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command(file, out), cwd=ROOT, stdout=nowhere, stderr=nowhere, env=here)
    assert wait_for(lambda: len(lines(out)) >= 1)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert family
    assert wait_for(
        lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family), 20
    )
    first = lines(out)
    assert 1 <= len(first) <= 2
    (path,) = out.glob("*.jsonl")
    with path.open("a", encoding="utf-8") as stream:
        stream.write('rubbish\n{"schema": "planner/record@1", "id": "half')
    left = list(temporary.glob("measure-*"))
    for folder in left:
        os.utime(folder, (0, 0))
    done = subprocess.run(command(file, out), cwd=ROOT, capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    assert f"{len(first)} were recorded before" in done.stdout
    assert "2 lines of the records are no records and are left out" in done.stderr
    # Whether there was one depends on the moment of the kill; `test_case_folder` makes one for certain.
    assert not list(temporary.glob("measure-*"))
    records = read_records([path], by_row=True).records
    assert lines(out)[: len(first)] == first
    assert sorted(record.seq_len for record in records) == [16, 32, 48]
    assert (out / (path.name + ".torn")).exists()
    again = subprocess.run(
        command(file, out, "--dry-run"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "0 to run, 3 recorded already" in again.stdout


@pytest.mark.slow
def test_two_campaigns_in_one_folder_measure_each_case_once(
    launcher: Launcher, config: str, tmp_path: Path
) -> None:
    """While the first works there, one is refused and told who works there, and one waits,
    which then finds all recorded.
    """
    file, out = campaign_file(tmp_path, config, 2), tmp_path / "out"
    pipe = subprocess.PIPE
    with subprocess.Popen(command(file, out), cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as first:
        assert wait_for(lambda: (out / ".lock").exists() and (out / ".lock").stat().st_size)
        refused = subprocess.run(command(file, out), cwd=ROOT, capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"another campaign works in '{out}': process {first.pid} on " in refused.stderr
        waited = subprocess.run(
            command(file, out, "--wait"), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert first.communicate()[0].startswith("case")
    assert waited.returncode == 0, waited.stderr
    assert "waiting for its end" in waited.stderr
    assert "2 were recorded before" in waited.stdout
    assert len(lines(out)) == 2


def test_the_time_budget_ends_a_campaign_in_order(launcher: Launcher, config: str, tmp_path: Path) -> None:
    """A budget that is too short for a case runs none of them, says so, and counts nothing as a timeout."""
    file, out = campaign_file(tmp_path, config, 2), tmp_path / "out"
    done = subprocess.run(
        command(file, out, "--time-budget", "1s"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 cases are left (the time is over)" in done.stdout
    assert lines(out) == []


def test_records_are_checked(
    measure: Any, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``measure check`` says why each record is doubtful;
    a record file of a newer schema stops a campaign before it starts.
    """
    file, out = campaign_file(tmp_path, config, 1), tmp_path / "out"
    store = Store(out)
    store.prepare()
    store.add(measure(options={"warmup": 1, "steps": 1, "max_steps": 1}))
    assert main(["check", str(out / "*.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "1 record: 0 good, 1 doubtful; 1 environment\n" in said
    assert "too few steps: 1 record\n" in said
    assert "1 warm-up and 1 counted, at least 3 and 5" in said
    assert "a CPU run: 1 record" in said
    (path,) = out.glob("*.jsonl")
    path.write_text(
        path.read_text(encoding="utf-8").replace("planner/record@1", "planner/record@9"), encoding="utf-8"
    )
    refused = subprocess.run(command(file, out), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "newer planner" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere.toml"], "no such file"), (["x", "--time-budget", "soon"], "must be a time")],
)
def test_bad_calls_of_a_campaign(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit code 2."""
    code = main(["campaign", *arguments])
    said = capsys.readouterr().err
    assert (code, len(said.splitlines())) == (2, 1)
    assert message in said


def test_the_environment_is_said(machine: Machine) -> None:
    """``measure env`` prints what a measurement would be made on, with the key that records carry."""
    done = subprocess.run(
        [sys.executable, "-m", "measure", "env"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "environment_key" in done.stdout
    assert any(
        line.split() == ["machine", machine.environment["machine"]] for line in done.stdout.splitlines()
    )


def test_a_campaign_for_a_gpu_needs_one() -> None:
    """On a machine without GPUs the first campaign runs nothing and says why."""
    call = [sys.executable, "-m", "measure", "campaign", "data/campaigns/first.toml"]
    done = subprocess.run(
        call,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no GPU is here" in done.stderr


def test_a_campaign_goes_through_an_executor(launcher: Launcher, config: str, tmp_path: Path) -> None:
    """submitit's local executor runs the job in a process of its own;
    its records are those of the same campaign here.
    """
    import_or_skip("submitit")
    file, out = campaign_file(tmp_path, config, 1), tmp_path / "out"
    done = subprocess.run(
        command(file, out, "--executor", "local", "--share", "1/1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "submitted to local" in done.stdout
    assert wait_for(lambda: len(lines(out / "job-1")) == 1, 180)


# What sbatch and srun do, as far as submitit sees it:
# a job runs in the background and in the environment of one.
SBATCH = """#!/bin/sh
cp "$1" "$SLURM_DOUBLE/submitted.sh"
export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
export SLURM_JOB_NODELIST=here
sh "$1" > "$SLURM_DOUBLE/log.txt" 2>&1 &
echo "Submitted batch job 7"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do case "$1" in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""


@pytest.mark.slow
def test_a_campaign_goes_through_slurm(launcher: Launcher, config: str, tmp_path: Path) -> None:
    """submitit's own way to Slurm, on doubles of sbatch and srun: what is asked for,
    and the records of the job.
    """
    import_or_skip("submitit")
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    file, out = campaign_file(tmp_path, config, 2), tmp_path / "out"
    asked = ["--executor", "slurm", "--partition", "gpu", "--time-budget", "30m", "--slurm", "account=lab"]
    variables = {
        **os.environ,
        "SLURM_DOUBLE": str(tmp_path),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command(file, out, *asked), cwd=ROOT, capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert "submitted to slurm: 7" in done.stdout
    submitted = (tmp_path / "submitted.sh").read_text(encoding="utf-8")
    for option in ("--partition=gpu", "--gpus-per-node=1", "--time=40", "--account=lab"):
        assert f"#SBATCH {option}\n" in submitted
    assert wait_for(lambda: len(lines(out / "job-1")) == 2, 180), (tmp_path / "log.txt").read_text(
        encoding="utf-8"
    )
    # Nothing of the submitting machine's environment is written to the disk.
    assert not [path for path in (out / "jobs").iterdir() if b"SLURM_DOUBLE" in path.read_bytes()]


def test_an_executor_that_is_not_here(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown one is named with those that are known, and nothing is written."""
    file = campaign_file(tmp_path, config, 1)
    assert main(["campaign", str(file), "--out", str(tmp_path / "out"), "--executor", "pigeon"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "allowed: slurm, local" in said.err
    assert not (tmp_path / "out").exists()
