"""Llama 4 with experts that are matrices of their own, as Axolotl's class has them: the step program against
the trace of such modules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_streams import _FEW, _SMALL, _peak

from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.report.trace.requests import ignored_sizes, of_program, of_trace
from tests.extras import import_or_skip
from tests.jobs import resolved

LLAMA_4 = {
    "num_hidden_layers": 2,
    "intermediate_size_mlp": 512,
    "num_local_experts": 8,
    "intermediate_size": 256,
    "interleave_moe_layer_step": 1,
}


def _experts_apart(config: Any) -> Any:
    """What axolotl 0.19.0 monkeypatch/models/llama4/modeling.py does, in words of our own."""
    from torch import nn, zeros_like

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.width = config.num_local_experts, config.hidden_size
            sides = (config.hidden_size, config.intermediate_size)

            def matrices(n_in: int, n_out: int) -> nn.ModuleList:
                return nn.ModuleList(nn.Linear(n_in, n_out, bias=False) for _ in range(self.count))

            self.gate_projs, self.up_projs = matrices(*sides), matrices(*sides)
            self.down_projs, self.act_fn = matrices(*sides[::-1]), nn.SiLU()

        def forward(self, rows: Any) -> Any:
            by_expert = rows.view(self.count, -1, self.width)
            found = zeros_like(by_expert)
            for number in range(self.count):
                given = by_expert[number]
                gate = self.gate_projs[number](given)
                up = self.up_projs[number](given)
                found[number] = self.down_projs[number](up * self.act_fn(gate))
            return found.view(-1, self.width)

    return Experts()


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_peak_of_experts_in_turn(
    method: str, checkpointing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated agrees within half a percent; eight experts are as many turns."""
    import_or_skip("peft")
    from transformers.models.llama4 import modeling_llama4

    from measure.trace.traced_job import trace_events

    monkeypatch.setattr(modeling_llama4, "Llama4TextExperts", _experts_apart)
    config = tmp_path / "tiny.json"
    fields = {"model_type": "llama4_text", **_SMALL, **_FEW, **LLAMA_4}
    config.write_text(json.dumps(fields), encoding="utf-8")
    flags = {
        "model": str(config), "gpu": "a100-80gb", "seq": 512, "batch": 1, "method": method, "lora_rank": 8,
        "lora_targets": ("attention",), "gradient_checkpointing": checkpointing,
    }  # fmt: skip
    traced = resolved(flags)
    scenario = resolved({**flags, "switches": ("linearized_experts=true",)})
    phases, ignored = ("forward_2", "loss_2", "backward_2"), ignored_sizes(traced)
    program = _peak(of_program(job_of(scenario, Coefficients()), ignored, phases))
    trace = _peak(of_trace(trace_events(traced), ignored, phases))
    assert program == pytest.approx(trace, rel=0.005)
