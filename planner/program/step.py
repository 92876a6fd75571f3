"""A whole training step: the parts of the model in their order, forward and back,
and the optimizer's step between.

Source: transformers 5.23 trainer.py (``training_step``)
and the ``forward`` of each model in models/*/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from planner.anatomy.trained_parts import is_checkpointed, makes_input_require_gradient
from planner.anatomy.trained_parts import parts_of as trained_of
from planner.domain.model import ModelSpec
from planner.domain.recipes.parallel import HEAD, TABLE
from planner.domain.recipes.recipe import LANGUAGE_TASKS
from planner.domain.stack_values import ENTERS
from planner.errors import NotModelledError
from planner.intake.train_layers import TrainedParts
from planner.program.checkpoint import Checkpointing, checkpointed, checkpointed_reentrant
from planner.program.engines import runtime_of
from planner.program.head.distilled import distilled_loss
from planner.program.head.ends import EndsView, embeddings, head, require_gradient
from planner.program.head.generation import CACHE, features, sampled
from planner.program.head.inputs import names_for
from planner.program.head.preferences import preference_head, scores, values
from planner.program.head.roles import CACHING, Role
from planner.program.head.tiles import tiles
from planner.program.head.weighted import compared_logits, weighted_loss
from planner.program.in_turn import arrived, came_back, left
from planner.program.job import Job, feature_job, generation_job, reference_job, reward_job, teacher_job
from planner.program.layers.layer import layer
from planner.program.load import settle_workspace
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.pipeline import run_pipeline
from planner.program.recorded_part import NO_INPUT, Gradients, Saves, Shape, Template, Terms, run
from planner.program.request_stream import RequestStream
from planner.program.runtime import Generation, Part, Pass, Runtime
from planner.program.view import LayerView, head_view, layer_view
from planner.program.vision.seeing import Before, Given, seeing_parts, take_pixels
from planner.program.vision.tower import of_patches


@dataclass(frozen=True, slots=True)
class Mode:
    """Which gradients a pass makes, and what it is for."""

    gradients: Gradients
    role: Role


_OUTSIDE = Terms("saved_activations", "other_temporaries")
_LAYER = Terms("saved_activations", "block_recompute")
_LOSS = Terms("logits_and_loss", "logits_and_loss")
_LATER = Pass("forward_2", "loss_2", "backward_2", is_last=True)


def step_of(job: Job) -> RequestStream:
    """Loading, a first step with its update, a later one, and an evaluation of as many samples.

    A task that generates does so before both steps.  Where it generates more often than the optimizer
    steps, the second time finds gradients.

    The first micro-step meets neither gradients nor optimizer states.  With accumulation each step has a
    second one, which finds gradients; of three or more there is one between where that is the fullest.

    Raises:
        NotModelledError: nothing is trained, which a forced job may ask for.  Of GPUs that one process has
            some may hold nothing that is trained: they run forward and back.
    """
    stage = job.model.stage
    if not job.trained and not (stage is not None and stage.in_turn):
        raise NotModelledError(
            "Nothing of this job is trained, so it has no step: lora_targets or train_layers name no part"
            " of the model"
        )
    stream = RequestStream()
    runtime = runtime_of(job)(stream, job)
    runtime.parts = parts_of(job)
    if stage is not None and not stage.in_turn:
        run_pipeline(
            runtime, runtime.parts, parts_of(job, "added") if runtime.adds_gradients else runtime.parts
        )
        settle_workspace(stream)
        return stream
    runtime.before, runtime.after = asides_of(job)
    generation = generation_of(job)
    asides = (*runtime.before, *runtime.after)
    runtime.itself = asides[0] if len(asides) > 1 else ()
    asked = generation.reference if generation else next(reversed(asides), ())
    runtime.compared, runtime.scoring = asked, generation.scores if generation else ()
    runtime.load()
    runtime.generate(generation, "generation")
    pixels = take_pixels(stream, job)
    runtime.optimizer_step(
        _accumulated(runtime, generation, Pass("forward", "loss", "backward", is_last=True))
    )
    take_pixels(stream, job, pixels)
    runtime.generate(generation, "generation_2")
    runtime.optimizer_step(_accumulated(runtime, generation, _LATER))
    evaluated = evaluation_of(job)
    # The second batch of an evaluation finds the cache as the first one left it.
    for _ in range(1 + job.evaluates):
        runtime.evaluate(evaluated)
    settle_workspace(stream)
    return stream


def _accumulated(runtime: Runtime, generation: Generation | None, alone: Pass) -> list[int]:
    """The micro-steps before one update, of which ``alone`` is the first; gives the slots of its gradients.

    Source: transformers 5.23 trainer.py ``_inner_training_loop``.
    """
    job = runtime.job
    accumulated = int(job.recipe.batch.grad_accum)
    gradients = runtime.micro_step(runtime.parts, replace(alone, is_last=accumulated == 1))
    if accumulated == 1:
        return gradients
    if job.recipe.generates_between:
        runtime.generate(generation, "generation_2")
    again = parts_of(job, "added") if runtime.adds_gradients else runtime.parts
    ordered = runtime.learns_order and job.recipe.generates_between and job.recipe.generation_micro_steps > 1
    if (runtime.joins_gradients or ordered) and accumulated > 2:
        runtime.micro_step(again, replace(_LATER, is_last=False))
    runtime.micro_step(again, _LATER)
    return gradients


def _makes_logits_of_evaluation(job: Job) -> bool:
    """Whether an evaluation that is asked for makes logits, of which Liger's model code makes none where it
    trains.
    """
    by_liger = job.recipe.loss == "liger" and job.recipe.task in LANGUAGE_TASKS
    fused = job.stack.model_code == "own" or job.stack.cut_cross_entropy
    return by_liger and not fused and job.evaluates


def evaluation_of(job: Job, role: Role = "policy") -> list[Part]:
    """The parts of a forward pass without gradients, in which no layer is checkpointed.

    An evaluation of the policy is one of ``model.eval()``, where nothing is dropped (transformers 5.23
    trainer.py evaluation_loop).
    """
    recipe, model = replace(job.recipe, gradient_checkpointing=False), job.model
    if role == "policy":
        adapter = replace(recipe.adapter, dropout=0.0) if recipe.adapter else None
        recipe, model = replace(recipe, adapter=adapter), _without_dropout(model)
        if _makes_logits_of_evaluation(job):
            recipe = replace(recipe, loss="hf")
    return parts_of(replace(job, scenario=replace(job.scenario, recipe=recipe, model=model)), "none", role)


@lru_cache(maxsize=64)
def _without_dropout(model: ModelSpec) -> ModelSpec:
    return model.without_dropout


def generation_of(job: Job) -> Generation | None:
    """The passes of a generation, and of what is asked about its completions;
    ``None`` where nothing is generated.
    """
    rollout = job.recipe.rollout
    if rollout is None:
        return None
    n_asked = int(job.recipe.asks_old) + int(rollout.scores_itself)
    asides = n_asked * (evaluation_of(job, "reference"),)
    compared = parts_of(reference_job(job), "none", role="reference") if rollout.has_reference else ()
    scoring = reward_job(job)
    scored = () if scoring is None else parts_of(scoring, "none", role="score")
    if job.stack.feature_layers:
        scored = parts_of(feature_job(job), "none", role="features")
    if rollout.generator != "transformers":
        return Generation((), (), asides, compared, scored)
    alone = generation_job(job)
    prompts, token = evaluation_of(alone, "prompt"), evaluation_of(alone, "token")
    return Generation(prompts, token, asides, compared, scored)


def asides_of(job: Job) -> tuple[tuple[list[Part], ...], tuple[list[Part], ...]]:
    """The passes without gradients of each micro-step: those before the forward pass,
    and those between it and the loss.
    """
    teaching = teacher_job(job)
    if teaching is not None:
        return (), (parts_of(teaching, "none", role="compared"),)
    if not job.recipe.has_reference or job.recipe.rollout is not None:
        return (), ()
    if job.recipe.compares_logits:
        return (parts_of(reference_job(job), "none", role="compared"),), ()
    reference = parts_of(reference_job(job), "none", role="reference")
    if job.recipe.task == "dpo":
        return (), (reference,)
    of_policy = evaluation_of(job, "divergence")
    of_reference = parts_of(reference_job(job), "none", role="divergence")
    if job.stack.pair_logps in ("whole", "whole_with_loss"):
        return (), (of_policy, reference, of_reference)
    return (of_policy,), (of_reference, reference)


def parts_of(job: Job, gradients: Gradients = "first", role: Role = "policy") -> list[Part]:
    """The embeddings, the layers and the head of a model, in forward order;
    ``gradients`` as of :func:`run`.
    """
    trained = trained_of(job.model, job.recipe)
    layers = _layers(job, trained)
    around = [
        layer_view(job, job.model.groups[0].block, trained=end in trained.ends)
        for end in ("norm", "embed", "head")
    ]
    around[2] = head_view(job, around[2])
    needs_entry = makes_input_require_gradient(job.recipe, job.stack)
    model, kinds = _without_depth(job.model), _kinds(layers)
    ends = EndsView(model, around[0], around[1], around[2], kinds, needs_entry, job.rows_apart)
    mode = Mode(gradients, role)
    before, stage = _before_layers(job, ends, mode), job.model.stage
    parts, shares, entry = before.parts, before.shares, before.parts[-1].template.out
    if stage is not None and not stage.has(TABLE):
        parts, entry = [], replace(entry, shared="")
        if stage.in_turn:
            parts = [Part("embeddings", _handed(ends, entry, "arrived", gradients), 1)]
            shares = {name: shape for name, (_, shape) in parts[0].template.shares.items()}
            entry = parts[0].template.out
    grown = tuple(CACHE.items()) if role == "token" else ()
    names = {view: names_for(view).items() for view in ends.kinds}
    given = {
        view: (*((name, shares[known]) for name, known in found if known in shares), *grown)
        for view, found in names.items()
    }
    made: dict[tuple[int, _Call, Shape], Template] = {}
    for number, view in enumerate(layers):
        # Layers of a kind share a view, whose hash takes longer than the rest of this loop.
        key = (id(view), _call_of(job, number, view), entry)
        template = made.get(key) or _one_layer(view, key[1], entry, given[view], mode)
        made[key] = template
        if parts and parts[-1].template is template:
            parts[-1] = Part("layer", template, parts[-1].count + 1)
        else:
            parts.append(Part("layer", template, 1))
        parts += before.stacked(number, template.out, gradients)
        entry = parts[-1].template.out
    if stage is not None and not stage.has(HEAD):
        return [*parts, Part("head", _handed(ends, entry, "left", gradients), 1)] if stage.in_turn else parts
    return [*parts, Part("head", _last(ends, entry, tuple(shares.items()), mode), 1)]


@lru_cache(maxsize=64)
def _without_depth(model: ModelSpec) -> ModelSpec:
    """Nothing around the layers asks how many there are, so that models of any depth share it."""
    return replace(model, groups=tuple(replace(group, count=1) for group in model.groups))


def _kinds(layers: list[LayerView]) -> tuple[LayerView, ...]:
    """Each kind of layer once; those that share a view are compared once."""
    return tuple(dict.fromkeys({id(view): view for view in layers}.values()))


def _before_layers(job: Job, ends: EndsView, mode: Mode) -> Before:
    """What runs before the first layer."""
    if job.model.vision is None or job.recipe.batch.images is None:
        first = _first(ends, mode.gradients)
        return Before(
            [Part("embeddings", first, 1)], {name: shape for name, (_, shape) in first.shares.items()}
        )

    return seeing_parts(job, job.model.vision, ends, mode.gradients, partial(_tower_layer, mode))


@lru_cache(maxsize=256)
def _tower_layer(
    mode: Mode, view: LayerView, again: bool, entry: Shape, unread: bool, given: Given
) -> Template:
    """A layer of a vision tower, in units of patches."""
    part = partial(_layer, view, _Call(again, enters=False))
    if unread:
        part = partial(_unread_layer, part)
    return of_patches(run(part, entry, _LAYER, dict(given), gradients=mode.gradients), joined=bool(given))


def _unread_layer(part: Callable[[Operators, Tensor], Tensor], torch: Operators, x: Tensor) -> Tensor:
    """A layer whose output nothing reads: the stream goes on as it was."""
    part(torch, x)
    return x


def _layers(job: Job, trained: TrainedParts) -> list[LayerView]:
    """The view of every layer; those of a kind that are trained alike share one.

    The head alone asks for the loss: without it a layer runs once for all losses.
    """
    job = replace(job, scenario=replace(job.scenario, recipe=replace(job.recipe, loss="hf")))
    known: dict[tuple[int, bool, bool], LayerView] = {}
    views = []
    blocks = ((kind, each.block) for kind, each in enumerate(job.model.groups) for _ in range(each.count))
    for number, (kind, block) in enumerate(blocks):
        key = kind, number in trained.layers, number in trained.mlp_only
        if key not in known:
            known[key] = layer_view(job, block, trained=key[1], mlp_only=key[2])
        views.append(known[key])
    return views


@dataclass(frozen=True, slots=True)
class _Call:
    """How a layer is called: through checkpointing (``again``), with an input that is made to require a
    gradient, and with copies of masks that lie on another GPU.
    """

    again: bool
    enters: bool
    copies: bool = False


def _call_of(job: Job, number: int, view: LayerView) -> _Call:
    again = is_checkpointed(job.recipe, job.stack, number, trained=view.trains_base)
    return _Call(
        again,
        again and view.trains_base and bool(job.recipe.train_layers) and job.stack.frozen_layers in ENTERS,
        job.model.stage is not None and job.model.stage.in_turn and not job.model.stage.has(TABLE),
    )


@lru_cache(maxsize=256)
def _first(ends: EndsView, gradients: Gradients) -> Template:
    given = {} if gradients == "none" else ends.given
    saves = _saves(ends.layer, gradients)
    return run(
        lambda torch, _: embeddings(torch, ends), NO_INPUT, _OUTSIDE, given, gradients=gradients, saves=saves
    )


@lru_cache(maxsize=64)
def _handed(ends: EndsView, entry: Shape, way: Literal["arrived", "left"], gradients: Gradients) -> Template:
    """Where the stream comes from another GPU of this process, or leaves for one."""
    if way == "arrived":
        return run(lambda torch, _: arrived(torch, ends, entry), NO_INPUT, _OUTSIDE, gradients=gradients)
    return run(partial(left, ends), entry, _LOSS, gradients=gradients)


@lru_cache(maxsize=1024)
def _one_layer(
    view: LayerView, call: _Call, entry: Shape, given: tuple[tuple[str, Shape], ...], mode: Mode
) -> Template:
    dpo = mode.role == "reference" and view.recipe.task == "dpo"
    has_values = view.recipe.task == "ppo" or (
        view.recipe.task == "reward" and view.stack.reward_head == "value"
    )
    values = mode.gradients == "none" and has_values
    returned = mode.role == "policy" and view.stack.keeps_hidden_states
    kept = dpo and view.stack.pair_logps == "rows_and_hidden"
    keeps = values or returned or kept or mode.role == "features"
    runs = _caching_layer if mode.role in CACHING else _kept_layer if keeps else _layer
    saves = _saves(view, mode.gradients)
    return run(partial(runs, view, call), entry, _LAYER, dict(given), gradients=mode.gradients, saves=saves)


def _saves(view: LayerView, gradients: Gradients) -> Saves:
    on_host = view.recipe.offloads_activations and view.stack.offloads_saved
    return "on_host" if on_host and gradients != "none" else "here"


def _kept_layer(view: LayerView, call: _Call, torch: Operators, x: Tensor) -> Tensor:
    """A layer whose input the model returns (``output_hidden_states``)."""
    torch.outputs.append(x.alias())
    return _layer(view, call, torch, x)


def _caching_layer(view: LayerView, call: _Call, torch: Operators, x: Tensor) -> Tensor:
    """A layer that keeps keys and values for the tokens to come."""
    torch.caches = True
    return _layer(view, call, torch, x)


@lru_cache(maxsize=256)
def _last(ends: EndsView, entry: Shape, shares: tuple[tuple[str, Shape], ...], mode: Mode) -> Template:
    def loss(torch: Operators, x: Tensor) -> Tensor:
        # No variable here may refer to the stream while the head runs.
        passed = [x]
        del x
        if mode.role in ("prompt", "token", "features"):
            return (features if mode.role == "features" else sampled)(torch, ends, passed)
        if ends.model.value_head:
            return values(torch, ends, passed, mode.role)
        if ends.layer.recipe.task in ("reward", "classify", "gkd"):
            return (distilled_loss if ends.layer.recipe.task == "gkd" else scores)(torch, ends, passed)
        if ends.layer.recipe.has_own_loss:
            return preference_head(torch, ends, passed, mode.role)
        if mode.role == "compared":
            return compared_logits(torch, ends, passed)
        if ends.layer.stack.loss_weights != "none":
            return weighted_loss(torch, ends, passed)
        if ends.layer.recipe.loss == "chunked" and ends.layer.stack.loss_pieces == "tiles":
            return tiles(torch, ends, passed)
        return head(torch, ends, came_back(torch, ends, passed))

    saves = _saves(ends.layer, mode.gradients)
    last: Saves = "here" if saves == "here" else "on_host_last"
    return run(loss, entry, _LOSS, dict(shares), gradients=mode.gradients, saves=last)


def _layer(view: LayerView, call: _Call, torch: Operators, x: Tensor) -> Tensor:
    """One layer; what it shares with others is an argument of its own, which checkpointing keeps."""
    given, torch.shared = torch.shared, {}
    function = partial(_with_shared, torch, view, given, call.copies)
    del given
    if call.enters and x.node is None and torch.grad_enabled:
        require_gradient(x, torch.path)
        torch.leaf = x.node
    if not call.again or view.wraps_parts:
        return function(x)
    run_again = checkpointed_reentrant if view.recipe.checkpoint_reentrant else checkpointed
    if view.stack.checkpoints_itself:
        function, run_again = partial(run_again, torch, function), checkpointed
    offloads = view.recipe.offloads_activations and not view.stack.offloads_saved
    selective = view.recipe.checkpoint_policy == "selective-op"
    compiled = view.stack.adapter_kernels == "compiled"
    how = Checkpointing(offloads, selective, view.stack.selective_keeps_attention, compiled, _is_hooked(view))
    return run_again(torch, function, x, how)


def _is_hooked(view: LayerView) -> bool:
    """Whether FSDP1 has a hook on the input of each layer: of units whose weights are frozen.

    Source: torch 2.13 distributed/fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook, whose
    handle stays until _finalize_params; autograd/graph.py register_multi_grad_hook refers to the node of the
    input, and that to the input.
    """
    sharding, stack = view.recipe.sharding, view.stack
    is_fsdp1 = sharding.engine == "fsdp" and not sharding.dtensors
    around = stack.checkpoints_units and stack.fsdp_units == "layer"
    return is_fsdp1 and view.recipe.method != "full" and stack.fsdp1_wraps_adapters and around


def _with_shared(
    torch: Operators, view: LayerView, given: dict[str, Tensor], copies: bool, x: Tensor
) -> Tensor:
    torch.shared = {name: torch.same(each, "to") for name, each in given.items()} if copies else given
    try:
        return layer(torch, view, x)
    finally:
        torch.shared = {}
        if view.block.attention.returned_scores == "none":
            torch.returned.clear()
