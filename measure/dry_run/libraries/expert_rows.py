"""Experts that Transformers divides over GPUs: how many rows each GPU sends to another and gets from it.

The host reads these numbers back, and nobody knows them here: tokens are spread evenly over the experts.

Source: transformers 5.23 distributed/expert_parallel.py AllToAllEP._dispatch_tokens.
"""

# ruff: noqa: SLF001 - what Transformers calls private here has no public name

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import OnImport


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change the module when the program imports it."""

    def change(module: ModuleType) -> None:
        exchange: Any = getattr(module, "AllToAllEP", None)
        if exchange is None:
            return
        send = exchange._dispatch_tokens

        @wraps(send)
        def dispatch(self: Any, hidden_states: Any, top_k_index: torch.Tensor, top_k_weights: Any) -> Any:
            size = self.ep_mesh.size()
            counts = _Counts(top_k_index.numel() // self.tp_mesh.size(), size)
            guesses.assume("rows for the experts of other GPUs", "spread evenly", "transformers")
            with mock.patch.object(torch, "stack", return_value=counts):
                return send(self, hidden_states, top_k_index, top_k_weights)

        exchange._dispatch_tokens = dispatch

    imports.add("transformers.distributed.expert_parallel", change)


class _Counts:
    """Rows sent to each of ``size`` GPUs, and rows that arrive from each."""

    def __init__(self, rows: int, size: int) -> None:
        self._of_each = [(number + 1) * rows // size - number * rows // size for number in range(size)]

    def tolist(self) -> list[list[int]]:
        """As the host reads them."""
        return [list(self._of_each), list(self._of_each)]
