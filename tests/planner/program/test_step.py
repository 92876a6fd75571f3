"""Passes of a step: what an evaluation has that training has not, and the reverse."""

from __future__ import annotations

import pytest

from planner.memory.replayed import replayed
from planner.predicting import PRIORS
from planner.program.job import Job, job_of
from planner.program.step import evaluation_of, parts_of
from planner.units import GIB
from tests.planner.intake.jobs import scenario_of


def job(**flags: object) -> Job:
    """A LoRA fine-tune by TRL, evaluated with eight samples at a time."""
    said = {
        "model": "llama-3.2-1b", "method": "lora", "stack": "trl", "gpu": "a100-80-sxm", "seq": 4096,
        "padding": "longest", "lora_rank": 16, "load_dtype": "bf16", "lora_dropout": 0.05, "loss": "chunked",
        "gradient_checkpointing": True, "eval_batch": 8,
    }  # fmt: skip
    return job_of(scenario_of(**{**said, **flags}), PRIORS)


def ops_of(parts: object) -> set[str]:
    """Names of the operators that allocate."""
    return {op for part in parts for _, op in part.template.ops}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "flags", [{}, {"model": "gpt2", "method": "full", "seq": 512, "lora_rank": None, "lora_dropout": None}]
)
def test_an_evaluation_drops_nothing(flags: dict[str, object]) -> None:
    """Neither adapters nor the model itself do under ``model.eval()``."""
    held = job(**flags)
    assert "dropout" in ops_of(parts_of(held))
    assert "dropout" not in ops_of(evaluation_of(held))


def test_the_evaluation_of_trl_itself() -> None:
    """A dry run of ``trl sft`` with an evaluation of eight samples: 5.21 GiB allocated, 7.10 reserved."""
    (evaluation,) = (each for each in replayed(job()).phases if each.phase == "eval")
    assert evaluation.allocated_bytes / GIB == pytest.approx(5.21, abs=0.01)
    assert evaluation.reserved_bytes / GIB == pytest.approx(7.10, abs=0.01)


@pytest.mark.parametrize(
    ("switches", "logits"), [("cut_cross_entropy=false", True), ("cut_cross_entropy=true", False)]
)
def test_liger_makes_logits_where_it_does_not_train(switches: str, logits: bool) -> None:
    """A dry run of ``axolotl train`` with GLM 4.7 Flash: 21.3 GiB in the evaluation, 18.0 before."""
    evaluation = evaluation_of(job(loss="liger", switches=switches))
    assert ("log_softmax" in ops_of(evaluation)) is logits


def test_an_evaluation_that_is_asked_for_has_a_program_of_its_own() -> None:
    """Whatever was asked before: only then are there logits."""
    unasked, asked = (replayed(job(loss="liger", eval_batch=n)).allocated_bytes for n in (None, 8))
    assert asked > 1.5 * unasked
