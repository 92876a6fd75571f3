"""Literal variables of a launch script, put in where a shell would."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.variables import takes_defaults, with_values


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("N=8\na $N ${N}", "a 8 8"),
        ("export M='x/y-7B'\na --model $M", "a --model x/y-7B"),
        ("N=8  # GPUs\nA=$(expr 16 / $N)\na $A", "a 2"),
        ("N=8\na $((N))  $((64 / $N)) $(expr 3 \\* 5)", "a 8  8 15"),
        ("N=8\nN=4\na $N", "a 4"),
        ("a $N\nN=8\nb", "b"),
        ("N=8\nset -x\na $N", "a 8"),
        ("N=8\nif ((N == 8)); then\nb $((N - 1))\nfi\na $N", "a 8"),
        ("a $(expr 1 / 0)", "a $(expr 1 / 0)"),
        ("N=010\na $((010 + 2)) $((2 + $N)) $((10 + 0))", "a $((010 + 2)) $((2 + 010)) 10"),
        ("N='a b'\na $N", "a a b"),
        ("N=${1:-8}\na $N ${M:-${K:-4}} ${N:-2}", "a 8 4 8"),
        ("a ${N-'8'}\nN=\na ${N-8} ${N:-8}", "a  8"),
        (': "${N:=8}"\na $N', "a 8"),
        ("source b/bin/activate\nN=${N:-8}\na $N", "a 8"),
        ('N="\n --b 8 \\\n --c $M"\nM=2\na $N', "a   --b 8   --c $M"),
        ('M=x\nN=(\n --b "$M" # 8\n --c 2\n)\nN+=(--d)\na "${N[@]}"', 'a   --b "x"  --c 2 --d'),
        ("N=(--b 'x #y' --c 1 # d\n--e)\na ${N[@]}", "a --b 'x #y' --c 1 --e"),
        ('N=()\na 8 ${N[@]+"${N[@]}"}', "a 8 "),
        ("N=8\nM=2\na $((64 / (N * M))) $[$N/2]", "a 4 4"),
        ('a --b "$@" ${@:2} $@', "a --b   "),
        ('f() {\na "$@"\n}\na', "a"),
        ("N=(\n a # (b)\n c\n)\na ${N[1]} ${#N[@]}", "a c 2"),
        ('N=(x/y)\nfor M in "${N[@]}"; do\n K=$M\n a $K\ndone\na $M', "a x/y"),
        ('N=(x)\nfor i in "${!N[@]}"\ndo\nM=${N[$i]}\ndone\na $M', "a x"),
        ("N=(x)\nK=${#N[@]}\nfor (( i=0; i<$K; i++ )); do\nM=${N[i]}\ndone\na $M", "a x"),
        ('N=/x/y.sh\na "$(dirname "$N")" $(dirname z) $(dirname .) $(basename $N)', 'a "/x" . .. y.sh'),
        ('a $(uv run python -c "import b; print(b.__path__[0])")/c.py', "a b/c.py"),
        ('N="b --c "d=1,e=$M" \\\n --f \\$G --h \\$(i -s)"\na $N', "a b --c d=1,e=$M   --f $G --h $command"),
        ('N="0,1,4"\nM=(${N//,/ })\na ${#M[@]} ${K//,/ }', "a 3 ${K//,/ }"),
        ("a $(expr 32 / 4 / 2) $((2 + 3 * 4 - 1)) $((1 - 4 / 0))", "a 4 13 $((1 - 4 / 0))"),
    ],
)
def test_a_literal_is_put_in(text: str, last: str) -> None:
    """Plain words, one that another one is made of, and arithmetic of two whole numbers."""
    assert with_values(text).splitlines()[-1] == last


@pytest.mark.parametrize(
    "text",
    [
        "a $N",
        "N=4\nsource more.sh\nN=${N:-8}\na $N",
        "N=$(b)\nN=${N:-8}\na $N",
        "shift\nN=${1:-8}\na $N",
        "N='a;b'\na $N",
        "N='a $(b)'\na $N",
        "if [ $1 ]; then\nN=8\nfi\na $N",
        "N=8\nif b; then\nN=4\nfi\na $N",
        "for N in $(b); do\nb\ndone\na $N",
        "for M in 1; do\nfor N in $(b); do\nb\ndone\ndone\na $N",
        "for N in ${M[@]}; do\nb\ndone\na $N",
        "f() {\nfor N in 1; do\nb\ndone\n}\na $N",
        "N=1\nfor i in $(b); do\na $N",
        "f() {\nN=8\n}\na $N",
        "N=8\n[ $1 ] && N=4\na $N",
        "N=8\nN+=4\na $N",
        "N=8\nsource more.sh\na $N",
        "b \\\nN=8\na $N",
        "N=8 b\na $N",
        "N=8\n((N*=2))\na $N",
        "N=8\n(( N++ ))\na $N",
        "N=8\nlet N=4\na $N",
        "N=8\nif b; then ((N = 4)); fi\na $N",
        "N=8\nprintf -v N 4\na $N",
        "N=8\nset -- b\na $N",
    ],
)
def test_what_may_be_otherwise_stays_as_it_is_written(text: str) -> None:
    """Set under a condition, in a loop or a function, from elsewhere, for one command, or not at all."""
    if "for i" in text:
        assert with_values(text.replace("a $N", "N=2\nb\ndone\na $N")).endswith("a $N")
    else:
        assert with_values(text).splitlines()[-1] == "a $N"


def test_an_array_that_may_have_more_stays_as_it_is_written() -> None:
    """Words that a condition adds, and an argument of a function."""
    assert with_values('N=(8)\nif b; then\nN+=(4)\nfi\na "${N[@]}"').endswith('a "${N[@]}"')
    assert "a ${1:-8}" in with_values("b() {\na ${1:-8}\n}")


@pytest.mark.parametrize(
    "text",
    [
        'D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\na $D/c.yaml',
        'D=$(dirname "$0")\na $D/c.yaml',
        'D=$(dirname "$(realpath "$0")")\na "${D}/c.yaml"',
        'D="$(cd "$(dirname "$0")" >/dev/null 2>&1 && pwd -P)"\na $D/c.yaml',
    ],
)
def test_the_folder_of_the_script_is_put_in(text: str) -> None:
    """Where it is known; a path below is one of it."""
    assert with_values(text, "b").replace('"', "").endswith("a b/c.yaml")
    assert with_values(text).endswith(text.splitlines()[-1])
    above = 'D="$(cd "$(dirname "$0")/.." && pwd)"\na $D/c.yaml'
    assert with_values(above, "b").endswith("a b/../c.yaml")


def test_defaults_are_told_from_what_a_text_sets() -> None:
    """A default holds where nothing outside sets the variable."""
    assert takes_defaults("a ${N:-8}")
    assert not takes_defaults("N=8\na ${N:-4}")


@pytest.mark.parametrize(
    "condition",
    [
        *("[[ $# -ge 1 ]]", "[[ $# -gt 0 ]]", '[ "$#" -ne 0 ]', "[[ $# > 0 ]]", "(( $# ))", "test $# -gt 0"),
        *('getopts "m:o:" each', '[[ "$1" != "" ]]', '[ -n "$1" ]', "[[ $1 ]]"),
    ],
)
def test_a_loop_over_arguments_does_not_run(condition: str) -> None:
    """As if nobody gives one, which is told; another loop may set what it sets."""
    loop = 'while {}; do\n  case "$1" in\n    -n) N="$2"; shift ;;\n  esac\n  shift\ndone\na $N ${{1:-7}}'
    text = "N=8\n" + loop.format(condition)
    assert with_values(text).splitlines()[-1] == "a 8 7"
    assert takes_defaults(text)
    assert with_values("N=8\n" + loop.format("[[ $N -gt 0 ]]")).splitlines()[-1] == "a $N ${1:-7}"


def test_variables_of_variables_do_not_grow_without_an_end() -> None:
    """Each line doubles the value, until it is too long to be put in."""
    assert len(with_values("A=a\n" + "A=$A$A\n" * 60)) < 10_000


def test_what_is_read_changes_only_what_it_names() -> None:
    """And the variable that has an answer without a name."""
    assert with_values("N=8\nread -p 'go on?' -n 1 -r\na $N").endswith("a 8")
    assert with_values("N=8\nread -r N\na $N").endswith("a $N")
    assert with_values("N=8\nunset M\na $N").endswith("a 8")
    assert with_values("N=8\nwhile read -r N; do\na $N\ndone").splitlines()[2] == "a $N"
    assert with_values("REPLY=8\nread\na $REPLY").endswith("a $REPLY")


def test_a_sourced_file_of_another_machine_is_the_one_beside_the_script(tmp_path: Path) -> None:
    """By its name; without one nothing is known of what it sets."""
    text = "source /workspace/scripts/env.sh\nN=${N:-8}\na $N $M"
    assert with_values(text, str(tmp_path)).splitlines()[-1] == "a $N $M"
    (tmp_path / "env.sh").write_text("M=4\n", encoding="utf-8")
    assert with_values(text, str(tmp_path)).splitlines()[-1] == "a 8 4"


def test_a_sourced_file_that_is_there_is_read(tmp_path: Path) -> None:
    """As the shell would, where it stands; one that is not there may set anything."""
    (tmp_path / "more.sh").write_text("N=4\nM=2\n", encoding="utf-8")
    text = "N=8\nsource more.sh\na $N ${M:-1}"
    assert with_values(text, str(tmp_path)).endswith("a 4 2")
    assert with_values("D=$(dirname $0)\n. $D/more.sh\na $N", str(tmp_path)).endswith("a 4")
    assert with_values(text).endswith("a $N ${M:-1}")
    assert with_values("N=8\nif b; then\nsource more.sh\nfi\na $N", str(tmp_path)).endswith("a $N")
    (tmp_path / "more.sh").write_text("source more.sh\nN=4\n", encoding="utf-8")
    assert with_values(text, str(tmp_path)).endswith("a 4 ${M:-1}")
