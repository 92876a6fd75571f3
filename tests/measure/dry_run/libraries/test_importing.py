"""Changes to modules of the program: they are made when its code runs,
however often it was looked for before.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from measure.dry_run.libraries.importing import OnImport


def test_a_module_that_was_looked_for_before_is_changed_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries ask whether a package is there before they import it."""
    (tmp_path / "looked_for_before.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    imports = OnImport()

    def change(module: ModuleType) -> None:
        module.value += 1  # type: ignore[attr-defined]

    imports.add("looked_for_before", change)
    monkeypatch.setattr(sys, "meta_path", [imports, *sys.meta_path])
    assert importlib.util.find_spec("looked_for_before") is not None
    assert importlib.import_module("looked_for_before").value == 2
    sys.modules.pop("looked_for_before")
