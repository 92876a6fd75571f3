"""A module that cannot run on fake tensors: its name and the operator, and never a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import torch
from scenarios import Setup
from tiny_traces import small_config, small_scenario
from transformers.models.llama.modeling_llama import LlamaMLP

from measure.trace.traced_job import trace_records
from planner.errors import ExitCode, NotModelledError


def _reads_a_value(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def _has_a_shape_that_depends_on_values(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum() + x


def _fails(x: torch.Tensor) -> torch.Tensor:
    torch.neg(x)
    raise ValueError("no such kernel\nand more")


@pytest.mark.parametrize(
    ("forward", "operator", "says"),
    [
        (_reads_a_value, "aten._local_scalar_dense.default", "needs values, which fake tensors do not have"),
        (_has_a_shape_that_depends_on_values, "aten.", "needs values, which fake tensors do not have"),
        (_fails, "aten.neg.default", "fails on fake tensors (ValueError: no such kernel)"),
    ],
)
def test_operator_and_module_are_named(
    monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Any], operator: str, says: str
) -> None:
    """Exit code 6, one line, with the operator, the path of the module and what to do instead."""
    monkeypatch.setattr(LlamaMLP, "forward", lambda _, x: forward(x))
    case = small_scenario("llama", Setup())
    with pytest.raises(NotModelledError) as caught:
        trace_records(case, small_config("llama", case))
    message = str(caught.value)
    assert caught.value.exit_code == ExitCode.NOT_MODELLED
    assert f"operator {operator}" in message
    assert "in module model.layers.0.mlp" in message
    assert says in message
    assert "plan --model" in message
    assert "\n" not in message
