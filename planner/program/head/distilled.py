"""The loss of a student: how far its logits are from a teacher's, word by word.

All tokens are taken for tokens of completions, of which copies are made.
Source: trl 1.16.0 experimental/gkd/gkd_trainer.py compute_loss, generalized_jsd_loss; ms-swift 4.6.0
rlhf_trainers/gkd_loss.py gkd_loss, jsd_loss (pieces of 512 tokens).
torch 2.13 ATen/native/Loss.cpp kl_div, ReduceOps.cpp logsumexp_out_impl;
torch/csrc/autograd/FunctionsManual.cpp logsumexp_backward.
"""

from __future__ import annotations

from planner.program.head.ends import EndsView, all_logits, last_norm, widens
from planner.program.head.weighted import summed
from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators, part_of
from planner.program.ops.tensors import Tensor, Unit

PIECE_TOKENS = 512
"""Tokens of one piece of ms-swift's loss."""


def distilled_loss(torch: Operators, ends: EndsView, passed: list[Tensor]) -> Tensor:
    """The distance of the student's logits from the teacher's, whose pass has ended when the loss begins.

    ``passed`` holds the stream, and is emptied.  The trainer refers to both logits until the loss is there.
    """
    view = ends.layer
    outputs = [all_logits(torch, ends, last_norm(torch, ends, passed))]
    torch.enter("forward_out")
    if widens(view) or ends.widens_logits:
        outputs.append(torch.to(outputs.pop(), "fp32"))
    torch.enter("forward_loss")
    if view.stack.distillation in _OF_PIECES:
        return _in_pieces(torch, outputs, *_OF_PIECES[view.stack.distillation])
    own = torch.same(torch.shifted_rows(outputs[0]), "div")
    teachers = torch.like(own, "div")
    scores = torch.kernel(own, "log_softmax", saves="output")
    wanted = torch.like(teachers, "log_softmax")
    distance = _DISTANCES.get(view.stack.distillation, _mixed)(torch, scores, wanted)
    distance = _counted(torch, distance)
    del own, teachers, scores, wanted
    loss = summed(torch, distance)
    # The trainer empties the cache before it returns the loss and lets the logits go.
    return record(torch, loss.alias(), [loss], outputs, lambda _, gradient: [gradient])


def _in_pieces(torch: Operators, outputs: list[Tensor], saves: tuple[str, ...], n_beside: int) -> Tensor:
    """The same piece by piece: all save ``saves``, and ``n_beside`` tensors of one are there beside them.

    Ignored: pieces in the backward pass, whose gradients are written into zeros of all tokens.
    """
    picked = torch.index(outputs[0], outputs[0].count)
    teachers = torch.like(picked, "index")
    own, _scaled = torch.same(picked, "div"), torch.like(teachers, "div")
    saved = [torch.like(own, op) for op in saves]
    _pieces = [torch.new(Unit.PIECE_TOKENS, own.count, own.dtype, "mul", cost=None) for _ in range(n_beside)]

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        _zeros = torch.like(kept[0], "slice_backward")
        return [torch.like(kept[0], "slice_backward")]

    loss = record(torch, torch.new(Unit.TOKENS, 1, own.dtype, "sum"), [own], saved, backward)
    outputs.clear()
    return loss


def _counted(torch: Operators, distance: Tensor) -> Tensor:
    """``distance[mask]``, whose gradient is added to zeros where they are.

    Source: torch 2.13 torch/csrc/autograd/FunctionsManual.cpp index_backward, ``_index_put_impl_``.
    """
    unit, count, dtype = distance.unit, distance.count, distance.dtype
    out = torch.like(distance, "index")
    return record(torch, out, [distance], [], lambda *_: [torch.new(unit, count, dtype, "new_zeros")])


def _mixed(torch: Operators, scores: Tensor, wanted: Tensor) -> Tensor:
    """Distances of both from the mean of their probabilities, which are added."""
    mixture = _log_mean(torch, torch.contiguous(scores, "add"), torch.like(wanted, "add"))
    of_teacher = _from_teacher(torch, mixture, wanted)
    of_student = _from_student(torch, scores, mixture)
    left = torch.same(of_teacher, "mul")
    right = torch.same(of_student, "mul")
    return torch.add(left, right)


def _from_teacher(torch: Operators, scores: Tensor, wanted: Tensor) -> Tensor:
    """``kl_div`` whose target needs no gradient; the second factor is there first."""
    less = torch.sub(wanted, scores)
    return torch.mul(torch.like(wanted, "exp"), less)


def _from_student(torch: Operators, scores: Tensor, wanted: Tensor) -> Tensor:
    """``kl_div`` whose target is the student's."""
    less = torch.sub(scores, wanted)
    return torch.mul(torch.kernel(scores, "exp", saves="output"), less)


_DISTANCES = {"mixture": _mixed, "forward": _from_teacher, "reverse": _from_student}
"""By the stack's way; a job that is forced onto software without such a trainer takes the mixture."""


def _log_mean(torch: Operators, scores: Tensor, wanted: Tensor) -> Tensor:
    """``logsumexp`` of two tensors that are stacked, and go; it saves the stack and its output."""
    unit, count, dtype = scores.unit, scores.count, scores.dtype
    stack = torch.new(unit, 2 * count, dtype, "stack", cost=[scores, wanted])
    stack = record(torch, stack, [scores], [], lambda _, gradient: [part_of(gradient, count)])
    del scores, wanted
    largest = torch.new(unit, count, dtype, "amax", cost=[stack])
    less = torch.like(stack, "sub")
    out = torch.like(largest, "logsumexp", cost=(stack,))
    del less, largest

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        less = torch.like(kept[0], "sub", cost=(kept[1],))
        exponentials = torch.like(kept[0], "exp")
        made = torch.like(kept[0], "mul", cost=(gradient,))
        del exponentials, less
        return [made]

    return record(torch, out, [stack], [stack, out], backward)


_MIXTURE = ("log_softmax", "stack", "stack", "logsumexp", "exp", "exp", "sub")
_OF_PIECES = {
    "mixture_in_pieces": (_MIXTURE, 2),
    "forward_in_pieces": (("log_softmax", "exp"), 3),
    "reverse_in_pieces": (("log_softmax", "exp", "sub"), 2),
}
