"""Scenario -> allocation events: the whole trace of one training step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from measure.trace.build import Built, build_on_meta, make_config, materialize, prediction_answers
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES, cublas_workspace_bytes
from measure.trace.cuda.shims import Situation, shims
from measure.trace.expansion import repeat
from measure.trace.host_records import HostMemory, host_memory
from measure.trace.labels import to_events
from measure.trace.layers import layer_pattern, shortened
from measure.trace.loading import sorts, with_loader
from measure.trace.period import TRACED_PERIODS, Irregular
from measure.trace.record import Record, Trace
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import run_step
from planner.allocator.events import AllocEvent
from planner.catalog.left_whole import left_whole_paths
from planner.domain.recipes.recipe import Recipe
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.errors import NotModelledError, PlannerError
from planner.intake.supported import lacks_flash2, runs_deepgemm

_OFFLOADS = ("none", "optimizer", "params", "optimizer+params")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How to trace.  ``all_layers`` runs every layer instead of one period of them."""

    all_layers: bool = False


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One training step: every allocation and free on the card, and the host memory of each process."""

    events: list[AllocEvent]
    host: HostMemory


def trace_step(scenario: Scenario, options: TraceOptions = TraceOptions()) -> TracedStep:
    """One training step on one card.

    Raises:
        NotModelledError: something that is not traced; says what, and what to do.
    """
    refuse_what_is_not_traced(scenario)
    if is_divided(scenario.recipe):
        raise NotModelledError(
            f"sharding '{scenario.recipe.sharding}' over several cards is for a dry run of its engine's own "
            "code"
        )
    with _own_garbage_only():
        records = trace_records(scenario, make_config(scenario), options)
        return TracedStep(to_events(records), host_memory(records))


def is_divided(recipe: Recipe) -> bool:
    """Whether one card has only a part of the job, so that the code which divides it must run."""
    return recipe.sharding.communicates or recipe.parallel.tensor > 1


def trace_events(scenario: Scenario, options: TraceOptions = TraceOptions()) -> list[AllocEvent]:
    """The events of :func:`trace_step`."""
    return trace_step(scenario, options).events


@contextmanager
def _own_garbage_only() -> Iterator[None]:
    """Collect garbage only where the step itself says so, and look at nothing that is older than the trace.

    Imported libraries hold some million objects: each collection of them takes as long as a quarter of a
    trace.  Without automatic collections a tensor in a cycle goes at the end of its micro-step, every time at
    the same place.
    """
    was_on, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if not was_frozen:
            gc.unfreeze()
        if was_on:
            gc.enable()


def trace_records(scenario: Scenario, config: Any, options: TraceOptions = TraceOptions()) -> list[Record]:
    """Records of the whole model, and what its loader and the Trainer do around loading."""
    return with_loader(_records_of_model(scenario, config, options), scenario)


def _records_of_model(scenario: Scenario, config: Any, options: TraceOptions) -> list[Record]:
    """From a few periods of its layers where they repeat."""
    uneven = scenario.recipe.train_layers or left_whole_paths(scenario.model)
    if not options.all_layers and not uneven:
        pattern = layer_pattern(scenario, config)
        if pattern.periods > TRACED_PERIODS:
            built = build_on_meta(scenario, shortened(config, pattern.traced_layers))
            try:
                return repeat(trace_built(scenario, built).records, pattern)
            except Irregular:
                pass  # every layer is traced instead, which is slower and needs no pattern
    return trace_built(scenario, build_on_meta(scenario, config)).records


def _fp8_by(scenario: Scenario) -> Literal["nothing", "triton", "deepgemm"]:
    if scenario.recipe.numerics.quantization != "fp8":
        return "nothing"
    return "deepgemm" if runs_deepgemm(scenario.hardware.gpu) else "triton"


def trace_built(scenario: Scenario, built: Built) -> Trace:
    """The step of a model on meta, recorded on fake tensors.

    Raises:
        NotModelledError: a module that cannot run on fake tensors, with its name and the operator.
    """
    products = cublas_workspace_bytes(scenario.hardware.gpu.compute_capability)
    recorder = Recorder(KERNEL_WORKSPACES, product_workspace_bytes=products)
    batch = scenario.recipe.batch
    situation = Situation(
        batch.masks_padding,
        recorder,
        # Of one sample that is as long as the cap, and others of the mean length.
        int(batch.seq_len + (batch.rows - 1) * batch.tokens_per_sample),
        scenario.hardware.gpu.counted_multiprocessors,
        has_flash=not lacks_flash2(scenario.hardware.gpu),
        fp8_by=_fp8_by(scenario),
        recurrent_kernels=scenario.stack.recurrent_kernels == "packages",
    )
    models = [each for each in (built.model, built.reference) if each is not None]
    with FakeTensorMode(), shims(situation), recorder.modules.watching(models, built.layer_list):
        try:
            for number, model in enumerate(models):
                materialize(model, recorder, number, by_names=sorts(scenario))
            run_step(built.model, scenario, recorder, built.reference)
        except (PlannerError, MemoryError):
            raise
        except Exception as error:
            raise NotModelledError(_broken(scenario, recorder, error)) from error
    return recorder.trace


def _broken(scenario: Scenario, recorder: Recorder, error: Exception) -> str:
    """The sentence for a module that cannot run on fake tensors: operator, module, what happened,
    and the way out if any.
    """
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        what = "needs values, which fake tensors do not have"
    else:
        first_line = str(error).strip().partition("\n")[0][:200]
        what = f"fails on fake tensors ({type(error).__name__}: {first_line})"
    # torch names the operator where it could not run one; else it is the one before the failure.
    operator = getattr(error, "func", None) or recorder.last_operator or "(none)"
    return (
        f"model '{scenario.model.id}' cannot be traced: operator {operator} in module "
        f"{recorder.last_path or '(none)'} {what}{prediction_answers(scenario.model)}"
    )


def refuse_what_is_not_traced(scenario: Scenario) -> None:
    """Refuse a scenario whose events would be wrong.

    Raises:
        NotModelledError: names the setting and the way out.
    """
    recipe, stack = scenario.recipe, scenario.stack
    whole = "fp32" if stack.trainable_fp32 else recipe.numerics.load_dtype
    trained = recipe.adapter.dtype if recipe.adapter else whole
    unscales = recipe.numerics.precision == "fp16-mixed"
    wider = "--adapter-dtype fp32" if recipe.adapter else "--load-dtype fp32"
    refused = (
        *_untraced_divisions(recipe, stack),
        (
            unscales and trained == "fp16" and not recipe.uses_deepspeed,
            "fp16 gradients under loss scaling, which torch refuses to unscale,",
            wider,
        ),
        (
            recipe.rollout is not None,
            f"task '{recipe.task}'",
            "the dry run of its script (measure trace --gpu CARD -- PROGRAM)",
        ),
        (
            recipe.batch.images is not None,
            "images",
            "--images-per-sample 0, the dry run of its program (measure trace --gpu CARD -- PROGRAM)",
        ),
        (recipe.offload not in _OFFLOADS, f"offload '{recipe.offload}'", "--offload optimizer or none"),
        *_untraced_stacks(recipe, stack),
    )
    for applies, what, way_out in refused:
        if applies:
            raise NotModelledError(
                f"{what} cannot be traced yet; use {way_out}, or ask for a prediction: plan --model ..."
            )


def _divides_by_trainer(recipe: Recipe, stack: Stack) -> bool:
    """Whether only sequences are divided, which the Trainer does under FSDP2 and ZeRO, or only matrices."""
    alone = recipe.parallel.gpus in (recipe.parallel.context, recipe.parallel.tensor)
    return alone and stack.runs_trainer and stack.model_parallel == "features"


def _untraced_divisions(recipe: Recipe, stack: Stack) -> tuple[tuple[bool, str, str], ...]:
    """What is divided, or computed in fp8, in a way that is not traced: whether it is so, what it is,
    the way out.
    """
    return (
        (
            recipe.parallel.divides and not _divides_by_trainer(recipe, stack),
            "a job whose GPUs share a batch",
            "one GPU for each batch",
        ),
        (recipe.parallel.replicas is not None, "copies other than one on each node", "no --replicas"),
        (recipe.numerics.fp8 != "none", "products in fp8", "--fp8 none"),
    )


def _untraced_stacks(recipe: Recipe, stack: Stack) -> tuple[tuple[bool, str, str], ...]:
    """What a stack does that is not traced: whether it does so here, what it is, the way out."""
    untraced = (
        (stack.fused_norm or stack.fused_mlp, "the fused kernels"),
        (recipe.adapter is not None and stack.adapter_kernels != "eager", "the adapter kernels"),
        (stack.tells_samples(recipe), "the attention kernel over packed samples"),
        (
            stack.widens_copies and recipe.adapter is not None and bool(recipe.adapter.modules_to_save),
            "the dtype of modules_to_save",
        ),
        (stack.linearized_experts or stack.host_experts != "none", "the experts"),
        (recipe.gradient_checkpointing and stack.checkpoints_parts, "the checkpointing"),
        (stack.prepares_unquantized, "the preparation of unquantised bases"),
        (
            not recipe.has_own_loss and stack.loss_forward != ("compute", "float", "log_softmax"),
            "the loss",
        ),
    )
    way_out = "--stack hf-trainer@5, the dry run of its own tool (measure trace --check FILE)"
    return tuple((is_so, f"{what} of stack '{stack.id}'", way_out) for is_so, what in untraced)
