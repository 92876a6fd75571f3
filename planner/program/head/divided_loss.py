"""The loss where each GPU has the logits of some words of the vocabulary."""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit


def of_divided_words(torch: Operators, logits: Tensor) -> Tensor:
    """Where each GPU has the logits of some words: no kernel makes the log-softmax at once, nor its gradient.

    Source: torch 2.13 distributed/tensor/parallel/loss.py ``_log_softmax`` and
    ``_nll_loss_and_log_softmax_backward``, which torchtitan e347b1e5e takes; torchtitan 0.3.0
    components/loss.py _LossParallelCrossEntropy.
    """
    shifted = torch.like(logits, "sub")
    _exponentials_of = torch.like(shifted, "exp")
    del _exponentials_of
    scores, shape = torch.like(shifted, "sub"), shape_of(shifted)

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        labels = torch.new(shape.unit, shape.count, shape.dtype, "zeros_like")
        softmax = torch.like(kept[0], "exp")
        both = torch.like(labels, "add", cost=(softmax,))
        del softmax
        return [torch.like(both, "mul")]

    return record(torch, torch.new(Unit.TOKENS, 1, "fp32", "nll_loss"), [logits], [scores], backward)


def compiled_of_divided_words(torch: Operators, logits: Tensor) -> Tensor:
    """Forward makes the gradient in fp32, from a tensor with one entry for each label, and saves it alone.

    Source: torch 2.13 _inductor, the graphs of ``torch.compile(cross_entropy)`` inside ``loss_parallel``:
    ``index_put`` and ``add`` are two kernels, and the second has a buffer of its own.
    Ignored: torchtitan 0.3.0 has a loss of its own, whose compiled form was not read.
    """
    shape = shape_of(logits)
    loss = torch.new(Unit.TOKENS, 1, "fp32", "cross_entropy", cost=[logits, logits])
    labels = torch.like(logits, "index_put", "fp32", cost=(logits,))
    both = torch.like(logits, "add", "fp32", cost=(logits, labels))
    del labels

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        return [torch.like(shape, "mul", cost=(kept[0],))]

    return record(torch, loss, [logits], [both], backward)
