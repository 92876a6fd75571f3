"""Operators that the host issues for a layer, as many as the real modules issue under autocast and PEFT.

The difference of two depths is one layer.  Not compared: what saved-tensor hooks cost, which is counted in
operators.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import parts_of
from tests.extras import import_or_skip

torch = import_or_skip("torch")
import_or_skip("transformers")
import_or_skip("peft")

from scenarios import Setup
from tiny_traces import Small, built, small_scenario
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.trace.build import materialize
from measure.trace.cuda.shims import Situation, shims
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import run_step

# Operators that start no kernel, though they return no view.
NOTHING = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "_unsafe_view"}
MICRO_STEPS = 2
SMALL = Small()
WAYS = {"full": Setup(mixed=True), "lora": Setup(rank=4, mixed=True), "bf16": Setup()}
PLAIN_WAYS = {"full": WAYS["full"], "lora": WAYS["lora"], "fp32": Setup(dtype="fp32")}
CASES = [
    ("llama", "full"),
    ("llama", "lora"),
    ("phi3", "lora"),
    *((name, way) for name in ("gpt2", "gpt_neox") for way in ("full", "lora", "bf16")),
]


class Counting(Recorder):
    """Counts kernels by direction."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        out = super().__torch_dispatch__(func, types, args, kwargs)
        returns = func._schema.returns
        is_view = all(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        space, name = func._schema.name.split("::")
        if not is_view and space != "prim" and name not in NOTHING:
            self.launches["forward" if self._stage == "loss" else self._stage] += 1
        return out


def issued(
    name: str, setup: Setup, layers: int, small: Small = SMALL, *, packages: bool = True
) -> Counter[str]:
    """Kernels of all micro-steps of a model with so many layers."""
    case, recorder = small_scenario(name, setup, layers=layers, small=small), Counting()
    made = built(name, case, layers)
    with (
        FakeTensorMode(),
        shims(Situation(False, recorder, recurrent_kernels=packages), cuda=True),
        recorder.modules.watching([made.model], made.layer_list),
    ):
        materialize(made.model, recorder)
        recorder.launches.clear()
        run_step(made.model, case, recorder)
    return recorder.launches


def counted(case: Scenario) -> Counter[str]:
    """Those of the last layer of the program."""
    job = job_of(case, Coefficients())
    layer, values = [part.template for part in parts_of(job) if part.name == "layer"][-1], unit_values(job)
    found = Counter[str]()
    for (way, _, kind), amounts in layer.work.items():
        if kind == "launches":
            found[way] += round(sum(amount * values[unit] for unit, amount in amounts.items()))
    return found


def of_one_layer(one: Counter[str], more: Counter[str]) -> dict[str, float]:
    """The difference of two depths, in one micro-step."""
    return {each: (more[each] - one[each]) / MICRO_STEPS for each in ("forward", "backward")}


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda each: each)
def test_a_layer_issues_as_many_operators_as_its_modules(name: str, way: str) -> None:
    """Forward and backward."""
    real = of_one_layer(issued(name, WAYS[way], 2), issued(name, WAYS[way], 3))
    assert counted(small_scenario(name, WAYS[way])) == real


@pytest.mark.every(2)
@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("way", PLAIN_WAYS)
def test_the_delta_rule_without_its_package_issues_a_loop_over_chunks(way: str, chunks: int) -> None:
    """As many operators as Transformers' own code; with autocast 17 forward and 42 backward for each chunk
    of 64 positions, without it 9 and 31.
    """
    setup, small = PLAIN_WAYS[way], Small(1, chunks * 64 - 10)
    made = {layers: issued("linear", setup, layers, small, packages=False) for layers in (2, 3)}
    real = of_one_layer(made[2], made[3])
    case = small_scenario("linear", setup, small=small)
    found = counted(replace(case, stack=replace(case.stack, recurrent_kernels="torch")))
    assert found == real
