"""Values as people type them: what is read, and the words about what cannot be used."""

from __future__ import annotations

import pytest

from planner.errors import UnknownNameError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request_field import RequestField
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
        ("optimizer", "adamw_bnb_8bit", "adamw_8bit"),
        ("optimizer", "adamw", "adamw_torch"),
        ("optimizer", "adam", "adamw_torch"),
        ("attention", "flash_attention_2", "flash2"),
        ("sharding", "FSDP2", "fsdp"),
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
    ("name", "word", "flags"),
    [
        ("method", "DoRA", "--method lora --dora"),
        ("method", "dpo", "--task dpo beside --method"),
        ("precision", "fp8", "--fp8 tensorwise"),
        ("precision", "int4", "--method qlora"),
    ],
)
def test_a_word_that_another_flag_means_names_it(name: str, word: str, flags: str) -> None:
    """People say ``--method dora``, ``--method dpo`` and ``--precision fp8``."""
    with pytest.raises(UsageError, match=f"^--{name} {word}: use {flags}"):
        REQUEST_FIELDS[name].parse(word)


@pytest.mark.parametrize(
    ("name", "text", "way"),
    [
        ("seq", "4,096", "write 4096"),
        ("batch", "1,2", "plan search compares"),
        ("method", "lora,qlora", "plan search compares"),
    ],
)
def test_a_comma_is_no_part_of_one_value(name: str, text: str, way: str) -> None:
    """Neither of thousands nor between choices; and what a comma leaves of thousands is no number."""
    with pytest.raises(UsageError, match=f"^{name} is one value, but '{text}' has a comma: {way}"):
        REQUEST_FIELDS[name].parse(text)
    with pytest.raises(UsageError, match="whole number"):
        REQUEST_FIELDS["seq"].parse("096")


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
    ("name", "typed", "meant"), [("method", "qlorra", "qlora"), ("optimizer", "adamw_toch", "adamw_torch")]
)
def test_an_unknown_choice_names_the_nearest(name: str, typed: str, meant: str) -> None:
    """A typing error is answered with what was probably meant."""
    with pytest.raises(UnknownNameError, match=f"unknown {name} '{typed}'; nearest: .*{meant}"):
        REQUEST_FIELDS[name].parse(typed)


@pytest.mark.parametrize(
    ("value", "above", "below", "passes"),
    [(2, False, False, True), (2, True, False, False), (5, False, False, True), (5, False, True, False)],
)
def test_a_limit_belongs_to_its_range_unless_it_is_left_out(
    value: int, above: bool, below: bool, passes: bool
) -> None:
    """``above_low`` leaves out the least value, ``below_high`` the greatest; the words say so."""
    field = RequestField("x", "number", "a number", low=2, high=5, above_low=above, below_high=below)
    if passes:
        assert field.parse(value) == value
    else:
        with pytest.raises(UsageError, match="above 2 and at most 5" if above else "from 2 to below 5"):
            field.parse(value)


def test_tokens_are_counted_in_powers_of_two() -> None:
    """As context lengths are written; a part of a token is none."""
    assert [REQUEST_FIELDS["seq"].parse(text) for text in ("4k", "1.5 K", "1m")] == [4096, 1536, 1_048_576]
    for text in ("0.0001k", "4g", "k"):
        with pytest.raises(UsageError, match="4k is 4,096"):
            REQUEST_FIELDS["seq"].parse(text)
    with pytest.raises(UsageError, match=r"it is 4k: write 4000$"):
        REQUEST_FIELDS["batch"].parse("4k")


def test_a_name_may_be_a_number() -> None:
    """TOML does not quote ``gpu = 4090``; a truth value is no name."""
    assert REQUEST_FIELDS["gpu"].parse(4090) == "4090"
    for value in (True, 2**64, " ", "a\nb", "x" * 1001):
        with pytest.raises(UsageError, match="gpu must be"):
            REQUEST_FIELDS["gpu"].parse(value)
