"""The dry run of a model whose experts the CPU computes: layers of Transformers with mixtures in them that do
on the card what KTransformers does there with one process, in words of our own, on fake tensors.

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
from measure.trace.traced_job import trace_records
from planner.allocator.events import AllocEvent
from planner.domain.model import MlpSpec
from planner.domain.scenario import Scenario


class OnHost(torch.autograd.Function):
    """What the host returns for the tokens."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """A tensor without numbers is saved, so that the layer runs again before the host goes back."""
        ctx.shape, ctx.weights = hidden.shape, weights.shape
        out = torch.empty_like(hidden)
        ctx.save_for_backward(hidden.new_empty(()))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients are sent to the host, and those of the tokens come back."""
        _ = ctx.saved_tensors
        rows = gradients[0].view(-1, ctx.shape[-1]).contiguous()
        joined = torch.cat([rows])
        of_input = torch.empty_like(rows).view(ctx.shape)
        del joined
        return of_input, rows.new_empty(ctx.weights)


class WideLinear(nn.Linear):
    """The router of DeepSeek, whose product is in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weight first."""
        weight = self.weight.float()
        return nn.functional.linear(x.float(), weight)


class Mixture(nn.Module):
    """Router and shared expert; experts are elsewhere."""

    def __init__(self, block: nn.Module, mlp: MlpSpec) -> None:
        super().__init__()
        router: Any = block.gate
        made = WideLinear if mlp.router == "sigmoid" else nn.Linear
        self.gate = made(router.weight.shape[1], router.weight.shape[0], bias=False)
        self.gate.weight = router.weight
        self.mlp, self.names = mlp, list[str]()
        for name in ("shared_experts", "shared_expert", "shared_expert_gate"):
            if (part := getattr(block, name, None)) is not None:
                setattr(self, name, part)
                self.names.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the mixture adds to the stream."""
        weights = self._weights(x)
        beside = self._sent(x)
        out: torch.Tensor = OnHost.apply(x, weights)  # type: ignore[no-untyped-call]
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
        """The shared expert runs beside the host."""
        if not self.names:
            return None
        out: torch.Tensor = getattr(self, self.names[0])(x)
        if len(self.names) > 1:
            out = torch.sigmoid(getattr(self, self.names[1])(x)) * out
        return out


def trace_on_host(scenario: Scenario) -> list[AllocEvent]:
    """Events of one step of the process that has the experts."""
    make = build.base_model
    mlp = next(group.block.mlp for group in scenario.model.groups if group.block.mlp.n_experts)

    def with_mixtures(scenario: Scenario, config: Any) -> Any:
        model = make(scenario, config)
        for layer in list(model.modules()):
            block = getattr(layer, "mlp", None)
            if block is not None and hasattr(block, "experts"):
                layer.mlp = Mixture(block, mlp)
        return model

    # PEFT 0.18, which LLaMA-Factory takes, converts no names of matrices to those of expert tensors.
    converts = "peft.utils.transformers_weight_conversion._convert_peft_config_moe"
    with mock.patch.object(build, "base_model", with_mixtures), mock.patch(converts):
        return to_events(trace_records(scenario, make_config(scenario)))
