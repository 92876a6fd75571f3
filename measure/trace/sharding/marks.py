"""Marks in the stream of records: moments at which a sharding runtime's hooks would run.

A mark is a block of no bytes that is taken and given back at once, so it goes through the repetition of
blocks like any other record: what is marked in one layer is marked in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from measure.trace.record import Role, TracedBlock
from measure.trace.tracer import Recorder

Moment = Literal[
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "gradient",
    "start_of_backward",
    "host_waits",
    "end_of_backward",
]
MARK: Role = "mark"


def put_mark(
    recorder: Recorder, moment: Moment, module: str, name: str = "", marked: TracedBlock | None = None
) -> None:
    """Record that ``moment`` has come for ``module``, or for its parameter ``name``,
    whose gradient is in the block ``marked``.
    """
    with recorder.modules.at(module):
        mark = recorder.take(0, f"{moment} {name}".rstrip(), MARK)
        # Outside of all modules the recorder names that of the node that runs.
        mark.module, mark.marked = module, marked
        recorder.give_back(mark)


def mark_gradients(model: nn.Module, recorder: Recorder) -> None:
    """Mark each gradient when it is complete, and let go of it: from there on it is the runtime's.

    DeepSpeed and FSDP register the same hook (``register_post_accumulate_grad_hook``,
    or one on the node that accumulates).
    """
    for full_name, tensor in model.named_parameters():
        if tensor.requires_grad:
            module, _, name = full_name.rpartition(".")
            hook: Any = tensor.register_post_accumulate_grad_hook
            hook(_hand_over(recorder, module, name))


def _hand_over(recorder: Recorder, module: str, name: str) -> Callable[[torch.Tensor], None]:
    def run(tensor: torch.Tensor) -> None:
        if tensor.grad is not None:
            recorder.mark(tensor.grad, "gradients")
            put_mark(recorder, "gradient", module, name, recorder.block_of(tensor.grad))
            tensor.grad = None

    return run
