"""How completions are generated with Transformers: the prompts in one pass, then token after token,
over a cache that grows.

A cache that takes one more token is written anew, so that of one layer the old and the new keys are there
together.  Three passes stand for all: the prompts, one more token, and the last token of the longest
completions.
Source: transformers 5.23 cache_utils.py DynamicLayer.update, DynamicSlidingWindowLayer.update;
generation/utils.py _sample; trl 1.16.0 trainer/grpo_trainer.py _generate_single_turn; torch 2.13
ATen/native/Distributions.cpp multinomial.
Ignored: what growing caches leave reserved, which the allocator gives back on a full card; what
FlashAttention splits a long row of keys into; ids and masks.
"""

from __future__ import annotations

from planner.domain.term import TermName
from planner.program.head.ends import EndsView, all_logits, last_norm
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit, promoted
from planner.program.recorded_part import SHARED_SLOTS, Shape
from planner.program.request_stream import Instance
from planner.program.view import LayerView

KEYS, VALUES = "cached keys", "cached values"
_TERM: TermName = "kv_cache"
CACHE = {name: Shape(1, "bf16", False, Unit.CACHED_TOKENS, name) for name in (KEYS, VALUES)}
"""What a layer gets from the pass before; its size is that of what it stands for."""


def cached(torch: Operators, view: LayerView, new: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values of all tokens so far: the cached and the ``new`` ones joined, which is cached.

    A cache begins empty in the dtype of the keys, so that values come to it, too; reading and writing it is
    timed by :mod:`planner.throughput.generation_time`.  ``new`` lives until both are joined, and is emptied.
    """
    grown = Unit.CACHED_TOKENS if view.block.attention.window_tokens is None else Unit.WINDOW_TOKENS
    dtype = promoted(new[0].dtype, new[1].dtype)
    made: list[Tensor] = []
    for name, each in zip((KEYS, VALUES), new, strict=True):
        before = torch.shared.pop(name, None)
        whole = torch.new(
            each.unit if before is None else grown, each.count, dtype, "cat", _TERM, cost=[each]
        )
        del before
        whole.head_by_head = True
        torch.outputs.append(whole.alias())
        made.append(whole)
    new.clear()
    return made[0], made[1]


def copied(torch: Operators, new: list[Tensor]) -> list[Tensor]:
    """Keys and values of a pass in training, where nobody turns the cache off: joined to an empty one,
    which the training loop has with what the model returned.  ``new`` lives until both are, and is emptied.
    """
    made = [torch.cat([each], by_heads=True) for each in new]
    torch.outputs += [each.alias() for each in made]
    new.clear()
    return made


def sampled(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The next token of each sequence: the last logits, widened, copied, and made probabilities.

    ``passed`` holds the stream, and is emptied.
    """
    hidden = last_norm(torch, ends, passed)
    last = hidden.alias()
    last.unit, last.is_view = Unit.ROWS, True
    logits = [all_logits(torch, ends, last)]
    del last, hidden
    logits.append(torch.to(logits.pop(), "fp32"))
    scores = torch.like(logits[0], "to")
    _probabilities = torch.like(scores, "softmax")
    _exponential = torch.like(scores, "exponential")
    return torch.new(Unit.ROWS, 1, "int64", "multinomial")


def features(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """Outputs of some layers of all tokens, joined and then copied, beside those of all layers and the
    logits: the model returns them as well.

    Source: axolotl 0.19.0 core/trainers/ebft/rewards.py extract_hidden_states, which asks the model in PEFT's
    wrapper for ``model``: the one with its head.
    Ignored: the same of the right answers, one for each prompt; means, norms and products of what is pooled.
    """
    hidden = last_norm(torch, ends, passed)
    torch.outputs += [hidden.alias(), all_logits(torch, ends, hidden).alias()]
    torch.enter("forward_out")
    width = ends.layer.stack.feature_layers * hidden.count
    joined = torch.new(hidden.unit, width, hidden.dtype, "cat")
    _copy = torch.like(joined, "cat")
    return torch.new(Unit.ROWS, 1, "fp32", "rewards")


def hand_over(before: list[Instance], made: list[Instance]) -> None:
    """What each layer of a pass gets of the cache is what the same layer of the pass ``before`` made."""
    for old, new in zip(before, made, strict=True):
        slots = [slot for slot, term in enumerate(old.template.terms) if term == _TERM]
        for name, slot in zip((KEYS, VALUES), slots, strict=False):
            if name in new.template.crossing:
                new.ports[SHARED_SLOTS + new.template.crossing.index(name)] = old.slot(slot)
