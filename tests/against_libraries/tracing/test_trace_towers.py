"""The trace of a model that sees, on text alone: its tower is loaded where the stack loads it."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.build import build_on_meta, make_config
from planner.domain.scenario import Scenario
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve

FLAGS = {"method": "full", "gpu": "h100-sxm", "seq": 16, "batch": 1}


def scenario(model: str, **more: object) -> Scenario:
    """A small job."""
    return resolve(from_flags({**FLAGS, "model": model, **more}))


@pytest.mark.parametrize(("stack", "sees"), [("hf-trainer@5", False), ("llama-factory", True)])
def test_a_text_part_is_made_alone_where_the_stack_loads_it_so(stack: str, *, sees: bool) -> None:
    """``AutoModelForCausalLM`` of Qwen3.5 has no tower, which LLaMA-Factory loads."""
    case = scenario("qwen3.5-0.8b", stack=stack)
    names = [name for name, _ in build_on_meta(case, make_config(case)).model.named_parameters()]
    assert any(".visual." in f".{name}" for name in names) == sees
