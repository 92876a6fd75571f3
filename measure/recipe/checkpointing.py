"""What ``torch.utils.checkpoint`` is told,
and torchtitan's policy for selective checkpointing of operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch.partitioners import get_default_op_list
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from planner.domain.recipes.recipe import Recipe

_MM = torch.ops.aten.mm.default


class _Policy:
    """Keeps what is expensive to compute, but every second matrix product; the second run counts anew.

    Source: torchtitan 0.3.0 distributed/activation_checkpoint.py (``SelectiveAC``).
    """

    def __init__(self) -> None:
        operators: Iterable[Any] = get_default_op_list().compute_intensive_ops
        self._kept = {each.default for each in operators}
        # What SDPA calls inside where a kernel is called by its own name.
        self._kept |= {
            getattr(torch.ops.aten, f"_{kernel}_attention_forward").default
            for kernel in ("flash", "efficient")
        }
        self._products = {True: 0, False: 0}

    def __call__(self, context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        again = context.is_recompute
        self._products[again] += operator is _MM
        keeps = operator in self._kept and not (operator is _MM and self._products[again] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_kwargs(recipe: Recipe) -> dict[str, Any]:
    """Arguments of ``torch.utils.checkpoint.checkpoint`` for a recipe that checkpoints."""
    selective = {"context_fn": _contexts} if recipe.checkpoint_policy == "selective-op" else {}
    return {"use_reentrant": recipe.checkpoint_reentrant, **selective}


def _contexts() -> Any:
    make: Any = create_selective_checkpoint_contexts
    return make(_Policy())
