"""Command lines made from fields: real parses of small programs, and what a shell completes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from planner.catalog.gpus import gpu_ids
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.flags import (
    OwnOptions,
    command_of,
    new_app,
    request_fields,
    with_options,
    with_scenario_options,
)

OWN: OwnOptions = {
    "top": (Annotated[int, typer.Option("--top", help="How many")], 3),
    "target": (Annotated[str, typer.Option("--target", help="Where")], ...),
}


def program(*, own: OwnOptions = OWN, scenario: bool = False) -> Any:
    """A program whose one command returns what it was given."""
    app = new_app("Does one thing.")

    def run(**options: Any) -> dict[str, Any]:
        return options

    app.command()(with_scenario_options(run, own) if scenario else with_options(run, own))
    return app


def given(app: Any, *words: str) -> Any:
    """What the command of ``app`` gets."""
    return command_of(app).main([*words], standalone_mode=False)


def test_defaults_hold_and_a_default_of_dots_must_be_given() -> None:
    """With ``-`` or ``_`` in the name."""
    app = program()
    assert given(app, "--target", "x") == {"top": 3, "target": "x"}
    refused = CliRunner().invoke(app, ["--top", "4"])
    assert (refused.exit_code, "--target" in refused.output) == (2, True)
    assert command_of(app) is command_of(app)


def test_a_scenario_is_text_or_a_switch_and_nothing_where_it_is_not_given() -> None:
    """Numbers stay as they were written: the intake reads them."""
    app = program(own={"top": OWN["top"]}, scenario=True)
    found = given(app, "--seq", "4k", "--lora_rank", "08", "--no-gradient-checkpointing")
    assert {name: value for name, value in found.items() if value is not None} == {
        "seq": "4k", "lora_rank": "08", "gradient_checkpointing": False, "top": 3,
    }  # fmt: skip
    assert found.keys() == {field.name for field in request_fields()} | {"top"}


def test_help_has_the_commands_above_the_flags() -> None:
    """And ``-h`` asks for it."""
    app = new_app("Does two things.")

    @app.callback(invoke_without_command=True)
    def _(loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Does two things."""

    for name in ("one", "two"):
        app.command(name)(with_options(lambda **_: None, {}))
    text = CliRunner().invoke(app, ["-h"]).output
    assert 0 < text.index("\n  one") < text.index("\n  two") < text.index("--loud")


def test_choices_are_told_and_completed() -> None:
    """In the help of every flag, once; a shell offers them and ids of catalogs by what was typed of them."""
    options = {each.name: each for each in command_of(program(own={}, scenario=True)).params}

    def offered(name: str, typed: str) -> list[str]:
        return [each.value for each in options[name].shell_complete(None, typed)]

    assert options["link"].help.endswith(": nvlink, pcie, qpi")
    assert options["method"].help == REQUEST_FIELDS["method"].help
    assert all(choice in options[each.name].help for each in request_fields() for choice in each.choices)
    assert offered("method", "ql") == ["qlora"]
    assert offered("gpu", "h100") == [name for name in gpu_ids() if name.startswith("h100")] != []
    assert "qwen3-8b" in offered("model", "qwen3-")
    assert offered("seq", "") == []
