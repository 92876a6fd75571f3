"""How long our sentences are: docstrings of both packages and prose of the pages.

``python tests/docs/sentences.py [COUNT]`` prints the longest.

A sentence ends at ``.``, ``!`` or ``?`` before a space, or at the end of its block.  A block is a paragraph,
an item of a list, a cell of a table, a heading, or a part of a docstring with a label such as ``Formula:``.
Code counts as one word, and is no prose where it stands on lines of its own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN_FOLDERS = ("docs", "planner", "measure", "data", "tests", "notebooks")
_GENERATED = re.compile(r"<!-- generated: .+? -->.*?<!-- end -->", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_CODE_LINES = re.compile(r"(?<=\n\n)(?: {4}.*(?:\n+|$))+")
_TABLE_EDGE = re.compile(r"^=+(?: +=+)*$")
_CODE = re.compile(r"``[^`]+``|`[^`\n]+`|:\w+:`[^`]+`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NEW_BLOCK = re.compile(
    r"^\s*(?:[-*] |\d+\. |#+ |>|\||(?:Formula|Source|Ignored|Raises|Returns|Args|Yields):|[A-Za-z]\w*: )"
)
_END = re.compile(r"(?<=[.!?])[)\"”]?\s+(?=[^a-z\s])")
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|vs|cf|ca|approx|No)\.", re.IGNORECASE)
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence with its place, ``file:line`` of the block in which it stands."""

    place: str
    text: str

    @property
    def words(self) -> int:
        """Words: runs between spaces that hold a letter or a digit."""
        return sum(1 for part in self.text.split() if _WORD.search(part))


def sentences(text: str, file: str, first_line: int = 1) -> Iterator[Sentence]:
    """Sentences of plain or Markdown prose."""
    for line, block in _blocks(_without_code(text)):
        for sentence in _END.split(_ABBREVIATED.sub(r"\1", block)):
            if sentence.strip():
                yield Sentence(f"{file}:{first_line + line}", " ".join(sentence.split()))


def _without_code(text: str) -> str:
    """The text with code and generated parts blanked, lines kept."""
    for pattern in (_GENERATED, _FENCED, _CODE_LINES):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return _LINK.sub(r"\1", _CODE.sub("CODE", text))


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, item, cell and heading."""
    start, held, in_table = 0, "", False
    for number, line in enumerate(text.splitlines()):
        is_edge = bool(_TABLE_EDGE.match(line))
        in_table ^= is_edge
        if not line.strip() or in_table or is_edge or _NEW_BLOCK.match(line):
            if held:
                yield start, held
            start, held = number, ""
        if is_edge:
            continue
        if line.lstrip().startswith("|"):
            yield from ((number, cell.strip()) for cell in line.split("|"))
        else:
            start = start if held else number
            held = f"{held} {line.strip()}".strip()
    if held:
        yield start, held


def of_docstrings(path: Path) -> Iterator[Sentence]:
    """Sentences of a module's docstrings: its own, those of classes, functions and fields."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from sentences(cleandoc(node.value.value), path.relative_to(ROOT).as_posix(), node.lineno)


def of_page(path: Path) -> Iterator[Sentence]:
    """Sentences of a Markdown page outside of code and generated parts."""
    return sentences(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())


def sources() -> list[Path]:
    """Modules of both packages."""
    return sorted(path for package in ("planner", "measure") for path in (ROOT / package).rglob("*.py"))


def markdown_pages() -> list[Path]:
    """Pages of the project."""
    return sorted(
        [*ROOT.glob("*.md"), *(path for folder in MARKDOWN_FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    )


def longest_first() -> list[Sentence]:
    """All sentences, the longest first."""
    found = [sentence for path in sources() for sentence in of_docstrings(path)]
    found += [sentence for path in markdown_pages() for sentence in of_page(path)]
    return sorted(found, key=lambda sentence: -sentence.words)


def main() -> None:
    """Print the longest sentences, ten or as many as asked for."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for sentence in longest_first()[:count]:
        sys.stdout.write(f"{sentence.words:4d}  {sentence.place}: {sentence.text}\n")


if __name__ == "__main__":
    main()
