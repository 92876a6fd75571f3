"""Rewrites the generated parts of every README: ``python tests/docs/update_readme.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from readme_blocks import ROOT, readme_files, updated  # noqa: E402, needs the path above


def main() -> None:
    """Write every README whose generated parts are not what they should be."""
    for path in readme_files():
        text = path.read_text(encoding="utf-8")
        now = updated(text)
        if now != text:
            path.write_text(now, encoding="utf-8")
        sys.stdout.write(f"{'same   ' if now == text else 'changed'} {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
