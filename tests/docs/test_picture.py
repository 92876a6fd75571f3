"""The README's picture shows the points that are stored, and these are of the calibration that ships."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import ROOT

from planner.calibration.score.points import points_of
from planner.catalog.location import data_dir
from planner.errors import InputFileError
from planner.records.calibration_file import read_calibration
from tests.accuracy.drawn import (
    POINTS_FILE,
    TOOLS_FILE,
    Drawn,
    calibration_fingerprint,
    points_csv,
    stored_drawn,
)
from tests.accuracy.published import core_validation
from tests.accuracy.scatter import PICTURE, stored_fingerprint
from tests.accuracy.tables import token_rate_points

REDRAW = "python -m tests.accuracy.scatter"


def test_the_picture_is_of_the_stored_points() -> None:
    """Its metadata carry the fingerprint of what it shows."""
    assert stored_fingerprint(ROOT / PICTURE) == stored_drawn().fingerprint, f"draw it again: {REDRAW}"


def test_the_points_are_of_the_calibration_that_ships() -> None:
    """A new calibration has other held-out predictions."""
    shipped = read_calibration(data_dir() / "calibration" / "default.json")
    refit = "python -m tests.accuracy.accuracy --write"
    assert stored_drawn().calibration == calibration_fingerprint(shipped), f"{refit}, then {REDRAW}"


def test_every_reading_of_the_four_documents_is_drawn() -> None:
    """The same rows with the same measured bytes as a validation compares, and as many rates; others on some of them."""
    rows, drawn = core_validation().rows, stored_drawn()
    measured = {each.record_id: each.measured for each in points_of(rows, "memory")}
    assert {each.record_id: each.measured for each in drawn.memory} == measured
    assert {each.record_id for each in drawn.rates} == {each.record_id for each in token_rate_points(rows)}
    assert {each.source for each in drawn.others} == {"DeepSpeed", "accelerate", "LLaMA-Factory"}
    assert {each.record_id: each.measured for each in drawn.others}.items() <= measured.items()


def test_another_number_is_another_fingerprint(tmp_path: Path) -> None:
    """What is written is read again, and one changed digit is seen."""
    drawn = stored_drawn()
    (tmp_path / POINTS_FILE).write_text(
        f"# calibration: {drawn.calibration}\n{points_csv((*drawn.memory, *drawn.rates))}", encoding="utf-8"
    )
    (tmp_path / TOOLS_FILE).write_text(points_csv(drawn.others), encoding="utf-8")
    assert stored_drawn(tmp_path) == drawn
    fewer = Drawn(drawn.memory[1:], drawn.rates, drawn.others, drawn.calibration)
    assert fewer.fingerprint != drawn.fingerprint


@pytest.mark.parametrize("content", [b"GIF89a", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"])
def test_a_damaged_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    """Neither another format nor half a file passes for a picture without a fingerprint."""
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=r"x\.png"):
        stored_fingerprint(path)
