"""One decoder layer as a ledger: what each step keeps for backward, and what lives only while it runs.

A layer is a short list of :class:`Step`.  Walking it forward gives what is saved and the peak of a (re)computed forward; walking
it back gives the peak of the backward.  All amounts are bytes per token, per token and key (``pair``), or fixed.

Sources: modeling code of Transformers 5.23 (``models/*/modeling_*.py``, ``integrations/sdpa_attention.py``), peft 0.21
``tuners/lora/layer.py`` and ``bnb.py``, bitsandbytes 0.50 ``autograd/_functions.py``, torch 2.13 ``derivatives.yaml``.
Ignored: rotary tables, position ids and per-row statistics other than those named, together under 0.1 % of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.anatomy.attention import attention_steps, returned_score_bytes
from planner.anatomy.feed_forward import mlp_steps
from planner.anatomy.held import Held, beside, held_by_parts
from planner.anatomy.int8 import int8_context_bytes
from planner.anatomy.kept_inputs import context_4bit_bytes
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.matrices import early_gradient_bytes, linear_step
from planner.anatomy.norms import keeps_its_input, norm_amounts
from planner.arrays import maximum
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


def block_bytes(view: BlockView, tokens: Number, keys: Number) -> BlockBytes:
    """Bytes of one layer for ``tokens`` tokens that each attend to ``keys`` keys."""
    steps = block_steps(view)
    kept: Number = 0
    kept_pair: Number = 0
    fixed: Number = 0
    forward, plain, backward = list[Number](), list[Number](), list[Number]()
    contexts = _contexts(view)
    later: Number = sum(contexts.values())
    held = tokens * later
    for step in steps:
        later = later - contexts.get(step.name, 0)
        kept = kept + step.saves
        kept_pair = kept_pair + step.pair_saves
        fixed = fixed + step.fixed_saves
        forward.append(tokens * (kept + step.forward + keys * (kept_pair + step.pair_forward)) + fixed + step.fixed_forward)
        pairs = keys * (step.pair_saves + step.pair_forward)
        features = step.saves + step.forward if step.plain is None else step.plain
        # What its contexts will hold is counted for the whole layer, where they hold it in spite of checkpointing.
        coming = 0 if view.recipe.checkpoint_reentrant else later
        plain.append(tokens * (features - coming + pairs) + step.fixed_saves + step.fixed_forward)
        # What contexts of later steps hold stays although their backward has run.
        pairs = keys * (kept_pair + step.pair_backward)
        moments = (tokens * (kept + later + each.features + pairs) + fixed + each.fixed for each in step.backward_moments)
        backward.append(maximum(*moments))
    growing, made = _with_gradients(steps, backward, tokens)
    return BlockBytes(
        saved=tokens * (kept + keys * kept_pair) + fixed,
        forward_peak=maximum(*forward),
        backward_peak=maximum(*backward),
        growing_peak=growing,
        adding_peak=maximum(*(peak + step.largest_gradient for peak, step in zip(backward, steps, strict=True))),
        gradients=made,
        rebuilt_peak=maximum(*forward[:-1], forward[-1] - tokens * steps[-1].unrebuilt),
        early_gradients=tokens * early_gradient_bytes(view),
        plain_peak=maximum(*plain),
        returned=tokens * keys * returned_score_bytes(view),
        boundary=tokens * view.hidden * view.regime.residual,
        stored=tokens * _stored_bytes(view),
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


def _with_gradients(steps: tuple[Step, ...], backward: list[Number], tokens: Number) -> tuple[Number, Number]:
    """(peak of a backward whose gradients pile up from the last step to the first, all that it has made at its end)."""
    made: Number = 0
    peaks: list[Number] = []
    for step, peak in zip(reversed(steps), reversed(backward), strict=True):
        peaks.append(peak + made + step.largest_gradient)
        made = made + step.gradients
        peaks.append(peak + made - tokens * step.released - step.fixed_released)
    return maximum(*peaks), made


def block_steps(view: BlockView) -> tuple[Step, ...]:
    """The ledger of one layer, in forward order: a norm before each part, behind it, or both.

    One scenario remembers it, because walking the matrices takes as long as all other memory formulas together.
    """
    return _known_steps(view) if view.is_one_scenario else _steps(view)


@lru_cache(maxsize=512)
def _known_steps(view: BlockView) -> tuple[Step, ...]:
    return _steps(view)


def _steps(view: BlockView) -> tuple[Step, ...]:
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
