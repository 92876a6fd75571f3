"""Conditions that the literals of a launch script decide."""

from __future__ import annotations

import pytest

from planner.configs.launchers.conditions import holds
from planner.configs.launchers.variables import takes_defaults, with_values


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ('[ "4" -gt 1 ]', True),
        ("[ 1 -gt 1 ]", False),
        ("[[ lora == lora ]]", True),
        ("[[ full != lora ]]", True),
        ("[ full = lora ]", False),
        ('[ -n "" ]', False),
        ('[[ -z "" ]]', True),
        ('[ ! "" ]', True),
        ("[ 1 -eq 1 ] && [ 2 -lt 1 ]", False),
        ("[ 1 -eq 2 ] || [ 2 -ge 2 ]", True),
        ('[[ "" == a || b == b && -n c ]]', True),
        ("[[ a == b || a == a ]] && [ ! 1 -le 2 ]", False),
    ],
)
def test_literals_decide(condition: str, outcome: bool) -> None:
    """Words, whole numbers, and what joins them."""
    assert holds(condition) is outcome


@pytest.mark.parametrize(
    "condition",
    [
        *(
            "[ -f a ]",
            "[ -d a ] || [ 1 -eq 1 ]",
            "command -v a",
            "[[ a == a* ]]",
            '[ "$N" -gt 1 ]',
            "[ a -gt 1 ]",
        ),
        *(
            '[[ "$(b)" == c ]]',
            "(( 4 > 1 ))",
            "[ 1 -eq 1 ] | b",
            "[ 1 -eq 1 ] &&",
            '[ -n "a ]',
            "[[ a =~ b ]]",
        ),
    ],
)
def test_what_they_do_not_decide_is_left_open(condition: str) -> None:
    """Files, other commands, patterns and what nobody knows."""
    assert holds(condition) is None


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("N=4\nif [ $N -gt 1 ]; then\nM=2\nelse\nM=1\nfi\na $M", "a 2"),
        ("N=1\nif [ $N -gt 1 ]; then\nM=2\nelif [ $N -eq 1 ]; then\nM=3\nelse\nM=1\nfi\na $M", "a 3"),
        ('E=""\nif [ -n "${M:-}" ]; then\nE="$E --m $M"\nfi\na 8 $E', "a 8 "),
        ('E=""\nif [ -n "$M" ]; then\nE="--m $M"\nfi\na 8 $E', "a 8 "),
        ("A=(--b)\nK=lora\nif [[ $K == lora ]]; then\nA+=(--r 8)\nfi\na ${A[@]}", "a --b --r 8"),
        ("K=x\nif [ $K = x ]; then\nif [ $K = y ]; then\nN=1\nelse\nN=2\nfi\nfi\na $N", "a 2"),
        ("# N=2 bash run.sh\nN=${N:-4}\na $N", "a 4"),
        (': "${N:=4}"\necho "with N=$N"\na $N', "a 4"),
        ("N=8\na $N\nif b; then\nN=4\nfi", "fi"),
    ],
)
def test_the_branch_that_runs_is_read(text: str, last: str) -> None:
    """As if it stood there alone; what nothing sets is empty in a condition."""
    found = with_values(text).splitlines()
    assert found[-1] == last
    assert "a $N" not in found


@pytest.mark.parametrize(
    "text",
    [
        "N=8\nif [ -f b ]; then\nN=4\nfi\na $N",
        "A=(8)\nif [ -f b ]; then\nA+=(4)\nfi\na ${A[@]}",
        'if [ -z "$N" ]; then\nb\nexit 1\nfi\na $N',
        'N=8\nfor i in $(b); do\nif [ "1" = "1" ]; then\nN=4\nfi\ndone\na $N',
        'source more.sh\nN=8\nif [ -n "$M" ]; then\nN=4\nfi\na $N',
        'export "N=4"\na $N',
    ],
)
def test_what_stays_open_is_not_put_in(text: str) -> None:
    """A file that may be there, a branch that ends the script, a loop, and variables of another text."""
    assert with_values(text).splitlines()[-1] == text.splitlines()[-1]


