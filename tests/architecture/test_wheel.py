"""The wheel carries the data files, and the installed package finds them there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.extras import needs

ROOT = Path(__file__).resolve().parents[2]
PREDICTION = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]


def _project() -> dict[str, dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_build_maps_the_data_into_the_package() -> None:
    """The wheel's configuration puts the folder ``data`` where the package looks for it,
    and names the license file.
    """
    wheel = _project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["planner", "measure"]
    assert wheel["force-include"] == {"data": "planner/data"}
    for name in (*_project()["project"]["license-files"], _project()["project"]["readme"]):
        assert (ROOT / name).is_file(), name


def test_an_installed_package_finds_its_data(tmp_path: Path) -> None:
    """With ``planner/data`` as the wheel lays it out,
    a prediction works in an empty folder without the checkout.
    """
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "planner", tmp_path / "site" / "planner", ignore=ignore)
    shutil.copytree(ROOT / "data", tmp_path / "site" / "planner" / "data", ignore=ignore)
    (tmp_path / "empty").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    probe = (
        "import sys, planner; from planner.cli.main import main; print(planner.__file__); "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *PREDICTION],
        cwd=tmp_path / "empty",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path)), "the checkout was imported instead of the copy"
    assert "FITS" in done.stdout


@needs("hatchling")
def test_the_wheel_holds_every_data_file(tmp_path: Path) -> None:
    """A wheel that is really built holds every file of ``data``, every module, and the command."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("planner", "measure", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("build_hook.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    data = {
        f"planner/{path.relative_to(source).as_posix()}"
        for path in (source / "data").rglob("*")
        if path.is_file()
    }
    modules = {
        path.relative_to(source).as_posix()
        for folder in ("planner", "measure")
        for path in (source / folder).rglob("*.py")
    }
    assert len(data) > 200, "the data files were not found"
    assert sorted((data | modules) - held) == []
    # A compiled loop makes the wheel one for this kind of machine,
    # and there is one wherever there is a compiler.
    compiled = "planner/allocator/replay.native" in held
    assert compiled == ("any" not in wheel.stem.rpartition("-")[2])
    assert compiled or shutil.which(os.environ.get("CC", "cc")) is None
    entry_points = next(name for name in held if name.endswith("entry_points.txt"))
    assert "plan = planner.cli.main:main" in zipfile.ZipFile(wheel).read(entry_points).decode()
