"""What README and docs say is what the programs do."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from alike import differences
from blocks import (
    CODE_BLOCK,
    EXAMPLE_JOB,
    EXAMPLE_PROGRAM,
    EXAMPLE_TRAIN,
    EXAMPLE_WITH_ARGUMENTS,
    GENERATED,
    ROOT,
    WIDTH,
    example_folder,
    generated,
    pages,
    run_plan,
    updated,
)

from planner.errors import ExitCode

UPDATE = "python tests/docs/update_docs.py"
MAX_README_BYTES = 10_240
_LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_PATH = re.compile(r"`((?:planner|measure|data|tests|docs|notebooks)/[\w./-]+)`")
_MODULE = re.compile(r"(?<![\w./-])((?:\w+/)+\w+\.py)\b")


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _parts() -> list[tuple[str, str, str, str]]:
    """(file, key, body, text before) of every generated part."""
    found = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for match in GENERATED.finditer(text):
            found.append((str(path.relative_to(ROOT)), match["key"], match["body"], text[: match.start()]))
    return found


def _commands() -> list[str]:
    """Every ``plan`` command in the shell blocks of all pages."""
    commands = []
    for path in pages():
        for block in CODE_BLOCK.finditer(path.read_text(encoding="utf-8")):
            if block["language"] == "sh":
                pieces = re.split(r"\s*(?:;|&&|\n)\s*", block["text"].strip())
                commands += [piece for piece in pieces if piece.startswith("plan ")]
    return list(dict.fromkeys(commands))


@pytest.mark.parametrize(
    ("file", "key", "body", "before"), _parts(), ids=[f"{part[0]}: {part[1]}" for part in _parts()]
)
def test_generated_parts_are_true(file: str, key: str, body: str, before: str) -> None:
    """Every output and table on a page is still true: its words to the letter, its numbers nearly."""
    found = differences(body, generated(key, before))
    if found:
        pytest.fail("\n".join([f"{file}: {key}", *found, "", f"If this is meant: {UPDATE}"]), pytrace=False)


@pytest.mark.parametrize(("stored", "is_kept"), [("fits 6.70 GiB", True), ("fits 5.70 GiB", False)])
def test_only_what_is_no_longer_true_is_written_anew(stored: str, is_kept: bool) -> None:
    """An example that is a little off stays as it is; a wrong one is replaced."""
    code = "```python\nprint('fits 6.74 GiB')\n```\n"
    page = code + "<!-- generated: code above -->\n```text\n{}\n```\n<!-- end -->\n"
    assert updated(page.format(stored)) == page.format(stored if is_kept else "fits 6.74 GiB")
    assert updated(page.format(stored), every=True) == page.format("fits 6.74 GiB")


def test_the_readme_takes_two_minutes() -> None:
    """It is short."""
    assert len(_text("README.md").encode()) <= MAX_README_BYTES


# All published rows take ten seconds a command; one or two sources show that it works,
# and tests/accuracy scores the others.
_FEWER_ROWS = (("published/*.csv", "published/001*.csv"), ("published/00*.csv", "published/00[13]*.csv"))


@pytest.mark.parametrize("command", _commands())
def test_every_command_works(command: str) -> None:
    """Every command in a shell block ends with exit code 0 or "uncertain", prints a result,
    and nothing on standard error.
    """
    for pattern, fewer in _FEWER_ROWS:
        command = command.replace(pattern, fewer)
    answer = run_plan(command)
    assert answer.code in (ExitCode.FITS, ExitCode.UNCERTAIN), answer.err
    assert answer.out.strip()
    assert answer.err == ""
    if "--json" in shlex.split(command):
        assert json.loads(answer.out)["schema"].startswith("planner/")


def test_no_output_is_wider_than_a_terminal() -> None:
    """No line of a generated output is wider than the terminal for which it was made,
    but for commands to copy.
    """
    for file, key, body, _ in _parts():
        if key.startswith("plan "):
            assert max(len(line) for line in body.splitlines() if not line.startswith("plan ")) <= WIDTH, (
                f"{file}: {key}"
            )


@pytest.mark.parametrize(
    ("name", "text", "language"),
    [
        ("job.toml", EXAMPLE_JOB, "toml"),
        ("train.yaml", EXAMPLE_TRAIN, "yaml"),
        ("finetune.py", EXAMPLE_PROGRAM, "python"),
        ("lora.py", EXAMPLE_WITH_ARGUMENTS, "python"),
    ],
)
def test_an_example_file_is_the_one_that_runs(name: str, text: str, language: str) -> None:
    """The files as the pages show them are those that the examples are run with."""
    shown = {
        block["text"]
        for path in pages()
        for block in CODE_BLOCK.finditer(path.read_text(encoding="utf-8"))
        if block["language"] == language
    }
    assert text in shown
    with example_folder() as folder:
        assert (folder / name).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(path: Path) -> None:
    """Relative links, their anchors, files named in backticks, and modules in drawings of a way exist;
    drawings name them from the folder of the page, too.
    """
    text = path.read_text(encoding="utf-8")
    missing = []
    for target, anchor in _LINK.findall(text):
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            missing.append(f"{target}#{anchor}")
    missing += [name for name in _PATH.findall(text) if not (ROOT / name).exists()]
    drawings = [block["text"] for block in CODE_BLOCK.finditer(text) if block["language"] == "text"]
    missing += [
        name
        for name in _MODULE.findall("\n".join(drawings))
        if not ((ROOT / name).exists() or (path.parent / name).exists())
    ]
    assert missing == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_row_of_a_table_has_all_its_cells(path: Path) -> None:
    """A page shows a cell that is missing as an empty one, at the end of its row."""
    text = CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = re.sub(r"`[^`\n]*`|\\\|", "", table).splitlines()
        assert len({row.count("|") for row in rows}) == 1, table


def _anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
