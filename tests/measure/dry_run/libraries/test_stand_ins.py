"""Data sets that are not there: rows of the user stand in for each part that a program asks for."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.stand_ins import _data_sets


def test_each_part_of_a_data_set_has_the_rows() -> None:
    """All parts where none is named, a slice of a named one, and the whole for a name that nobody knows."""
    asked: list[Any] = []

    def load_dataset(path: str, *_: Any, data_files: Any = None, **kwargs: Any) -> str:
        if path != "json":
            raise OSError(path)
        asked.append((sorted(data_files), kwargs["split"]))
        return "rows"

    module: Any = ModuleType("load")
    module.load_dataset = load_dataset
    guesses = Guesses()
    _data_sets(guesses, "rows.jsonl")(module)
    for split in (None, "train[:5%]", "test", "train_sft"):
        assert module.load_dataset("of-the-hub", split=split) == "rows"
    parts = ["test", "train", "validation"]
    assert asked == [(parts, None), (parts, "train[:5%]"), (parts, "test"), (parts, "train")]
    assert guesses.listed()[0].name == "data set"


def test_how_often_something_was_assumed_is_said_in_words() -> None:
    """Once, or a number of times."""
    guesses = Guesses()
    for place in ("here", "there", "there"):
        guesses.assume("config.json", "none", place)
    assert {each.origin: each.note for each in guesses.listed()} == {"here": "once", "there": "2 times"}
