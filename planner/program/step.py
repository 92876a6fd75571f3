"""A whole training step: the parts of the model in their order, forward and back, and the optimizer's step between.

Source: transformers 5.23 trainer.py (``training_step``) and the ``forward`` of each model in models/*/modeling_*.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

from planner.anatomy.trained import is_checkpointed, makes_input_require_gradient
from planner.anatomy.trained import parts_of as trained_of
from planner.domain.stack import ENTERS
from planner.program.checkpoint import How, checkpointed, checkpointed_reentrant
from planner.program.ends import EndsView, embeddings, head, require_gradient
from planner.program.engines import runtime_of
from planner.program.inputs import names_for
from planner.program.job import Job
from planner.program.layer import layer
from planner.program.operators import Operators
from planner.program.runtime import Part, Pass, Runtime
from planner.program.stream import Stream
from planner.program.template import NO_INPUT, Gradients, Shape, Template, Terms, run
from planner.program.tensors import Tensor
from planner.program.view import LayerView, layer_view

_OUTSIDE = Terms("saved_activations", "other_temporaries")
_LAYER = Terms("saved_activations", "block_recompute")
_LOSS = Terms("logits_and_loss", "logits_and_loss")


def step_of(job: Job, runtime_type: type[Runtime] | None = None) -> Stream:
    """Loading, a first micro-step, the optimizer's step, a later micro-step, and an evaluation of as many samples.

    The first micro-step meets neither gradients nor optimizer states.  With accumulation a third one follows, which
    finds gradients.  ``runtime_type`` writes it, where that is not the job's own.
    """
    stream = Stream()
    runtime = (runtime_type or runtime_of(job))(stream, job)
    parts, accumulates = parts_of(job), int(job.recipe.batch.grad_accum) > 1
    runtime.parts = parts
    runtime.load()
    runtime.optimizer_step(runtime.micro_step(parts, Pass("forward", "loss", "backward", is_last=True)))
    trained = runtime.micro_step(parts, Pass("forward_2", "loss_2", "backward_2", is_last=not accumulates))
    if accumulates:
        again = parts_of(job, "added") if runtime.adds_gradients else parts
        runtime.micro_step(again, Pass("forward_2", "loss_2", "backward_2", is_last=True))
    runtime.optimizer_step(trained)
    runtime.evaluate(evaluation_of(job))
    return stream


def evaluation_of(job: Job) -> list[Part]:
    """The parts of a forward pass without gradients, in which no layer is checkpointed."""
    recipe = replace(job.recipe, gradient_checkpointing=False)
    return parts_of(replace(job, scenario=replace(job.scenario, recipe=recipe)), gradients="none")


def parts_of(job: Job, gradients: Gradients = "first") -> list[Part]:
    """The embeddings, the layers and the head of a model, in forward order; ``gradients`` as of :func:`run`."""
    trained = trained_of(job.model, job.recipe)
    layers = _layers(job, trained.layers)
    around = [layer_view(job, job.model.groups[0].block, trained=end in trained.ends) for end in ("norm", "embed", "head")]
    needs_entry = makes_input_require_gradient(job.recipe, job.stack)
    ends = EndsView(job.model, around[0], around[1], around[2], tuple(dict.fromkeys(layers)), needs_entry)
    first = _first(ends, gradients)
    shares = {name: shape for name, (_, shape) in first.shares.items()}
    parts = [Part("embeddings", first, 1)]
    entry = first.out
    given = {view: tuple((name, shares[known]) for name, known in names_for(job.model, view).items()) for view in ends.kinds}
    for number, view in enumerate(layers):
        template = _one_layer(view, _call_of(job, number, view), entry, given[view], gradients)
        if parts[-1].template is template:
            parts[-1] = Part("layer", template, parts[-1].count + 1)
        else:
            parts.append(Part("layer", template, 1))
        entry = template.out
    return [*parts, Part("head", _last(ends, entry, tuple(shares.items()), gradients), 1)]


def _layers(job: Job, trained: frozenset[int]) -> list[LayerView]:
    """The view of every layer; those of a kind that are trained alike share one."""
    known = [{state: layer_view(job, group.block, trained=state) for state in (True, False)} for group in job.model.groups]
    kinds = [views for views, group in zip(known, job.model.groups, strict=True) for _ in range(group.count)]
    return [views[number in trained] for number, views in enumerate(kinds)]


@dataclass(frozen=True, slots=True)
class _Call:
    """How a layer is called: through checkpointing (``again``), and with an input that is made to require a gradient."""

    again: bool
    enters: bool


def _call_of(job: Job, number: int, view: LayerView) -> _Call:
    again = is_checkpointed(job.recipe, job.stack, number, trained=view.trains_base)
    return _Call(again, again and view.trains_base and bool(job.recipe.train_layers) and job.stack.frozen_layers in ENTERS)


@lru_cache(maxsize=256)
def _first(ends: EndsView, gradients: Gradients) -> Template:
    given = {} if gradients == "none" else ends.given
    return run(lambda torch, _: embeddings(torch, ends), NO_INPUT, _OUTSIDE, given, gradients=gradients)


@lru_cache(maxsize=1024)
def _one_layer(
    view: LayerView, call: _Call, entry: Shape, given: tuple[tuple[str, Shape], ...], gradients: Gradients
) -> Template:
    return run(partial(_layer, view, call), entry, _LAYER, dict(given), gradients=gradients)


@lru_cache(maxsize=256)
def _last(ends: EndsView, entry: Shape, shares: tuple[tuple[str, Shape], ...], gradients: Gradients) -> Template:
    def loss(torch: Operators, x: Tensor) -> Tensor:
        # No variable here may refer to the stream while the head runs.
        passed = [x]
        del x
        return head(torch, ends, passed)

    return run(loss, entry, _LOSS, dict(shares), gradients=gradients)


def _layer(view: LayerView, call: _Call, torch: Operators, x: Tensor) -> Tensor:
    """One layer; what it shares with others is an argument of its own, which checkpointing keeps."""
    given, torch.shared = torch.shared, {}
    function = partial(_with_shared, torch, view, given)
    del given
    if call.enters and x.node is None and torch.grad_enabled:
        require_gradient(x, torch.path)
    if not call.again or view.wraps_parts:
        return function(x)
    run_again = checkpointed_reentrant if view.recipe.checkpoint_reentrant else checkpointed
    return run_again(
        torch, function, x, How(view.recipe.offload == "activations", view.recipe.checkpoint_policy == "selective-op")
    )


def _with_shared(torch: Operators, view: LayerView, given: dict[str, Tensor], x: Tensor) -> Tensor:
    torch.shared = given
    try:
        return layer(torch, view, x)
    finally:
        torch.shared = {}
        if view.block.attention.returned_scores == "none":
            torch.returned.clear()
