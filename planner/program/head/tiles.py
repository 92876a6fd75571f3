"""TRL's fused head: log-probabilities of tiles of tokens and words, without logits.

Source: trl 1.16.0 trainer/utils.py add_fused_lm_head, kernels/chunked_logprob.py.
Ignored: that above 4,096 tokens the cast rows of two tiles meet.
"""

from __future__ import annotations

from functools import partial

from planner.domain.model import LinearSpec
from planner.program.head.ends import EndsView, head_weight, last_norm
from planner.program.head.losses import pay_pieces
from planner.program.ops.autograd import record
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView

TILE_TOKENS, TILE_WORDS = 4096, 32768
"""Tokens and words of one tile of logits.  Source:
trl 1.16.0 kernels/chunked_logprob.py, trainer/utils.py.
"""


def tiles(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """TRL's fused head: log-probabilities tile by tile, which the backward pass computes again."""
    model, view = ends.model, ends.layer
    hidden = last_norm(torch, ends, passed)
    with torch.inside(model.head.name):
        rows = _picked(torch, hidden, Unit.TOKENS if view.recipe.rollout is None else Unit.COMPLETION_TOKENS)
        weight = head_weight(torch, ends)
        _run_tiles(torch, view, model.head, rows, weight)
        seen = Tensor(None, rows.unit, rows.count, view.dtypes.compute)
        costs = Costs(seen, weight, (rows.unit, model.head.out_features))
        logits = Tensor(None, rows.unit, model.head.out_features, view.dtypes.compute)
        torch.pay(costs.forward, [logits])
        torch.pay([logits])
        del costs
        backward = partial(_through_tiles, torch, view, model.head, weight)
        return record(torch, torch.new(Unit.TOKENS, 1, "fp32", "sub"), [rows, weight], [rows], backward)


def _picked(torch: Operators, hidden: Tensor, picked: Unit) -> Tensor:
    """``hidden[:, :-1][mask]``, a copy of all tokens or of those of completions.

    Gradients are written into zeros for each of both indices.
    """
    part = torch.shifted_rows(hidden)
    unit, count, dtype = hidden.unit, hidden.count, hidden.dtype
    out = torch.new(picked, count, dtype, "index", cost=[Tensor(None, picked, count, dtype)])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.new(unit, count, dtype, "index_put", cost=[gradient, gradient])]

    return record(torch, out, [part], [], backward)


def _run_tiles(
    torch: Operators, view: LayerView, spec: LinearSpec, rows: Tensor, weight: Tensor
) -> list[Tensor]:
    """One buffer for the products of all tiles, and the operands of one in the compute dtype, until the
    function ends.
    """
    compute = view.dtypes.compute
    made = [torch.new(Unit.PIECE_TOKENS, TILE_WORDS, compute, "mm", cost=None)]
    if rows.dtype != compute:
        made.append(torch.new(Unit.PIECE_TOKENS, rows.count, compute, "to"))
    if weight.dtype != compute:
        words = min(TILE_WORDS, spec.out_features)
        made.append(torch.new(Unit.ONE, words * spec.in_features, compute, "to", "autocast_copies"))
    return made


def _through_tiles(
    torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, kept: list[Tensor], _: Tensor
) -> list[Tensor | None]:
    """Gradients are summed in fp32 and then cast; words of a tile are cast beside those before it."""
    rows = kept[0]
    pay_pieces(torch, view, spec, rows, weight)
    of_rows = torch.like(rows, "zeros", "fp32")
    of_weight = torch.new(weight.unit, weight.count, "fp32", "zeros") if weight.node is not None else None
    held = _run_tiles(torch, view, spec, rows, weight)
    if weight.dtype != view.dtypes.compute and spec.out_features > TILE_WORDS:
        words = min(TILE_WORDS, spec.out_features - TILE_WORDS)
        _next = torch.new(Unit.ONE, words * spec.in_features, view.dtypes.compute, "to", "autocast_copies")
        del _next
    made = [torch.to(of_rows, rows.dtype), None if of_weight is None else torch.to(of_weight, weight.dtype)]
    del held
    return made
