"""Names that nothing knows, and what could have been meant."""

from __future__ import annotations

import pytest

from planner.errors import UnknownNameError, name_pattern

NAMES = ("llama-30b", "llama-3-8b", "llama-3.1-70b", "qwen2.5-7b", "badam", "adamw_torch", "adamw_8bit")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama3", ("llama-3-8b", "llama-3.1-70b", "llama-30b")),
        ("adamw", ("adamw_8bit", "adamw_torch", "badam")),
        ("bdam", ("badam",)),
        ("badam_mode", ("badam",)),
        # It has letters of some, and begins like none.
        ("lang", ()),
        ("-", ()),
        ("x" * 100_000, ()),
    ],
)
def test_names_that_begin_so_come_first(name: str, nearest: tuple[str, ...]) -> None:
    """Then those that are spelled alike."""
    assert UnknownNameError("model", name, NAMES).nearest[: len(nearest) or None] == nearest


@pytest.mark.parametrize(
    ("name", "other", "is_found"),
    [
        ("qwen3", "Qwen/Qwen3-8B", True),
        ("qwen3", "qwen-32b", False),
        ("QWEN-3", "qwen3.5-4b", True),
        ("8b", "llama-3-8b", True),
        ("llama-3", "llama-30b", False),
    ],
)
def test_a_number_in_a_name_does_not_go_on(name: str, other: str, is_found: bool) -> None:
    """Whatever separates the parts of a name."""
    assert bool(name_pattern(name).search(other)) is is_found
