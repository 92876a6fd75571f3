"""Rewrites those generated parts of README and docs that are no longer true:
``python tests/docs/update_docs.py``; with ``--all``, all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from blocks import ROOT, pages, updated


def main() -> None:
    """Write every page of which a generated part is no longer true."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        now = updated(text, every="--all" in sys.argv[1:])
        if now != text:
            path.write_text(now, encoding="utf-8")
        sys.stdout.write(f"{'same   ' if now == text else 'changed'} {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
