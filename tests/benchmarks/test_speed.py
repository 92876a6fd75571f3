"""How fast answers are, as ratios where possible.

Timing is asserted only when benchmarks are enabled (``make bench``); an ordinary test run calls each path
once. Limits are asked of what other programs on the machine do not change: processor time of a command, and
the fastest of many rounds of a call, which is what the code itself takes. The table of pytest-benchmark shows
the medians of the wall-clock time beside it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from planner.catalog.models import model_entry
from planner.catalog.stacks import load_stack
from planner.domain.scenario import Scenario
from planner.memory.replayed import _replayed as answers
from planner.memory.replayed import _run as runs
from planner.memory.replayed import replayed
from planner.memory.structures import _program as programs
from planner.predicting import PRIORS, estimate
from planner.program.job import job_of
from planner.searching.common_stacks import COMMON_STACKS
from planner.searching.grid import estimate_grid
from planner.searching.levers import levers
from planner.units import GIB, KIB, MILLI_S
from tests.extras import needs
from tests.jobs import resolved, typed

ROOT = Path(__file__).resolve().parents[2]
PREDICTION = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]
PLAN = [sys.executable, "-m", "planner", *PREDICTION]
# What a command line with the same libraries costs before it does anything.
IMPORTS = (
    "import numpy, typer; from pydantic import BaseModel; from rich.console import Console; from "
    "rich.table import Table"
)
# accelerate's estimator as its command runs it; only the look-up on the Hub is left out,
# because there is no network.
ACCELERATE = """
import sys
from types import SimpleNamespace
from accelerate.commands import estimate
estimate.verify_on_hub = lambda repo, token=None: SimpleNamespace(config={})
estimate.estimate_command(SimpleNamespace(
    model_name=sys.argv[1], library_name="transformers", trust_remote_code=False,
    dtypes=["float32", "bfloat16", "int4"]))
"""
# Prints which catalog files a prediction opens.
OPENED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from planner.cli.main import main
main(json.loads(sys.argv[1]))
print(json.dumps([name for name in opened if name.endswith(".toml")]), file=sys.stderr)
"""

LISTS = ("index", "sizes")
# Imports are one and a half of it; the rest are the programs and replays of twenty other jobs,
# which the report compares.
START_RATIO = 4.5
ACCELERATE_RATIO = 10.0
# Of a job that was not asked before, in a warm process: its replay without a limit,
# and the quick estimate of other sizes of it.
REPLAY_S = {"qlora": 30 * MILLI_S, "zero3 offload": 80 * MILLI_S, "fsdp, four nodes": 80 * MILLI_S}
QUICK_S = 10 * MILLI_S
SCENARIOS_PER_S = 1e6
GRID_BYTES = 2 * GIB
ADVICE_S = 0.5

JOBS: dict[str, dict[str, object]] = {
    "qlora": {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "1024"},
    "zero3 offload": typed(
        "--model Qwen/Qwen2.5-14B-Instruct --method lora --lora-rank 8 --gpu 4090:2 --sharding zero3 "
        "--offload optimizer+params --batch 16 --seq 51"
    ),
    "fsdp, four nodes": typed(
        "--model llama-3.1-70b --method full --gpu h100-sxm:8 --nodes 4 --sharding fsdp --seq 8192"
    ),
}


def scenario(name: str) -> Scenario:
    """A resolved scenario."""
    return resolved(JOBS[name])


def run(command: list[str]) -> None:
    """Run a command from the root of the project, where a checkout finds the package without an installation.

    Byte code is kept, as an installation keeps it:
    otherwise the time of compiling the package would be measured.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def seconds(command: list[str]) -> float:
    """Processor seconds of a command and what it starts, in user and system mode."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median_ratio(first: list[str], second: list[str], rounds: int) -> float:
    """Median time of ``first`` over that of ``second``, taken in turns so that a busy moment hits both."""
    pairs = [(seconds(first), seconds(second)) for _ in range(rounds)]
    return statistics.median(one for one, _ in pairs) / statistics.median(other for _, other in pairs)


def test_cold_start(benchmark: BenchmarkFixture) -> None:
    """A prediction from a cold process takes at most four and a half times as long as to import the libraries
    of a command line.
    """
    benchmark.pedantic(run, args=(PLAN,), rounds=3, warmup_rounds=1)
    if benchmark.enabled:
        ratio = median_ratio(PLAN, [sys.executable, "-c", IMPORTS], rounds=9)
        benchmark.extra_info["ratio_to_imports"] = round(ratio, 2)
        assert ratio <= START_RATIO


