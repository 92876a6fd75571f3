"""Two that fit one name at once: whoever reads sees a whole file of one of them, and neither fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from planner.catalog.location import data_dir
from planner.records.calibration_file import read_document

ROOT = Path(__file__).resolve().parents[3]
WRITE = """
import sys
from pathlib import Path
from planner.records.calibration_file import read_document, write_document
document = read_document(Path(sys.argv[1])).model_copy(update={"name": "mine", "machine": sys.argv[2]})
for _ in range(50):
    write_document(document, Path(sys.argv[3]))
"""


def test_two_writers_of_one_name(tmp_path: Path) -> None:
    """Fifty times each, read all the while; no piece of a file is left beside it."""
    path = tmp_path / "mine.json"
    calls = [
        [sys.executable, "-c", WRITE, str(data_dir() / "calibration" / "default.json"), name, str(tmp_path)]
        for name in "ab"
    ]
    writers = [subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE, text=True) for call in calls]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(read_document(path).machine)
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"a", "b"}
    assert [each.name for each in tmp_path.iterdir()] == ["mine.json"]
