"""Keys of a table: what is off, how names and places go together, and which unknown key stops a reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.shared.keys import Keys
from planner.errors import InputFileError, NotModelledError
from tests.files import read, remarks

FILE = Path("a.yaml")


@pytest.mark.parametrize(
    "value", [None, False, 0, 0.0, "", "0", "-0.0e3", "none", "None", "no", "False", "FALSE ", [], {}]
)
def test_a_value_may_switch_its_key_off(value: object) -> None:
    """As YAML, JSON and a command line write it, whose ``False`` stays text."""
    Keys(FILE, {"a": value}).refuse_switched_on({"a": "never"})


@pytest.mark.parametrize("value", [True, 1, 1e-9, "yes", "0x", [0], {"b": None}, {"enabled": True}])
def test_everything_else_switches_it_on(value: object) -> None:
    """The refusal names the place of the key and the reason."""
    with pytest.raises(NotModelledError, match=r"^a\.yaml:a: it is slow$"):
        Keys(FILE, {"a": value}).refuse_switched_on({"a": "it is slow"})


@pytest.mark.parametrize("enabled", [False, "auto", 0, "false"])
def test_a_table_may_switch_itself_off(enabled: object) -> None:
    """DeepSpeed's tables have ``enabled``, which may be left to the trainer."""
    assert not Keys(FILE, {"a": {"enabled": enabled, "b": 2}}).is_on("a")


def test_a_renamed_key_keeps_the_place_that_people_find() -> None:
    """Asked for by its newer name; where both names are there, neither is touched."""
    keys = Keys(FILE, {"old": 3}, "part.")
    keys.rename({"old": "new"})
    assert (keys.get("new"), keys.where("new"), keys.left_over()) == (3, "a.yaml:part.old", ())
    both = Keys(FILE, {"old": 3, "new": 4})
    both.rename({"old": "new"})
    assert (both.get("new"), both.where("new"), both.left_over()) == (4, "a.yaml:new", ("old",))


@pytest.mark.parametrize(("value", "count"), [(3, 3), (" 12 ", 12), (None, None)])
def test_a_count_may_be_text(value: object, count: int | None) -> None:
    """A command line writes numbers as text."""
    assert Keys(FILE, {"n": value}).count("n") == count


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "x", "9" * 20])
def test_what_is_no_count_is_refused(value: object) -> None:
    """Also truth values and numbers beyond all reason."""
    with pytest.raises(InputFileError, match="'n' must be a whole number above zero"):
        Keys(FILE, {"n": value}).count("n")


@pytest.mark.parametrize(
    ("value", "number"), [(3, 3), (0.5, 0.5), ("0.04", 0.04), ("1e-3", 0.001), (None, None)]
)
def test_a_number_may_be_text(value: object, number: float | None) -> None:
    """A command line has ``--beta 0.04``, and YAML reads 1e-3 as text."""
    assert Keys(FILE, {"beta": value}).number("beta") == number


@pytest.mark.parametrize("value", [True, "much", "0x1", "1e999", [1], "nan"])
def test_what_is_no_number_is_refused(value: object) -> None:
    """True is none either."""
    with pytest.raises(InputFileError, match="must be a number"):
        Keys(FILE, {"beta": value}).number("beta")


def test_degrees_of_one_pass_and_of_two_do_not() -> None:
    """The message says which number, and that 1 is modelled."""
    Keys(FILE, {"tp": 1, "cp": None}).refuse_above_one({"tp": "a degree", "cp": "a degree"})
    with pytest.raises(NotModelledError, match="a degree of 2 is not modelled; only 1 is"):
        Keys(FILE, {"tp": 2}).refuse_above_one({"tp": "a degree"})
    with pytest.raises(InputFileError, match="must be a whole number"):
        Keys(FILE, {"tp": True}).refuse_above_one({"tp": "a degree"})


def test_a_table_that_is_read_twice_is_the_same() -> None:
    """What one reader took from it, another does not find left over."""
    keys = Keys(Path("ds.json"), {"zero_optimization": {"stage": 3, "offload_param": "cpu"}})
    for name in ("stage", "offload_param"):
        part = keys.part("zero_optimization")
        assert part is not None
        part.get(name)
    keys.refuse_unknown()
    assert keys.left_over() == ()


