"""Experts of Transformers 4, whose matrices are linear layers: adapters counted by hand."""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.parameters import adapter_weights
from planner.program.step import step_of
from tests.jobs import resolved

scenario = partial(resolved, method="lora", gpu="h100-sxm", seq=512, lora_rank=8)
"""LoRA of rank 8 on one card."""


def trained(subject: Scenario) -> float:
    """Elements of all adapters."""
    return sum(
        each.count * (8 if each.unit.name == "RANK" else 1)
        for each in adapter_weights(job_of(subject, Coefficients()))
    )


@pytest.mark.parametrize(
    ("model", "targets", "layers", "each"),
    [
        # Two matrices of 4,096 to 14,336 and one back in each of 8 experts.
        ("mixtral-8x7b", "w1;w2;w3", 32, 8 * 3 * (4096 + 14336)),
        # 60 experts of 2,048 to 1,408, shared ones of 2,048 to 5,632;
        # PEFT of today has no table for this architecture.
        ("qwen1.5-moe-a2.7b", "gate_proj;up_proj;down_proj", 24, 60 * 3 * (2048 + 1408) + 3 * (2048 + 5632)),
        ("qwen1.5-moe-a2.7b", "q_proj", 24, 2 * 2048),
    ],
)
def test_adapters_reach_the_matrices_of_each_expert(model: str, targets: str, layers: int, each: int) -> None:
    """Rank times inputs and outputs of every matrix, as PEFT wraps ``nn.Linear``."""
    assert trained(scenario(model=model, lora_targets=targets, stack="hf-trainer@4")) == 8 * layers * each


def test_all_linear_reaches_routers_and_shared_experts() -> None:
    """Everything but the head."""
    attention, router, gate = 4 * 2 * 2048, 2048 + 60, 2048 + 1
    each = 60 * 3 * (2048 + 1408) + 3 * (2048 + 5632) + attention + router + gate
    assert trained(scenario(model="qwen1.5-moe-a2.7b", stack="hf-trainer@4")) == 8 * 24 * each


def test_fused_ones_are_as_they_were() -> None:
    """Transformers 5 fuses them, and Granite's were fused before."""
    assert scenario(model="mixtral-8x7b").model.groups[0].block.linears[-1].kind == "parameter"
    assert (
        scenario(model="granite-3.1-1b-a400m", stack="hf-trainer@4").model.groups[0].block.linears[-1].kind
        == "parameter"
    )


def test_a_step_has_the_same_weights_either_way() -> None:
    """The program runs the three matrices of an expert;
    the elements of the base are those of two fused tensors.
    """
    frozen = [
        sum(size for slot, size in enumerate(stream.unit_bytes) if stream.term(slot) == "weights")
        for stream in (
            step_of(
                job_of(
                    scenario(
                        model="qwen1.5-moe-a2.7b", stack=stack, load_dtype="bf16", lora_targets="q_proj"
                    ),
                    Coefficients(),
                )
            )
            for stack in ("hf-trainer@4", "hf-trainer@5")
        )
    ]
    assert frozen[0] == pytest.approx(frozen[1], rel=1e-6)
