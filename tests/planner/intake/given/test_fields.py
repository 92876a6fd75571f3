"""The table of what a user can say: limits, and that each field explains itself."""

from __future__ import annotations

import pytest

from planner.errors import UsageError
from planner.intake.given.fields import REQUEST_FIELDS, split_count


@pytest.mark.parametrize(
    ("name", "limit"),
    [("seq", 16_777_216), ("batch", 65_536), ("lora_rank", 65_536), ("gpus", 1_024), ("nodes", 100_000)],
)
def test_the_upper_limits(name: str, limit: int) -> None:
    """The limit itself is allowed, one more is not."""
    assert REQUEST_FIELDS[name].parse(limit) == limit
    with pytest.raises(UsageError, match=f"{limit:,}"):
        REQUEST_FIELDS[name].parse(limit + 1)


def test_every_field_explains_itself() -> None:
    """Each field has help, a flag, and a range or choices where its kind has some."""
    for name, field in REQUEST_FIELDS.items():
        assert field.name == name
        assert field.flag == f"--{name.replace('_', '-')}"
        assert len(field.help) > 15
        assert bool(field.choices) == (field.kind == "choice")
        assert (field.low is not None and field.high is not None) == (
            field.kind in ("integer", "number", "size")
        )


@pytest.mark.parametrize(
    ("text", "card", "count"),
    [
        ("4090", "4090", None),
        ("h100-sxm:8", "h100-sxm", 8),
        ("8xH100-SXM", "H100-SXM", 8),
        ("2 x rtx 4090", "rtx 4090", 2),
        ("2x4090", "4090", 2),
        ("mi300x", "mi300x", None),
        ("4090:2,h100-sxm", "4090:2,h100-sxm", None),
        ("a100-80gb:mig-3g.40gb", "a100-80gb:mig-3g.40gb", None),
    ],
)
def test_a_number_of_cards_stands_behind_or_before_the_card(text: str, card: str, count: int | None) -> None:
    """As people write them: ``X:8`` and ``8xX``."""
    assert split_count(text) == (card, count)
