"""Recipes of torchtune 0.6.1, and Axolotl 0.19.0 with torchao's quantisers, beside their own dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.program.job import job_of
from tests.planner.program.stored_runs import STORED_RESERVED, with_engine_workspace

QAT: dict[str, Any] = {"qat": "int8-int4", "qat_group": 256}
ADAPTED = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LORA: dict[str, Any] = {"method": "lora", "lora_rank": 64, "lora_targets": ADAPTED, "seq": 1024}
FULL: dict[str, Any] = {"method": "full", "seq": 1024, "optimizer": "adamw_torch_fused"}
ONE_TABLE = ("rotary_positions=131072",)
TABLES = ("rotary_tables=pairs_of_layers", "rotary_positions=8192")
GEMMA: dict[str, Any] = {"attention": "eager"}
AXOLOTL: dict[str, Any] = {
    "stack": "axolotl",
    "method": "full",
    "seq": 2048,
    "batch": 2,
    "qat": "int8-int4",
    "qat_group": 32,
    "optimizer": "adamw_torch_fused",
    "attention": "flash2",
    "loss": "liger",
}


@pytest.mark.parametrize(
    ("flags", "allocated", "reserved"),
    [
        pytest.param(
            {**LORA, **QAT, "model": "llama-3.2-1b", "batch": 4, "gradient_checkpointing": False},
            *(20_034_418_176, 20_692_598_784),
            id="rounded with adapters",
        ),
        pytest.param(
            {**FULL, **QAT, "model": "llama-3.1-8b", "batch": 2, "gpu": "h100-sxm:4", "sharding": "fsdp"}
            | {"switches": (*ONE_TABLE, "fsdp2_units=ends_returned"), "grad_accum": 1},
            *(45_176_098_816, 52_120_518_656),
            id="rounded with its head",
        ),
        pytest.param(
            {**LORA, "model": "gemma-2-2b-it", "batch": 8, "switches": TABLES, **GEMMA},
            *(20_905_184_768, 22_968_008_704),
            id="gemma 2 with adapters",
        ),
        pytest.param(
            {**FULL, "model": "gemma-2-2b-it", "batch": 2, "gpu": "h100-sxm:2", "sharding": "fsdp", **GEMMA}
            | {"switches": ("rotary_positions=8192",), "grad_accum": 1, "optimizer": "adamw_torch"},
            *(13_864_779_264, 20_803_747_840),
            id="gemma 2",
        ),
        pytest.param(
            {**LORA, "model": "llama-3.2-1b", "batch": 4, "gradient_checkpointing": False, "dora": True},
            *(19_378_004_480, 19_847_446_528),
            id="dora",
        ),
        pytest.param(
            {**LORA, "lora_rank": 8, "model": "llama-3.2-1b", "batch": 2, "task": "dpo"},
            *(13_385_077_760, 14_772_338_688),
            id="dpo",
        ),
    ],
)
def test_recipes_of_torchtune(flags: dict[str, Any], allocated: int, reserved: int) -> None:
    """Two micro-batches where nothing else is said; half a percent of what is allocated."""
    base = {"stack": "torchtune", "gpu": "h100-sxm", "grad_accum": 2, "switches": ONE_TABLE}
    phases = replayed(job_of(resolve(from_flags({**base, **flags})), Coefficients())).phases
    assert max(int(each.allocated_bytes) for each in phases) == pytest.approx(
        with_engine_workspace(allocated), rel=0.005
    )
    assert max(int(each.reserved_bytes) for each in phases) == pytest.approx(reserved, rel=STORED_RESERVED)


def test_axolotl_rounds_weights_otherwise() -> None:
    """Llama 3.2 1B on one GPU, and on two whose layers and their parts are checkpointed (backward pass)."""
    one = {**AXOLOTL, "model": "llama-3.2-1b", "gpu": "h100-sxm", "gradient_checkpointing": True}
    two = {**one, "gpu": "h100-sxm:2", "sharding": "fsdp", "checkpoint_reentrant": False}
    kernels = ("fused_norm=true", "fused_mlp=true")
    for flags, switches, allocated in (
        (one, kernels, 11_847_161_856),
        (two, (*kernels, "checkpoints_twice=true"), 7_667_198_976),
    ):
        job = job_of(resolve(from_flags({**flags, "switches": switches})), Coefficients())
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
    phases = replayed(job_of(resolve(from_flags(flags)), Coefficients())).phases
    assert max(int(each.allocated_bytes) for each in phases) == pytest.approx(allocated, rel=0.005)
    assert max(int(each.reserved_bytes) for each in phases) == pytest.approx(reserved, rel=0.01)
