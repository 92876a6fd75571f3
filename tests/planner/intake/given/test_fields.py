"""Values as people type them: what is read, and the words about what cannot be used."""

from __future__ import annotations

import pytest

from planner.errors import UnknownNameError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.units import GIB


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seq", "1024", 1024),
        ("seq", " 16_384 ", 16384),
        ("seq", 1024.0, 1024),
        ("price", "2.5", 2.5),
        ("price", 2, 2.0),
        ("epochs", "1e-1", 0.1),
        ("gpu_memory", "23.5GiB", round(23.5 * GIB)),
        ("gpu_reserved", "0 MiB", 0),
        ("double_quant", "Yes", True),
        ("double_quant", False, False),
        ("optimizer", "ADAMW-TORCH", "adamw_torch"),
        ("precision", "bf16_mixed", "bf16-mixed"),
        ("load_dtype", "bfloat16", "bf16"),
        ("lora_targets", "q_proj; v_proj,q_proj", ("q_proj", "v_proj")),
        ("lora_targets", ["all-linear"], ("all-linear",)),
        ("model", "  Llama-2-7b ", "Llama-2-7b"),
        ("model", "\u767e\u5ddd", "\u767e\u5ddd"),
    ],
)
def test_a_value_is_read(name: str, text: object, value: object) -> None:
    """Text as people type it, and what TOML and records hold, become the type of the field."""
    parsed = REQUEST_FIELDS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "value", ["0", "-1", "nan", "inf", "-inf", "1e30", "9" * 5000, "1.5", "", "x", True, None, [], 10**400]
)
@pytest.mark.parametrize(
    "name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "integer" and field.low == 1]
)
def test_counts_out_of_range_are_refused_with_the_range(name: str, value: object) -> None:
    """Negative, zero, NaN, infinite, huge and non-whole counts all name the field and what is allowed."""
    with pytest.raises(
        UsageError, match=rf"^{name} must be a whole number from 1 to [0-9,]+, but it is "
    ) as caught:
        REQUEST_FIELDS[name].parse(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-1", "1e400", "x", "", True, None, float("nan"), float("inf"), 10**400]
)
@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "number"])
def test_numbers_out_of_range_are_refused_with_the_range(name: str, value: object) -> None:
    """The same for numbers with a fraction."""
    with pytest.raises(
        UsageError, match=rf"^{name} must be a number (above 0 and (at most|below)|from 0 to) "
    ):
        REQUEST_FIELDS[name].parse(value)


@pytest.mark.parametrize(
    "value", ["24", "-1GiB", "nan GiB", "24 apples", "", "9" * 400 + "GiB", 24, None, "17000TiB"]
)
@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "size"])
def test_sizes_need_a_unit_and_a_range(name: str, value: object) -> None:
    """A bare number is no size: 24 could be GB or GiB."""
    with pytest.raises(UsageError, match=rf"^{name} must be a size"):
        REQUEST_FIELDS[name].parse(value)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("seq", 16_777_216), ("batch", 65_536), ("lora_rank", 65_536), ("gpus", 1_024), ("nodes", 100_000)],
)
def test_the_upper_limits(name: str, limit: int) -> None:
    """The limit itself is allowed, one more is not."""
    assert REQUEST_FIELDS[name].parse(limit) == limit
    with pytest.raises(UsageError, match=f"{limit:,}"):
        REQUEST_FIELDS[name].parse(limit + 1)


@pytest.mark.parametrize(
    ("name", "typed", "meant"), [("method", "qlorra", "qlora"), ("optimizer", "adamw", "adamw_torch")]
)
def test_an_unknown_choice_names_the_nearest(name: str, typed: str, meant: str) -> None:
    """A typing error is answered with what was probably meant."""
    with pytest.raises(UnknownNameError, match=f"unknown {name} '{typed}'; nearest: .*{meant}"):
        REQUEST_FIELDS[name].parse(typed)


def test_every_field_explains_itself() -> None:
    """Each field has help, a flag, and a range or choices where its kind has some."""
    for name, field in REQUEST_FIELDS.items():
        assert field.name == name
        assert field.flag == f"--{name.replace('_', '-')}"
        assert len(field.help) > 15
        assert bool(field.choices) == (field.kind == "choice")
        assert (field.low is not None and field.high is not None) == (
            field.kind in ("integer", "number", "size")
        )
