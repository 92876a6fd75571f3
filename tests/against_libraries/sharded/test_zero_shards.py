"""What each process holds under DeepSpeed's ZeRO stages: real two-process runs on the CPU (gloo)
against the step program.

The worker goes through ``deepspeed.initialize`` with torch's AdamW and gloo, so that nothing is compiled.
Trained tensors are flattened into one buffer per group, which is padded to a multiple of 2 elements per
process (stages 1 and 2, each tensor to 16 bytes first where alignment is on); stage 3 pads each tensor to a
multiple of the number of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from scenarios import Setup, job

from planner.domain.recipes.recipe import Dtype, Offload
from planner.domain.recipes.sharding import ShardingName
from planner.domain.term import TermName
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of
from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("transformers")
import_or_skip("peft")
import_or_skip("deepspeed")

pytestmark = pytest.mark.slow

Reports = dict[str, list[dict[str, Any]]]

WORLD = 2
LIMIT_S = 300
RANK = 4
MODEL = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 336, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320,
}  # fmt: skip
OPTIMIZERS = {1: "DeepSpeedZeroOptimizer", 2: "DeepSpeedZeroOptimizer", 3: "DeepSpeedZeroOptimizer_Stage3"}


@dataclass(frozen=True)
class Case:
    """One run.  ``zero_init``: the model is made inside ``zero.Init``,
    as ``from_pretrained`` makes it under stage 3.
    """

    stage: int
    rank: int
    zero_init: bool = False
    offload: Offload = "none"
    accum: int = 1

    @property
    def adapter_dtype(self) -> Dtype:
        """The dtype that the planner is told: fp32, as PEFT makes adapters;
        what the engine makes of it is the planner's to know.

        Under stage 3 that holds for models made inside ``zero.Init``;
        one that the engine finds whole is cast first.
        """
        return "bf16" if self.stage == 3 and not self.zero_init else "fp32"


CASES = {
    "zero1-full": Case(1, 0),
    "zero1-lora": Case(1, RANK),
    "zero2-full": Case(2, 0),
    "zero2-lora": Case(2, RANK),
    "zero3-full": Case(3, 0, zero_init=True),
    "zero3-lora": Case(3, RANK, zero_init=True),
    "zero3-lora-whole-model": Case(3, RANK),
}
# What these keep in host RAM: test_host_buffers.py.
OFFLOADED = {
    "zero2-offload": Case(2, 0, offload="optimizer"),
    "zero2-offload-accumulated": Case(2, 0, offload="optimizer", accum=2),
    "zero3-offload": Case(3, 0, zero_init=True, offload="optimizer+params"),
    "zero3-offload-lora": Case(3, RANK, zero_init=True, offload="optimizer+params"),
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Case -> what each of the two processes reports.  All cases share one run,
    and parallel test processes share its files.
    """
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "zero"
    try:
        out.mkdir()
    except FileExistsError:
        wait_for(out / "done")
    else:
        run_workers(out)
    ranks = [json.loads((out / f"rank{index}.json").read_text()) for index in range(WORLD)]
    return {name: [rank[name] for rank in ranks] for name in CASES | OFFLOADED}


def run_workers(out: Path) -> None:
    """Start the two processes and wait; ``out/done`` says that they are through, whatever came of it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(WORLD)]
    command += [
        str(Path(__file__).parents[1] / "zero_worker.py"),
        "--model",
        json.dumps(MODEL),
        "--out",
        str(out),
    ]
    command += ["--cases", json.dumps({name: asdict(case) for name, case in (CASES | OFFLOADED).items()})]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    finally:
        (out / "done").touch()
    if run.returncode:
        pytest.fail(f"the two processes failed\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")


def wait_for(path: Path) -> None:
    """Wait until another test process has written ``path``."""
    start = time.monotonic()
    while not path.exists():
        if time.monotonic() - start > LIMIT_S:
            pytest.fail("another test process did not finish the two-process run")
        time.sleep(0.2)


def prediction(name: str) -> Job:
    """The planner's description of the run."""
    case = CASES[name]
    sharding: ShardingName = "zero1" if case.stage == 1 else "zero2" if case.stage == 2 else "zero3"
    setup = Setup(
        rank=case.rank,
        adapter_dtype=case.adapter_dtype,
        sharding=sharding,
        world=WORLD,
        mixed=True,
        optimizer="adamw_torch",
    )
    return job(MODEL, setup)


