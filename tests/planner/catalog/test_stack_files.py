"""Stack files that are broken, and names that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.catalog.stacks import load_stack
from planner.errors import InputFileError, UnknownNameError


def stack_file(folder: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]) -> Path:
    """A copy of a stack file with one text replaced, in a catalog of its own."""
    text = (data_dir() / "stacks" / "trl.toml").read_text(encoding="utf-8")
    assert change[0] in text
    path = folder / "stacks" / "broken.toml"
    path.parent.mkdir()
    path.write_text(text.replace('id = "trl"', 'id = "broken"', 1).replace(*change, 1), encoding="utf-8")
    monkeypatch.setattr("planner.catalog.stacks.data_dir", lambda: folder)
    load_stack.cache_clear()
    return path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("schema = 1", "schema = 2"), "key 'schema'"),
        (("[defaults.lora_rank]", "[defaults.lora_rnk]"), "unknown key 'defaults.lora_rnk'"),
        (("[switches.fused_mlp]", "[switches.fused_mpl]"), "unknown key 'switches.fused_mpl'"),
        (('settled_by = "source_code"', 'settled_by = "rumour"'), "settled_by"),
        (
            ("[defaults.precision]\nvalue = ", "[defaults.precision]\ncolour = 1\nvalue = "),
            "unknown key 'defaults.precision.colour'",
        ),
        (('"bf16-mixed"', '"bf17"'), "key 'defaults.precision.value' must be one of bf16, fp16"),
        (("value = 16\n", "value = 0\n"), "key 'defaults.lora_rank.value' must be from 1 to"),
        (("value = 16\n", "value = true\n"), "key 'defaults.lora_rank.value' must be a whole number"),
        (("[switches.loss_forward]\nvalue = [", "[switches.loss_forward]\nvalue = [1, "), "must be a list of compute, float"),
    ],
)
def test_a_broken_stack_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], problem: str
) -> None:
    """A stack file states every switch, nothing else, each with what settled it; the message names file and key."""
    path = stack_file(tmp_path, monkeypatch, change)
    with pytest.raises(InputFileError) as caught:
        load_stack("broken")
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_a_stack_without_a_switch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing switch is named: there is no silent default."""
    table = (data_dir() / "stacks" / "trl.toml").read_text(encoding="utf-8")
    start = table.index("[switches.pinned_rounding]")
    end = table.find("\n[", start + 1)
    path = stack_file(tmp_path, monkeypatch, (table[start : end if end > 0 else len(table)], "\n"))
    with pytest.raises(InputFileError, match=r"missing key 'switches.pinned_rounding'"):
        load_stack("broken")
    assert path.exists()


@pytest.mark.parametrize("name", ["", " ", "../stacks/trl", "trl.toml", "x" * 5000, "hf-trainer@", "trl\0"])
def test_a_name_that_is_no_stack(name: str) -> None:
    """Paths, endless and empty names are unknown names, nothing more."""
    with pytest.raises(UnknownNameError, match="unknown stack"):
        load_stack(name)
