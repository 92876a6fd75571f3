"""DoRA: the trace runs PEFT's own layers, and the program asks for the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_every import program_bytes
from test_trained_layers import assert_same_requests, scenario_of

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.domain.stack_values import DoraBranch
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import job_of as timed_job_of

EQUAL: dict[str, dict[str, Any]] = {
    "kept": {"gradient_checkpointing": False},
    "checkpointed": {"gradient_checkpointing": True},
    "dropout": {"gradient_checkpointing": True, "lora_dropout": 0.1},
    "two-projections": {"gradient_checkpointing": True, "lora_targets": ("q_proj", "up_proj")},
    "over-4-bit-dropout": {"method": "qlora", "gradient_checkpointing": False, "lora_dropout": 0.05},
}
# The gradient of the values is a view of that of attention, so that another tensor holds its sum.
NEAR: dict[str, dict[str, Any]] = {
    "over-4-bit": {"method": "qlora", "gradient_checkpointing": False},
    "over-4-bit-checkpointed": {"method": "qlora", "gradient_checkpointing": True},
    "16-bit": {"gradient_checkpointing": True, "adapter_dtype": "bf16"},
    "without-autocast": {"precision": "bf16", "load_dtype": "bf16", "adapter_dtype": "bf16"},
    "reentrant": {"gradient_checkpointing": True, "checkpoint_reentrant": True},
}


def dora(model: str, folder: Path, **flags: Any) -> Scenario:
    """A scaled-down model of two layers with DoRA,
    over what it was loaded as unless the flags say otherwise.
    """
    return scenario_of(model, folder, 2, **{"method": "lora", "dora": True, **flags})


@pytest.mark.every(6)
@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-7b"])
def test_every_request_is_that_of_the_real_modules(model: str, name: str, tmp_path: Path) -> None:
    """No request differs; the second model has biases, which are taken from the base's result first."""
    assert_same_requests(dora(model, tmp_path, **EQUAL[name]))


@pytest.mark.every(6)
@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mistral-7b-v0.3"])
def test_the_peak_is_that_of_the_real_modules(model: str, name: str, tmp_path: Path) -> None:
    """Allocated within 0.5 %, over 4-bit matrices and under other kinds of precision and checkpointing."""
    scenario = dora(model, tmp_path, **NEAR[name])
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


@pytest.mark.parametrize("kind", ["keeps_eye", "drops_eye"])
def test_older_versions_keep_the_identity(
    kind: DoraBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the function of PEFT 0.14 to 0.18 in the place of this one, the trace still agrees."""
    if kind == "keeps_eye":
        from peft.tuners.lora import dora as module

        monkeypatch.setattr(module.DoraLinearLayer, "forward", forward_of_0_18)
    assert_same_requests(
        dora("llama-3.1-8b", tmp_path, gradient_checkpointing=True, switches=(f"dora={kind}",))
    )


def forward_of_0_18(layer: Any, x: Any, *, lora_A: Any, lora_B: Any, base_layer: Any, **options: Any) -> Any:  # noqa: N803
    """What peft 0.18.0 tuners/lora/dora.py DoraLinearLayer.forward does without dropout,
    its variables included.
    """
    import torch
    from peft.tuners.lora.dora import dequantize_module_weight

    x_eye = torch.eye(lora_A.weight.shape[1], device=lora_A.weight.device, dtype=x.dtype)
    lora_weight = lora_B(lora_A(x_eye)).T
    weight = dequantize_module_weight(base_layer).to(x.dtype)
    weight_norm = layer.get_weight_norm(weight, lora_weight.detach(), options["scaling"]).detach()
    scale = (layer.weight / weight_norm).view(1, -1)
    lora_result = lora_B(lora_A(x))
    out = (scale - 1) * options["base_result"] + scale * lora_result * options["scaling"]
    assert x_eye is not None
    return out


def test_one_number_for_each_output(tmp_path: Path) -> None:
    """DoRA trains as many parameters more as the adapted matrices have outputs, and takes longer."""
    scenarios = [scenario_of("llama-3.1-8b", tmp_path, method="lora", dora=each) for each in (False, True)]
    counts = [job_of(each, Coefficients()).adapter_params for each in scenarios]
    group = scenarios[0].model.groups[0]
    assert counts[1] - counts[0] == group.count * sum(linear.out_features for linear in group.block.linears)
    jobs = [timed_job_of(each, Coefficients()) for each in scenarios]
    seconds = [float(pass_seconds(job, "training")["adapters"]) for job in jobs if job]
    assert seconds[0] < seconds[1]
