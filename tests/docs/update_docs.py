"""Rewrites the generated parts of README and docs: ``python tests/docs/update_docs.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from blocks import ROOT, pages, updated


def main() -> None:
    """Write every page whose generated parts are not what they should be."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        now = updated(text)
        if now != text:
            path.write_text(now, encoding="utf-8")
        sys.stdout.write(f"{'same   ' if now == text else 'changed'} {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
