"""Heads and rotary positions, against sizes worked out by hand: 2 heads of 8 features in bf16,
32 bytes for each token.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from planner.domain.attention_shape import AttentionSpec, RotaryForm
from planner.program.head.heads import by_heads, split
from planner.program.layers.rotary import rotated, turns
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Tensor
from planner.program.recorded_part import Shape, Template, Terms, run
from planner.program.view import LayerView

WHOLE = 2 * 8 * 2
TERMS = Terms("saved_activations", "block_recompute")
SPEC = AttentionSpec(2, 2, 8, 8)


def view_of(spec: AttentionSpec, table: Dtype = "bf16") -> LayerView:
    """What rotary code reads of a view."""
    fields: dict[str, Any] = {
        "block": SimpleNamespace(attention=spec),
        "dtypes": SimpleNamespace(table=table),
        "embedded": table,
        "stack": SimpleNamespace(
            rotary_in_model=("all", "elementwise"), rotary_tables=("none",), adapter_kernels="eager"
        ),
    }
    return SimpleNamespace(**fields)  # type: ignore[return-value]


def made(template: Template, stage: str) -> list[tuple[str, float]]:
    """Operators of a stage in their order, with bytes of what they make for each token."""
    slots = [event for event in template.stages[stage] if event >= 0]
    return [(template.ops[slot][1], template.unit_bytes[slot]) for slot in slots]


@pytest.mark.parametrize(("laid_by_heads", "backward"), [(False, ["cat"]), (True, ["cat", "clone"])])
def test_gradients_of_a_split_are_joined_once(laid_by_heads: bool, backward: list[str]) -> None:
    """One join, and a copy where it lies head by head."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        first, second, third = split(torch, by_heads(torch, x, 2), (16, 16, 16), laid_by_heads=laid_by_heads)
        return torch.add(torch.add(first, second), third)

    template = run(part, Shape(48, "bf16", True), TERMS)
    assert made(template, "backward") == [(op, 3 * WHOLE) for op in backward]


def test_gradients_of_slices_are_zeros_as_large_as_the_product() -> None:
    """One tensor of zeros for each slice."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        first, second = torch.part(x, 16, by_heads=False), torch.part(x, 16, by_heads=False)
        return torch.add(first, second)

    assert made(run(part, Shape(48, "bf16", True), TERMS), "backward") == [("slice_backward", 3 * WHOLE)] * 2


def turned(spec: AttentionSpec, table: Dtype = "bf16") -> Template:
    """Query and key, the same tensor here, turned and added."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        query, key, _ = rotated(torch, view_of(spec, table), x, x)
        return torch.add(query, key)

    return run(part, Shape(16, "bf16", True), TERMS)


def test_rotary_of_whole_heads() -> None:
    """Two products, a swap of halves and a sum, for query and key."""
    one = [("mul", WHOLE), ("neg", WHOLE / 2), ("cat", WHOLE), ("mul", WHOLE), ("add", WHOLE)]
    assert made(turned(SPEC), "forward") == [*one, *one, ("add", WHOLE)]


def test_rotary_of_a_quarter_joins_the_parts() -> None:
    """The turned part is a quarter; the joined ones are whole."""
    spec = replace(SPEC, joined_rotary=True, rotary_width=2)
    part = WHOLE / 4
    one = [("mul", part), ("neg", part / 2), ("cat", part), ("mul", part), ("add", part)]
    assert made(turned(spec), "forward") == [*one, *one, *[("cat", WHOLE)] * 2, ("add", WHOLE)]
    # In one expression the query is joined before the key is turned.
    inline = made(turned(replace(spec, rotary_join="inline")), "forward")
    assert inline == [*one, ("cat", WHOLE), *one, ("cat", WHOLE), ("add", WHOLE)]


def test_wide_tables_widen_what_they_turn_unless_it_is_cast_back() -> None:
    """fp32 tables give an fp32 result, or one of the input's dtype."""
    assert made(turned(SPEC, "fp32"), "forward")[-1] == ("add", 2 * WHOLE)
    assert made(turned(replace(SPEC, rotary_result="input"), "fp32"), "forward")[-3:] == [
        ("to", WHOLE),
        ("to", WHOLE),
        ("add", WHOLE),
    ]


@pytest.mark.parametrize(
    ("form", "made_of"),
    [
        ("halves", ["mul", "cat", "cos", "mul", "sin", "mul", "to", "to"]),
        ("crossed", ["mul", "cos", "mul", "sin", "mul", "to", "to"]),
        ("complex", ["mul", "ones_like", "polar", "mul"]),
    ],
)
def test_tables_are_made_in_fp32_and_stay_in_the_stream_s_dtype(form: RotaryForm, made_of: list[str]) -> None:
    """Heads of 8 features: angles of 4; cosines and sines of 8, or of 4 where both halves read the same."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        torch.shared["cos"], torch.shared["sin"] = turns(torch, view_of(replace(SPEC, rotary_form=form)))
        return x

    template = run(part, Shape(16, "bf16", False), TERMS)
    slots = [event for event in template.stages["forward"] if event >= 0]
    assert [template.ops[slot][1] for slot in slots] == made_of
    assert template.unit_bytes[slots[0]] == 4 * 4
    width, n_bytes = {"halves": (8, 2), "crossed": (4, 2), "complex": (8, 4)}[form]
    kept = {shape.count * ELEMENT_BYTES[shape.dtype] for _, shape in template.shares.values()}
    assert kept == {width * n_bytes}
    held = set(slots) - {~event for event in template.stages["forward"] if event < 0}
    assert len(held) == (1 if form == "complex" else 2)


def test_crossed_products_of_halves() -> None:
    """Four products of halves, and a join."""
    half = WHOLE / 2
    products = [("mul", half), ("mul", half)]
    one = [*products, ("sub", half), *products, ("add", half), ("cat", WHOLE)]
    assert made(turned(replace(SPEC, rotary_form="crossed")), "forward") == [*one, *one, ("add", WHOLE)]
