"""The step program of one process of two whose model has a tower that reads nothing, against the dry run of
the real modules, FSDP2 and DeepSpeed: what is allocated at the peak.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner.allocator.events import read_jsonl
from tests.against_libraries.dry_run.test_dry_run import run
from tests.against_libraries.dry_run.test_vision_dry_run import (
    CONFIGS,
    PROGRAM,
    SIZES,
    program_peak,
    pytestmark,
    tiles,
    trace_peak,
)
from tests.extras import needs

__all__ = ["pytestmark"]
FSDP2 = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 2
machine_rank: 0
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: false
  fsdp_reshard_after_forward: true
"""
AUTO = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)
ZERO: dict[str, dict[str, Any]] = {
    "zero2": {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 100_000},
    "zero3": {"stage": 3, **AUTO},
}
SWITCHES: dict[str, list[str]] = {
    "zero2": ["zero12_overlap=false", "zero12_bucket_elements=100000"],
    "zero3": ["zero_auto_buckets=true"],
}


class Tried(NamedTuple):
    """A job.  ``units``: the class that must be named where Transformers lists one that is not there."""

    kind: str
    sharding: str
    method: str
    frozen: bool
    units: str = ""


JOBS = (
    Tried("gemma4", "fsdp", "full", True, "Gemma4TextDecoderLayer"),
    Tried("gemma3", "fsdp", "lora", True, "Gemma3DecoderLayer"),
    Tried("internvl", "fsdp", "full", True),
    Tried("gemma4", "zero3", "lora", True),
    Tried("gemma3", "zero3", "full", False),
    Tried("internvl", "zero2", "full", False),
)


def flags_of(job: Tried) -> dict[str, object]:
    """The same job in words of ``plan``."""
    _, sharding, method, frozen, _ = job
    flags: dict[str, object] = {
        "model": "config.json", "method": method, "gpu": "a100-80-sxm", "gpus": 2, "sharding": sharding,
        "seq": 1024, "images_per_sample": 0, "gradient_checkpointing": True, "checkpoint_reentrant": False,
        "precision": "bf16-mixed", "load_dtype": "bf16", "attention": "sdpa", "padding": "packed",
        "optimizer": "adamw_torch",
    }  # fmt: skip
    flags |= {"switches": SWITCHES[sharding]} if sharding in SWITCHES else {}
    flags |= {"freeze": "vision_tower;projector"} if frozen else {}
    adapter = {"lora_rank": 16, "lora_dropout": 0, "lora_targets": "all-linear", "adapter_dtype": "fp32"}
    return flags | (adapter if method == "lora" else {})


def traced_peak(job: Tried, *more: str) -> int:
    """The peak of the real program as the first of two processes."""
    Path("config.json").write_text(json.dumps(CONFIGS[job.kind]), encoding="utf-8")
    words = [str(PROGRAM), "config.json", job.method, str(job.frozen).lower(), "true", *more]
    if job.sharding == "fsdp":
        named = f"  fsdp_transformer_layer_cls_to_wrap: {job.units}\n" if job.units else ""
        Path("launch.yaml").write_text(FSDP2 + named, encoding="utf-8")
        words = ["accelerate", "launch", "--config_file", "launch.yaml", *words]
    else:
        sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        file: dict[str, Any] = {"zero_optimization": ZERO[job.sharding], "bf16": {"enabled": "auto"}}
        file |= dict.fromkeys((*sizes, "gradient_clipping"), "auto")
        Path("ds.json").write_text(json.dumps(file), encoding="utf-8")
        words = ["torchrun", "--nproc_per_node", "2", *words, "ds.json"]
    code, _, err = run("trace", "--gpu", "a100-80-sxm:2", "--events", "dry.jsonl", "--", *words)
    assert code == 0, err
    return trace_peak(read_jsonl("dry.jsonl"))


@needs("deepspeed")
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.kind}-{job.sharding}")
def test_a_tower_at_rest_is_divided_as_the_real_one(
    job: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 %."""
    monkeypatch.chdir(tmp_path)
    real = traced_peak(job, "text")
    assert program_peak(flags_of(job)) == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "units"),
    [
        ("qwen2_5_vl", ""),
        ("gemma3", "Gemma3DecoderLayer"),
        ("llava", "LlamaDecoderLayer"),
        ("internvl", ""),
        ("mistral3", ""),
    ],
)
def test_a_tower_that_sees_is_divided_by_fsdp2_as_the_real_one(
    kind: str, units: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 %, trained as a whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILES", tiles(kind))
    job = Tried(kind, "fsdp", "full", False, units)
    real = traced_peak(job)
    peak = program_peak({**flags_of(job), "images_per_sample": 2, "image_size": SIZES[kind]})
    assert peak == pytest.approx(real, rel=0.02)