def held(name: str, end: str = "eval") -> Counter[TermName]:
    """Bytes of each term that the program of the run has when the phase ``end`` begins first:
    when its steps are over, unless it is said.
    """
    asked = prediction(name)
    stream = step_of(asked)
    sizes = stream.sizes({unit: float(count) for unit, count in unit_values(asked).items()})
    last = next((begin for begin, phase in stream.phases if phase == end), len(stream.events))
    found: Counter[TermName] = Counter()
    for event in stream.events[:last]:
        slot = event if event >= 0 else ~event
        found[stream.term(slot)] += sizes[slot] if event >= 0 else -sizes[slot]
    return found


@every_case
def test_the_engine_is_the_one_that_is_described(name: str, reports: Reports) -> None:
    """The run really goes through DeepSpeed's engine and its ZeRO optimizer,
    not through plain data parallelism.
    """
    for report in reports[name]:
        assert report["engine"] == "DeepSpeedEngine"
        assert report["class"] == OPTIMIZERS[CASES[name].stage]


@every_case
def test_trained_and_frozen_weights(name: str, reports: Reports) -> None:
    """Stages 1 and 2 keep all weights in 16-bit on every process; stage 3 divides them all,
    frozen ones included.
    """
    case, program = CASES[name], held(name)
    base, adapters = program["weights"], program["adapters"]
    trained, frozen = (adapters, base) if case.rank else (base, 0)
    for report in reports[name]:
        assert (report["trained"], report["frozen"]) == (trained, frozen)


@every_case
def test_small_parameters_stay_whole_under_stage_3(name: str, reports: Reports) -> None:
    """Norms, and LoRA matrices below ten times the width,
    are kept whole on every process under stage 3 only.
    """
    for report in reports[name]:
        assert report["whole"] == held(name)["gathered_parameters"]
        assert (report["whole"] > 0) == (CASES[name].stage == 3)


@every_case
def test_master_weights(name: str, reports: Reports) -> None:
    """fp32 masters are one share per process; stage 3 keeps them beside fp32 adapters too."""
    for report in reports[name]:
        assert report["master"] == held(name)["master_weights"] == 4 * prediction(name).trained / WORLD
        if CASES[name].stage == 3:
            assert report["master_beside_weights"] == report["master"]


@every_case
def test_optimizer_states(name: str, reports: Reports) -> None:
    """Two fp32 states for each element of the share, in every stage."""
    for report in reports[name]:
        assert report["states"] == held(name)["optimizer_states"] == 8 * prediction(name).trained / WORLD


@every_case
def test_gradients(name: str, reports: Reports) -> None:
    """What waits for the step is a 16-bit share;
    stage 1 holds whole gradients until its backward is over, the others do not.

    Where the share ends inside of a parameter, its gradient is there whole.
    """
    case, expected = CASES[name], prediction(name)
    whole, waiting = 2 * expected.trained, held(name, "optimizer_step")["gradients"]
    assert expected.regime.gradient == 2
    largest = 2 * MODEL["intermediate_size"] * MODEL["hidden_size"]  # type: ignore[operator]
    for report in reports[name]:
        assert report["gradients"] == whole / WORLD
        assert 0 <= waiting - report["gradients"] < (0 if case.stage == 3 else largest) + 1
        assert report["whole_gradients"] == 0
        assert (report["end_of_backward"] == whole) == (case.stage == 1)


@every_case
def test_adapter_dtype(name: str, reports: Reports) -> None:
    """Stages 1 and 2 turn fp32 adapters to 16-bit.  So does stage 3,
    unless the model was made inside ``zero.Init``.
    """
    dtype = {2: "torch.bfloat16", 4: "torch.float32"}[prediction(name).regime.trained]
    assert dtype == ("torch.float32" if CASES[name] == Case(3, RANK, zero_init=True) else "torch.bfloat16")
    for report in reports[name]:
        assert report["trained_dtypes"] == [dtype]
