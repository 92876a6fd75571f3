"""The picture of the README: predicted against measured on the four documents, each held out of its fit, and other estimators.

``python -m planner.calibration.scatter`` (needs the extra ``plots``, a few seconds) draws the points that
``python -m planner.calibration.accuracy --write`` and ``python tests/validation/other_tools.py`` stored, as
``notebooks/predicted_vs_measured.png`` or the file that it is given.  The picture carries the fingerprint of its points.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.calibration.drawn import Drawn, stored_drawn
from planner.calibration.plots import draw_scatter
from planner.errors import InputFileError
from planner.files.reading import read_bytes
from planner.units import MIB

PICTURE = Path("notebooks") / "predicted_vs_measured.png"
FINGERPRINT_KEY = "Points"
_SUBTITLE = "left and right: each group held out of its fit; dotted: 1.25 times and 1 / 1.25"
_MAX_BYTES = 16 * MIB
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write_scatter(drawn: Drawn, path: Path) -> None:
    """Draw memory, the memory of other estimators on the same rows, and rates side by side, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5.4), layout="constrained")
    memory, others, rates = figure.subplots(1, 3)
    draw_scatter(memory, drawn.memory, "GPU memory", "GiB")
    draw_scatter(others, drawn.others, "GPU memory, other estimators on the rows they speak of", "GiB")
    draw_scatter(rates, drawn.rates, "throughput", "tokens/s")
    figure.suptitle(_SUBTITLE, fontsize=9)
    figure.savefig(path, dpi=80, metadata={"Software": None, FINGERPRINT_KEY: drawn.fingerprint})


def stored_fingerprint(path: Path) -> str:
    """The fingerprint that a picture carries; empty where it carries none.

    Raises:
        InputFileError: not a whole PNG.
    """
    content = read_bytes(path, _MAX_BYTES)
    if not content.startswith(_SIGNATURE):
        raise InputFileError(path, "not a PNG")
    for name, data in _chunks(path, content):
        key, _, text = data.partition(b"\0")
        if name == b"tEXt" and key.decode("latin-1") == FINGERPRINT_KEY:
            return text.decode("latin-1")
    return ""


def _chunks(path: Path, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, data) of each chunk.  Source: PNG specification, section 5.3: length, type, data, CRC of type and data."""
    start = len(_SIGNATURE)
    while start < len(content):
        length = int.from_bytes(content[start : start + 4], "big")
        name, data = content[start + 4 : start + 8], content[start + 8 : start + 8 + length]
        check = content[start + 8 + length : start + 12 + length]
        if int.from_bytes(check, "big") != zlib.crc32(name + data):
            raise InputFileError(path, "a chunk is damaged or cut short")
        yield name, data
        start += 12 + length


def main(arguments: Sequence[str]) -> None:
    """Draw the stored points, unless the picture shows them already."""
    path, drawn = Path(arguments[0]) if arguments else PICTURE, stored_drawn()
    if not path.is_file() or stored_fingerprint(path) != drawn.fingerprint:
        write_scatter(drawn, path)


if __name__ == "__main__":
    main(sys.argv[1:])
