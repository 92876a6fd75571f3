"""The notebooks run from top to bottom and hold no logic of their own.

What is stored of their output is still true: words to the letter, numbers nearly.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs.alike import differences
from tests.extras import import_or_skip

nbformat = import_or_skip("nbformat")

sys.path.insert(0, str(Path(__file__).parent))
from execute import IMAGES, PICTURES, executed, pictures, printed

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
REWRITE = "python tests/notebooks/execute.py"
_TRACED = ("torch", "transformers", "peft", "accelerate")


def _cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def _run(path: Path) -> Any:
    for name in ("nbclient", "ipykernel", "matplotlib"):
        import_or_skip(name)
    notebook = executed(path)
    if all(find_spec(name) for name in _TRACED):
        stored = nbformat.read(path, as_version=4)
        found = differences(printed(stored), printed(notebook))
        assert found == [], f"if this is meant: {REWRITE}"
    return notebook


def _pictures(notebook: Any) -> int:
    return sum(len(pictures(cell)) for cell in notebook.cells)


@pytest.mark.parametrize(("notebook", "cell"), PICTURES)
def test_pictures_of_the_documents_are_those_of_the_notebooks(notebook: str, cell: str) -> None:
    """A picture of a page is the one that its notebook stores."""
    stored = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4)
    (drawn,) = (pictures(each) for each in stored.cells if each.id == cell)
    assert drawn == [(IMAGES / PICTURES[notebook, cell]).read_bytes()], f"if this is meant: {REWRITE}"


def test_there_are_four() -> None:
    """The notebooks are numbered in the order in which they are read."""
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_logic_of_their_own(path: Path) -> None:
    """No cell defines a function or a class, and none imports a private name or a test:
    what is needed belongs to the packages, which are installed.
    """
    found = []
    for cell in _cells(path, "code"):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.append(f"{cell.id}: defines {node.name}")
            if isinstance(node, ast.ImportFrom):
                names = [each.name for each in node.names if each.name.startswith("_")]
                names += [str(node.module)] if str(node.module).startswith("tests") else []
                found += [f"{cell.id}: imports {name}" for name in names]
    assert found == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_paths_in_the_text_exist(path: Path) -> None:
    """Files of the project that the text names are there."""
    text = "\n".join(cell.source for cell in _cells(path, "markdown"))
    named = re.findall(r"`((?:data|planner|measure)/[^`*]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.figures
def test_the_bytes_by_hand() -> None:
    """Counted by hand, by the formulas and by the trace of the real modules,
    the peak is the same within 1 %.
    """
    notebook = _run(NOTEBOOKS[0])
    assert _pictures(notebook) == 1
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+)$", printed(notebook), re.MULTILINE)
    hand, plan = (
        sum(int(row[column].replace(",", "")) for row in rows if row[0] not in ("allocator_slack", "context"))
        for column in (1, 2)
    )
    assert hand == pytest.approx(plan, rel=0.01)
    missing = [name for name in _TRACED if find_spec(name) is None]
    if missing:
        pytest.skip(f"the part with the trace needs {', '.join(missing)}")
    shares = re.search(r"by hand ([+-][\d.]+)%, plan ([+-][\d.]+)% of the trace", printed(notebook))
    assert shares is not None
    assert all(abs(float(share)) < 1 for share in shares.groups())


@pytest.mark.figures
def test_every_document_is_drawn() -> None:
    """Each of the four documents becomes a picture of its memory, its time and its host RAM,
    as far as it has them.
    """
    from planner.calibration.score.points import points_of
    from planner.calibration.score.rows import QUANTITIES
    from tests.accuracy.published import core_validation

    points = (point for name in QUANTITIES for point in points_of(core_validation().rows, name))
    drawn = {(point.source, point.quantity) for point in points}
    notebook = _run(NOTEBOOKS[1])
    assert len(drawn) >= 9
    assert _pictures(notebook) == len(drawn)
    assert re.search(r"^memory +\d+ of \d+ measurements inside", printed(notebook), re.MULTILINE)


@pytest.mark.figures
def test_the_calibration_is_shown() -> None:
    """Posteriors, residuals and distributions are drawn;
    coverage is printed for each group that was held out.
    """
    notebook = _run(NOTEBOOKS[2])
    assert _pictures(notebook) == 3
    groups = set(re.findall(r"^memory +([\w-]+) +\d+ of \d+ inside", printed(notebook), re.MULTILINE))
    assert groups == {"doc-001", "qwen-finetune", "doc-003", "doc-004"}


@pytest.mark.figures
def test_a_recipe_is_chosen() -> None:
    """The first try does not fit, the chosen recipe does, and the grid says up to which batch."""
    notebook = _run(NOTEBOOKS[3])
    said = printed(notebook)
    assert said.startswith("does_not_fit - ")
    assert re.search(r"^fits +\d+%", said, re.MULTILINE)
    assert re.search(r"^ 1024 tokens: up to \d+ samples$", said, re.MULTILINE)
    assert _pictures(notebook) == 2
