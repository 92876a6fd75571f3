"""What FSDP2 gathers together, and the moments of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("transformers")

import torch
from torch import nn

from measure.trace.sharding.fsdp_units import ROOT, TracedUnit, UnitHooks, make_units, unit_of
from measure.trace.tracer import Recorder
from planner.domain.stack_values import Fsdp2Units
from tests.measure.trace.tiny import LLAMA

LAYERS = [("model.layers.0", False), ("model.layers.1", False)]
TABLE, TAIL = ("model.embed_tokens", False), ("model.norm", True)


def model(*, tied: bool = False) -> Any:
    """A Llama of two layers, without memory."""
    import transformers

    config = transformers.AutoConfig.for_model(**LLAMA, tie_word_embeddings=tied)
    with torch.device("meta"):
        make: Any = transformers.AutoModelForCausalLM.from_config
        return make(config)


@pytest.mark.parametrize(
    ("kind", "units"),
    [
        ("ends_apart", [(ROOT, True), TABLE, *LAYERS, TAIL]),
        ("ends_in_root", [(ROOT, False), TABLE, *LAYERS]),
        ("root_divided", [(ROOT, False), *LAYERS]),
        ("all_in_root", [(ROOT, False), *LAYERS]),
        ("root_whole", [(ROOT, True), LAYERS[0], ("model.layers.1", True)]),
    ],
)
def test_units_are_made_as_the_stack_makes_them(kind: Fsdp2Units, units: list[tuple[str, bool]]) -> None:
    """Which modules, and which of them stay whole from forward to backward."""
    assert [(unit.place, unit.stays_whole) for unit in make_units(model(), "model.layers", kind)] == units


def test_a_tied_table_goes_with_the_head() -> None:
    """And every module belongs to the nearest one around it that is a unit."""
    units = make_units(model(tied=True), "model.layers")
    assert [unit.place for unit in units] == [ROOT, "model.layers.0", "model.layers.1", "model.norm"]
    assert units[-1].modules == ("model.norm", "model.embed_tokens", "lm_head")
    assert unit_of("model.layers.1.mlp.down_proj", units) is units[2]
    assert unit_of("model.rotary_emb", units) is units[0]


def marks(recorder: Recorder) -> list[tuple[str, str]]:
    """Moments and modules so far."""
    return [(each.block.op, each.block.module) for each in recorder.trace.records if each.alloc]


def test_units_are_hooked_before_and_after_each_pass() -> None:
    """The second layer's input needs a gradient, the first one's does not:
    its backward is over when all of it is.
    """
    layers, recorder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Recorder()
    units = [TracedUnit(ROOT, ("",)), TracedUnit("0", ("0",)), TracedUnit("1", ("1",))]
    hooks = UnitHooks(layers, units, recorder)
    layers(torch.ones(1, 2)).sum().backward()
    moments = marks(recorder)
    assert moments[:6] == [
        ("before_forward", ""),
        ("before_forward", "0"),
        ("after_forward", "0"),
        ("before_forward", "1"),
        ("after_forward", "1"),
        ("after_forward", ""),
    ]
    assert [each for each in moments[6:] if each[1]] == [
        ("before_backward", "1"),
        ("after_backward", "1"),
        ("before_backward", "0"),
    ]
    hooks.end_of_backward()
    last = [(each.block.op, each.block.module) for each in recorder.trace.records if each.alloc][
        len(moments) :
    ]
    assert last == [("after_backward", ""), ("after_backward", "0")]
    assert {unit.state for unit in units} == {"idle"}
