"""The loss: of all logits at once, or of a piece of them after the other.

Source: transformers 5.23 loss/loss_utils.py ForCausalLMLoss, fixed_cross_entropy; 4.37
models/llama/modeling_llama.py LlamaForCausalLM.forward (shifted copies); torch 2.13
tools/autograd/derivatives.yaml ``_log_softmax``, ``nll_loss_forward``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from planner.domain.model import LinearSpec
from planner.domain.stack import Stack
from planner.program.checkpoint import checkpointed
from planner.program.head.divided_loss import compiled_of_divided_words, of_divided_words
from planner.program.ops.autograd import record
from planner.program.ops.collectives import splits_tokens
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, weight_copy

EIGHTHS = 8
"""Pieces of a loss that is computed in pieces.  Source: torchtune 0.6 modules/loss,
torchtitan 0.3 components/loss.py.
"""


TILE_COLUMNS = 16_384
"""Words of the vocabulary in a tile of a fused head and loss, each with eight sums.
Source: unsloth_zoo 2026.10.9 fused_losses/fused_linear.py (``_SPLIT_COLS``, ``_tiled_forward``).
"""
_TILE_SUMS = 8
_PIECE_OPERATORS = 5
"""Of a piece of Liger's loss: two products, its kernel, and copies of the losses and the gradient."""


def full_loss(
    torch: Operators, view: LayerView, passed: list[Tensor], *, upcast: bool
) -> tuple[Tensor, Tensor]:
    """``cross_entropy`` of all logits, and the logits that the model returns.

    ``passed`` holds them, and is emptied.  ``upcast``: to fp32, beside these or (before 4.46) in their place.
    """
    copies = view.stack.loss_forward
    logits = passed.pop()
    if "nll_grad" in view.stack.loss_backward and "log_softmax" not in copies:
        return _exponentials(torch, logits), logits
    # Alive until this function returns, and the loop's with it.
    _own = _own_loss(torch, view, torch.to(logits, "fp32")) if "model_loss" in copies else None
    if _own is not None:
        torch.enter("forward_out")  # the model has returned
    wide = torch.to(logits, "fp32") if upcast and "float" in copies else logits
    if "compute" not in copies:
        logits = wide
    if "turned" in copies:
        logits = shifted(torch, view, wide)
        del wide
        return cross_entropy(torch, view, torch.contiguous(logits)), logits
    # The variable that holds the unshifted logits lives until the loss is there.
    scored = shifted(torch, view, wide) if "shifted" in copies else wide
    if "compute_grad" in view.stack.loss_backward and splits_tokens(view):
        return compiled_of_divided_words(torch, scored), logits
    if "log_softmax" not in copies:
        return (_compiled if "compute_grad" in view.stack.loss_backward else _in_place)(torch, scored), logits
    return cross_entropy(torch, view, scored), logits


