"""Record files, mutated: every command that reads records scores them, sets them aside or refuses them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hostile.harness import assert_sound, examples
from hostile.mutations import Node, Raw, damaged, encoded, mutated
from hostile.seeds import csv_text, csv_tree, json_lines, record_lines
from hypothesis import given
from hypothesis import strategies as st

from planner.records import COLUMNS

COMMANDS = (
    ("plan", "validate", "{file}"),
    ("plan", "validate", "{file}", "--rows", "--json"),
    ("plan", "validate", "{file}", "--rows", "--format", "markdown"),
    ("plan", "validate", "{file}", "--explain", "torchtune_readme-003"),
    ("plan", "validate", "{file}", "--cv", "source"),
    ("plan", "calibrate", "{file}", "--out", "{out}"),
    ("plan", "calibrate", "{file}", "--name", "mine", "--out", "{out}"),
    ("measure", "check", "{file}"),
    ("measure", "check", "{file}", "--json"),
)


def _cell(value: Node) -> str:
    return str(value) if isinstance(value, str) else "" if value is None else str(value)[:5000]


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, bytes]:
    """The suffix and the content of a record file."""
    suffix = draw(st.sampled_from([".csv", ".jsonl"]))
    if suffix == ".jsonl":
        text = json_lines(draw(mutated(record_lines(), COLUMNS)))
    else:
        table = draw(mutated(csv_tree(), COLUMNS))
        # A cell that is written as it stands, with quotes and commas of its own, is a row of its own here.
        cells = [[_cell(cell) for cell in row] if isinstance(row, list) else [Raw(row)] for row in table]
        text = csv_text(cells)
    return suffix, draw(damaged(encoded(text)))


@examples(30)
@given(contents(), st.sampled_from(COMMANDS))
def test_mutated_records_are_scored_or_refused(content: tuple[str, bytes], command: tuple[str, ...]) -> None:
    """Whatever a record says, there are scores or a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"runs{content[0]}"
        file.write_bytes(content[1])
        assert_sound(*(word.format(file=file, out=folder) for word in command), files=[file])
