"""The parts of a vision-language model before its first layer: patches, layers of the tower,
projector, scatter.

Source: as :mod:`planner.program.vision.tower`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.anatomy.trained_parts import is_tower_checkpointed, makes_patches_require_gradient, parts_of
from planner.domain.vision import TowerSpec
from planner.errors import NotModelledError
from planner.program.head.ends import EndsView
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.recorded_part import NO_INPUT, Gradients, Shape, Template, Terms, run
from planner.program.request_stream import RequestStream
from planner.program.runtime import Part
from planner.program.view import LayerView, pads_mask, tower_view
from planner.program.vision.pixtral_tower import (
    BLOCK_MASK,
    JOINED_PROJECTORS,
    beside_mask,
    given_to_layers,
)
from planner.program.vision.tower import (
    TOKEN_EMBEDS,
    TOKEN_GRADIENT,
    UNTIL_TOKENS,
    add_stacked,
    entry,
    gradient_of,
    of_patches,
    projector,
    scatter,
    stacked,
)
from planner.program.vision.tower_parts import SeeingView

_OUTSIDE = Terms("saved_activations", "other_temporaries")
Given = tuple[tuple[str, Shape], ...]


RunLayer = Callable[[LayerView, bool, Shape, bool, Given], Template]
"""One layer by its view, whether it is called through checkpointing, its input, whether nothing reads what
it returns, and what it shares with others; in units of patches.
"""


@dataclass(frozen=True, slots=True)
class Before:
    """The parts before the first layer, what they share with those behind by name, and the tower,
    if there is one.
    """

    parts: list[Part]
    shares: dict[str, Shape]
    seeing: SeeingView | None = None

    def stacked(self, number: int, stream: Shape, gradients: Gradients) -> list[Part]:
        """What runs behind layer ``number`` of the language model."""
        if self.seeing is None or number >= len(self.seeing.tower.deepstack):
            return []
        known = self.shares[f"deepstack embeds {number}"]
        return [Part(f"deepstack {number}", stacked_part(self.seeing, number, stream, known, gradients), 1)]


def seeing_parts(
    job: Job, tower: TowerSpec, ends: EndsView, gradients: Gradients, run_layer: RunLayer
) -> Before:
    """The parts of ``tower`` in front of the language model that ``ends`` describes.

    Raises:
        NotModelledError: a tower of which only the weights are known.
    """
    if tower.code == "counted":
        raise NotModelledError("what this tower computes of images is not modelled")
    trained = parts_of(job.model, job.recipe).ends
    seeing = seeing_view(job, tower)
    first = _entry(ends, seeing, gradients)
    if tower.code == "forward":
        return _forward_alone(ends, seeing, first, gradients)
    made, shares = [Part("embeddings", first, 1)], {name: shape for name, (_, shape) in first.shares.items()}
    reached = seeing.hooked or _has_trained(seeing.entry)
    stream = first.out if reached else replace(first.out, needs_grad=False)
    views, given = _layers(job, tower, stream, trained="tower" in trained)
    for number, view in enumerate(views):
        again = is_tower_checkpointed(job.recipe, job.stack, trained=_has_trained(view))
        unread = number >= tower.n_layers - tower.n_unread
        template = run_layer(view, again, replace(stream, unit=Unit.TOKENS), unread, given)
        made.append(Part("vision layer", template, 1))
        stream = template.out
        if number in tower.deepstack:
            place = tower.deepstack.index(number)
            template = _stacked(seeing, place, replace(stream, unit=Unit.TOKENS), gradients)
            made.append(Part(f"stacked {place}", template, 1))
            shares |= {name: shape for name, (_, shape) in template.shares.items()}
            stream = template.out
    known = tuple(
        (name, replace(shapes, unit=Unit.TOKENS)) for name, shapes in shares.items() if name in UNTIL_TOKENS
    )
    last = _projector(seeing, replace(stream, unit=Unit.TOKENS), known, gradients)
    made.append(Part("projector", last, 1))
    shares |= {name: shape for name, (_, shape) in last.shares.items()}
    waiting = [TOKEN_EMBEDS, *(f"deepstack {number}" for number in range(len(tower.deepstack)))]
    scattered = _scatter(ends, seeing, last.out, tuple((name, shares[name]) for name in waiting), gradients)
    made.append(Part("scatter", scattered, 1))
    # Of these nothing is left; what was stacked is also among what the tower returned.
    gone = (*UNTIL_TOKENS, BLOCK_MASK, TOKEN_EMBEDS)
    shares = {name: shape for name, shape in shares.items() if name not in gone}
    return Before(
        joined(made), shares | {name: shape for name, (_, shape) in scattered.shares.items()}, seeing
    )


def _forward_alone(ends: EndsView, seeing: SeeingView, first: Template, gradients: Gradients) -> Before:
    """The same of a tower that only runs forward, which is part of the first template."""
    known = ((TOKEN_EMBEDS, first.shares[TOKEN_EMBEDS][1]),)
    scattered = _scatter(ends, seeing, replace(first.out, needs_grad=False), known, gradients)
    made = [Part("embeddings", first, 1), Part("scatter", scattered, 1)]
    shares = {name: shape for part in made for name, (_, shape) in part.template.shares.items()}
    return Before(made, {name: shape for name, shape in shares.items() if name != TOKEN_EMBEDS}, seeing)


def _layers(job: Job, tower: TowerSpec, stream: Shape, *, trained: bool) -> tuple[list[LayerView], Given]:
    """The view of every layer, and what all of them get beside the stream."""
    blocks = [group.block for group in tower.groups for _ in range(group.count)]
    views = [tower_view(job, block, trained=trained) for block in blocks]
    if tower.code not in JOINED_PROJECTORS:
        return views, ()
    pads = pads_mask(unit_values(job)[Unit.PATCHES])
    views = [beside_mask(view, stream.dtype, pads=pads) for view in views]
    return views, tuple(given_to_layers(views[0], stream.dtype).items())


def take_pixels(stream: RequestStream, job: Job, before: int | None = None) -> int | None:
    """Images of all micro-batches of a step, which go when those of the next one are there.

    Source: transformers 5.23 trainer.py get_batch_samples, whose list lives until it is called again;
    accelerate 1.15 data_loader.py DataLoaderShard.__iter__ (each batch goes to the card when it is fetched).
    """
    if job.recipe.batch.images is None or job.model.vision is None:
        return None
    size = job.model.vision.rule.pixel_bytes
    slot = stream.allocate(Unit.PIXELS, size, "other_temporaries", ("batch", "", "pixel_values"))
    stream.free(before)
    return slot


@lru_cache(maxsize=256)
def stacked_part(
    seeing: SeeingView, number: int, stream: Shape, known: Shape, gradients: Gradients
) -> Template:
    """What is added behind a layer of the language model."""
    given = ((f"deepstack embeds {number}", known),)
    return run(
        lambda torch, x: add_stacked(torch, seeing, number, x),
        stream,
        _OUTSIDE,
        dict(given),
        gradients=gradients,
    )


def seeing_view(job: Job, tower: TowerSpec) -> SeeingView:
    """The tower around its layers."""
    trained = parts_of(job.model, job.recipe).ends
    hooked = tower.has_hook and makes_patches_require_gradient(job.recipe, job.stack)
    blocks = [group.block for group in (*tower.groups, *tower.stacked)]
    adapted = any(_has_trained(tower_view(job, block, trained=False)) for block in blocks)
    return SeeingView(
        tower,
        tower_view(job, tower.entry, trained="tower" in trained),
        tower_view(job, tower.projectors[0].block, trained="projector" in trained),
        tower_view(job, tower.stacked[0].block, trained="tower" in trained) if tower.stacked else None,
        hooked,
        hooked or adapted or "tower" in trained,
        _passed(job, tower),
    )


def _passed(job: Job, tower: TowerSpec) -> tuple[LayerView, ...]:
    """Layers of a tower that only runs forward."""
    groups = tower.groups[: tower.n_seeing] if tower.code == "forward" else ()
    return tuple(tower_view(job, group.block, trained=False) for group in groups for _ in range(group.count))


def _has_trained(view: LayerView) -> bool:
    return view.trains_base or any(view.adapted(linear) for linear in view.block.linears)


def joined(parts: list[Part]) -> list[Part]:
    """Equal parts in a row as one."""
    made: list[Part] = []
    for part in parts:
        if made and made[-1].template is part.template:
            made[-1] = replace(part, count=made[-1].count + part.count)
        else:
            made.append(part)
    return made


@lru_cache(maxsize=256)
def _entry(ends: EndsView, seeing: SeeingView, gradients: Gradients) -> Template:
    given = {}
    if gradients != "none":
        given = dict(ends.given)
        if ends.needs_entry or ends.trains(ends.embed, ends.model.token_embedding.name):
            table = ends.model.token_embedding
            given[TOKEN_GRADIENT] = Shape(
                table.width, ends.embed.dtypes.table, False, Unit.TOKENS, TOKEN_GRADIENT
            )
    return run(lambda torch, _: entry(torch, ends, seeing), NO_INPUT, _OUTSIDE, given, gradients=gradients)


@lru_cache(maxsize=256)
def _projector(seeing: SeeingView, stream: Shape, given: Given, gradients: Gradients) -> Template:
    return of_patches(
        run(lambda torch, x: projector(torch, seeing, x), stream, _OUTSIDE, dict(given), gradients=gradients)
    )


@lru_cache(maxsize=256)
def _stacked(seeing: SeeingView, number: int, stream: Shape, gradients: Gradients) -> Template:
    given = {}
    if seeing.differentiated and gradients != "none":
        name = gradient_of(f"deepstack {number}")
        given[name] = Shape(_token_count(seeing), stream.dtype, False, Unit.TOKENS, name)
    return of_patches(
        run(lambda torch, x: stacked(torch, seeing, number, x), stream, _OUTSIDE, given, gradients=gradients)
    )


def _token_count(seeing: SeeingView) -> float:
    """Numbers of tokens for each patch."""
    return seeing.projector.block.linears[-1].out_features * seeing.tower.token_share


@lru_cache(maxsize=256)
def _scatter(
    ends: EndsView, seeing: SeeingView, tokens: Shape, given: Given, gradients: Gradients
) -> Template:
    shapes = dict(given)
    if seeing.differentiated and gradients != "none":
        for number in range(len(seeing.tower.deepstack)):
            name = gradient_of(f"deepstack embeds {number}")
            shapes[name] = Shape(_token_count(seeing), tokens.dtype, False, Unit.PATCHES, name)
    return run(
        lambda torch, x: scatter(torch, ends, seeing, [x]), tokens, _OUTSIDE, shapes, gradients=gradients
    )
