"""Training from preferences: the passes and losses of TRL and LLaMA-Factory in the trace,
and the same in the program.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matrix.models import small_fields, text_fields
from streams import both

from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("peft")

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.domain.term import Phase
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import job_of
from tests.jobs import resolved, typed

# Several tiles of words, the last of which is not full.
WORDS = 40_000
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "qwen2.5-1.5b")
"""The last one has a head that is tied to its table."""
# How log-probabilities are taken -> what to say for it.
KERNELS: dict[str, dict[str, Any]] = {
    "tiles": {"stack": "trl"},
    "shifted_rows": {"stack": "trl", "versions": ("trl==1.14.0",)},
    "rows_and_hidden": typed("--stack trl --switches pair_logps=rows_and_hidden --versions trl==1.14.0"),
    "rows": {"stack": "trl", "switches": ("pair_logps=rows",), "versions": ("trl==1.14.0",)},
    "fused_rows": {"stack": "axolotl", "checkpoint_reentrant": False},
    "whole": {"stack": "llama-factory", "checkpoint_reentrant": False},
    "whole_twice": typed("--stack llama-factory --no-checkpoint-reentrant --switches pair_logps=whole_twice"),
    "whole_with_loss": typed(
        "--stack llama-factory --no-checkpoint-reentrant --switches pair_logps=whole_with_loss"
    ),
    "whole_and_chosen": {
        "stack": "llama-factory",
        "checkpoint_reentrant": False,
        "switches": ("pair_logps=whole", "chosen_likelihood=true"),
    },
    "rows_alone": typed(
        "--stack trl --switches pair_logps=rows;chosen_likelihood=false --versions trl==1.14.0"
    ),
}
# What those add is of ORPO and SimPO alone.
PLAIN = tuple(name for name in KERNELS if name not in ("whole_and_chosen", "rows_alone"))
# Pairs in one row, by a loop of its own that casts nothing.
JOINED = {"joined": {"stack": "llama-factory-v1", "precision": "bf16"}}
# Losses of the trainer that weigh each token.
WEIGHTS: dict[str, dict[str, Any]] = {
    name: {"stack": "llama-factory", "checkpoint_reentrant": False, "switches": (f"loss_weights={name}",)}
    for name in ("probability", "entropy", "divergence")
}
WEIGHTS["masked_tokens"] = {
    "stack": "axolotl",
    "checkpoint_reentrant": False,
    "switches": ("loss_weights=masked_tokens", "packed_mask=rows", "adapter_kernels=eager"),
}
# Ways of open-instruct, whose reference is asked before training.
LET_GO = {
    "whole_let_go": {"stack": "open-instruct@2024"},
    "unshifted": {"stack": "open-instruct"},
}
TASKS = [
    *(("dpo", kernel) for kernel in PLAIN),
    *(("kto", kernel) for kernel in PLAIN),
    *(("orpo", kernel) for kernel in ("tiles", "fused_rows", "rows", "whole", "whole_and_chosen")),
    ("simpo", "whole"),
    ("simpo", "whole_and_chosen"),
    ("simpo", "rows_alone"),
    pytest.param("orpo", "whole_with_loss", marks=pytest.mark.slow),
    ("reward", "tiles"),
    *(("dpo", kernel) for kernel in LET_GO),
    pytest.param("simpo", "unshifted", marks=pytest.mark.slow),
    ("reward", "whole"),
    ("dpo", "joined"),
    pytest.param("orpo", "joined", marks=pytest.mark.slow),
    pytest.param("sft", "probability", marks=pytest.mark.slow),
    ("sft", "entropy"),
    ("sft", "masked_tokens"),
    pytest.param("sft", "divergence", marks=pytest.mark.slow),
    ("sft", "tiles"),
]


def scenario_of(task: str, kernel: str, folder: Path, model: str = "llama-3.1-8b", **flags: Any) -> Scenario:
    """A job on a scaled-down model of two layers with many words."""
    path = folder / f"{model}.json"
    fields = small_fields(text_fields(model)) | {"vocab_size": WORDS, "num_hidden_layers": 2}
    path.write_text(json.dumps(fields), encoding="utf-8")
    said = {"model": str(path), "gpu": "a100-80gb", "seq": 512, "batch": 2, "method": "lora", "task": task}
    return resolved(
        {**said, "gradient_checkpointing": True, **(KERNELS | LET_GO | WEIGHTS | JOINED)[kernel], **flags}
    )


def assert_same_peak(scenario: Scenario) -> None:
    """The allocated peaks of the trained steps are within 0.5 %."""
    traced = summarize(trace_events(scenario)).allocated_peak_bytes
    phases = replayed(job_of(scenario, Coefficients())).phases
    predicted = max(each.allocated_bytes for each in phases if each.phase != "eval")
    assert predicted == pytest.approx(traced, rel=0.005)


@pytest.mark.every(6)
@pytest.mark.parametrize(("task", "kernel"), TASKS)
def test_program_and_trace_agree(task: str, kernel: str, tmp_path: Path) -> None:
    """Every task with every way to take log-probabilities, where the logits are most of what is allocated."""
    method = "full" if kernel == "divergence" else "lora"
    assert_same_peak(scenario_of(task, kernel, tmp_path, method=method))


def test_no_gradient_of_a_value_reaches_a_tied_head(tmp_path: Path) -> None:
    """The table has that of its rows alone."""
    assert_same_peak(scenario_of("reward", "whole", tmp_path, "qwen2.5-1.5b", method="full"))


@pytest.mark.parametrize(
    ("task", "kernel"),
    [
        ("orpo", "rows"),
        ("kto", "shifted_rows"),
        pytest.param("orpo", "whole_and_chosen", marks=pytest.mark.slow),
    ],
)
def test_rows_that_are_alone_are_cut_without_a_copy(task: str, kernel: str, tmp_path: Path) -> None:
    """The chosen sequence of one pair, or one sample; two are copied."""
    for batch in (1, 2):
        scenario = scenario_of(task, kernel, tmp_path, batch=batch)
        program, trace = (
            [each for each in side if "clone" in each.op and each.n_bytes > 512 * WORDS]
            for side in both(scenario, ("loss_2",))
        )
        assert (len(program), len(trace)) == (batch - 1, batch - 1)


@pytest.mark.parametrize(
    "flags", [{"batch": 1}, pytest.param({"precision": "bf16", "load_dtype": "bf16"}, marks=pytest.mark.slow)]
)
def test_logits_that_are_compared(flags: dict[str, Any], tmp_path: Path) -> None:
    """One sample's logits are cut without a copy; without autocast the second model's have 16 bits."""
    assert_same_peak(scenario_of("sft", "divergence", tmp_path, method="full", **flags))


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_labels_of_steps(method: str, tmp_path: Path) -> None:
    """A head of two labels for each token, where that of words would be most of what is allocated."""
    said = {"stack": "hf-trainer@5", "padding": "longest", "precision": "bf16-mixed"}
    assert_same_peak(scenario_of("prm", "whole", tmp_path, method=method, **said))


# Quick ones: each model where tiles are taken, and a tied one where the stack runs every pass whole.
QUICK = {*(("tiles", model) for model in MODELS), ("whole", "qwen2.5-1.5b")}
GRID = [
    pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
    for each in product(("tiles", "rows", "whole"), MODELS)
]


@pytest.mark.every(8)
@pytest.mark.parametrize("checkpointing", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize(("kernel", "model"), GRID)
def test_dpo_of_models_and_methods(
    kernel: str, model: str, method: str, checkpointing: bool, tmp_path: Path
) -> None:
    """A second model is the reference of a full fine-tune; adapters are switched off for it."""
    assert_same_peak(
        scenario_of("dpo", kernel, tmp_path, model, method=method, gradient_checkpointing=checkpointing)
    )


@pytest.mark.parametrize(
    "kernel",
    ["tiles", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shifted_rows", "rows", "whole"))],
)
def test_a_reference_that_was_asked_before(kernel: str, tmp_path: Path) -> None:
    """Training runs one pass, and the logits of another one are never beside its own."""
    said = KERNELS[kernel]
    switches = (*said.get("switches", ()), "caches_reference=true")
    assert_same_peak(scenario_of("dpo", kernel, tmp_path, switches=switches))


@pytest.mark.parametrize(
    ("model", "task"),
    [("starcoder2-3b", "dpo"), pytest.param("opt-1.3b", "kto", marks=pytest.mark.slow)],
)
def test_dropout_that_no_trainer_switches_off(model: str, task: str, tmp_path: Path) -> None:
    """TRL sets modules of dropout to zero; these models call a function."""
    said = {"gradient_checkpointing": False, "attention": "eager"}
    assert_same_peak(scenario_of(task, "tiles", tmp_path, model, **said))


@pytest.mark.every(2)
@pytest.mark.parametrize("task", ["dpo", "orpo"])
def test_logits_of_16_bits(task: str, tmp_path: Path) -> None:
    """Without autocast logits have 16 bits, and each row has a log-softmax of its own."""
    assert_same_peak(scenario_of(task, "rows", tmp_path, method="full", precision="bf16", load_dtype="bf16"))


def allocated_bytes(scenario: Scenario, phase: Phase) -> float:
    """The most that the program allocates in one phase."""
    return next(
        float(each.allocated_bytes)
        for each in replayed(job_of(scenario, Coefficients())).phases
        if each.phase == phase
    )


def test_a_reference_model_is_loaded_beside_the_other(tmp_path: Path) -> None:
    """Twice the weights with a reference, once without one."""
    both, one = (scenario_of(task, "rows", tmp_path, method="full") for task in ("dpo", "orpo"))
    assert allocated_bytes(both, "load") == pytest.approx(2 * allocated_bytes(one, "load"), rel=1e-3)


def test_a_pair_is_two_sequences(tmp_path: Path) -> None:
    """A batch of one pair has as many tokens as one of two samples; those of KTO are alone."""
    pairs, singles = (
        job_of(scenario_of(task, "tiles", tmp_path, batch=1), Coefficients()) for task in ("dpo", "kto")
    )
    assert pairs.tokens == 2 * singles.tokens == 1024
    assert not pairs.single
    assert singles.single


def test_weights_that_are_widened_and_returned(tmp_path: Path) -> None:
    """Axolotl takes table and head back to 16 bits after PEFT has widened them: most of this load."""
    scenario = scenario_of("kto", "fused_rows", tmp_path, method="qlora")
    phases = summarize(trace_events(scenario)).phases
    traced = next(each.peaks.allocated_bytes for each in phases if each.peaks.phase == "load")
    assert allocated_bytes(scenario, "load") == pytest.approx(traced, rel=0.005)
