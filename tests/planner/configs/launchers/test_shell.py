"""Shell text as commands, and what they see of variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.configs.launchers.shell import commands
from planner.errors import InputFileError

NAME = Path("command")


def words(text: str) -> list[list[str]]:
    """The commands of a text that have words."""
    return [each.words for each in commands(NAME, text) if each.words]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a --b 'c d' \"e\"", [["a", "--b", "c d", "e"]]),
        ("a \\\n  --b 1 \\\n  --c 2\nd", [["a", "--b", "1", "--c", "2"], ["d"]]),
        ("# a\nb # c\n", [["b"]]),
        ("a \\\n # --b 1 \\\n --c 2", [["a"], ["--c", "2"]]),
        ("X=1 Y='2 3' a b", [["a", "b"]]),
        ("nohup a b > log 2>&1 &", [["a", "b"]]),
        ("srun -N 2 --mpi=pmix torchrun --nnodes 2 a.py", [["torchrun", "--nnodes", "2", "a.py"]]),
        ("uv run --with x --python 3.11 python a.py", [["python", "a.py"]]),
        ("uv run a.py", [["a.py"]]),
        ("srun -N 2 llamafactory-cli train a.yaml", [["llamafactory-cli", "train", "a.yaml"]]),
        (
            "torchrun --master_port $((1 + $RANDOM % 9)) a.py",
            [["torchrun", "--master_port", "${command}", "a.py"]],
        ),
        ("srun python a.py", [["srun", "python", "a.py"]]),
        ("a --b 1 \\\n `# c 'd` \\\n --e 2", [["a", "--b", "1", "--e", "2"]]),
        ("apptainer run --nv -B /x --env A=1 a.sif axolotl train a.yaml", [["axolotl", "train", "a.yaml"]]),
        (
            "docker run -e CUDA_VISIBLE_DEVICES=1 image python a.py",
            [["docker", "run", "-e", "CUDA_VISIBLE_DEVICES=1", "image", "python", "a.py"]],
        ),
        (
            "srun -n 1 python -m llamafactory.cli train a.yaml",
            [["python", "-m", "llamafactory.cli", "train", "a.yaml"]],
        ),
        # The number of a stream touches its redirection; a word before a blank is an argument.
        ("a --b 2 > log 2>&1", [["a", "--b", "2"]]),
        ("a --b 1 2>> log", [["a", "--b", "1"]]),
        ("a b2>log 10>more", [["a", "b2"]]),
        ("a 'b 2>c' \"d 1<e\"", [["a", "b 2>c", "d 1<e"]]),
        ("a 2> log; b | c && d || e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a --b x#y", [["a", "--b", "x#y"]]),
        # In quotes a mark of comments is text, and a quote in a comment opens nothing.
        ("a '#b' \"c #d\" --e 1 # f 'g\nh", [["a", "#b", "c #d", "--e", "1"], ["h"]]),
        ("a 'b\n #c' --d\ne # f \\\ng", [["a", "b\n #c", "--d"], ["e"], ["g"]]),
        ("a --b $(date +%s) --c `d e`", [["a", "--b", "${command}", "--c", "${command}"]]),
        ("a --b $(c $(d e))", [["a", "--b", "${command}"]]),
        ("a --b 'c\nd' --e f", [["a", "--b", "c\nd", "--e", "f"]]),
        ("X=\"b\n#### 42\"\na --b 'c\n# d'\n# e", [["a", "--b", "c\n# d"]]),
        ("uv run a b", [["a", "b"]]),
        # Words of an array are no command, wherever it stands; what is never closed stays.
        ("f() {\nX=(a b # c)\n'd )' $(e) \\\n--f 1)\n}\ng", [["f", "()", "{"], ["}"], ["g"]]),
        ("if h; then X+=(a b); fi; g", [["h"], ["fi"], ["g"]]),
        ("# X=(\ng", [["g"]]),
        ("if A=1 \\\n g h; then\n! i\nfi", [["g", "h"], ["i"], ["fi"]]),
        ("if h\nthen X=(a\nb", [["h"], ["a"], ["b"]]),
    ],
)
def test_text_is_split_as_a_shell_splits_it(text: str, found: list[list[str]]) -> None:
    """Quotes, continued lines, comments, assignments, operators, redirections; nothing is expanded or run."""
    assert words(text) == found


def test_a_quote_that_is_never_closed_is_no_text_of_a_shell() -> None:
    """The whole rest would be one word."""
    with pytest.raises(InputFileError, match="a quote is opened and not closed"):
        words("a 'b\nc")


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("export N=8", "8"),
        ("export A=1 N=8", "8"),
        ("N=8\nexport N", "8"),
        ("export N\nN=8", "8"),
        ("export N=4\nexport N=8", "8"),
        ("cd a && export N=8 && ", "8"),
        ("if a; then\nexport N=4\nfi\nN=8 ", "8"),
        ("N=8", None),
        ("cat > a.json <<'EOF'\n{\n  \"a\": {\n  },\n}\nEOF\nexport N=8", "8"),
        ("export N=8\nunset N", None),
        ("export N=8\nexport -n N", None),
        ("if a; then export N=8; fi", "$N"),
        ("export N=4\nif a; then\n  export N=8\nfi", "$N"),
        ("export N=8\nif a; then unset N; fi", "$N"),
        ("export N=4\nf() {\n  N=8\n}", "$N"),
        ("case $A in\n  a) export N=8 ;;\nesac", "$N"),
        ("[ $A ] && export N=8", "$N"),
        ("[ $A ] || export N=8", "$N"),
        ("(export N=8)", "$N"),
        ("export N=8\nN+=1", "$N"),
    ],
)
def test_exports_are_those_of_the_shell(before: str, value: str | None) -> None:
    """Under a condition, in a loop or in a function, no value is known."""
    text = before + ("b" if before.endswith(" ") else "\nb")
    (found,) = [each for each in commands(NAME, text) if each.words == ["b"]]
    assert found.variables.get("N") == value


@pytest.mark.parametrize(
    "block",
    [
        "f() {\nb\n}",
        "f()\n{\nb\n}",
        "f() { a; b; }",
        "(\nb\n)",
        "(b)",
        "if a; then\nb\nfi",
        "a && b",
        "a || b",
    ],
)
def test_a_block_is_not_sure_to_run_in_this_shell(block: str) -> None:
    """Indented or not; what stands behind the block is."""
    found = {each.words[0]: each.for_sure for each in commands(NAME, f"{block}\nc") if each.words}
    assert (found["b"], found["c"]) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "(\ncase $1 in\n x) d ;;\n *) e ;;\nesac\nb\n)\nc",
        "(case $1 in x|y) d;; (z) e;; esac; b); c",
        "( (case $1 in x) d;; esac); b); c",
        "(case $1 in x) (d);; *) e;& z) f;; esac\nb)\nc",
    ],
)
def test_a_bracket_of_a_pattern_closes_no_subshell(text: str) -> None:
    """So what follows the cases is still inside of it."""
    found = {each.words[0]: each.for_sure for each in commands(NAME, text) if each.words}
    assert (found["b"], found["c"]) == (False, True)
    assert found.get("e", False) is False


@pytest.mark.parametrize("text", ["a 'b", "a 'b\\", 'a "b \\\nc\\'])
def test_a_quote_that_stays_open_is_an_error(text: str) -> None:
    """Also where the text ends in the middle of a line."""
    with pytest.raises(InputFileError, match="opened and not closed"):
        list(commands(NAME, text))


def test_variables_in_long_words_are_read_in_little_time() -> None:
    """Each name is read in one way only, however many stand side by side."""
    text = 'N="' + "$ABCDEFGH " * 40 + ';"\na $N'
    assert ["a", "$N"] in words(text)


def test_brackets_in_a_substitution_end_no_command() -> None:
    """Those of what Python prints."""
    text = """a $(python -c "import b; print(b.c[0])")/d.py --e 1"""
    assert words(text) == [["a", "${command}/d.py", "--e", "1"]]
