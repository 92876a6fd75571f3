"""Log-probabilities of pairs whose chosen and rejected sequence lie behind each other in one row.

The policy's logits, as the model returns them, in fp32, and shifted for the metrics, are there until the loss
is; the reference lets go of its own before.
Source: hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/trainers/dpo_trainer.py compute_loss,
_compute_ref_logps, _extract_chosen_rejected_logps.
Ignored: that a rejected token meets the keys of the chosen sequence, too: Transformers 5.23 makes a mask of
zeros and ones of ``token_type_ids`` (masking_utils.py _preprocess_mask_arguments).
"""

from __future__ import annotations

from planner.program.head.losses import cross_entropy
from planner.program.head.roles import Role
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def joined_pairs(torch: Operators, view: LayerView, logits: list[Tensor], role: Role) -> Tensor:
    """The log-probability of each token of both sequences; ``logits``, the model's, is emptied."""
    wide = torch.to(logits[0], "fp32")
    held = [logits.pop().alias(), wide.alias()] if role == "policy" else []
    logits.clear()
    if role == "policy" and not view.single:
        _of_metrics = torch.contiguous(torch.shifted_rows(wide))
        held.append(_of_metrics.alias())
        del _of_metrics
    part = torch.shifted_rows(wide)
    del wide
    out = cross_entropy(torch, view, part if view.single else torch.contiguous(part))
    del part
    torch.enter("forward_loss")
    held.clear()
    return out
