"""Stored dry runs once more: ``python -m tests.against_libraries.programs.again FILE [WORD ...]`` writes the
peaks of each row of ``FILE.csv`` beside it anew, or of those rows whose job has all the words.

Column ``program`` has what comes behind ``measure trace``; rows without one were run by hand.  A word that
names a file beside this one is that file; ``rows.jsonl`` and ``marks.jsonl`` hold long rows.  The interpreter
is that of the environment with the tool: ``.venv`` for ``spread``, ``.venv-trl`` for ``gkd``, ``grpo`` and
``grpo_zero3``, ``.venv-torchtune`` and ``.venv-unsloth`` for files of these names, and one with ms-swift
4.6.0 for ``swift``.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.units import parse_size_bytes

HERE = Path(__file__).resolve().parent


def main(name: str, words: list[str]) -> None:
    """Run row after row, and write after each."""
    path = HERE / f"{name}.csv"
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    for row in rows:
        if not row["program"] or not set(words) <= set(row["job"].split()):
            continue
        before = {column: row[column] for column in row if column.endswith("_bytes")}
        document = _document(row["program"])
        row |= {column: text for column, text in columns_of(document).items() if column in row}
        changes = (f"{column} {before[column]} -> {row[column]}" for column in before)
        cards = (f"{each['name']} {each['value']}" for each in _others(document))
        sys.stdout.write("\n  ".join((row["job"], *changes, *cards)) + "\n")
        sys.stdout.flush()
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _document(program: str) -> dict[str, Any]:
    """What ``measure trace --json`` says."""
    own = (str(HERE / word) if (HERE / word).is_file() else word for word in shlex.split(program))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(64):
            for name, row in _rows(number).items():
                with (Path(folder) / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        command = [sys.executable, "-m", "measure", "trace", "--json", *own]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3, 4):
        sys.exit(done.stderr[-2000:])
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def columns_of(document: dict[str, Any]) -> dict[str, str]:
    """Of one row.  ``cards``: those that reserve most, to a thousandth; the report rounds the others.
    ``workspaces``: those of cuBLAS; rows with one are older than that of autograd's thread.
    """
    allocated, reserved = document["allocated_peak_bytes"], document["reserved_peak_bytes"]
    cards = set()
    for each in _others(document):
        cards.add(each["note"].rpartition(" ")[2])
        size, unit = each["value"].split()[3:5]
        if parse_size_bytes(f"{size} {unit}") > 0.999 * reserved:
            cards.add(each["name"])
    numbers = ";".join(sorted(card.removeprefix("cuda:") for card in cards))
    peaks = {"allocated_bytes": str(allocated), "reserved_bytes": str(reserved)}
    return {**peaks, "cards": numbers, "workspaces": "2"}


def _others(document: dict[str, Any]) -> list[dict[str, str]]:
    return [each for each in document["assumptions"] if each["name"].startswith("cuda:")]


def _rows(number: int) -> dict[str, dict[str, object]]:
    """A row of each file, with answers that the program cuts to its length."""
    asked = {"role": "user", "content": "w0"}
    long = " ".join(f"w{(number + each) % 1000}" for each in range(3000))
    said = [asked, {"role": "assistant", "content": long}]
    answers = ("text", "completion", "chosen", "rejected", "output", "response_j", "response_k")
    return {
        "rows": {
            **dict.fromkeys(("prompt", "instruction", "input", "question"), "w0"),
            **dict.fromkeys(answers, long),
            "messages": said,
            "rejected_response": f"w1 {long}",
        },
        "marks": {"messages": said, "label": number % 2 == 0},
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
