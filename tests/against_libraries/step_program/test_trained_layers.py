"""Training of some layers only: the trace freezes the real modules,
and the program asks for the same memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matrix.models import small_fields, text_fields
from test_checkpoint_every import program_bytes

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.recipes.recipe import DTYPE_BYTES
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import NotModelledError, UsageError
from planner.memory.quick import predict_quick
from planner.program.job import job_of
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from planner.report.trace.requests import differences
from planner.throughput.flop import products_flop
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import TimedJob
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.extras import import_or_skip
from tests.jobs import resolved, typed

LAYERS = 5
# What is trained: the end, the beginning, a range with what stands behind it, single layers, one of them by
# its feed-forward part alone, and the ends alone.
CHOICES = (("last:2",), ("first:2",), ("2-3", "norm", "head"), ("1", "3:mlp", "embed"), ("norm", "head"))
# The second model ties its head to its table.
MODELS = ("llama-3.1-8b", "gemma-7b")


def scenario_of(model: str, folder: Path, depth: int = LAYERS, **flags: Any) -> Scenario:
    """A full fine-tune of a scaled-down model of five layers."""
    fields = small_fields(text_fields(model))
    path = folder / f"{model}.json"
    path.write_text(json.dumps(fields | {"num_hidden_layers": depth}), encoding="utf-8")
    said = {"model": str(path), "method": "full", "gpu": "a100-80gb", "seq": 512, "batch": 2, **flags}
    return resolved(said)


def assert_same_requests(scenario: Scenario) -> None:
    """Both sides ask for the same in a later micro-step, and in loading and the optimizer's step."""
    import_or_skip("peft")
    from streams import LATER, both_in

    for program, trace in both_in(scenario, LATER, ("optimizer_step",)):
        assert differences(program, trace) == []
        assert len(trace) > 0


def divided_bytes(scenario: Scenario) -> int:
    """What the dry run of a job that an engine divides allocates at its peak."""
    import_or_skip("deepspeed")
    from measure.cli.dry_run import run_laid
    from measure.trace.divided_job import divided_job

    job = divided_job(scenario)
    how = SimpleNamespace(allocator=None, steps=2, timeout_s=600)
    ran = run_laid(job.command, job.files, (scenario.hardware.gpu, job.n_cards), how)
    return summarize(ran.cards[0]).allocated_peak_bytes


def test_ends_in_fp32_beside_16_bit_matrices(tmp_path: Path) -> None:
    """As Axolotl trains without FlashAttention: the stream between layers is fp32,
    and so are states of the ends.
    """
    assert_same_requests(
        scenario_of(
            "llama-3.1-8b",
            tmp_path,
            depth=2,
            switches="widens_ends=true",
            precision="bf16-mixed",
            load_dtype="bf16",
        )
    )


@pytest.mark.every(7)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
@pytest.mark.parametrize("model", MODELS)
def test_every_request_is_that_of_the_real_modules(
    model: str, layers: tuple[str, ...], checkpointing: bool, tmp_path: Path
) -> None:
    """No request differs, with and without checkpointing; a tied head is asked for as its table."""
    if model == MODELS[1]:
        layers = tuple("embed" if each == "head" else each for each in layers)
    assert_same_requests(
        scenario_of(model, tmp_path, train_layers=layers, gradient_checkpointing=checkpointing)
    )


@pytest.mark.every(4)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
def test_the_peak_is_that_of_the_real_modules(
    layers: tuple[str, ...], checkpointing: bool, tmp_path: Path
) -> None:
    """GPT-NeoX (biases, layer norms, both parts of a layer side by side): allocated within 0.5 %."""
    scenario = scenario_of(
        "gpt-neox-20b", tmp_path, train_layers=layers, gradient_checkpointing=checkpointing
    )
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


# Under which stack, with which kind of checkpointing: inputs of trained layers require gradients,
# those of frozen ones do not.
STACKS: dict[str, dict[str, Any]] = {
    "skipped": typed("--stack hf-trainer@5 --switches frozen_layers=skipped --no-checkpoint-reentrant"),
    "spared": typed(
        "--stack hf-trainer@5 --switches frozen_layers=spared;trainable_fp32=true --load-dtype bf16"
    ),
    "entered": typed(
        "--stack hf-trainer@5 --switches frozen_layers=entered;trainable_fp32=true --load-dtype bf16"
    ),
    "differentiated": {"stack": "hf-trainer@5", "checkpoint_reentrant": True},
    "llama-factory": {"stack": "llama-factory"},
}


@pytest.mark.every(7)
@pytest.mark.parametrize("layers", [("last:2",), ("1", "3"), ("first:2", "embed")], ids="+".join)
@pytest.mark.parametrize("name", STACKS)
def test_every_request_under_other_stacks(name: str, layers: tuple[str, ...], tmp_path: Path) -> None:
    """The same where the stack makes other inputs require gradients, and widens what it trains."""
    said = {
        "gradient_checkpointing": True,
        "checkpoint_reentrant": True,
        "precision": "bf16-mixed",
        **STACKS[name],
    }
    assert_same_requests(scenario_of("llama-3.1-8b", tmp_path, train_layers=layers, **said))


