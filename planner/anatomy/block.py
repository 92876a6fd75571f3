"""One decoder layer as a ledger: what each step keeps for backward, and what lives only while it runs.

A layer is a short list of :class:`Step`.  Walking it forward gives what is saved and the moments of a (re)computed forward;
walking it back gives those of the backward.  All amounts are bytes per token, per token and key (``pair``), or fixed: a moment is
a :class:`Line`, and a peak the highest of its lines.

Sources: modeling code of Transformers 5.23 (``models/*/modeling_*.py``, ``integrations/sdpa_attention.py``), peft 0.21
``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``, torch 2.13 ``derivatives.yaml``.
Ignored: rotary tables, position ids and per-row statistics other than those named, together under 0.1 % of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from planner.anatomy.attention import attention_steps, returned_score_bytes
from planner.anatomy.feed_forward import mlp_steps
from planner.anatomy.held import Held, beside, held_by_parts
from planner.anatomy.int8 import int8_context_bytes
from planner.anatomy.kept_inputs import context_4bit_bytes
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.lines import Line, highest, upper
from planner.anatomy.matrices import early_gradient_bytes, linear_step
from planner.anatomy.norms import keeps_its_input, norm_amounts
from planner.domain.model import NormSpec
from planner.domain.recipe import Number


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Bytes of one layer for one micro-batch.

    ``saved``: kept for backward without checkpointing.  ``forward_peak``: most alive in its forward beyond what earlier layers
    saved, its own saved tensors included.  ``backward_peak``: most alive in its backward, its saved tensors included, weight
    gradients left out.  ``growing_peak``: the same with the gradients that it has made by then, where there were none before;
    ``adding_peak``: with the one that is being made and then added to what is there.  ``gradients``: all that it makes.
    ``rebuilt_peak``: as ``forward_peak``, of a forward that is run again and ends with the last saved tensor.
    ``early_gradients``: of its backward, made before it is rebuilt.
    ``plain_peak``: most alive in a forward that keeps nothing, beyond its input.  ``returned``: what outlives it although nothing
    needs it, until the next layer has run.
    ``boundary``: its input; ``keeps_input``: whether that is saved as it is.
    ``stored``: the inputs that checkpointing stores.  ``context_held``: bytes that non-reentrant
    checkpointing fails to free.
    """

    saved: Number
    forward_peak: Number
    backward_peak: Number
    growing_peak: Number
    adding_peak: Number
    gradients: Number
    rebuilt_peak: Number
    early_gradients: Number
    plain_peak: Number
    returned: Number
    boundary: Number
    stored: Number
    context_held: Number
    keeps_input: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """What :class:`BlockBytes` says of one layer, before tokens and keys are known.

    Tuples of lines: the most of them counts.  ``rebuilt`` to ``keeps_input`` as there; ``early_gradients``, ``boundary``,
    ``stored`` and ``context_held`` are bytes per token, ``returned`` per token and key.
    """

    saved: Line
    forward: tuple[Line, ...]
    rebuilt: tuple[Line, ...]
    plain: tuple[Line, ...]
    backward: tuple[Line, ...]
    growing: tuple[Line, ...]
    adding: tuple[Line, ...]
    gradients: Number
    early_gradients: int
    returned: int
    boundary: int
    stored: int
    context_held: Number
    keeps_input: bool


def block_bytes(view: BlockView, tokens: Number, keys: Number) -> BlockBytes:
    """Bytes of one layer for ``tokens`` tokens that each attend to ``keys`` keys."""
    ledger = ledger_of(view)
    return BlockBytes(
        saved=ledger.saved.at(tokens, keys),
        forward_peak=highest(ledger.forward, tokens, keys),
        backward_peak=highest(ledger.backward, tokens, keys),
        growing_peak=highest(ledger.growing, tokens, keys),
        adding_peak=highest(ledger.adding, tokens, keys),
        gradients=ledger.gradients,
        rebuilt_peak=highest(ledger.rebuilt, tokens, keys),
        early_gradients=tokens * ledger.early_gradients,
        plain_peak=highest(ledger.plain, tokens, keys),
        returned=tokens * keys * ledger.returned,
        boundary=tokens * ledger.boundary,
        stored=tokens * ledger.stored,
        context_held=tokens * ledger.context_held,
        keeps_input=ledger.keeps_input,
    )


def ledger_of(view: BlockView) -> Ledger:
    """The ledger of one layer.

    One scenario remembers it, without the lines that are never the highest, because walking the matrices takes as long as all
    other memory formulas together.
    """
    return _known_ledger(view) if view.is_one_scenario else walked(view)


@lru_cache(maxsize=512)
def _known_ledger(view: BlockView) -> Ledger:
    ledger = walked(view)
    return replace(
        ledger,
        forward=upper(ledger.forward),
        rebuilt=upper(ledger.rebuilt),
        plain=upper(ledger.plain),
        backward=upper(ledger.backward),
        growing=upper(ledger.growing),
        adding=upper(ledger.adding),
    )


