"""Command lines made from fields: real parses of small programs, and what a shell completes."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from planner.errors import UsageError
from planner.intake.given.flags import (
    command_of,
    new_app,
    request_fields,
    told_by_parser,
    with_hyphens,
    with_options,
    with_scenario_options,
)
from planner.intake.given.other_words import _HERE

TOP = (Annotated[int, typer.Option("--top")], 3)
TARGET = (Annotated[str, typer.Option("--target")], ...)
# Programs whose one command returns what it was given.
SMALL, SCENARIO = new_app("Does one thing."), new_app("Asks for a job.")
SMALL.command()(with_options(lambda **options: options, {"top": TOP, "target": TARGET}))
SCENARIO.command()(with_scenario_options(lambda **options: options, {"top": TOP}))


def test_defaults_hold_and_a_default_of_dots_must_be_given() -> None:
    """The refusal names the flag."""
    assert command_of(SMALL).main(["--target", "x"], standalone_mode=False) == {"top": 3, "target": "x"}
    refused = CliRunner().invoke(SMALL, ["--top", "4"])
    assert (refused.exit_code, "--target" in refused.output) == (2, True)


def test_a_scenario_is_text_or_a_switch_and_nothing_where_it_is_not_given() -> None:
    """Numbers stay as they were written: the intake reads them."""
    words = ["--seq", "4k", "--lora_rank", "08", "--no-gradient-checkpointing"]
    found = command_of(SCENARIO).main(words, standalone_mode=False)
    said = {"seq": "4k", "lora_rank": "08", "gradient_checkpointing": False, "top": 3}
    assert {name: value for name, value in found.items() if value is not None} == said
    assert found.keys() == {field.name for field in request_fields()} | {"top"}


def test_defaults_are_told_where_flags_alone_say_the_job() -> None:
    """Elsewhere a file says it, or a search varies it."""
    alone = new_app("Asks for a job.")
    alone.command()(with_scenario_options(lambda **options: options, {}, alone=True))
    for app, ending in ((alone, " [1]"), (SCENARIO, "job")):
        (nodes,) = (each for each in command_of(app).params if each.name == "nodes")
        assert nodes.help.endswith(ending)


def test_choices_are_told_and_completed() -> None:
    """By what was typed of them."""
    options = {each.name: each for each in command_of(SCENARIO).params}
    assert options["link"].help.endswith(": nvlink, pcie, qpi")
    for name, typed, offered in (("method", "ql", "qlora"), ("model", "qwen3-8", "qwen3-8b")):
        assert [each.value for each in options[name].shell_complete(None, typed)] == [offered]


def test_a_flag_behind_a_flag_is_no_value_of_it() -> None:
    """Else the word behind it is taken for a command."""
    with pytest.raises(UsageError, match=r"^--gpu has no value: behind it stands --seq$"):
        command_of(SCENARIO)(["--gpu", "--seq", "4k"], standalone_mode=False)


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("--max-seq-length", "--seq"),
        ("--batch_size", "--batch"),
        ("--num-gpus", "--gpus"),
        ("--zero", "--sharding"),
        ("--zero3", "--sharding zero3"),
        ("--fsdp", "--sharding fsdp"),
        ("--tp", "--tensor-parallel"),
        ("--load-in-4bit", "--method qlora"),
    ],
)
def test_a_flag_of_another_tool_is_named_as_it_is_called_here(written: str, here: str) -> None:
    """No nearest spelling finds what has another name."""
    with pytest.raises(Exception, match="No such option") as caught:
        command_of(SCENARIO).main([written, "4"], standalone_mode=False)
    sentence, names = told_by_parser(caught.value, "plan")
    assert sentence.startswith(f"no such option: {with_hyphens(written)}; here it is {here}; ")
    assert names == (here,)


def test_what_other_tools_call_a_flag_stands_for_one_that_there_is() -> None:
    """With a value that it takes, and under a name that is no flag here."""
    known = {each.flag: each for each in request_fields()}
    for word, here in _HERE.items():
        flag, _, value = here.partition(" ")
        assert f"--{word.replace('_', '-')}" not in known
        assert not value or known[flag].parse(value) == value


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("--longest-sequence", "--seq"), ("--lora-rnak", "--lora-rank"), ("--modle", "--model")],
)
def test_an_unknown_flag_is_answered_with_those_that_have_a_word_of_it(written: str, nearest: str) -> None:
    """Other tools' names for the same thing are often longer."""
    with pytest.raises(Exception, match="No such option") as caught:
        command_of(SCENARIO).main([written, "4"], standalone_mode=False)
    sentence, names = told_by_parser(caught.value, "plan")
    assert sentence.startswith(f"no such option: {written}; nearest: {', '.join(names)}; ")
    assert nearest in names[:2]
    assert len(names) <= 3