def test_a_variable_that_nobody_sets_is_told() -> None:
    """It may be set outside."""
    assert takes_defaults('if [ -n "$M" ]; then\nb\nfi\na')
    assert not takes_defaults('M=1\nif [ -n "$M" ]; then\nb\nfi\na')


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("for N in 1 2; do\na $N\ndone", ["a 1", "a 2"]),
        ("for N in {1..3}\ndo\na $N\ndone", ["a 1", "a 2", "a 3"]),
        ("for N in $(seq 2); do\na $N\ndone", ["a 1", "a 2"]),
        ("for N in $(seq 4 5); do\na $N\ndone", ["a 4", "a 5"]),
        ("for ((N=1; N<=2; N++)); do\na $N\ndone", ["a 1", "a 2"]),
        (
            'L=(x y)\nfor M in "${L[@]}"; do\nfor N in 1 2; do\na $M$N\ndone\ndone',
            ["a x1", "a x2", "a y1", "a y2"],
        ),
        ("N=1\nfor i in 1 2; do\nN=$((N*2))\na $N\ndone", ["a 2", "a 4"]),
        ("for N in 1 2 3; do\nb\ndone\na $N", ["a 3"]),
        ("for i in 1 2 3; do\na 4\ndone", ["a 4"]),
        ("for N in 1 2; do\nif [ $N = 2 ]; then\na $N\nfi\ndone", ["a 2"]),
    ],
)
def test_a_loop_over_literals_runs_with_each(text: str, runs: list[str]) -> None:
    """Once where nothing in it asks for the value; its variable keeps the last one."""
    assert [line.strip() for line in with_values(text).splitlines() if line.startswith("a ")] == runs


@pytest.mark.parametrize(
    "text",
    [
        "for N in *.txt; do\na $N\ndone",
        "for N in $(ls); do\na $N\ndone",
        "for N in 1 2; do\nif b; then\ncontinue\nfi\na $N\ndone",
        "for N in {1..40}; do\na $N\ndone",
    ],
)
def test_another_loop_is_left_as_it_is_written(text: str) -> None:
    """Over what is not known, over very many, and one that a turn may leave."""
    assert "a $N" in with_values(text).splitlines()


CASE = (
    'case "$M" in\n  lora|dora)\n    N=8\n    ;;\n  full) N=1 ;;\n  q*)\n    N=4 ;;\n  *) N=0;;\nesac\na $N'
)


@pytest.mark.parametrize(("value", "found"), [("dora", "8"), ("full", "1"), ("qlora", "4"), ("other", "0")])
def test_the_branch_of_a_literal_is_read(value: str, found: str) -> None:
    """The first whose pattern it is."""
    assert with_values(f"M=${{M:-{value}}}\n{CASE}").endswith(f"a {found}")
    assert with_values(CASE).endswith("a 0")


@pytest.mark.parametrize(
    "text",
    [
        f"M=$1\n{CASE}",
        "M=b\ncase $M in\nb)\nN=1\n;&\nc)\nN=2\n;;\nesac\na $N",
        "M=b\ncase $M in\nb)\nexit 1\n;;\nesac\na $N",
        "M=b\ncase $M in\n$K) N=1;;\nesac\na $N",
    ],
)
def test_a_case_that_is_open_is_left(text: str) -> None:
    """What nobody knows, a branch that goes on or ends the script, a pattern that is a variable."""
    assert with_values(text).endswith("a $N")


def test_nested_loops_are_not_hundreds_of_commands() -> None:
    """All of them stay as they are written where they would be."""

    def runs(size: int) -> list[str]:
        heads = "".join(f"for {name} in {{1..{size}}}; do\n" for name in "BCD")
        found = with_values(f"{heads}a $B $C $D\ndone\ndone\ndone").splitlines()
        return [line for line in found if line.startswith("a ")]

    assert (len(runs(3)), runs(3)[-1]) == (27, "a 3 3 3")
    assert runs(8) == ["a $B $C $D"]