def _own_loss(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """The model's loss beside that of the trainer: a log-softmax, or a kernel that saves the logits."""
    widens = "log_softmax" in view.stack.loss_forward
    return cross_entropy(torch, view, logits) if widens else _in_place(torch, logits)


def shifted(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """``logits[..., :-1, :].contiguous()``: a copy of several samples; a single one is contiguous already."""
    part = torch.shifted_rows(logits)
    return part if view.single else torch.contiguous(part)


def _in_place(torch: Operators, logits: Tensor) -> Tensor:
    """A kernel that saves the logits, and writes their gradient over them.

    Source: flash-attn 2.8 ops/triton/cross_entropy.py (``inplace_backward``).
    """
    loss = torch.new(Unit.TOKENS, 1, "fp32", "cross_entropy", cost=[logits])

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        torch.pay(kept, kept)
        return [kept[0]]

    return record(torch, loss, [logits], [logits], backward)


def _exponentials(torch: Operators, logits: Tensor) -> Tensor:
    """A copy in fp32 becomes the softmax in place; compiled backward copies that, takes one from each label's
    number and casts the result.

    Source: megatron-core 0.16.1 fusions/fused_cross_entropy.py; torch 2.13 _inductor, the graphs of its
    functions, of which ``calculate_gradients`` cannot write over its input before it has copied it.
    """
    wide = torch.like(logits, "to", "fp32")
    loss, shape = torch.new(Unit.TOKENS, 1, "fp32", "cross_entropy", cost=[wide, wide]), shape_of(logits)

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        _copy = torch.like(kept[0], "index_put")
        return [torch.like(shape, "to", cost=(kept[0],))]

    return record(torch, loss, [logits], [wide], backward)


def _compiled(torch: Operators, logits: Tensor) -> Tensor:
    """One kernel each way, which saves the logits or writes over them; the gradient is a new tensor.

    Source: torch 2.13 _inductor, the graphs of ``torch.compile(cross_entropy)`` over ``logits.float()``;
    liger-kernel 0.8.5 ops/cross_entropy.py cross_entropy_backward, where there is a loss for each token.
    """
    loss = torch.new(Unit.TOKENS, 1, "fp32", "cross_entropy", cost=[logits])

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        return [torch.like(kept[0], "cross_entropy_backward")]

    return record(torch, loss, [logits], [logits], backward)


def cross_entropy(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """Saves the log-softmax, which autocast widens; the gradient of the loss is as large."""
    if splits_tokens(view):
        return of_divided_words(torch, logits)
    scores = torch.kernel(logits, "log_softmax", saves="output")
    return negative_likelihood(torch, torch.to(scores, "fp32") if view.dtypes.autocast else scores)


def negative_likelihood(torch: Operators, scores: Tensor) -> Tensor:
    """``nll_loss``, whose gradient has the shape of the log-softmax ``scores``."""
    shape = shape_of(scores)
    loss, labels = torch.new(Unit.TOKENS, 1, "fp32", "nll_loss"), Tensor(None, Unit.TOKENS, 1, "int64")

    def backward(*_: object) -> list[Tensor | None]:
        return [torch.new(shape.unit, shape.count, shape.dtype, "nll_loss_backward")]

    return record(torch, loss, [scores], [scores, labels], backward)


def cuts_logits(stack: Stack) -> bool:
    """Whether head and loss ``hf`` run in pieces, whose logits and log-softmaxes stay until backward."""
    return "log_softmax" in stack.loss_forward and "nll_grad" not in stack.loss_backward


def cuts_head(view: LayerView) -> bool:
    """Whether the head makes the logits of one piece after the other, not of all before the loss is cut."""
    whole = view.stack.whole_head_in_full and view.recipe.adapter is None
    return cuts_logits(view.stack) and not whole


def copied_for_pieces(torch: Operators, view: LayerView, weight: Tensor, pieces: list[Tensor]) -> Tensor:
    """The head's weight as the products of ``pieces`` of rows see it.

    Autocast copies one that is not trained for each piece, and each product keeps its copy for backward; here
    all of them go when that of the first piece has gone back.
    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast; litgpt 0.5.13 model.py GPT.forward.
    """
    compute = view.dtypes.compute
    if (
        not view.dtypes.autocast
        or weight.dtype == compute
        or weight.node is not None
        or not torch.grad_enabled
    ):
        return weight
    copies = torch.new(Unit.HEAD_PIECES, weight.count, compute, "to", "autocast_copies")
    pieces[0] = record(torch, pieces[0].alias(), [pieces[0]], [copies], lambda _, gradient: [gradient])
    return Tensor(None, weight.unit, weight.count, compute)


def logits_in_pieces(
    torch: Operators,
    view: LayerView,
    logits_of: Callable[[Tensor, Tensor], Tensor],
    given: tuple[Tensor, Tensor],
) -> list[Tensor]:
    """The logits of every piece, as the model returns them.

    Source: torchtune 0.6.1 modules/transformer.py chunked_output, modules/loss/ce_chunked_output_loss.py;
    litgpt 0.5.13 utils.py chunked_cross_entropy, whose pieces have 128 tokens; lightning 2.5
    fabric/wrappers.py _FabricModule.forward, which widens all that the model returns.
    """
    weight, hidden = given
    rows = [_rows(torch, hidden) for _ in range(EIGHTHS)]
    seen = copied_for_pieces(torch, view, weight, rows)
    pieces = [logits_of(seen, rows.pop(0)) for _ in range(EIGHTHS)]
    if "compute" not in view.stack.loss_forward:
        # The list that the model returns lives until all of it is widened.
        return [torch.to(each, "fp32") for each in pieces]
    return pieces


def loss_of_pieces(torch: Operators, view: LayerView, pieces: list[Tensor], *, upcast: bool) -> Tensor:
    """The loss of one piece after the other, cast to fp32 (``upcast``), in the training loop."""
    loss = torch.new(Unit.TOKENS, 1, "fp32", "zeros")
    for piece in pieces:
        loss = torch.add(loss, cross_entropy(torch, view, torch.to(piece, "fp32") if upcast else piece))
    return loss


def split_loss(torch: Operators, view: LayerView, logits: Tensor) -> Tensor:
    """``logits[..., :-1, :].reshape(...).split(...)``, and a loss of each piece.

    Every piece keeps its log-softmax; their gradients wait for one another and are joined to one of the size
    of the logits.  Source: litgpt 0.5.13 finetune/full.py fit, utils.py chunked_cross_entropy; torch 2.13
    tools/autograd/derivatives.yaml ``split.Tensor``.
    """
    rows, waiting = shifted(torch, view, logits), list[Tensor]()
    whole = shape_of(rows)

    def join(*_: object) -> list[Tensor | None]:
        parts = tuple(waiting)
        waiting.clear()
        return [torch.like(whole, "cat", cost=parts)]

    views = record(torch, rows.alias(), [rows], [], join)
    loss = torch.new(Unit.TOKENS, 1, "fp32", "zeros")
    for _ in range(EIGHTHS):
        loss = torch.add(loss, _loss_of_view(torch, views, waiting))
    return loss


def _loss_of_view(torch: Operators, views: Tensor, waiting: list[Tensor]) -> Tensor:
    """The loss of one piece of the rows in ``views``; its gradient is added to those that are ``waiting``."""
    piece, whole = Tensor(None, Unit.PIECE_TOKENS, views.count, views.dtype), shape_of(views)
    scores = torch.like(piece, "log_softmax", cost=(piece,))

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        of_loss = torch.like(piece, "nll_loss_backward")
        waiting.append(torch.like(piece, "log_softmax_backward", cost=(of_loss, kept[0])))
        # What joins them has the memory.
        return [Tensor(None, whole.unit, whole.count, whole.dtype)]

    return record(torch, torch.new(Unit.TOKENS, 1, "fp32", "nll_loss"), [views], [scores], backward)


def piecewise_loss(
    torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, hidden: Tensor
) -> Tensor:
    """Head and loss together, so that the logits of one piece exist at a time."""
    if view.recipe.loss == "liger":
        if view.stack.cut_cross_entropy:
            return _cut(torch, spec, weight, torch.to(hidden, weight.dtype))
        return _liger(torch, view, spec, weight, hidden)
    if view.stack.loss_pieces == "budget":
        fused = _fused_linear if weight.node is None else _differentiated
        return fused(torch, view, spec, weight, hidden)
    loss = torch.new(Unit.TOKENS, 1, "fp32", "zeros")
    of_piece = partial(_piece, torch, view, spec, weight)
    for _ in range(EIGHTHS):
        piece = _rows(torch, hidden)
        kept = view.stack.loss_pieces == "kept_eighths"
        loss = torch.add(loss, of_piece(piece) if kept else checkpointed(torch, of_piece, piece))
        del piece
    return loss


def _rows(torch: Operators, hidden: Tensor) -> Tensor:
    return torch.part(hidden, hidden.count, by_heads=False, unit=Unit.PIECE_TOKENS)


def _piece(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, rows: Tensor) -> Tensor:
    copy = weight_copy(torch, view, weight)
    logits = torch.mm(autocast(torch, view, rows), copy, spec.out_features)
    return cross_entropy(torch, view, torch.to(logits, "fp32"))


def _liger(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, hidden: Tensor) -> Tensor:
    """Liger's fused head and loss: forward makes the gradients piece by piece, the logits in one buffer.

    Source: liger-kernel 0.6.2 to 0.8.5 ops/fused_linear_cross_entropy.py.
    """
    of_hidden = torch.like(hidden, "zeros_like", cost=None)
    of_weight = _zeros_like(torch, weight)
    compute = view.dtypes.compute
    pay_pieces(torch, view, spec, hidden, weight, rows=(Unit.PIECE_TOKENS, 1.0))
    wide = view.stack.liger_sums_wide
    if hidden.dtype == weight.dtype == compute:
        _buffer = torch.new(Unit.PIECE_TOKENS, spec.out_features, compute, "empty", cost=None)
    else:
        _product = _cast_pieces(torch, view, spec, weight)
        wide = "never" if wide == "16-bit" else wide
    sums_wide = compute != "fp32" and wide != "never"
    if of_weight is not None and sums_wide:
        _half = torch.like(of_weight, "mm", compute, cost=None)
        _wide = torch.like(of_weight, "to", "fp32", cost=None)
    _pay_each_piece(torch, view, weight, of_weight, sums_wide=sums_wide)
    return _made_before(torch, [hidden, weight], [of_hidden, of_weight])


def _pay_each_piece(
    torch: Operators, view: LayerView, weight: Tensor, of_weight: Tensor | None, *, sums_wide: bool
) -> None:
    """What each piece of Liger's loss does with the whole weight: its copies, and the sum of its gradients.

    Autocast keeps no copy of a frozen weight, nor of one that is transposed.
    Source: liger-kernel 0.6.4 ops/fused_linear_cross_entropy.py (``amp_custom_fwd`` casts no operands); torch
    2.13 aten/src/ATen/autocast_mode.cpp cached_cast.
    """
    compute = view.dtypes.compute

    def each(dtype: Dtype) -> Tensor:
        return Tensor(None, Unit.PIECES, weight.count, dtype)

    n_copies = 0
    if view.dtypes.autocast and weight.dtype != compute:
        n_copies = 2 if weight.node is None else 1
    torch.move([each(weight.dtype), each(compute)] * n_copies, "weight_casts")
    n_sums = 0
    if of_weight is not None:
        total = each(of_weight.dtype)
        added = [each(compute), each("fp32"), each("fp32"), total, total] if sums_wide else [total]
        torch.move(added, "elementwise")
        n_sums = 3 if sums_wide else 1
    torch.spend("launches", Unit.PIECES, _PIECE_OPERATORS + n_copies + n_sums)


def _cut(torch: Operators, spec: LinearSpec, weight: Tensor, hidden: Tensor) -> Tensor:
    """Cut cross entropy: logits are made in tiles that stay in the kernel, and made again in backward, which
    makes both gradients.  Operands are 16-bit, or it stops.

    Ignored: a number for each word, and that backward passes over tiles without a gradient.
    Source: ml-cross-entropy 5f0c7a7 of axolotl-ai-cloud, cut_cross_entropy/cce.py, cce_backward.py; the fork
    and Apple's 24fbe4b and 87a86ab of 2025-03 are alike here.
    """
    rows, frozen = shape_of(hidden), weight.node is None
    costs = Costs(rows, weight, (hidden.unit, spec.out_features))
    of_weight = None if frozen else shape_of(weight)
    loss = torch.new(Unit.TOKENS, 1, "fp32", "new_full", cost=costs.forward)

    def backward(*_: object) -> list[Tensor | None]:
        torch.pay(costs.forward)
        made: list[Tensor | None] = [torch.like(rows, "zeros_like", cost=costs.of_x), None]
        if of_weight is not None:
            made[1] = torch.like(of_weight, "zeros_like", cost=costs.of_weight)
        return made

    return record(torch, loss, [hidden, weight], [hidden, weight, loss], backward)


def _zeros_like(torch: Operators, weight: Tensor) -> Tensor | None:
    """What the gradient of a trained weight is summed in."""
    if weight.node is None:
        return None
    return torch.new(weight.unit, weight.count, weight.dtype, "zeros_like")


def _cast_pieces(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor) -> Tensor | None:
    """Where autocast casts the operands: logits of their own, and the weight's copy for each of two products.

    Its cache does not know the weight in the first one, which is transposed: from the second piece on a copy
    of it is made beside the cached one of a trained weight.
    """
    compute = view.dtypes.compute
    product: Tensor | None = None
    for _ in range(2):
        product = None
        _transposed = _copy_of(torch, weight, compute)
        _logits = torch.new(Unit.PIECE_TOKENS, spec.out_features, compute, "mm", cost=None)
        del _transposed
        frozen = weight.node is None
        _copy = _copy_of(torch, weight, compute) if frozen else weight_copy(torch, view, weight)
        product = torch.new(Unit.PIECE_TOKENS, spec.in_features, compute, "mm", cost=None)
        # Autocast keeps that of a trained weight.
        del _copy
    return product


def _copy_of(torch: Operators, weight: Tensor, dtype: Dtype) -> Tensor:
    """One of many copies, which are paid for together."""
    return torch.new(weight.unit, weight.count, dtype, "to", "autocast_copies", cost=None)


def pay_pieces(
    torch: Operators,
    view: LayerView,
    spec: LinearSpec,
    hidden: Tensor,
    weight: Tensor,
    *,
    rows: tuple[Unit, float] | None = None,
) -> None:
    """All pieces: logits are written, read, overwritten by their gradient and read by one or two products.

    ``rows``: those of one piece; without them, products are taken to be large, and what is read once for each
    piece, the weight and its gradient, is ignored.
    """
    compute = view.dtypes.compute
    inputs = Tensor(None, hidden.unit, hidden.count, compute)
    logits = Tensor(None, hidden.unit, spec.out_features, compute)
    costs = Costs(inputs, weight, (hidden.unit, spec.out_features), rows=rows)
    torch.pay(costs.forward, [logits])
    torch.pay([logits])
    torch.pay([], [logits])
    torch.pay(replace(costs.of_x, reads=[logits]), [inputs])
    if weight.node is not None:
        torch.pay(replace(costs.of_weight, reads=[logits]))


def _made_before(
    torch: Operators, inputs: list[Tensor], gradients: list[Tensor | None], *, scales: bool = False
) -> Tensor:
    """A loss whose gradients exist when its forward ends, and are handed out in backward; multiplied anew
    where it ``scales``.
    """
    loss = torch.new(Unit.TOKENS, 1, "fp32", "sum")
    has = [each is not None for each in gradients]
    saved = [each for each in gradients if each is not None]
    del gradients

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        handed = [torch.like(each, "mul") for each in kept] if scales else kept
        return [handed.pop(0) if there else None for there in has]

    return record(torch, loss, inputs, saved, backward)


def _fused_linear(
    torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, hidden: Tensor
) -> Tensor:
    """A frozen head and the loss in one operator: fp32 logits in one buffer, whose gradient overwrites them.

    Source: unsloth_zoo 2026.10.9 fused_losses/fused_linear.py _ce_impl, _tiled_forward, ``_ce_backward``.
    """
    compute = view.dtypes.compute
    of_hidden = torch.new(hidden.unit, hidden.count, compute, "zeros", cost=None)
    pay_pieces(torch, view, spec, hidden, weight)
    _logits = torch.new(Unit.PIECE_LOGITS, 1, "fp32", "empty", cost=None)
    _of_rows = torch.new(Unit.PIECE_TOKENS, spec.in_features, "fp32", "mm", cost=None)
    _rows = torch.new(Unit.PIECE_TOKENS, spec.in_features, compute, "index_select", cost=None)
    n_parts = _TILE_SUMS * -(-spec.out_features // TILE_COLUMNS)
    _parts = torch.new(Unit.PIECE_TOKENS, n_parts, "fp32", "empty", cost=None)
    return _made_before(torch, [hidden, weight], [of_hidden, None], scales=True)


def _differentiated(
    torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor, hidden: Tensor
) -> Tensor:
    """Pieces, each differentiated when it was computed; all are alike.

    The gradient of a frozen head's logits is written over them.  Else it is a second tensor, and the piece's
    gradient of the weight is made before it is added.
    Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:381-550 (``grad_and_value``), as an
    allocator's history of an H100 has it (torch 2.11).
    """
    compute = view.dtypes.compute
    of_hidden = torch.new(hidden.unit, hidden.count, compute, "empty_like", cost=None)
    of_weight = _zeros_like(torch, weight)
    pay_pieces(torch, view, spec, hidden, weight)
    _logits = torch.new(Unit.PIECE_TOKENS, spec.out_features, compute, "mm", cost=None)
    if of_weight is not None:
        _of_logits = torch.like(_logits, "sub", cost=None)
        del _logits
        _of_piece = torch.new(Unit.PIECE_TOKENS, spec.in_features, compute, "mm", cost=None)
        _added = torch.like(of_weight, "mm", cost=None)
        del _of_logits, _of_piece, _added
    return _made_before(torch, [hidden, weight], [of_hidden, of_weight])
