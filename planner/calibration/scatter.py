"""The picture of the README: predicted against measured on the four documents, each held out of its fit.

``python -m planner.calibration.scatter`` (needs the extras ``calibrate`` and ``plots``, about half a minute) writes
``notebooks/predicted_vs_measured.png``, or the file that it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from planner.calibration.cross_validate import cross_validate
from planner.calibration.plots import draw_scatter
from planner.calibration.published import CORE_PATTERN, published_dir
from planner.calibration.rows import RowScore
from planner.calibration.tables import points_of, token_rate_points
from planner.records import read_records

PICTURE = Path("notebooks") / "predicted_vs_measured.png"


def write_scatter(rows: Sequence[RowScore], subtitle: str, path: Path) -> None:
    """Draw memory and time of ``rows`` side by side, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    memory, time = figure.subplots(1, 2)
    draw_scatter(memory, points_of(rows, "memory"), "GPU memory", "GiB")
    draw_scatter(time, token_rate_points(rows), "throughput", "tokens/s")
    figure.suptitle(subtitle, fontsize=9)
    figure.savefig(path, dpi=90, metadata={"Software": None})


def main(arguments: Sequence[str]) -> None:
    """Cross-validate all published rows and draw the held-out ones of the four documents."""
    result = cross_validate(read_records([published_dir() / "*.csv"]))
    core = {path.stem for path in published_dir().glob(CORE_PATTERN)}
    rows = [row for row in result.held_out.rows if row.record.source in core]
    calibration = result.fitted.calibration
    basis = f"{calibration.n_rows} rows of {len(calibration.groups)} groups, {calibration.date}"
    subtitle = f"each group held out of its fit ({basis}); dotted: 1.25 times and 1 / 1.25"
    write_scatter(rows, subtitle, Path(arguments[0]) if arguments else PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