def test_buckets_hold_trained_parameters_only(tmp_path: Path) -> None:
    """DDP: the allocated peak is that of its own code, and the buckets are as large as all gradients."""
    scenario = scenario_of(
        "llama-3.1-8b", tmp_path, train_layers=("last:2",), gpus=2, sharding="ddp", precision="bf16-mixed"
    )
    assert program_bytes(scenario) == pytest.approx(divided_bytes(scenario), rel=0.005)
    stream = step_of(job_of(scenario, Coefficients()))
    sizes = stream.sizes(dict.fromkeys(Unit, 1.0))
    buckets = sum(size for slot, size in enumerate(sizes) if stream.term(slot) == "gradient_buckets")
    block = scenario.model.groups[0].block
    assert buckets == 2 * block.param_count * DTYPE_BYTES[scenario.recipe.numerics.load_dtype]


@pytest.mark.every(5)
@pytest.mark.parametrize("layers", [("last:2",), ("1", "embed", "head"), ("1:mlp", "3")], ids="+".join)
@pytest.mark.parametrize(
    ("sharding", "offload"),
    [("zero1", None), ("zero2", None), ("zero3", None), ("zero3", "optimizer+params"), ("fsdp", None)],
)
def test_engines_that_divide_a_model(
    sharding: str, offload: str | None, layers: tuple[str, ...], tmp_path: Path
) -> None:
    """Frozen layers have parts and units, but no gradients, masters and states:
    the peak is that of the engine's own code.
    """
    said = {"sharding": sharding, "gpus": 4, "seq": 1024, "batch": 4} | (
        {"offload": offload} if offload else {}
    )
    scenario = scenario_of("llama-3.1-8b", tmp_path, train_layers=layers, gradient_checkpointing=True, **said)
    assert program_bytes(scenario) == pytest.approx(divided_bytes(scenario), rel=0.005)


def test_adapters_beside_ddp(tmp_path: Path) -> None:
    """The peak is that of DDP's own code."""
    said = {"method": "lora", "dora": True, "gpus": 2, "gradient_checkpointing": True}
    scenario = scenario_of("llama-3.1-8b", tmp_path, 2, **said)
    assert program_bytes(scenario) == pytest.approx(divided_bytes(scenario), rel=0.005)


@pytest.mark.parametrize("layers", [("last:2",), ("first:2", "head")], ids="+".join)
def test_the_quick_reading_is_near_the_replay(layers: tuple[str, ...], tmp_path: Path) -> None:
    """A deep model whose layers differ is not read from two shallow ones."""
    scenario = scenario_of(
        "llama-3.1-8b", tmp_path, train_layers=layers, depth=32, gradient_checkpointing=True
    )
    job = job_of(scenario, Coefficients())
    allocated = max(float(each.allocated_bytes) for each in predict_quick(job).phases)
    assert allocated == pytest.approx(program_bytes(scenario), rel=0.01)


def test_a_selector_that_is_none_says_the_forms(tmp_path: Path) -> None:
    """A wrong name or a range from high to low."""
    for wrong in ("layers.3", "last:", "5-3", "lm_head"):
        with pytest.raises(UsageError, match="last:8"):
            scenario_of("llama-3.1-8b", tmp_path, train_layers=(wrong,))


def test_layers_that_are_drawn_anew_are_not_traced(tmp_path: Path) -> None:
    """A trace of one step has the states of a few layers, and LISA ends with those of all."""
    layers = ("drawn:1@20", "embed", "norm", "head")
    scenario = scenario_of("llama-3.1-8b", tmp_path, train_layers=layers, optimizer="adamw_torch")
    with pytest.raises(NotModelledError, match="drawn anew"):
        trace_events(scenario)


def test_frozen_layers_take_less_time(tmp_path: Path) -> None:
    """Fewer trained layers take less time, fewer parameters to update, and as much forward."""

    def timed(**flags: Any) -> TimedJob:
        made = timed_job_of(scenario_of("llama-3.1-8b", tmp_path, **flags), Coefficients())
        assert made is not None
        return made

    everything, last = timed(), timed(train_layers=("last:1",))
    forward, backward = (
        [products_flop(job, job.micro, "training", (direction,)) for job in (last, everything)]
        for direction in ("forward", "backward")
    )
    assert forward[0] == forward[1]
    assert backward[0] < backward[1]
    assert last.own.trained == last.scenario.model.groups[0].block.param_count
    shown, whole = (pass_seconds(job, "training")["elementwise"] for job in (last, everything))
    assert float(shown) < float(whole)
