"""Conditions of a launch script that its own literals decide."""

from __future__ import annotations

import pytest

from planner.configs.launchers.conditions import with_settled_conditions
from planner.configs.launchers.variables import with_values


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "$N" -gt 1 ]', True),
        ("[[ $N == 4 ]]", False),
        ('[ "${M:-}" = "x" ]', False),
        ('[ -n "$N" ]', True),
        ('[[ -z "${M:-}" ]]', True),
        ('[ "$N" != "8" ]', False),
        ("(( 8 > 4 ))", True),
    ],
)
def test_the_branch_that_is_taken_stands_alone(condition: str, holds: bool) -> None:
    """With ``then`` behind it or on a line of its own, and with other branches."""
    taken, other = ("a", "b") if holds else ("b", "a")
    for then in ("; then", "\nthen"):
        text = f"N=8\nif {condition}{then}\n  a\nelse\n  if x; then\n  c\n  fi\n  b\nfi\nd"
        found = with_settled_conditions(text, "").split()
        assert taken in found
        assert other not in found
    text = f'N=8\nif [ "$N" = 4 ]; then\nc\nelif {condition}; then\na\nelse\nb\nfi'
    assert with_settled_conditions(text, "").split() == ["N=8", taken]


@pytest.mark.parametrize(
    "text",
    [
        'if [ "$N" -gt 1 ]; then\na\nfi',
        "N=8\nif [ -f $N ]; then\na\nfi",
        "N=8\nif a; then\nN=4\nfi\nif [ $N = 8 ]; then\nb\nfi",
        "N=8\nfor i in 1 2; do\nif [ $N = 8 ]; then\nb\nfi\ndone",
        "N=8\nif [ $N = 4 ]; then\na\nelif [ -f b ]; then\nb\nfi",
        "N=8\nif [ $N = 8 ] && b; then\na\nfi",
        "N=8\nif [ $N = 8 ]; then a; fi",
        "f() {\nif [ ${1:-8} = 8 ]; then\na\nfi\n}",
    ],
)
def test_what_may_be_otherwise_stays(text: str) -> None:
    """A variable that nothing sets, a file, a loop, a function, and two conditions in one."""
    assert with_settled_conditions(text, "") == text


def test_words_that_a_settled_condition_adds() -> None:
    """What the branch sets is set for sure, and what the other one sets is not."""
    text = 'A=(a)\nN=${N:-1}\nif [ "$N" -gt 1 ]; then\nA+=(b)\nfi\n"${A[@]}"'
    assert with_values(with_settled_conditions(text, "")).splitlines()[-1] == "a"
    text = text.replace("N:-1", "N:-2")
    assert with_values(with_settled_conditions(text, "")).splitlines()[-1] == "a b"
