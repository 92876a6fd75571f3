"""The dry run of a model whose experts the CPU computes: layers of Transformers with mixtures in them that do
on the card what KTransformers does there, in words of our own, on fake tensors.

Source: kt-kernel 0.7.0 python/sft/layer.py, autograd.py, base.py and dist_utils.py.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import nn

from measure.trace import build
from measure.trace.build import make_config
from measure.trace.labels import to_events
from measure.trace.traced_job import sharded_records, trace_records
from planner.allocator.events import AllocEvent
from planner.domain.model import MlpSpec
from planner.domain.scenario import Scenario


class OnHost(torch.autograd.Function):
    """What the host returns for the tokens of all ranks, of which this one keeps its own."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weights: torch.Tensor, ranks: int) -> torch.Tensor:
        """A tensor without numbers is saved, so that the layer runs again before the host goes back."""
        ctx.shape, ctx.weights, ctx.ranks = hidden.shape, weights.shape, ranks
        out = arrived(hidden, ranks).view(hidden.shape)
        ctx.save_for_backward(hidden.new_empty(()))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of all ranks are sent to one, and those of the tokens are sent back."""
        _ = ctx.saved_tensors
        rows = gradients[0].view(-1, ctx.shape[-1]).contiguous()
        received = [torch.empty_like(rows) for _ in range(ctx.ranks - 1)]
        joined = torch.cat([rows, *received]) if received else rows
        of_input = arrived(rows, ctx.ranks).view(ctx.shape)
        del joined, received
        return of_input, rows.new_empty(ctx.weights), None


def arrived(rows: torch.Tensor, ranks: int) -> torch.Tensor:
    """Rows for those of every rank, and a copy of this rank's."""
    rows = rows.view(-1, rows.shape[-1])
    whole = rows.new_empty((ranks * len(rows), rows.shape[-1]))
    if ranks == 1:
        return whole
    own = torch.empty_like(rows)
    own.copy_(whole[: len(rows)])
    return own


class WideLinear(nn.Linear):
    """The router of DeepSeek, whose product is in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weight first."""
        weight = self.weight.float()
        return nn.functional.linear(x.float(), weight)


class Mixture(nn.Module):
    """Router and shared expert; experts are elsewhere.  ``keeps``: a layer that runs again sends nothing."""

    def __init__(self, block: nn.Module, mlp: MlpSpec, ranks: int, *, keeps: bool) -> None:
        super().__init__()
        router: Any = block.gate
        made = WideLinear if mlp.router == "sigmoid" else nn.Linear
        self.gate = made(router.weight.shape[1], router.weight.shape[0], bias=False)
        self.gate.weight = router.weight
        self.mlp, self.ranks, self.keeps, self.names = mlp, ranks, keeps, list[str]()
        for name in ("shared_experts", "shared_expert", "shared_expert_gate"):
            if (part := getattr(block, name, None)) is not None:
                setattr(self, name, part)
                self.names.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the mixture adds to the stream."""
        weights = self._weights(x)
        beside = self._sent(x)
        out: torch.Tensor = OnHost.apply(x, weights, self.ranks)  # type: ignore[no-untyped-call]
        return out if beside is None else out + beside

    def _weights(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.gate(x.view(-1, x.shape[-1]))
        if self.mlp.router == "sigmoid":
            scores = torch.sigmoid(logits.float())
        else:
            scores = nn.functional.softmax(logits, dtype=torch.float, dim=-1)
        best, _ = torch.topk(scores, self.mlp.top_k, dim=-1)
        return (best / best.sum(dim=-1, keepdim=True)).to(torch.bfloat16)

    def _sent(self, x: torch.Tensor) -> torch.Tensor | None:
        """Tokens of all ranks are joined for the host; then the shared expert runs."""
        rows = x.view(-1, x.shape[-1]).detach()
        received = []
        if self.ranks > 1 and not (self.keeps and runs_again()):
            received = [torch.empty_like(rows) for _ in range(self.ranks - 1)]
            torch.cat([rows, *received])
        if not self.names:
            return None
        out: torch.Tensor = getattr(self, self.names[0])(x)
        if len(self.names) > 1:
            out = torch.sigmoid(getattr(self, self.names[1])(x)) * out
        return out


def runs_again() -> bool:
    """Whether a checkpointed layer runs for its backward pass."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and "_recomputation_hook" in hooks[0].__qualname__


def trace_on_host(scenario: Scenario) -> list[AllocEvent]:
    """Events of one step of the process that has the experts."""
    make, ranks = build.base_model, int(scenario.hardware.world_size)
    mlp = next(group.block.mlp for group in scenario.model.groups if group.block.mlp.n_experts)

    def with_mixtures(scenario: Scenario, config: Any) -> Any:
        model = make(scenario, config)
        for layer in list(model.modules()):
            block = getattr(layer, "mlp", None)
            if block is not None and hasattr(block, "experts"):
                layer.mlp = Mixture(block, mlp, ranks, keeps=scenario.stack.keeps_host_activations)
        return model

    # PEFT 0.18, which LLaMA-Factory takes, converts no names of matrices to those of expert tensors.
    converts = "peft.utils.transformers_weight_conversion._convert_peft_config_moe"
    with mock.patch.object(build, "base_model", with_mixtures), mock.patch(converts):
        recorded = sharded_records if scenario.recipe.sharding.communicates else trace_records
        return to_events(recorded(scenario, make_config(scenario)))
