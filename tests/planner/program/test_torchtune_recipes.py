"""Recipes of torchtune 0.6.1, and Axolotl 0.19.0 with torchao's quantisers, beside their own dry runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from planner.memory.replayed import replayed
from tests.jobs import job_by, typed

# Rows of no fewer tokens than the recipe lets through; Gemma 2 with a tokenizer of Llama 3, FSDP2.
ROWS = Path(__file__).parents[2] / "against_libraries/programs/torchtune.csv"
AXOLOTL: dict[str, Any] = typed(
    "--stack axolotl --method full --seq 2048 --batch 2 --qat int8-int4 --qat-group 32 "
    "--optimizer adamw_torch_fused --attention flash2 --loss liger"
)


@pytest.mark.parametrize(
    "row", list(csv.DictReader(ROWS.open(encoding="utf-8"))), ids=lambda row: str(row["job"])
)
def test_recipes_of_torchtune(row: dict[str, str]) -> None:
    """Two micro-batches where nothing else is said; half a percent of what is allocated."""
    words = {name: value for name, _, value in (word.partition("=") for word in row["job"].split())}
    base = {"stack": "torchtune", "gpu": "h100-sxm", "grad_accum": 2, "switches": "rotary_positions=131072"}
    phases = replayed(job_by({**base, **words})).phases
    allocated = max(int(each.allocated_bytes) for each in phases)
    assert allocated == pytest.approx(int(row["allocated_bytes"]), rel=0.005)
    reserved = max(int(each.reserved_bytes) for each in phases)
    assert reserved == pytest.approx(int(row["reserved_bytes"]), rel=0.015)


def test_axolotl_rounds_weights_otherwise() -> None:
    """Llama 3.2 1B on one GPU, and on two whose layers and their parts are checkpointed (backward pass)."""
    one = {**AXOLOTL, "model": "llama-3.2-1b", "gpu": "h100-sxm", "gradient_checkpointing": True}
    two = {**one, "gpu": "h100-sxm:2", "sharding": "fsdp", "checkpoint_reentrant": False}
    kernels = ("fused_norm=true", "fused_mlp=true")
    for flags, switches, allocated in (
        (one, kernels, 11_847_161_856),
        (two, (*kernels, "checkpoints_twice=true"), 7_667_198_976),
    ):
        job = job_by({**flags, "switches": switches})
        found = max(int(each.allocated_bytes) for each in replayed(job).phases)
        assert found == pytest.approx(allocated, rel=0.005)


LIGER = {**AXOLOTL, "gpu": "h100-sxm:2", "sharding": "fsdp", "checkpoint_reentrant": False}


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        ({"model": "llama-3.2-1b"}, 7_110_183_936, 8_954_839_040),
        ({"model": "llama-3.2-1b", "seq": 1024, "batch": 4}, 7_109_913_600, 8_954_839_040),
        ({"model": "llama-3.2-3b", "seq": 1024}, 15_068_680_192, 18_794_676_224),
    ],
    ids=["1B", "1B, shorter", "3B"],
)
def test_liger_of_axolotl_under_fsdp2(size: dict[str, Any], allocated: int, reserved: int) -> None:
    """Without QAT, the gradient of the head is the peak: Liger 0.8.1 widens each piece's part of it.

    What a part of a layer gets by name stays beside the checkpoint of the layer.  Axolotl 0.19.0's dry run.
    """
    plain = {name: value for name, value in LIGER.items() if not name.startswith("qat")}
    kernels = ("fused_norm=true", "fused_mlp=true", "checkpoints_twice=true")
    flags = {**plain, "gradient_checkpointing": True, **size, "switches": kernels}
    phases = replayed(job_by(flags)).phases
    assert max(int(each.allocated_bytes) for each in phases) == pytest.approx(allocated, rel=0.005)
    assert max(int(each.reserved_bytes) for each in phases) == pytest.approx(reserved, rel=0.01)


OLD_LORA = typed("--model llama-3.1-8b --lora-rank 8 --lora-targets q_proj,v_proj --optimizer adamw_torch")
OLD_LORA |= {"method": "lora", "stack": "torchtune@0.2", "seq": 512, "batch": 2, "grad_accum": 2}
OLD_TABLES = "rotary_tables=pairs_of_layers;rotary_positions=8192"


@pytest.mark.parametrize(
    ("said", "gib"),
    [
        ({"gpu": "h100-sxm", "gradient_checkpointing": True, "switches": OLD_TABLES}, 17.389),
        (
            {
                "gpu": "h100-sxm:4",
                "sharding": "fsdp1",
                "gradient_checkpointing": False,
                "switches": f"{OLD_TABLES};keeps_outputs=false",
            },
            12.667,
        ),
        (
            typed(
                "--gpu h100-sxm:4 --sharding fsdp1 --gradient-checkpointing --method full "
                f"--switches {OLD_TABLES}"
            ),
            21.443,
        ),
    ],
    ids=["one GPU", "FSDP1", "FSDP1, full"],
)
def test_recipes_of_torchtune_0_2(said: dict[str, Any], gib: float) -> None:
    """Llama 3 8B beside dry runs of torchtune 0.2.1 with torch 2.13: whole logits, which the loop keeps
    in backward, but for the recipe of adapters on several GPUs.
    """
    flags = {**OLD_LORA, **said, "versions": ["torch==2.13.0"]}
    if said.get("method") == "full":
        flags = {name: value for name, value in flags.items() if not name.startswith("lora_")}
    job = job_by(flags)
    found = max(int(each.allocated_bytes) for each in replayed(job).phases)
    assert found / 2**30 == pytest.approx(gib, rel=0.005)
