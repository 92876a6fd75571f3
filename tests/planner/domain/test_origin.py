"""Origins are text for people; a default is told by its type, so that no name of a file passes for one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from planner.domain.origin import (
    ASSUMED,
    is_assumed,
    is_tool_default,
    split_place,
    stack_default,
    stack_of,
    tool_default,
)
from planner.intake.given.config_file import read_config_file

EXAMPLE = Path(__file__).parents[1] / "configs" / "examples" / "axolotl_qlora.yml"


def test_defaults_are_told_apart() -> None:
    """By whose they are; and they read as people know them."""
    stack, tool = stack_default("hf-trainer@5"), tool_default("Axolotl 0.19.0")
    assert (str(stack), str(tool)) == ("default:hf-trainer@5", "default of Axolotl 0.19.0")
    assert (stack_of(stack), stack_of(tool)) == ("hf-trainer@5", None)
    assert [is_assumed(each) for each in (stack, tool, ASSUMED, "cli")] == [True, False, True, False]
    assert [is_tool_default(each) for each in (stack, tool, ASSUMED)] == [False, True, False]


def test_a_default_goes_to_another_process_as_what_it_is() -> None:
    """Searches and fits run in several processes."""
    again = pickle.loads(pickle.dumps(stack_default("trl")))
    assert (again, stack_of(again)) == ("default:trl", "trl")


@pytest.mark.parametrize("name", ["default:job.yml", "default of job.yml"])
def test_a_file_may_be_called_like_a_default(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says was said, whatever its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    method = read_config_file(Path(name)).request.values["method"]
    assert method.origin == f"{name}:adapter"
    assert not is_assumed(method.origin)
    assert not is_tool_default(method.origin)
    assert split_place(method.origin) == (name, "adapter")


@pytest.mark.parametrize(
    ("origin", "parts"),
    [
        ("job.toml:4", ("job.toml", "4")),
        ("runs/train.yaml:lora_r", ("runs/train.yaml", "lora_r")),
        ("cli", ("cli", "")),
        ("record:003-t1-r01", ("record:003-t1-r01", "")),
        (stack_default("hf-trainer@5"), ("default:hf-trainer@5", "")),
        (stack_default("4"), ("default:4", "")),
    ],
)
def test_only_what_lies_in_a_file_has_a_place(origin: str, parts: tuple[str, str]) -> None:
    """A line or a key."""
    assert split_place(origin) == parts
