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
from planner.anatomy.int8 import int8_context_bytes
from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.matrices import context_4bit_bytes, linear_step
from planner.anatomy.norms import norm_amounts
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
    ``plain_peak``: most alive in a forward that keeps nothing, beyond its input.  ``returned``: what outlives it although nothing
    needs it, until the next layer has run.
    ``boundary``: its input.  ``stored``: the inputs that checkpointing stores.  ``context_held``: bytes that non-reentrant
    checkpointing fails to free.
    """

    saved: Number
    forward_peak: Number
    backward_peak: Number
    growing_peak: Number
    adding_peak: Number
    gradients: Number
    plain_peak: Number
    returned: Number
    boundary: Number
    stored: Number
    context_held: Number


def block_bytes(view: BlockView, tokens: Number, keys: Number) -> BlockBytes:
    """Bytes of one layer for ``tokens`` tokens that each attend to ``keys`` keys."""
    steps = block_steps(view)
    kept: Number = 0
    kept_pair: Number = 0
    fixed: Number = 0
    forward: list[Number] = []
    plain: list[Number] = []
    backward: list[Number] = []
    for step in steps:
        kept = kept + step.saves
        kept_pair = kept_pair + step.pair_saves
        fixed = fixed + step.fixed_saves
        forward.append(tokens * (kept + step.forward + keys * (kept_pair + step.pair_forward)) + fixed + step.fixed_forward)
        pairs = keys * (step.pair_saves + step.pair_forward)
        plain.append(tokens * (step.saves + step.forward + pairs) + step.fixed_saves + step.fixed_forward)
        backward.append(tokens * (kept + step.backward + keys * (kept_pair + step.pair_backward)) + fixed + step.fixed_backward)
    regime = view.regime
    growing, made = _with_gradients(steps, backward)
    held = tokens * (int8_context_bytes(view) + context_4bit_bytes(view))
    return BlockBytes(
        saved=tokens * (kept + keys * kept_pair) + fixed,
        forward_peak=maximum(*forward),
        backward_peak=maximum(*backward),
        growing_peak=growing,
        adding_peak=maximum(*(peak + step.largest_gradient for peak, step in zip(backward, steps, strict=True))),
        gradients=made,
        plain_peak=maximum(*plain),
        returned=tokens * keys * returned_score_bytes(view),
        boundary=tokens * view.hidden * regime.residual,
        stored=tokens * _stored_bytes(view),
        context_held=held,
    )


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


def _with_gradients(steps: tuple[Step, ...], backward: list[Number]) -> tuple[Number, Number]:
    """(peak of a backward whose gradients pile up from the last step to the first, all that it has made at its end)."""
    made: Number = 0
    peaks: list[Number] = []
    for step, peak in zip(reversed(steps), reversed(backward), strict=True):
        made = made + step.gradients
        peaks.append(peak + made)
    return maximum(*peaks), made


def block_steps(view: BlockView) -> tuple[Step, ...]:
    """The ledger of one layer, in forward order.

    One scenario remembers it, because walking the matrices takes as long as all other memory formulas together.
    """
    return _known_steps(view) if view.is_one_scenario else _steps(view)


@lru_cache(maxsize=512)
def _known_steps(view: BlockView) -> tuple[Step, ...]:
    return _steps(view)


def _steps(view: BlockView) -> tuple[Step, ...]:
    stream = view.hidden * view.regime.residual
    norms = [norm for norm in view.block.norms if norm.on == "hidden" for _ in range(norm.copies)]
    second, later = norms[1:2], norms[2:]
    steps = [_norm_step(view, "norm_1", norms[:1], stream), linear_step(view, "attn_in", stream)]
    steps += attention_steps(view, stream)
    steps.append(linear_step(view, "attn_out", stream))
    if later:
        steps.append(_norm_step(view, "post_norms", later, stream))
    if second:
        steps.append(_norm_step(view, "norm_2", second, stream))
    steps.extend(mlp_steps(view, stream))
    return tuple(steps)


def _norm_step(view: BlockView, name: str, norms: list[NormSpec], stream: int) -> Step:
    """Norms of the residual stream.  The second one of a parallel block reads, and keeps, the same tensor as the first."""
    in_bytes = view.regime.residual
    amounts = [norm_amounts(view, norm, in_bytes) for norm in norms]
    saves = sum(amount.saves for amount in amounts)
    if name == "norm_2" and view.block.parallel and norms[0].kind == "layer" and not (view.regime.autocast and in_bytes < 4):
        saves -= view.hidden * in_bytes
    return Step(
        name,
        saves=saves,
        forward=stream + max((amount.forward for amount in amounts), default=0),
        backward=stream + max((amount.backward for amount in amounts), default=0),
        fixed_saves=sum(amount.fixed_saves for amount in amounts),
    )
