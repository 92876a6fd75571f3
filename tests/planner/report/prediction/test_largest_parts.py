"""The parts of the peak: terms of one thing together, the largest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.prediction import Prediction
from planner.domain.term import TERM_NAMES, Term, TermName
from planner.report.prediction.short import largest_parts
from tests.planner.report.prediction.made import ALWAYS, prediction


def with_terms(**sizes: int) -> Prediction:
    """An answer whose terms have these bytes."""
    names = {name: name for name in TERM_NAMES}
    terms = tuple(Term(names[name], name, size, "replicated", ALWAYS, "") for name, size in sizes.items())  # type: ignore[index]
    made = prediction()
    return replace(made, memory=replace(made.memory, terms=terms))


def test_terms_of_one_thing_are_one_part() -> None:
    """States and what their update needs; constants of a quantised base are weights."""
    made = with_terms(
        weights=10, quantization_constants=5, optimizer_states=20, optimizer_temporaries=1, adapters=2
    )
    assert largest_parts(made, 5) == (("optimizer states", 21), ("weights", 15), ("LoRA adapters", 2))


@pytest.mark.parametrize(
    ("count", "labels"),
    [
        (1, ["weights", "everything else"]),
        (2, ["weights", "gradients", "everything else"]),
        (3, ["weights", "gradients", "CUDA context", "NCCL buffers"]),
        (9, ["weights", "gradients", "CUDA context", "NCCL buffers"]),
    ],
)
def test_the_rest_is_one_part_unless_it_is_one_already(count: int, labels: list[str]) -> None:
    """A single part that is left over has its own name; together they are all of the peak."""
    made = with_terms(nccl=10, context=20, gradients=30, weights=40)
    found = largest_parts(made, count)
    assert [label for label, _ in found] == labels
    assert sum(size for _, size in found) == 100


def test_nothing_is_no_part() -> None:
    """Terms of no bytes, and an answer without terms."""
    assert largest_parts(with_terms(weights=10, nccl=0), 3) == (("weights", 10),)
    assert largest_parts(with_terms(), 3) == ()


@pytest.mark.parametrize("name", TERM_NAMES)
def test_every_term_has_a_name_for_people(name: TermName) -> None:
    """One that had none would end the short report with an error."""
    ((_, size),) = largest_parts(with_terms(**{name: 7}), 3)
    assert size == 7
