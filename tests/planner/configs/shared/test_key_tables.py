"""Tables of keys: each is read by somebody, and what is no table says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.configs.shared.key_tables import names_in, texts_in
from planner.errors import InputFileError
from planner.files.structured import read_toml

ROOT = Path(__file__).resolve().parents[4]
_CALL = r'(?:names|texts)_in\("([^"]+)", "([^"]+)"\)'
FILES = sorted((data_dir() / "keys").glob("*.toml"))


def test_every_table_is_read_and_every_one_that_is_read_is_there() -> None:
    """A table that nobody reads is left behind by a reader that is gone."""
    read = {
        found
        for path in (ROOT / "planner" / "configs").rglob("*.py")
        for found in re.findall(
            r'(?:names|texts)_in\("([^"]+)", "([^"]+)"\)', path.read_text(encoding="utf-8")
        )
    }
    assert read == {(path.name, table) for path in FILES for table in read_toml(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_name_stands_twice_in_a_table(path: Path) -> None:
    """A slip when keys of a new version are added."""
    for table, text in read_toml(path).items():
        names = text.split() if isinstance(text, str) else []
        assert len(names) == len(set(names)), table


def test_names_and_texts_are_told_apart() -> None:
    """The message names the file and what was wanted."""
    with pytest.raises(InputFileError, match=r"torchtune.toml: 'degrees' must be text"):
        names_in("torchtune.toml", "degrees")
    with pytest.raises(InputFileError, match=r"torchtune.toml: 'harmless' must be a table of texts"):
        texts_in("torchtune.toml", "harmless")
