"""What TRL's trainers compute of logits beside the loss: how sure the model is of each token, and how often
it is right.

Source: trl 0.15.2, 0.22.2, 0.23.1, 1.2.0, 1.5.1, 1.6.0 and 1.9.0 trainer/sft_trainer.py SFTTrainer
compute_loss, trainer/utils.py entropy_from_logits.
"""

from __future__ import annotations

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView

_ENTROPY_ROWS = 128


def entropy(torch: Operators, logits: Tensor, *, copies: bool) -> None:
    """Piece by piece, of a copy where the logits are parts of several rows."""
    _flat = torch.like(logits, "clone") if copies else None
    # All pieces: log-softmax, exponential, their product and its sum.
    for reads, writes in ((1, 1), (1, 1), (2, 1), (1, 0)):
        torch.pay([logits] * reads, [logits] * writes)
    _piece = [
        torch.new(Unit.ONE, _ENTROPY_ROWS * logits.count, logits.dtype, op, cost=None)
        for op in ("log_softmax", "exp", "mul")
    ]


def measured(torch: Operators, view: LayerView, logits: Tensor) -> None:
    """The metrics of ``SFTTrainer``, of logits as the wrapper returns them.

    They are cut by one position: a copy, unless a micro-batch is one sample.  Two copies are there together
    where the variable of the first one is bound anew.
    """
    metrics, copies = view.stack.logit_metrics, not view.single
    if metrics == "by_sample":
        _of_samples(torch, view, logits)
    elif metrics != "copied_once":
        entropy(torch, logits, copies=False)
    first = torch.like(logits, "clone") if copies else logits
    if metrics == "copied_twice" and copies:
        _second = torch.like(first, "clone")
    torch.pay([logits])


def _of_samples(torch: Operators, view: LayerView, logits: Tensor) -> None:
    """The entropy of one sample after the other."""
    unit = logits.unit if view.single else Unit.LENGTH
    scores = torch.new(unit, logits.count, logits.dtype, "log_softmax", cost=[logits])
    exponential = torch.like(scores, "exp")
    _product = torch.like(exponential, "mul", cost=(scores,))
