"""``python tests/notebooks/execute.py`` runs the notebooks.  Where what one has stored is no longer true, it
keeps the new outputs and writes the pictures of the documents; with ``--all``, of every notebook.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from tests.docs.alike import differences

NOTEBOOKS = ROOT / "notebooks"
IMAGES = ROOT / "docs" / "images"
# (notebook, cell that draws) -> picture of the documents.
PICTURES = {
    ("01_where_the_bytes_go", "cell-21"): "memory_by_phase.png",
    ("04_choosing_a_recipe", "cell-15"): "batch_by_length.png",
}
_TIMEOUT_S = 180


def executed(path: Path) -> Any:
    """The notebook after a run in a kernel of its own, which imports the packages of this checkout."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    client = NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            # paths and warnings of one machine
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


def pictures(cell: Any) -> list[bytes]:
    """The PNG files that a cell shows."""
    found = (output.get("data", {}).get("image/png") for output in cell.get("outputs", ()))
    return [base64.b64decode(each) for each in found if each]


def printed(notebook: Any) -> str:
    """What the cells of a notebook print."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return "".join(
        output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"
    )


def main() -> None:
    """Rewrite notebooks with what a run prints and draws."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = executed(path)
        stored = nbformat.read(path, as_version=4)
        if "--all" not in sys.argv[1:] and not differences(printed(stored), printed(notebook)):
            continue
        nbformat.write(notebook, path)
        for cell in notebook.cells:
            name = PICTURES.get((path.stem, cell.id))
            if name is not None:
                (IMAGES / name).write_bytes(pictures(cell)[0])


if __name__ == "__main__":
    main()
