"""The picture of the README: predicted against measured on the four documents, each held out of its fit,
and other estimators.

``make pictures`` (``python -m tests.accuracy.scatter``, needs the extra ``plots``, a few seconds) draws the
points of ``data/accuracy.json`` as ``notebooks/predicted_vs_measured.png`` or the file that it is given.  The
picture says of which day its figures are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.accuracy.drawn import Drawn, stored_drawn
from tests.accuracy.plots import draw_scatter

PICTURE = Path("notebooks") / "predicted_vs_measured.png"
_SUBTITLE = "left and right: each group held out of its fit; dotted: 1.25 times and 1 / 1.25"


def write_scatter(drawn: Drawn, path: Path) -> None:
    """Draw memory, the memory of other estimators on the same rows, and rates side by side, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5.4), layout="constrained")
    memory, others, rates = figure.subplots(1, 3)
    draw_scatter(memory, drawn.memory, "GPU memory", "GiB")
    draw_scatter(others, drawn.others, "GPU memory, other estimators on the rows they speak of", "GiB")
    draw_scatter(rates, drawn.rates, "throughput", "tokens/s")
    figure.suptitle(f"{_SUBTITLE}; figures of {drawn.date}", fontsize=9)
    figure.savefig(path, dpi=80, metadata={"Software": None})


def main(arguments: Sequence[str]) -> None:
    """Draw the stored points."""
    write_scatter(stored_drawn(), Path(arguments[0]) if arguments else PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
