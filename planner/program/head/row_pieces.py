"""TRL's head and loss in pieces: rows with a label are laid to the front, and each piece is made anew.

Source: trl 1.7.0 to 1.14.0 trainer/sft_trainer.py _chunked_cross_entropy_loss, ``_chunk``.
Ignored: that tokens of prompts without a label make no logits, as padding makes none; what scales or caps
logits; zeros and sums of the size of all rows for each piece beyond the eighth.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from planner.domain.model import LinearSpec
from planner.domain.recipes.recipe import Recipe
from planner.domain.stack import Stack
from planner.program.checkpoint import checkpointed
from planner.program.head.losses import EIGHTHS, negative_likelihood
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, row_numbers
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast

PIECE_ROWS = 256
_RUNS = 2
"""Of a piece: forward, and again."""


def of_rows(recipe: Recipe, stack: Stack) -> bool:
    """Whether the loss is computed in such pieces."""
    return recipe.loss == "chunked" and stack.loss_pieces in ("rows", "wide_rows")


def loss_of_rows(
    torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, hidden: Tensor
) -> Tensor:
    """The loss, of as many pieces as eighths have: peaks need no more, and what they do is the same in all.

    Only what is done to the whole weight goes with the true number of pieces, and is paid for here.
    """
    rows = torch.shifted_rows(hidden)
    if not view.single:
        rows = torch.contiguous(rows)
    rows = torch.index(rows, rows.count)
    _pay_casts(torch, view, weight)
    loss = torch.new(Unit.TOKENS, 1, "fp32", "zeros")
    of_piece = partial(_piece, torch, view, spec, weight)
    for _ in range(EIGHTHS):
        piece = torch.part(rows, rows.count, by_heads=False, unit=Unit.PIECE_TOKENS)
        loss = torch.add(loss, checkpointed(torch, of_piece, piece))
        del piece
    return loss


def _piece(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, rows: Tensor) -> Tensor:
    """The loss of one piece, and the entropy of its words, whose graph is gone when backward begins."""
    logits = _logits(torch, view, spec, weight, rows)
    wide = torch.to(logits, "fp32")
    if view.stack.loss_pieces == "rows":
        logits = wide
    scores = torch.kernel(wide, "log_softmax", saves="output")
    del wide
    loss = negative_likelihood(torch, scores)
    entropies = torch.mul(torch.kernel(scores, "exp", saves="output"), scores)
    # What tells labels from padding is saved last, so that a piece runs to its end again.
    record(torch, entropies.alias(), [entropies], [row_numbers()], lambda _, gradient: [gradient])
    return loss


def _logits(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, rows: Tensor) -> Tensor:
    """The product in the dtype of ``rows``, or (``wide_rows``) of operands that were cast to fp32 before.

    Autocast casts them once more, and keeps no copy of a weight that is transposed.
    """
    operand = torch.to(rows, "fp32") if view.stack.loss_pieces == "wide_rows" else rows
    seen = _cast(torch, weight, operand.dtype)
    copy = _cast(torch, seen, view.dtypes.compute) if view.dtypes.autocast else seen
    return torch.mm(autocast(torch, view, operand), copy, spec.out_features)


def _cast(torch: Operators, weight: Tensor, dtype: Dtype) -> Tensor:
    """``weight.to(dtype)``, which is paid for with those of all pieces."""
    if weight.dtype == dtype:
        return weight
    before = weight.dtype
    copy = torch.new(weight.unit, weight.count, dtype, "to", "autocast_copies", cost=None)
    return record(torch, copy, [weight], [], lambda _, gradient: [torch.like(gradient, "to", before)])


def _pay_casts(torch: Operators, view: LayerView, weight: Tensor) -> None:
    """What the casts of the whole weight read and write, forward and again."""
    dtypes = [weight.dtype]
    if view.stack.loss_pieces == "wide_rows" and weight.dtype != "fp32":
        dtypes.append("fp32")
    if view.dtypes.autocast and dtypes[-1] != view.dtypes.compute:
        dtypes.append(view.dtypes.compute)
    moved = [Tensor(None, Unit.PIECES, weight.count, each) for pair in pairwise(dtypes) for each in pair]
    torch.move(moved * (_RUNS if torch.grad_enabled else 1), "weight_casts")
