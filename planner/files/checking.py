"""The first thing that pydantic finds wrong, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import InputFileError, show

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound="BaseModel")


def validate(model_class: type[ModelT], data: Mapping[str, Any], path: str | Path) -> ModelT:
    """``data`` of the file ``path`` as a ``model_class``;
    the first thing wrong with it becomes one sentence that names the key.

    Raises:
        InputFileError: a missing, unknown, wrongly typed or out-of-range key.
    """
    from pydantic import ValidationError

    try:
        return model_class.model_validate(data)
    except ValidationError as error:
        raise InputFileError(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first thing wrong, and how many more there are."""
    details = error.errors(include_url=False)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{_problem(details[0])}{more}"


def _problem(detail: ErrorDetails) -> str:
    """One thing that is wrong."""
    place = show(".".join(str(part) for part in detail["loc"]))
    if detail["type"] == "missing":
        return f"missing key '{place}'"
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{place}'"
    message = detail["msg"].removeprefix("Value error, ")
    if not place:
        return message
    return f"key '{place}': {message[:1].lower()}{message[1:]}, but it is {_shown(detail['input'])}"


def _shown(value: object) -> str:
    """Texts in quotes, so that ``'8'`` and ``8`` differ."""
    return repr(show(value)) if isinstance(value, str) else show(value)
