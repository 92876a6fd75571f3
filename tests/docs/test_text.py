"""Links and paths lead somewhere, and texts speak of the project alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from readme_blocks import CODE_BLOCK, ROOT, readme_files

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_TOP = ("planner", "data", "tests", "notebooks", ".ci")
_ROOT_FILES = re.compile(r"^(?:[A-Z]+\.md|Makefile|LICENSE|pyproject\.toml|constraints\.txt)$")
# Words about how a text came to be have no place in it.  Written with a gap, so that this file passes its own test.
_WORDS = "ses+sions? hel+pers? age+nts? work+places? chat+bots? assis+tants? clau+de anth+ropic chat+gpt cop+ilot"
_PLACES = "/wor+k/ /tm+p/w/ sha+red/seeds sha+red/facts"
_FORBIDDEN = re.compile(
    "|".join([rf"\b{word}\b" for word in _WORDS.replace("+", "").split()] + _PLACES.replace("+", "").split()), re.IGNORECASE
)
# Lines where such a word is part of somebody else's name: an HTTP header.
_ALLOWED = re.compile(r"User-Agent")
_TEXT = {".py", ".md", ".toml", ".csv", ".txt", ".yaml", ".yml", ".cfg", ".json", ".jsonl", ".ipynb", ""}


def _prose(path: Path) -> str:
    """A README without its fenced blocks."""
    return CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in done.stdout.splitlines()]
    return [path for path in files if path.is_file() and path.suffix in _TEXT]


@pytest.mark.parametrize("path", readme_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link is to a file or folder that exists, every anchor to a heading of its file."""
    broken = []
    for target in _LINK.findall(_prose(path)):
        if re.match(r"[a-z]+://", target):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        if not linked.exists():
            broken.append(target)
        elif anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor not in map(_anchor, titles):
                broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", readme_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_exist(path: Path) -> None:
    """Every path of the project that a text names exists; a ``*`` has to match something."""
    missing = []
    for name in _CODE.findall(_prose(path)):
        place = name.partition("::")[0].rstrip("/")
        if (place.partition("/")[0] in _TOP and "/" in place and " " not in place) or _ROOT_FILES.match(place):
            pattern = re.sub(r"<[^>]+>", "*", place)
            if not list(ROOT.glob(pattern)):
                missing.append(name)
    assert missing == []


@pytest.mark.parametrize("path", readme_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_code_exist(path: Path) -> None:
    """Every ``planner.module`` or ``planner.module.name`` that a text names can be imported."""
    import importlib

    missing = []
    for name in re.findall(r"`(planner(?:\.\w+)+)`", _prose(path)):
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ImportError:
            if not hasattr(importlib.import_module(module), attribute):
                missing.append(name)
    assert missing == []


def test_texts_speak_of_the_project_alone() -> None:
    """No tracked text says how or by whom it was made, or names a place outside the project."""
    found = []
    for path in _tracked_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if (match := _FORBIDDEN.search(line)) and not _ALLOWED.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize("line", ["in this ses+sion", "a hel+per script", "see /tm+p/w/notes", "Written by Clau+de"])
def test_such_a_word_is_noticed(line: str) -> None:
    """The pattern finds a word of each kind, and leaves ordinary sentences alone."""
    assert _FORBIDDEN.search(line.replace("+", ""))
    assert not _FORBIDDEN.search("obsession with reagents helps; /workers/ and /tmp/words are fine")


def test_the_changelog_names_the_version() -> None:
    """The newest section of the changelog is that of the version in the package."""
    from planner import __version__

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