@needs("accelerate", "transformers", "torch")
def test_faster_than_the_estimator_of_accelerate(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A prediction takes at most a tenth of the time of accelerate's own estimate of the same model."""
    if not benchmark.enabled:
        pytest.skip("loads torch in another process: only when benchmarks are enabled")
    (tmp_path / "config.json").write_text(json.dumps(model_entry("llama-2-7b").config))
    other = [sys.executable, "-c", ACCELERATE, str(tmp_path)]
    benchmark.pedantic(run, args=(PLAN,), rounds=3, warmup_rounds=1)
    run(other)
    ratio = median_ratio(other, PLAN, rounds=3)
    benchmark.extra_info["times_faster_than_accelerate"] = round(ratio, 1)
    assert ratio >= ACCELERATE_RATIO


@pytest.mark.parametrize("name", JOBS)
def test_one_replay(benchmark: BenchmarkFixture, name: str) -> None:
    """The program of a job, built and replayed, where no answer is remembered:
    at most 30 or 80 milliseconds.
    """
    job = job_of(scenario(name), PRIORS)
    made = benchmark.pedantic(replayed, args=(job,), setup=forget, rounds=15 if benchmark.enabled else 1)
    assert made.reserved_bytes >= made.allocated_bytes
    if benchmark.enabled:
        assert benchmark.stats.stats.min <= REPLAY_S[name]


@pytest.mark.parametrize("name", JOBS)
def test_one_quick_estimate(benchmark: BenchmarkFixture, name: str) -> None:
    """From a resolved scenario whose program is known to its prediction, with time,
    in at most 10 milliseconds.
    """
    made = benchmark(partial(estimate, quick=True), scenario(name))
    assert made.time is not None
    if benchmark.enabled:
        assert benchmark.stats.stats.min <= QUICK_S


def forget() -> None:
    """Remembered replays go, and the programs that they replayed."""
    for remembered in (answers, runs, programs):
        remembered.cache_clear()


@pytest.mark.parametrize("sharding", ["ddp", "zero3", "fsdp"])
def test_a_million_scenarios(benchmark: BenchmarkFixture, sharding: str) -> None:
    """Peak memory and step time of a thousand batches of a thousand lengths:
    a million per second on one core, within 2 GiB.
    """
    if not benchmark.enabled:
        pytest.skip("speed alone; tests/planner/searching/test_grid.py has the numbers")
    flags = {"model": "7b", "method": "lora", "gpu": "a100-80gb:8", "seq": "1024", "sharding": sharding}
    sizes = {"batch": range(1, 1001), "length": range(128, 128_001, 128)}
    made = benchmark.pedantic(estimate_grid, args=(resolved(flags),), kwargs=sizes, rounds=5, warmup_rounds=1)
    assert made.step_s is not None
    scenarios = made.must_have_bytes.size
    rate = scenarios / benchmark.stats.stats.min
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    benchmark.extra_info.update(
        scenarios=scenarios, scenarios_per_s=round(rate), peak_process_bytes=peak_bytes
    )
    assert scenarios == 1_000_000
    assert rate >= SCENARIOS_PER_S
    assert peak_bytes < GRID_BYTES


def test_advice(benchmark: BenchmarkFixture) -> None:
    """What would make a job fit is found while nobody waits."""
    job = resolved({"model": "70b", "method": "full", "gpu": "4090:2", "seq": "2048", "batch": "2"})
    assert benchmark.pedantic(levers, args=(job,), rounds=5 if benchmark.enabled else 1)
    if benchmark.enabled:
        assert benchmark.stats.stats.min <= ADVICE_S


def test_catalogs_load_one_entry() -> None:
    """A prediction opens the file of its model, card, stack and host, and the list of sizes; and where nobody
    named a stack, the common ones, to say what they would need.  No other entry; and of the packages those
    that these stacks run, each once.
    """
    done = subprocess.run(
        [sys.executable, "-c", OPENED, json.dumps(PREDICTION)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    opened = [Path(name) for name in json.loads(done.stderr.splitlines()[-1])]
    folders = ("models", "gpus", "stacks", "hosts")
    # An index holds the names of all entries of a folder, sizes.toml what a bare size stands for: lists,
    # not entries.
    entries = sorted(
        f"{path.parent.name}/{path.stem}"
        for path in opened
        if path.parent.name in folders and path.stem not in LISTS
    )
    stacks = {f"stacks/{name.replace('@', '-')}" for name in COMMON_STACKS}
    assert len(entries) == len(set(entries))
    assert stacks <= set(entries)
    assert set(entries) - stacks == {"gpus/rtx4090", "hosts/unknown", "models/llama-2-7b"}
    packages = [path.stem for path in opened if path.parent.name == "packages"]
    assert sorted(packages) == sorted(
        {package for name in COMMON_STACKS for package, _ in load_stack(name).versions}
    )
    assert len(opened) - len(packages) <= 15
