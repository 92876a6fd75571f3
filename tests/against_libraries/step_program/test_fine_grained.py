"""Matrices in fp8: the trace runs Transformers' own modules under PEFT, and the program asks for the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from test_checkpoint_every import program_bytes
from test_trained_layers import assert_same_requests

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "vocab_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
STORED = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ATTENTION = {"lora_targets": "attention"}
EQUAL: dict[str, dict[str, Any]] = {
    "DeepGEMM": {"gpu": "h100-sxm"},
    "Triton": {"gpu": "rtx4090"},
    "checkpointed": {"gpu": "h100-sxm", "gradient_checkpointing": True, "batch": 2},
    "not checkpointed, several samples": {"gpu": "b200", "batch": 3},
    "biases": {"gpu": "h100-sxm", "kind": "qwen2"},
    "a scale for each matrix": {"gpu": "h100-sxm", "blocks": None},
    "a part left whole": {"gpu": "rtx4090", "whole": ["lm_head", "self_attn.o_proj"]},
    "experts": {"gpu": "h100-sxm", "kind": "qwen3_moe", **ATTENTION},
}
SIZES: list[dict[str, Any]] = [{"seq": 128}, {"seq": 512, "batch": 4}, {"seq": 2048, "lora_rank": 64}]


def over_fp8(folder: Path, *, kind: str = "llama", **flags: Any) -> Scenario:
    """LoRA over a small model that is stored in fp8."""
    table = STORED | {"weight_block_size": flags.pop("blocks", [128, 128])}
    if whole := flags.pop("whole", None):
        table["modules_to_not_convert"] = whole
    fields = SHAPE | (EXPERTS if kind == "qwen3_moe" else {}) | flags.pop("fields", {})
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(fields | {"model_type": kind, "quantization_config": table}), encoding="utf-8")
    return resolve(from_flags({"model": str(path), "method": "lora", "seq": 256, **flags}))


@pytest.mark.parametrize("name", EQUAL)
def test_every_request_is_that_of_the_real_modules(name: str, tmp_path: Path) -> None:
    """But for the router of experts, whose small tensors nobody counts."""
    scenario = over_fp8(tmp_path, **EQUAL[name])
    assert scenario.recipe.numerics.quantization == "fp8"
    if name != "experts":
        assert_same_requests(scenario)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.002)


@pytest.mark.every(2)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_the_peak_is_that_of_the_real_modules(kind: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """Allocated within 0.5 % at three sizes."""
    scenario = over_fp8(tmp_path, kind=kind, gpu="h100-sxm", **ATTENTION, **sizes)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


def test_many_experts_are_made_anew_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward of both sides with a limit of five experts, four parts of 16, lets go of each before the next.

    A width of its own, as layers that are equal are run once.
    """
    from transformers.integrations.finegrained_fp8 import FP8GroupedMatmulFunction

    from planner.program.weights import fine_grained

    own = {"moe_intermediate_size": 384}
    scenario = over_fp8(tmp_path, kind="qwen3_moe", gpu="h100-sxm", seq=128, fields=own, **ATTENTION)
    whole = summarize(trace_events(scenario)).allocated_peak_bytes
    limit = 5 * 2 * 384 * 512 * 2
    monkeypatch.setattr(fine_grained, "AT_ONCE_BYTES", limit)
    monkeypatch.setattr(FP8GroupedMatmulFunction, "dequant_budget_bytes", limit)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)
    assert trace < whole


@pytest.mark.parametrize(("rows", "stops"), [(512, False), (200, False), (576, True)])
def test_transformers_widens_only_what_divides_by_its_blocks(rows: int, stops: bool, tmp_path: Path) -> None:
    """Its loader finds a block's sides by dividing those of the matrix, which 576 rows in 5 blocks stop, as
    DeepSeek V3 has them; the plan stops there, too.
    """
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = torch.zeros(rows, 512, dtype=torch.float8_e4m3fn)
    scales = torch.ones(-(-rows // 128), 4)
    fields, make = {"intermediate_size": rows}, cast("Any", Fp8Dequantize)
    if not stops:
        assert make(None)._dequantize_one(weight, scales).shape == weight.shape
        over_fp8(tmp_path, gpu="a100-80-sxm", fields=fields)
        return
    with pytest.raises(ValueError, match="not divisible"):
        make(None)._dequantize_one(weight, scales)
    with pytest.raises(UsageError, match="a side of 576"):
        over_fp8(tmp_path, gpu="a100-80-sxm", fields=fields)
