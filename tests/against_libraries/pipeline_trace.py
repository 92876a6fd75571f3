"""The dry run of one group of a pipeline: torch's own schedules over layers of Transformers, on fake tensors
and a fake process group that sends nothing.
"""

from __future__ import annotations

import copy
import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from parallel_trace import LocalRecorder, _materialize, group_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import stage as stages

from measure.trace.build import build_on_meta, make_config
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES, cublas_workspace_bytes
from measure.trace.cuda.shims import Situation, shims
from measure.trace.labels import to_events
from planner.allocator.events import AllocEvent
from planner.domain.recipes.parallel import Stage
from planner.domain.scenario import Scenario

_CLASSES = {
    "1f1b": schedules.Schedule1F1B,
    "gpipe": schedules.ScheduleGPipe,
    "interleaved": schedules.ScheduleInterleaved1F1B,
}


class Run(nn.Module):
    """A run of layers; the first one with the token table, the last one with norm and head."""

    def __init__(self, causal: Any, layers: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.inner, self.first = copy.deepcopy(causal.model), first
        self.inner.layers = nn.ModuleList(causal.model.layers[number] for number in layers)
        if not first:
            self.inner.embed_tokens = None
        if not last:
            self.inner.norm = nn.Identity()
        self.lm_head = causal.lm_head if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token numbers or the stream, to the stream or logits."""
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        hidden = self.inner(**given, use_cache=False).last_hidden_state
        return hidden if self.lm_head is None else self.lm_head(hidden)


def trace_stage(whole: Scenario, stage: Stage) -> list[AllocEvent]:
    """Events of the first round of one group, with neither an optimizer nor an engine."""
    with ExitStack() as stack:
        stack.enter_context(group_of(stage.ranks, stage.rank))
        config = make_config(whole)
        config.num_hidden_layers = whole.model.n_layers
        built = build_on_meta(whole, config)
        runs = list(_runs(built.model, stage, whole.recipe.parallel.layers_of_stages(whole.model.n_layers)))
        products = cublas_workspace_bytes(whole.hardware.gpu.compute_capability)
        recorder = LocalRecorder(KERNEL_WORKSPACES, product_workspace_bytes=products)
        batch = whole.recipe.batch
        situation = Situation(False, recorder, int(batch.rows * batch.tokens_per_sample))
        code = importlib.import_module(type(built.model).__module__)
        masks = mock.patch.object(code, "create_causal_mask", _no_mask)
        with FakeTensorMode(), shims(situation), _sends_nothing(), masks:
            for _, run in runs:
                _materialize(run, recorder)
            _run_round(whole, stage, runs, recorder)
        return to_events(recorder.trace.records)


def _runs(causal: Any, stage: Stage, layers: tuple[int, ...]) -> Iterator[tuple[int, Run]]:
    for chunk in range(len(stage.chunks)):
        number = stage.rank + chunk * stage.ranks
        begin = sum(layers[:number])
        own = range(begin, begin + layers[number])
        yield number, Run(causal, own, first=number == 0, last=number == len(layers) - 1)


def _run_round(whole: Scenario, stage: Stage, runs: list[tuple[int, Run]], recorder: LocalRecorder) -> None:
    batch, model = whole.recipe.batch, whole.model
    shape = (int(batch.rows), int(batch.seq_len))
    dtype = next(runs[0][1].parameters()).dtype
    n_stages = stage.ranks * len(stage.chunks)

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    made = []
    for number, run in runs:
        stream = torch.empty((*shape, model.hidden_size), dtype=dtype, device="meta", requires_grad=True)
        numbers = torch.empty(shape, dtype=torch.int64, device="meta")
        out = torch.empty((*shape, model.vocab_size), dtype=dtype, device="meta", requires_grad=True)
        each = PipelineStage(
            run,
            number,
            n_stages,
            torch.device("cpu"),
            input_args=numbers if number == 0 else stream,
            output_args=out if number == n_stages - 1 else stream,
        )
        each._inference_mode = stages.InferenceMode.STATIC
        each.has_backward = True
        each.backward_one_chunk = _in_backward(recorder, each.backward_one_chunk)
        made.append(each)
    kind: Any = _CLASSES[stage.schedule]
    schedule = kind(
        made if len(made) > 1 else made[0], n_microbatches=stage.microbatches, loss_fn=loss, scale_grads=False
    )
    # Collecting looks at what this run made alone.
    gc.collect()
    gc.freeze()
    with recorder:
        for each in made:
            each._prepare_forward_infra(stage.microbatches, None, None, True)
            each._prepare_backward_infra(stage.microbatches)
        recorder.enter_stage("forward")
        inputs = [(torch.randint(0, 9, shape),) for _ in range(stage.microbatches)]
        labels = [torch.randint(0, 9, shape) for _ in range(stage.microbatches)]
        for each in made:
            each.clear_runtime_states()
        schedule._step_microbatches(
            inputs, [{} for _ in inputs], labels if stage.has("head") else None, [], return_outputs=False
        )
        recorder.close()


def _in_backward(recorder: LocalRecorder, run: Callable[..., None]) -> Callable[..., None]:
    """``run`` as a backward pass, whose thread has a workspace of cuBLAS of its own."""

    def backward(*args: object, **flags: object) -> None:
        recorder.enter_stage("backward")
        run(*args, **flags)
        recorder.enter_stage("forward")

    return backward


def _no_mask(**_: object) -> None:
    """Unlike a mock it does not refer to what it was called with."""


def _sent(*_: object, **__: object) -> list[Any]:
    """Modules of Transformers leave cycles, which are collected where something would be sent."""
    gc.collect()
    return []


def _sent_by_peer(*_: object, **__: object) -> dict[int, Any]:
    gc.collect()
    return {}


@contextmanager
def _sends_nothing() -> Iterator[None]:
    """What is sent stays, and shapes are given; what the schedule keeps of both is its own affair."""
    with (
        mock.patch.object(schedules, "_batch_p2p", _sent),
        mock.patch.object(schedules, "_sorted_batch_p2p", _sent_by_peer),
        mock.patch.object(schedules._PipelineSchedule, "_initialize_pp_stages", return_value=(True, True)),
    ):
        yield