def walked(view: BlockView) -> Ledger:
    """The ledger of one layer with every line, worked out by walking its steps."""
    steps = block_steps(view)
    kept: Number = 0
    kept_pair: Number = 0
    fixed: Number = 0
    forward, plain, backward = list[Line](), list[Line](), list[tuple[Line, ...]]()
    contexts = _contexts(view)
    later: Number = sum(contexts.values())
    held = later
    for step in steps:
        later = later - contexts.get(step.name, 0)
        kept, kept_pair, fixed = kept + step.saves, kept_pair + step.pair_saves, fixed + step.fixed_saves
        forward.append(Line(kept + step.forward, kept_pair + step.pair_forward, fixed + step.fixed_forward))
        features = step.saves + step.forward if step.plain is None else step.plain
        # What its contexts will hold is counted for the whole layer, where they hold it in spite of checkpointing.
        coming = 0 if view.recipe.checkpoint_reentrant else later
        plain.append(Line(features - coming, step.pair_saves + step.pair_forward, step.fixed_saves + step.fixed_forward))
        # What contexts of later steps hold stays although their backward has run.
        pair = kept_pair + step.pair_backward
        backward.append(tuple(Line(kept + later + each.features, pair, fixed + each.fixed) for each in step.backward_moments))
    growing, made = _with_gradients(steps, backward)
    last = forward[-1]
    return Ledger(
        saved=Line(kept, kept_pair, fixed),
        forward=tuple(forward),
        rebuilt=(*forward[:-1], last._replace(features=last.features - steps[-1].unrebuilt)),
        plain=tuple(plain),
        backward=tuple(line for lines in backward for line in lines),
        growing=growing,
        adding=tuple(_adding(steps, backward)),
        gradients=made,
        early_gradients=early_gradient_bytes(view),
        returned=returned_score_bytes(view),
        boundary=view.hidden * view.regime.residual,
        stored=_stored_bytes(view),
        context_held=held,
        keeps_input=keeps_its_input(view) and not view.block.reads_stream,
    )


def _contexts(view: BlockView) -> dict[str, Number]:
    """Bytes per token that k-bit matrices hold in spite of non-reentrant checkpointing, by step."""
    held: dict[str, Number] = {}
    for by_input in (int8_context_bytes(view), context_4bit_bytes(view)):
        for reads, n_bytes in by_input.items():
            step = "attn_in" if reads.startswith("attn_latent") else reads
            held[step] = held.get(step, 0) + n_bytes
    return held


def _stored_bytes(view: BlockView) -> int:
    """Bytes per token that checkpointing stores of one layer: its input, or the inputs of each of its parts.

    Parts: every norm of the stream, which reads the stream; attention and MLP, which read what a norm returned.
    Source: torch 2.13 utils/checkpoint.py keeps the arguments of the wrapped call; which call, is the stack's switch.
    """
    regime = view.regime
    if not view.stack.checkpoints_parts:
        return view.hidden * regime.residual
    norms = sum(norm.copies for norm in view.block.norms if norm.on == "hidden")
    return view.hidden * (norms * regime.residual + 2 * regime.norm_out)


def _with_gradients(steps: tuple[Step, ...], backward: list[tuple[Line, ...]]) -> tuple[tuple[Line, ...], Number]:
    """(moments of a backward whose gradients pile up from the last step to the first, all that it has made at its end)."""
    made: Number = 0
    moments: list[Line] = []
    for step, lines in zip(reversed(steps), reversed(backward), strict=True):
        largest = made + step.largest_gradient
        made = made + step.gradients
        left = made - step.fixed_released
        for features, pair, fixed in lines:
            moments += (Line(features, pair, fixed + largest), Line(features - step.released, pair, fixed + left))
    return tuple(moments), made


def _adding(steps: tuple[Step, ...], backward: list[tuple[Line, ...]]) -> Iterator[Line]:
    """Moments of a backward, each with the gradient that is being added to an existing one."""
    for step, lines in zip(steps, backward, strict=True):
        yield from (line._replace(fixed=line.fixed + step.largest_gradient) for line in lines)


def block_steps(view: BlockView) -> tuple[Step, ...]:
    """The steps of one layer, in forward order: a norm before each part, behind it, or both."""
    stream = view.hidden * view.regime.residual
    norms = [norm for norm in view.block.norms if norm.on == "hidden" for _ in range(norm.copies)]
    before, second, after, last = (
        [_norm_step(view, name, [norm], stream) for norm in norms[place : place + 1]]
        for place, name in enumerate(("norm_1", "norm_2", "post_norm_1", "post_norm_2"))
    )
    if view.block.reads_stream:
        before, second, after, last = [], [], before, second
    attention = [linear_step(view, "attn_in", stream), *attention_steps(view, stream), linear_step(view, "attn_out", stream)]
    in_attention, in_mlp = held_by_parts(view)
    first = (beside(step, in_attention, stream) for step in attention)
    then = (beside(step, in_mlp, stream) for step in mlp_steps(view, stream))
    return (*(beside(step, Held(0, 0), stream) for step in before), *first, *after, *second, *then, *last)


def _norm_step(view: BlockView, name: str, norms: list[NormSpec], stream: int) -> Step:
    """Norms of the residual stream.  The second one of a parallel block reads, and keeps, the same tensor as the first."""
    in_bytes = view.regime.residual
    amounts = [norm_amounts(view, norm, in_bytes) for norm in norms]
    saves = sum(amount.saves for amount in amounts)
    if name == "norm_2" and view.block.parallel and norms[0].kind == "layer" and not (view.regime.autocast and in_bytes < 4):
        saves -= view.hidden * in_bytes
    if view.is_first and not view.block.reads_stream and (name == "norm_1" or view.block.parallel):
        return Step(name, 0, stream + max((amount.forward for amount in amounts), default=0), stream)
    return Step(
        name,
        saves=saves,
        forward=stream + max((amount.forward for amount in amounts), default=0),
        backward=stream + max((amount.backward for amount in amounts), default=0),
        fixed_saves=sum(amount.fixed_saves for amount in amounts),
    )
