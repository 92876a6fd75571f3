"""Calibration files, mutated: ``plan`` predicts with them or refuses them."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from hostile.harness import assert_sound, examples
from hostile.mutations import Node, damaged, encoded, mutated, to_json
from hostile.seeds import calibration
from hypothesis import given
from hypothesis import strategies as st

# A small model: what is asked for matters little beside what the calibration says.
JOB = ("--model", "gpt2", "--method", "lora", "--gpu", "4090", "--seq", "512")
COMMANDS = (
    (*JOB, "--explain"),
    (*JOB, "--json"),
    ("search", *JOB[:2], *JOB[4:]),
    ("search", *JOB, "--solve", "batch"),
)
# Most of a calibration is a few hundred numbers; any float may stand for one of them.
numbers = (
    st.sampled_from([0.0, -0.0, 1e-300, 5e-324, 1e300, -1e300, 700.0, -800.0, 1e6, -1e6, 0.999999, 1.0, 2.0])
    | st.floats()
)


def _places(node: Node, found: list[tuple[Node, int]]) -> list[tuple[Node, int]]:
    """Where the numbers of a tree are: a pair or a list, and the index in it."""
    for index, each in enumerate(node if isinstance(node, list) else ()):
        if isinstance(each, float | int) and not isinstance(each, bool):
            found.append((node, index))
        _places(each, found)
    return found


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """The bytes of a calibration file."""
    if draw(st.booleans()):
        return draw(damaged(encoded(to_json(draw(mutated(calibration()))))))
    tree = copy.deepcopy(calibration())
    for place, index in draw(st.lists(st.sampled_from(_places(tree, [])), min_size=1, max_size=5)):
        place[index] = draw(numbers)
    return encoded(to_json(tree))


@examples(20)
@given(contents(), st.sampled_from(COMMANDS))
def test_a_mutated_calibration_is_used_or_refused(content: bytes, command: tuple[str, ...]) -> None:
    """Whatever a calibration says, there is an answer or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.json"
        file.write_bytes(content)
        assert_sound("plan", *command, "--calibration", str(file), files=[file])
