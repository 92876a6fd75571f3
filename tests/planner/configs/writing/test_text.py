"""Texts of files keep all that is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.writing.edits import REMOVED, Edit
from planner.configs.writing.text import with_edits
from planner.errors import InputFileError

YAML = """\
# first
model_name_or_path: a/b   # the base

datasets:
    - path: 'x'
      type: "alpaca"   # quoted
nested: {a: 1, b: ~}

### the end
learning_rate: 1e-4
last: yes
"""


def test_yaml_keeps_comments_order_quotes_and_indentation() -> None:
    """Only the line of the changed key differs, and new keys follow at the end."""
    path = Path("x.yaml")
    edits = (Edit(path, ("learning_rate",), 3), Edit(path, ("new",), True), Edit(path, ("deep", "stage"), 3))
    written = with_edits(path, YAML, edits)
    old, new = YAML.splitlines(), written.splitlines()
    # An empty value is written in another way, which every reader reads alike.
    assert [line for line in old if line not in new] == ["nested: {a: 1, b: ~}", "learning_rate: 1e-4"]
    assert new[-4:] == ["last: yes", "new: true", "deep:", "  stage: 3"]
    assert with_edits(path, YAML, (Edit(path, ("last",), REMOVED),)).count("last") == 0
    windows = with_edits(path, YAML.replace("\n", "\r\n"), edits)
    assert windows.count("\r\n") == windows.count("\n")


def test_yaml_that_cannot_be_kept_is_refused() -> None:
    """A key given twice has no faithful text; a tag that asks for an object makes none."""
    path = Path("x.yaml")
    with pytest.raises(InputFileError, match="with its comments kept"):
        with_edits(path, "a: 1\na: 2\n", (Edit(path, ("a",), 3),))
    written = with_edits(path, "a: !!python/object/apply:os.getcwd []\nb: 1\n", (Edit(path, ("b",), 2),))
    assert "python/object" in written
    with pytest.raises(InputFileError, match="with its comments kept"):
        with_edits(path, "a: 1\n", (Edit(path, ("a", "b"), 3),))


@pytest.mark.parametrize(
    ("text", "place", "value", "wanted"),
    [
        ('{"a": 1}', ("a",), 2, '{"a": 2}'),
        (
            '{\n  "a": 1e5,\n  "b": {"c": [1, 2]}\n}\n',
            ("b", "c"),
            "x",
            '{\n  "a": 1e5,\n  "b": {"c": "x"}\n}\n',
        ),
        ('{\n  "a": 1\n}\n', ("b",), True, '{\n  "a": 1,\n  "b": true\n}\n'),
        ('{"a": {}}', ("a", "b", "c"), 1, '{"a": {"b": {"c": 1}}}'),
        ('{"a": "}", "b": 2, "c": 3}', ("b",), REMOVED, '{"a": "}", "c": 3}'),
        ('{"a": 1, "b": 2}', ("a",), REMOVED, '{"b": 2}'),
        ('{"a": 1}', ("a",), REMOVED, "{}"),
        ('{"a": 1}', ("z",), REMOVED, '{"a": 1}'),
        ("{}", ("a",), None, '{"a": null}'),
    ],
)
def test_json_changes_in_place(text: str, place: tuple[str, ...], value: object, wanted: str) -> None:
    """Everything but the value itself stays, to the blank."""
    path = Path("x.json")
    assert with_edits(path, text, (Edit(path, place, value),)) == wanted


@pytest.mark.parametrize(
    ("text", "key", "value", "wanted"),
    [
        ("batch = 8 # all\nseq = 1\n", "batch", 1, "batch = 1 # all\nseq = 1\n"),
        ('loss = "a#b"# why\n', "loss", "liger", 'loss = "liger"# why\n'),
        ("seq = 1", "loss", "liger", 'seq = 1\nloss = "liger"\n'),
        ("seq = 1\nmodules-to-save = ['x']\n", "modules_to_save", REMOVED, "seq = 1\n"),
    ],
)
def test_toml_changes_in_place(text: str, key: str, value: object, wanted: str) -> None:
    """The comment behind a value stays."""
    path = Path("x.toml")
    assert with_edits(path, text, (Edit(path, (key,), value),)) == wanted


def test_toml_over_several_lines_is_refused() -> None:
    """Better no change than half of one."""
    path = Path("x.toml")
    with pytest.raises(InputFileError, match="several lines"):
        with_edits(path, "lora_targets = [\n 'a',\n]\n", (Edit(path, ("lora_targets",), ["b"]),))
