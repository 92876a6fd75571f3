"""``plan ... --plot``: memory over the step as a picture, and every way in which that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import main
from tests.extras import needs

ROOT = Path(__file__).resolve().parents[2]
JOB = ["--model", "qwen2.5-0.5b", "--method", "lora", "--gpu", "4090", "--seq", "256"]


@needs("matplotlib")
def test_the_picture_is_written_whole_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PNG with its end, and the answer as without it."""
    picture = tmp_path / "step.png"
    assert main([*JOB, "--json", "--plot", str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "fits"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.read_bytes().rstrip().endswith(b"IEND\xaeB`\x82")
    assert [each.name for each in tmp_path.iterdir()] == ["step.png"]


def test_a_picture_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody finds out later that a .gif is none."""
    assert main([*JOB, "--plot", str(tmp_path / "step.gif")]) == 2
    assert "pictures are PNG, so end the name in .png" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    """One sentence, exit code 2, and no file."""
    code = (
        "import sys; from importlib import util; found = util.find_spec; "
        "util.find_spec = lambda name, *rest: None if name == 'matplotlib' else found(name, *rest); "
        "from planner.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *JOB, "--plot", str(tmp_path / "a.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    says = (
        "plan: matplotlib is not installed; install the plots extra: pip install '.[plots]' in the "
        "project's folder\n"
    )
    assert done.stderr == says
    assert not list(tmp_path.iterdir())


def test_a_target_that_cannot_be_written_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing folder is exit code 2, and nothing is answered."""
    assert main([*JOB, "--plot", str(tmp_path / "none" / "a.png")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no folder" in said.err


@needs("matplotlib")
def test_a_device_without_cuda_has_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its allocator is another one."""
    assert main([*JOB[:4], "--gpu", "m4-max", "--seq", "256", "--plot", str(tmp_path / "a.png")]) == 6
    assert "not a CUDA device" in capsys.readouterr().err


def test_details_draw_the_step_in_ascii(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve lines of at most 80 columns under their title."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*JOB, "--details"]) == 0
    lines = capsys.readouterr().out.split("Memory over the step in GiB\n")[1].splitlines()[1:13]
    assert all(len(line) <= 80 and line.isascii() for line in lines)
    assert lines[-1].split("|")[1].strip() == "load"
    assert any("#" in line for line in lines)