def test_an_unknown_key_stops_where_its_name_may_mean_memory() -> None:
    """In tables below, too; a name that is nearly a known one is told, and ``null`` says nothing."""
    keys = Keys(FILE, {"colour": 1, "lora_alpha": None, "inner": {"lora_ranks": 8}})
    inner = keys.part("inner")
    assert inner is not None
    inner.get("lora_rank")
    with pytest.raises(NotModelledError, match=r"inner\.lora_ranks: unknown key.*is lora_rank meant\?"):
        keys.refuse_unknown()
    inner.skip(["lora_ranks"])
    keys.refuse_unknown()
    assert keys.left_over() == ("colour", "lora_alpha")


@pytest.mark.parametrize(
    ("key", "value", "stops"),
    [
        ("mode", "qlora", True),
        ("mode", " LoRA ", True),
        ("mode", "4bit", True),
        ("train_mode", "full", True),
        ("mode", "full", False),
        ("run_name", "my-qlora-run", False),
        ("use_fisher", True, True),
        ("use_int8_training", "True", True),
        ("use_fisher", False, False),
        ("use_wandb", True, False),
        ("reuse_fisher", True, False),
    ],
)
def test_an_unknown_key_stops_where_its_value_may_mean_memory(
    key: str, value: str | bool, stops: bool
) -> None:
    """A program of one's own may say QLoRA under any name; a name that only mentions it says nothing.  A fork
    turns on what it adds, such as an optimizer.
    """
    keys = Keys(FILE, {key: value})
    if stops:
        with pytest.raises(NotModelledError, match=f"{key}: unknown key, whose (name|value)"):
            keys.refuse_unknown()
    else:
        keys.refuse_unknown()


def test_a_slip_of_a_known_key_is_told_apart_from_an_unknown_one() -> None:
    """Not where the key that it is like is there as well, nor where it turns off what that turns on."""
    given = {"sequense_len": 1, "colour": 1, "no_warmup_ratio": 1, "warmup_steps_": 1, "warmup_steps": 1}
    keys = Keys(Path("a.yaml"), given)
    for name in ("sequence_len", "warmup_ratio", "warmup_steps"):
        keys.get(name)
    assert keys.slips() == (("a.yaml:sequense_len", "sequence_len"),)


@pytest.mark.parametrize("value", ["{{ model }}", "a/${NAME}", "$1x $NAME", "<YOUR_MODEL>"])
def test_a_placeholder_is_asked_to_be_filled_in(value: str) -> None:
    """Of templates and scripts, but in a key that changes nothing; a price of 5$ is none."""
    with pytest.raises(InputFileError, match="fill it in first"):
        Keys(FILE, {"a": value}).get("a")
    assert Keys(FILE, {"a": "5$ <b>"}).get("a") == "5$ <b>"
    unread = Keys(FILE, {"a": value})
    unread.skip(["a"])
    unread.refuse_unknown()


def test_targets_of_one_text_are_an_expression() -> None:
    """PEFT takes a text for a pattern, a list for names; parameters of one layer are refused."""
    assert Keys(FILE, {"a": "q_proj"}).targets("a") == ("regex:q_proj",)
    assert Keys(FILE, {"a": "all-linear"}).targets("a") == ("all-linear",)
    assert Keys(FILE, {"a": [" q_proj ", ""]}).targets("a") == ("q_proj",)
    assert Keys(FILE, {"a": ["mlp.experts.up"]}).parameter_targets("a") == ("param:mlp.experts.up",)
    with pytest.raises(NotModelledError, match="of one layer"):
        Keys(FILE, {"a": ["3.mlp.experts.up"]}).parameter_targets("a")


def test_how_often_the_run_goes_over_the_data_may_be_left_open(tmp_path: Path) -> None:
    """No step depends on it: the default counts, and is told."""
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nbf16: true\nnum_train_epochs: $EPOCHS\n"
    found = read(tmp_path, f"{text}max_length: 512\n")
    assert found.request.get("epochs") == 3.0
    assert "say --epochs" in remarks(found)
