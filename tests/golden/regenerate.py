"""Rewrites the golden tables: ``python tests/golden/regenerate.py``.  Read the difference before committing it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from golden_tables import FOLDER, SCENARIOS, golden_path, golden_text  # noqa: E402, needs the path above


def main() -> None:
    """Write every table, and remove those of scenarios that are gone."""
    for path in FOLDER.glob("*.txt"):
        if path.stem not in SCENARIOS:
            path.unlink()
    for name in SCENARIOS:
        text = golden_text(name)
        changed = not golden_path(name).is_file() or golden_path(name).read_text(encoding="utf-8") != text
        golden_path(name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{'changed ' if changed else 'same    '} {name}\n")


if __name__ == "__main__":
    main()
