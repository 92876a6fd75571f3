"""``python tests/notebooks/strip.py`` takes outputs and execution counts out of the notebooks, as they are committed."""

from __future__ import annotations

from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def main() -> None:
    """Rewrite every notebook without what a run leaves in it."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
