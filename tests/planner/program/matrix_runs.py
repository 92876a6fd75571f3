"""One matrix run forward and backward, for tests of what it allocates and when that is freed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Node, Tensor, Unit
from planner.program.view import LayerView, layer_view
from tests.jobs import job_by

SPEC = LinearSpec("o_proj", "attention", 64, 128, "attn_out")
OTHER = replace(SPEC, name="other")
"""Not adapted."""


@cache
def _view(method: str) -> LayerView:
    flags = {"model": "llama-2-7b", "method": method, "gpu": "a100-80gb", "seq": 512, "batch": 1}
    job = job_by(flags)
    return layer_view(job, job.model.groups[0].block, trained=job.recipe.method == "full")


def view_of(
    method: str, *, dropout: float = 0.0, numerics: dict[str, Any] | None = None, **changes: Any
) -> LayerView:
    """A view of a layer under ``method``, with other numerics,
    and other dtypes or switches of the stack by name.
    """
    view = _view(method)
    recipe = replace(view.recipe, numerics=replace(view.recipe.numerics, **(numerics or {})))
    if recipe.adapter is not None:
        recipe = replace(recipe, adapter=replace(recipe.adapter, dropout=dropout, targets=("o_proj",)))
    of_dtypes = {name: value for name, value in changes.items() if hasattr(view.dtypes, name)}
    of_stack = {name: value for name, value in changes.items() if name not in of_dtypes}
    dtypes, stack = replace(view.dtypes, **of_dtypes), replace(view.stack, **of_stack)
    return replace(view, recipe=recipe, dtypes=dtypes, stack=stack)


class Run:
    """A layer of one matrix: ``made`` lists allocations of a stage as (operator, unit, bytes),
    ``alive`` what is left.
    """

    def __init__(self, layer: Callable[[Operators, Tensor], Tensor], given: Dtype, width: float = 64) -> None:
        torch = self.torch = Operators()
        torch.enter("ports")
        x = torch.new(Unit.TOKENS, width, given, "input")
        x.node = Node("input", sys.maxsize, None)
        torch.enter("forward")
        out = layer(torch, x)
        torch.enter("ports")
        del x
        self.out = out.dtype
        root, out.node = out.node, None
        gradients = [torch.new(Unit.TOKENS, out.count, out.dtype, "gradient")]
        del out
        torch.autocast_cache.clear()
        self.kept = self._alive()
        assert root is not None
        torch.enter("backward")
        run_backward(torch, root, gradients)
        torch.enter("ports")
        self.kept_by_graph = self._alive()

    def made(self, stage: str) -> list[tuple[str, str, float]]:
        """Allocations of ``stage``."""
        return [self._described(event) for event in self.torch.stages[stage] if event >= 0]

    def _alive(self) -> Counter[tuple[str, str, float]]:
        """Allocations of the forward pass that are still alive."""
        events = [event for stage in self.torch.stages.values() for event in stage]
        freed = {~event for event in events if event < 0}
        return Counter(self._described(e) for e in self.torch.stages["forward"] if e >= 0 and e not in freed)

    def _described(self, slot: int) -> tuple[str, str, float]:
        return self.torch.ops[slot][1], self.torch.units[slot].name, self.torch.unit_bytes[slot]
