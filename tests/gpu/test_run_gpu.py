"""Runs on a CUDA card: allocator figures, limits, histories.  Skipped without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from measure.run.readings.nvml import open_nvml
from planner.records import read_records
from planner.records.measured import RawReadings
from planner.units import GIB, MIB
from tests.extras import import_or_skip, needs

ROOT = Path(__file__).resolve().parents[2]
NVML = open_nvml()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NVML is None or not NVML.gpus(), reason="no CUDA device"),
    needs("torch", "peft"),
]
JOB = ["--model", "qwen2.5-0.5b", "--method", "lora", "--seq", "512", "--batch", "2"]


def run(out: Path, *arguments: str, code: int = 0) -> tuple[dict[str, Any], RawReadings]:
    """One run: its record and its readings."""
    command = [sys.executable, "-m", "measure", "run", *arguments, "--out", str(out), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    record = json.loads(done.stdout)
    return record, RawReadings.model_validate(record["raw"])


@pytest.mark.parametrize("workload", ["loop", "trainer"])
def test_every_level_is_measured(tmp_path: Path, workload: str) -> None:
    """Allocated, reserved and driver figures of every phase, in their order; a fork, device times,
    a context of its own.
    """
    record, raw = run(tmp_path, *JOB, "--workload", workload)
    assert record["memory_kind"] == "reserved"
    rank = raw.ranks[0]
    for phase in rank.phases:
        assert 0 < phase.allocated_peak_bytes <= phase.reserved_peak_bytes
        assert phase.device_used_bytes is None or phase.device_used_bytes > phase.reserved_end_bytes
    weights = next(phase for phase in rank.phases if phase.phase == "load").allocated_end_bytes
    assert weights == pytest.approx(2 * 494_032_768, rel=0.02)
    assert 100 * MIB < rank.context_bytes < 2 * GIB
    assert raw.how == "fork"
    assert all(step.device_s > 0 for step in raw.steps)
    assert raw.devices[0].peak_bytes - raw.devices[0].baseline_bytes > record["peak_memory_mib"] * MIB
    # Unknown in a container with process ids of its own.
    own_bytes = raw.devices[0].process_peak_bytes
    assert own_bytes is None or own_bytes > record["peak_memory_mib"] * MIB
    assert raw.host.machine_bytes > 0
    assert len(read_records([str(tmp_path / "*.jsonl")]).records) == 1


def test_a_limit_makes_a_real_shortage(tmp_path: Path) -> None:
    """Full fine-tuning of half a billion weights needs more than 3 GiB: the worker says so,
    with its phase.
    """
    record, raw = run(
        tmp_path,
        "--model",
        "qwen2.5-0.5b",
        "--method",
        "full",
        "--seq",
        "512",
        "--memory-limit",
        "3GiB",
        code=3,
    )
    assert record["outcome"] == "oom"
    assert record["phase_reached"] in (
        "forward",
        "loss",
        "backward",
        "optimizer_step",
        "loss_2",
        "backward_2",
        "forward_2",
    )
    assert record["memory_limit_mib"] == 3 * 1024
    cap = raw.ranks[0].cap
    assert cap["allowed_bytes"] == 3 * GIB - cap["outside_bytes"]


def test_a_history_is_replayed(tmp_path: Path) -> None:
    """The model of the allocator reserves what the real one did, within 2 % or 40 MiB."""
    _, raw = run(tmp_path, *JOB, "--history")
    command = [sys.executable, "-m", "measure", "replay", str(tmp_path / raw.history), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["reserved_peak_bytes_replayed"] == pytest.approx(
        numbers["reserved_peak_bytes_recorded"], rel=0.02, abs=40 * MIB
    )


def test_quantised_bases_and_8_bit_states_run(tmp_path: Path) -> None:
    """bitsandbytes on the card: nf4, int8, 8-bit and paged optimizers."""
    import_or_skip("bitsandbytes")
    for extra in (
        ["--method", "qlora"],
        ["--method", "int8"],
        ["--method", "full", "--optimizer", "paged_adamw_8bit"],
    ):
        record, raw = run(tmp_path, "--model", "qwen2.5-0.5b", "--seq", "256", *extra)
        assert record["outcome"] == "ok", raw.error


def test_zero_with_offload_runs_on_one_card(tmp_path: Path) -> None:
    """DeepSpeed's engine with its optimizer in host RAM."""
    import_or_skip("deepspeed")
    sharded = ["--sharding", "zero2", "--offload", "optimizer", "--workload", "loop", "--timeout", "600"]
    record, raw = run(tmp_path, "--model", "qwen2.5-0.5b", "--method", "full", "--seq", "256", *sharded)
    assert record["outcome"] == "ok", raw.error
    assert raw.engine_class == "deepspeed.runtime.engine.DeepSpeedEngine"


@pytest.mark.parametrize(
    ("sharding", "engine"),
    [
        ("zero2", "DeepSpeedEngine"),
        ("zero3", "DeepSpeedEngine"),
        ("fsdp", "FSDP"),
        ("fsdp1", "FullyShardedDataParallel"),
    ],
)
def test_the_trainer_shards_on_one_card(tmp_path: Path, sharding: str, engine: str) -> None:
    """The Trainer's own integrations, through torchrun with one rank: the engine that was asked for,
    and every phase.
    """
    if sharding.startswith("zero"):
        import_or_skip("deepspeed")
    job = [
        "--model",
        "qwen2.5-0.5b",
        "--method",
        "full",
        "--seq",
        "256",
        "--sharding",
        sharding,
        "--timeout",
        "600",
    ]
    record, raw = run(tmp_path, *job)
    assert record["outcome"] == "ok", raw.error
    assert engine in raw.engine_class
    assert raw.configs
    assert "optimizer_step" in [phase.phase for phase in raw.ranks[0].phases]


def test_four_bit_bytes_are_divided_on_cards(tmp_path: Path) -> None:
    """nf4 in bf16 bytes under FSDP2."""
    import_or_skip("bitsandbytes")
    sharded = ["--sharding", "fsdp", "--quant-storage", "bf16", "--workload", "loop"]
    record, raw = run(tmp_path, "--model", "qwen2.5-0.5b", "--method", "qlora", "--seq", "256", *sharded)
    assert record["outcome"] == "ok", raw.error


@pytest.mark.parametrize("workload", ["loop", "trainer"])
def test_the_liger_loss_runs(tmp_path: Path, workload: str) -> None:
    """Only the loss is Liger's; its phase begins where the decoder ends."""
    import_or_skip("liger_kernel")
    record, raw = run(tmp_path, *JOB, "--loss", "liger", "--workload", workload)
    assert record["outcome"] == "ok", raw.error
    assert "loss" in [phase.phase for phase in raw.ranks[0].phases]
