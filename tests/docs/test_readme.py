"""What the README files say is what the program does."""

from __future__ import annotations

import difflib
import re
import shlex

import pytest
from readme_blocks import (
    CODE_BLOCK,
    EXAMPLE_JOB,
    EXAMPLE_TRAIN,
    GENERATED,
    ROOT,
    WIDTH,
    example_folder,
    generated,
    readme_files,
    run_plan,
)

from planner.api.job import EXAMPLE
from planner.calibration.misses import LISTED_ABOVE, OTHERS_LISTED_ABOVE, STALE_SHARE
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack
from planner.errors import ExitCode
from planner.intake.fields import REQUEST_FIELDS
from planner.intake.request import from_flags
from planner.intake.resolve import resolve

UPDATE = "python tests/docs/update_readme.py"
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Commands that people are promised, as they have to stand in the README.
PROMISED = (
    "pip install . && plan --model 7b --method qlora --gpu 4090 --seq 1024",
    (
        "plan --model Qwen/Qwen2.5-14B-Instruct --method lora --lora-rank 8 --gpu 4090:2 --sharding zero3"
        " --offload optimizer+params --batch 16 --seq 51 --json"
    ),
    "plan --model ./config.json --method full --gpu h100-sxm:8 --nodes 4 --sharding fsdp --seq 8192 --explain",
    "plan validate data/published/*.csv --json",
    "plan models ; plan gpus ; plan schema",
    "plan stacks",
    "plan rules",
    "make test",
)


def _parts() -> list[tuple[str, str, str, str]]:
    """(file, key, body, text before) of every generated part."""
    found = []
    for path in readme_files():
        text = path.read_text(encoding="utf-8")
        for match in GENERATED.finditer(text):
            found.append((str(path.relative_to(ROOT)), match["key"], match["body"], text[: match.start()]))
    return found


def _commands() -> list[str]:
    """Every ``plan`` command in the shell blocks of all README files."""
    commands = []
    for path in readme_files():
        for block in CODE_BLOCK.finditer(path.read_text(encoding="utf-8")):
            if block["language"] == "sh":
                pieces = re.split(r"\s*(?:;|&&|\n)\s*", block["text"].strip())
                commands += [piece for piece in pieces if piece.startswith("plan ")]
    return list(dict.fromkeys(commands))


def _without_layout(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize(("file", "key", "body", "before"), _parts(), ids=[f"{part[0]}: {part[1]}" for part in _parts()])
def test_generated_parts_are_current(file: str, key: str, body: str, before: str) -> None:
    """Every output and table in a README is what the program says now."""
    now = generated(key, before)
    # How help is wrapped belongs to typer, whose version is not pinned; its words are ours.
    same = _without_layout(now) == _without_layout(body) if key.endswith("--help") else now == body
    if not same:
        lines = difflib.unified_diff(body.splitlines(), now.splitlines(), f"{file}: {key}", "the program now", lineterm="")
        pytest.fail("\n".join([*lines, "", f"If this is meant: {UPDATE}"]), pytrace=False)


def test_the_first_screen_has_its_parts() -> None:
    """The README begins with the question, the command, its output, the errors on every document, and what is not modelled."""
    keys = [part[1] for part in _parts() if part[0] == "README.md"]
    assert keys[0].startswith(EXAMPLE)
    assert keys[1] == "accuracy"
    first = README[: README.index("## Install")]
    for part in ("pip install . && plan --model 7b", "How wrong it is", "Uncalibrated", "What is not modelled", "measure trace"):
        assert part in first, part


@pytest.mark.parametrize("command", PROMISED)
def test_promised_commands_are_shown(command: str) -> None:
    """The commands that the project promises stand in the README, word for word."""
    assert command in README


@pytest.mark.parametrize("command", _commands())
def test_every_command_works(command: str) -> None:
    """Every command in a shell block ends with exit code 0 or "uncertain", prints a result, and nothing on standard error."""
    answer = run_plan(command)
    assert answer.code in (ExitCode.FITS, ExitCode.UNCERTAIN), answer.err
    assert answer.out.strip()
    assert answer.err == ""


def test_a_command_with_json_prints_json() -> None:
    """Outputs of the commands with ``--json`` are JSON documents with a schema id."""
    import json

    with_json = [command for command in _commands() if "--json" in shlex.split(command)]
    assert with_json
    for command in with_json:
        assert json.loads(run_plan(command).out)["schema"].startswith("planner/"), command


def test_no_output_is_wider_than_a_page() -> None:
    """No line of a generated output is wider than the terminal for which it was made."""
    for file, key, body, _ in _parts():
        if key.startswith("plan "):
            assert max(map(len, body.splitlines())) <= WIDTH, f"{file}: {key}"


@pytest.mark.parametrize(("name", "text", "language"), [("job.toml", EXAMPLE_JOB, "toml"), ("train.yaml", EXAMPLE_TRAIN, "yaml")])
def test_an_example_file_is_the_one_that_runs(name: str, text: str, language: str) -> None:
    """The files as the README shows them are those that its examples are run with."""
    shown = [block["text"] for block in CODE_BLOCK.finditer(README) if block["language"] == language]
    assert shown == [text]
    with example_folder() as folder:
        assert (folder / name).read_text(encoding="utf-8") == text


def test_every_exit_code_is_documented() -> None:
    """The table of exit codes has exactly the codes that exist, in order."""
    table = README[README.index("## Exit codes") : README.index("## How to read")]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in ExitCode]


def test_the_limits_of_the_list_of_misses_are_those_in_use() -> None:
    """The README says from which error a row is on the list of misses, and when it leaves."""
    others = [f"{OTHERS_LISTED_ABOVE[quantity]:.0%}" for quantity in ("memory", "throughput")]
    said = f"{LISTED_ABOVE:.0%} in the numbered documents, {others[0]} of memory and {others[1]} of throughput in other"
    assert said.replace("%", " %") in README
    assert f"until it is less than {STALE_SHARE:.0%} of that off".replace("%", " %") in README


def test_every_flag_is_documented() -> None:
    """Every flag of a prediction and of ``validate`` is in the README; so is every flag that it names a flag of the program."""
    flags = {field.flag for field in REQUEST_FIELDS.values() if field.on_command_line}
    switches = {f"--no-{field.flag[2:]}" for field in REQUEST_FIELDS.values() if field.on_command_line and field.kind == "flag"}
    others = {"--config", "--format", "--json", "--explain", "--force", "--version", "--help", "--rows", "--cv"}
    others |= {"--calibration", "--out", "--name", "--trace", "--history", "--tool", "--deepspeed", "--accelerate"}
    others |= {"--solve", "--global-batch", "--confidence", "--top"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", README))
    assert sorted(flags | switches | others) == sorted(named)


def test_every_origin_is_explained() -> None:
    """The origins that a report can print are explained in the README."""
    scenario: Scenario = resolve(from_flags({"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024}))
    origins = {assumption.origin.partition(":")[0] for assumption in scenario.assumptions}
    assert origins == {"cli", "derived", "assumed", "catalog", "default"}
    reading = README[README.index("**Assumptions.**") : README.index("**Time.**")]
    assert [origin for origin in origins if f"`{origin}" not in reading] == []


def test_stacks_and_their_table() -> None:
    """Every stack of the catalog is in the table of ``data/stacks/README.md``."""
    from planner.catalog.stacks import load_stack, stack_ids

    table = (ROOT / "data" / "stacks" / "README.md").read_text(encoding="utf-8")
    stacks: list[Stack] = [load_stack(each) for each in stack_ids()]
    assert [stack.id for stack in stacks if f"`{stack.id}`" not in table] == []
