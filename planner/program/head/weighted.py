"""Losses that a trainer takes from the logits: each token's is weighed, and a second model's logits may be
compared with.

All tokens are taken for trained ones, whose logits are copied where weights follow from entropies, and for
masked ones where these are guessed: in a step of many thousand nearly all of a row are.
Source: llamafactory 0.9.5 train/trainer_utils.py dft_loss_func, eaft_loss_func, asft_loss_func,
_kl_divergence; train/sft/trainer.py compute_loss; axolotl 0.19.0 monkeypatch/loss/eaft.py,
integrations/diffusion/trainer.py; transformers
5.23 trainer.py compute_loss; torch 2.13 ATen/native/Loss.cpp kl_div.
Ignored: the twenty largest logits of each token.
"""

from __future__ import annotations

from planner.program.head.ends import EndsView, all_logits, last_norm, own_loss, widens
from planner.program.head.losses import cross_entropy, shifted
from planner.program.layers.mixture.experts_in_turn import chosen_rows
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView


def weighted_loss(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The loss that the stack's trainer makes of the logits that the model returns.

    ``passed`` holds the stream, and is emptied.
    """
    if ends.layer.stack.loss_weights == "divergence":
        return _compared(torch, ends, passed)
    return _weighted(torch, ends, passed)


def compared_logits(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The logits of the second model, which are there until the loss is.

    ``passed`` holds the stream, and is emptied.
    """
    logits = [all_logits(torch, ends, last_norm(torch, ends, passed))]
    torch.enter("forward_out")
    if widens(ends.layer):
        logits.append(torch.to(logits.pop(), "fp32"))
    torch.outputs.append(logits.pop().alias())
    return Tensor(None, Unit.TOKENS, 1, "fp32")


def _weighted(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The loss of each token, from the logits that the model returns and that are there until it is done."""
    view = ends.layer
    outputs = [all_logits(torch, ends, last_norm(torch, ends, passed))]
    torch.enter("forward_out")
    if widens(view) or ends.widens_logits:
        outputs.append(torch.to(outputs.pop(), "fp32"))
    if view.stack.loss_weights in ("entropy_of_rows", "masked_tokens"):
        of_rows = _loss_of_rows if view.stack.loss_weights == "entropy_of_rows" else _loss_of_guesses
        loss = of_rows(torch, view, outputs[0])
        outputs.clear()
        return loss
    wide = torch.to(outputs[0], "fp32")
    loss = cross_entropy(torch, view, wide)
    if view.stack.loss_weights == "entropy":
        _copy = torch.like(wide, "index")
        del _copy
    del wide
    outputs.clear()
    return loss


def _loss_of_rows(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """The loss of copies of the rows that are trained, after those whose entropies weigh it."""
    logits = shifted(torch, view, logits)
    rows = torch.like(logits, "index")
    _wide = torch.to(rows, "fp32")
    del rows, _wide
    return cross_entropy(torch, view, chosen_rows(torch, logits, 1))


def _loss_of_guesses(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """The loss of masked tokens, whose logits stand a row further on than those that the head made.

    Variables refer to the logits that were moved, and to the rows that are copied, until the loss is there.
    Source: axolotl 0.19.0 integrations/diffusion/utils.py shift_logits_to_input_positions, trainer.py
    _compute_diffusion_loss.
    """

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        first, rest = (torch.like(gradient, "slice_backward") for _ in range(2))
        torch.pay([first, rest], [first])
        return [first]

    moved = record(torch, torch.like(logits, "cat", cost=(logits,)), [logits], [], backward)
    rows = chosen_rows(torch, moved, 1)
    return cross_entropy(torch, view, torch.to(rows, "fp32"))


def _compared(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """Each token's loss and the distance from the second model's logits, beside the model's unused loss."""
    view = ends.layer
    own, outputs = own_loss(torch, ends, passed)
    torch.enter("forward_out")
    if widens(view):
        outputs.append(torch.to(outputs.pop(), "fp32"))
    # Nobody widens the second model's weights.
    numerics = view.recipe.numerics
    given = outputs[0].dtype if numerics.mixed else numerics.load_dtype
    wide = torch.to(outputs[0], "fp32")
    logits = shifted(torch, view, wide)
    _copy = None if view.single else torch.new(logits.unit, logits.count, given, "clone", cost=[logits])
    loss = torch.add(cross_entropy(torch, view, logits), _divergence(torch, logits, given))
    del own, wide, logits, _copy
    outputs.clear()
    return loss


def _divergence(torch: Operators, logits: Tensor, given: Dtype) -> Tensor:
    """``kl_div`` of each word from the second model's probabilities, and its sum over words.

    ``given``: dtype of the second model's logits.
    """
    unit, count = logits.unit, logits.count
    scores = torch.kernel(logits, "log_softmax", saves="output")
    other = Tensor(None, unit, count, given)
    before = torch.new(unit, count, given, "softmax", cost=[other])
    entropy = torch.like(before, "xlogy", cost=(before,))
    product = torch.mul(scores, before)
    difference = torch.same(product, "neg")
    torch.pay([entropy])
    del entropy, product
    return summed(torch, difference)


def summed(torch: Operators, x: Tensor) -> Tensor:
    """The sum over words, whose gradient is a view."""
    torch.pay([x])
    out = torch.new(Unit.TOKENS, 1, x.dtype, "sum")
    spread = x.alias()
    spread.storage = None
    return record(torch, out, [x], [], lambda *_: [spread])
