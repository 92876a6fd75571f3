"""Log-probabilities of labels, one row of a batch after the other, as TRL takes them: gradients of rows are
tensors of their own, which wait for each other and are stacked.

Source: trl 0.15.2, 0.29.1 and 1.16.0 trainer/utils.py selective_log_softmax; torch 2.13
aten/src/ATen/native/ReduceOps.cpp logsumexp_out_impl; torch/csrc/autograd/FunctionsManual.cpp
logsumexp_backward, gather_backward (which reads the sizes of what it saves), unbind_backward.
"""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit


def selective_log_softmax(torch: Operators, logits: Tensor, n_rows: int) -> Tensor:
    """Of ``n_rows`` rows of logits: in fp32 less their log-sum, in 16 bits by a log-softmax of each."""
    gradients: list[Tensor] = []
    if logits.dtype != "fp32":
        return sum_of(torch, _log_softmaxes(torch, _unbound(torch, logits, gradients), gradients, n_rows))
    picked = gathered(torch, logits)
    rows = _unbound(torch, logits, gradients)
    return sum_of(torch, [picked, *_logsumexps(torch, (rows, logits), gradients, n_rows)])


def gathered(torch: Operators, logits: Tensor) -> Tensor:
    """``gather``: its gradient is added to zeros as large as the logits."""
    unit, count, dtype = logits.unit, logits.count, logits.dtype
    out = torch.new(Unit.TOKENS, 1, dtype, "gather")
    return record(torch, out, [logits], [logits], lambda *_: [torch.new(unit, count, dtype, "scatter_add")])


def sum_of(torch: Operators, parts: list[Tensor]) -> Tensor:
    """One number for each token of several."""
    out = torch.new(Unit.TOKENS, 1, "fp32", "add")
    return record(torch, out, parts, [], lambda _, gradient: [gradient for _ in parts])


def _row_of(rows: Tensor) -> Unit:
    """What one row of the batch is counted in."""
    of_cut = {Unit.SHIFTED_TOKENS: Unit.SHIFTED_LENGTH, Unit.COMPLETION_TOKENS: Unit.COMPLETION_LENGTH}
    return of_cut.get(rows.unit, Unit.LENGTH)


def _unbound(torch: Operators, logits: Tensor, gradients: list[Tensor]) -> Tensor:
    """The rows of the batch: views, whose ``gradients`` are stacked when all are there."""
    unit, count, dtype = logits.unit, logits.count, logits.dtype
    rows = logits.alias()
    rows.is_view = True

    def backward(_: list[Tensor], each: Tensor) -> list[Tensor | None]:
        out = torch.new(unit, count, dtype, "stack", cost=[each])
        gradients.clear()
        return [out]

    return record(torch, rows, [logits], [], backward)


def _arrived(number: int, whole: Tensor) -> list[Tensor | None]:
    """What the node of a row sends on: once, as its gradient waits elsewhere; ``whole`` has no memory."""
    return [None if number else whole]


def _log_softmaxes(torch: Operators, rows: Tensor, gradients: list[Tensor], n_rows: int) -> list[Tensor]:
    """A log-softmax for each row, which is saved; without gradients only two rows' are there at a time."""
    whole, unit = shape_of(rows), _row_of(rows)
    torch.pay([whole], [whole])
    if not torch.grad_enabled:
        _row, _next = (torch.new(unit, rows.count, rows.dtype, "log_softmax", cost=None) for _ in range(2))
        return [torch.new(Unit.TOKENS, 1, rows.dtype, "gather")]

    def one(number: int) -> Tensor:
        def backward(*_: object) -> list[Tensor | None]:
            if not number:
                torch.pay([], [whole])
                torch.pay([whole, whole], [whole])
            _zeros = torch.new(unit, whole.count, whole.dtype, "scatter_add", cost=None)
            gradients.append(torch.new(unit, whole.count, whole.dtype, "log_softmax_backward", cost=None))
            return _arrived(number, whole)

        scores = torch.new(unit, rows.count, rows.dtype, "log_softmax", cost=None)
        picked = torch.new(Unit.LENGTH, 1, rows.dtype, "gather", cost=None)
        return record(torch, picked, [rows], [scores], backward)

    return [one(number) for number in range(n_rows)]


def _logsumexps(
    torch: Operators, read: tuple[Tensor, Tensor], gradients: list[Tensor], n_rows: int
) -> list[Tensor]:
    """``logsumexp`` of each row, with a tensor of that size on the way; ``read``: the rows, and the logits
    that they are views of.
    """
    rows, logits = read
    whole, unit, words = shape_of(logits), _row_of(rows), logits.count
    # The largest, then differences that are made, and read to be summed.
    torch.pay([whole])
    torch.pay([whole, whole], [whole])
    _less_maxima = torch.new(unit, words, logits.dtype, "logsumexp", cost=None)
    del _less_maxima

    def one(number: int) -> Tensor:
        def backward(*_: object) -> list[Tensor | None]:
            if not number:
                for _op in range(3):
                    torch.pay([whole], [whole])
            difference = torch.new(unit, words, "fp32", "sub", cost=None)
            exponentials = torch.new(unit, words, "fp32", "exp", cost=None)
            gradients.append(torch.new(unit, words, "fp32", "mul", cost=None))
            # Temporaries of one expression, which go from the last to the first.
            del exponentials, difference
            return _arrived(number, whole)

        out = torch.new(Unit.LENGTH, 1, "fp32", "logsumexp", cost=None)
        return record(torch, out, [rows], [logits], backward)

    return [one(number) for number in range(n_rows)]
