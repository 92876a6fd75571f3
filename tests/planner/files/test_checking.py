"""The first thing that is wrong with a file, in one sentence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from planner.errors import InputFileError
from planner.files.checking import validate


class Part(BaseModel):
    """What a file holds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    size: Annotated[int, Field(gt=0, le=8)]
    kind: Literal["a", "b"] = "a"
    names: list[str] = Field(default_factory=list)

    @field_validator("names")
    @classmethod
    def _short(cls, names: Any) -> Any:
        if any(len(name) > 3 for name in names):
            raise ValueError("A name is longer than three letters")
        return names


class Whole(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid")
    parts: list[Part]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "missing key 'parts'"),
        ({"parts": [], "extra": 1}, "unknown key 'extra'"),
        ({"parts": [{}]}, "missing key 'parts.0.size'"),
        ({"parts": [{"size": 1}, {"size": 1, "colour": 2}]}, "unknown key 'parts.1.colour'"),
        ({"parts": [{"size": "8"}]}, "key 'parts.0.size': input should be a valid integer, but it is '8'"),
        (
            {"parts": [{"size": 9}]},
            "key 'parts.0.size': input should be less than or equal to 8, but it is 9",
        ),
        (
            {"parts": [{"size": 1, "kind": "c"}]},
            "key 'parts.0.kind': input should be 'a' or 'b', but it is 'c'",
        ),
        (
            {"parts": [{"size": 1, "names": ["long"]}]},
            "key 'parts.0.names': a name is longer than three letters, but it is a value of type list",
        ),
        ({"parts": [{"size": 0}, {"size": 0}, {}]}, "greater than 0, but it is 0 (and 2 more)"),
    ],
)
def test_what_is_wrong_is_told_with_its_key_and_its_value(data: dict[str, Any], sentence: str) -> None:
    """A text is quoted, so that '8' and 8 differ; how many more there are is told, too."""
    with pytest.raises(InputFileError) as caught:
        validate(Whole, data, "a.toml")
    assert str(caught.value).startswith("a.toml: ")
    assert str(caught.value).endswith(sentence)


def test_what_is_right_becomes_the_object() -> None:
    """With its defaults."""
    assert validate(Whole, {"parts": [{"size": 8}]}, "a.toml").parts == [Part(size=8)]
