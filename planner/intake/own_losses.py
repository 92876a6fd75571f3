"""Classes of Transformers that had a loss of their own for longer than others, or never widened logits in it.

Source: models/*/modeling_*.py of transformers 4.37.2, 4.41.2, 4.45.2, 4.46.3, 4.47.1, 4.48.3 and 4.49.0: the
forward pass of each class for causal language modelling calls ``CrossEntropyLoss`` or ``loss_function``.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import ModelSpec
from planner.domain.stack import Stack
from planner.domain.stack_values import LogitsCopy
from planner.intake.supported import minor_of_transformers_4

# The first minor version of Transformers 4 whose class takes the common loss, which others took in 46.
_COMMON_SINCE = {
    **dict.fromkeys(("bloom", "falcon", "gpt2", "mpt", "opt", "stablelm"), 48),
    **dict.fromkeys(("gptj", "granite", "mistral"), 48),
    "gpt_neox": 49,
    "starcoder2": 47,
}
_NEVER_WIDENED = frozenset({"bloom", "falcon", "gpt2", "gpt_neox", "mpt", "opt", "stablelm"})
_IN_PLACE: tuple[LogitsCopy, ...] = ("float", "shifted", "log_softmax")
_COMMON: tuple[LogitsCopy, ...] = ("compute", "float", "shifted", "log_softmax")
_NARROW: tuple[LogitsCopy, ...] = ("compute", "shifted", "log_softmax")


def with_own_loss(stack: Stack, model: ModelSpec) -> Stack:
    """``stack`` with the loss of the model's class, where that is Transformers' and not the common one."""
    since, minor = _COMMON_SINCE.get(model.architecture), minor_of_transformers_4(stack)
    is_own = since is not None and minor is not None and minor < since
    if not is_own or stack.model_code == "own" or stack.loss_forward not in (_IN_PLACE, _COMMON):
        return stack
    copies = _NARROW if model.architecture in _NEVER_WIDENED else _IN_PLACE
    return stack if stack.loss_forward == copies else replace(stack, loss_forward=copies)
