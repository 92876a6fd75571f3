"""Rewrites the golden tables: ``python tests/golden/regenerate.py``.
Read the difference before committing it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from calibrated import PATH, calibrated_text
from golden_tables import FOLDER, SCENARIOS, golden_path, golden_text


def main() -> None:
    """Write every table and the calibrated predictions, and remove tables of scenarios that are gone."""
    for path in FOLDER.glob("*.txt"):
        if path.stem not in SCENARIOS:
            path.unlink()
    for name in SCENARIOS:
        _write(golden_path(name), golden_text(name))
    _write(PATH, calibrated_text())


def _write(path: Path, text: str) -> None:
    changed = not path.is_file() or path.read_text(encoding="utf-8") != text
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{'changed ' if changed else 'same    '} {path.stem}\n")


if __name__ == "__main__":
    main()
