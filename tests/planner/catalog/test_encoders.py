"""The table of encoders: each with its source, read strictly."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from planner.catalog.encoders import encoder_config, encoders
from planner.errors import InputFileError

# An address that cannot change, or a file of a version of a package.
SOURCE = (
    r"https://github\.com/[^/ ]+/[^/ ]+/blob/[0-9a-f]{40}/\S+|transformers \d+\.\d+\.\d+ models/\S+\.py, .+"
)
TABLE = """schema = 1
[[models]]
names = ["someone/model"]
source = "somewhere"
config = { model_type = "bert" }
"""


def test_every_source_can_be_read_again() -> None:
    """A branch moves, so a commit is named."""
    sources = [each for entry in encoders() for each in (entry.source, entry.params_source) if each]
    assert [each for each in sources if not re.fullmatch(SOURCE, each)] == []


def test_names_are_said_once() -> None:
    """A name leads to one entry; an unknown one to none."""
    names = [name for entry in encoders() for name in entry.names]
    assert len(set(names)) == len(names)
    assert encoder_config("nobody/nothing") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("", ""), ""),
        (("source", "sauce"), "missing key 'models.0.source'"),
        (("config", 'licence = "MIT"\nconfig'), "unknown key 'models.0.licence'"),
        (("model_type", "kind"), "has no 'model_type'"),
        (("config", "params = 5\nconfig"), "come together"),
        (("schema = 1", "schema = 2"), "key 'schema'"),
    ],
)
def test_the_table_is_read_strictly(
    change: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is named; a count without a source is no count."""
    (tmp_path / "encoders.toml").write_text(TABLE.replace(*change, 1), encoding="utf-8")
    monkeypatch.setattr(import_module("planner.catalog.encoders"), "data_dir", lambda: tmp_path)
    if not message:
        assert encoders.__wrapped__()[0].config == {"model_type": "bert"}
        return
    with pytest.raises(InputFileError, match=message):
        encoders.__wrapped__()
