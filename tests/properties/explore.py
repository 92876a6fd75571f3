"""``make explore``: property tests with inputs drawn anew, round after round until the time is over,
and the counts at the end.

What fails is printed by its round with the code that repeats it; it becomes an example of its test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TESTS = ("tests/properties", "tests/planner/calibration/intervals/test_spreads.py", "tests/cli/test_cli.py")
_SIXTY = 60


def main() -> int:
    """Run rounds for so many minutes; the exit code is 1 where an input broke a property."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="how long rounds are begun and tests started"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest-xdist")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files or folders of tests")
    said = parser.parse_args()
    start = time.time()
    until = start + said.minutes * _SIXTY
    with tempfile.TemporaryDirectory() as folder:
        rounds, code = 0, 0
        # 0 and 1 are a round that ran, without and with failures; after any other none would.
        while time.time() < until and code in (0, 1):
            rounds += 1
            code = run_round(
                said.tests, said.workers, {"EXPLORE_FOLDER": folder, "EXPLORE_UNTIL": str(until)}
            )
        inputs, broken = counted(Path(folder))
    minutes = (time.time() - start) / _SIXTY
    sys.stdout.write(
        f"\nexplored {minutes:.1f} minutes, {rounds} rounds: inputs tried: {inputs:,}; failures: "
        f"{broken.total()}\n"
    )
    for name, times in broken.most_common():
        sys.stdout.write(f"  failed in {times} of {rounds} rounds: {name}\n")
    return 1 if broken or code else 0


def counted(folder: Path) -> tuple[int, Counter[str]]:
    """How many inputs the workers tried, and how often each test failed."""
    inputs = sum(int(path.read_text(encoding="ascii")) for path in folder.glob("inputs-*"))
    failures = folder / "failures"
    return inputs, Counter(failures.read_text(encoding="utf-8").splitlines() if failures.exists() else [])


def run_round(tests: Sequence[str], workers: int, environment: dict[str, str]) -> int:
    """Run all tests once with examples of its own, and return pytest's exit code."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *tests,
        "-m",
        "",
        "--hypothesis-profile=explore",
        "-q",
        "-p",
        "tests.properties.counting",
    ]
    many = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
    # The round is a run of its own, not a worker of one that calls it.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run([*command, *many], env={**outside, **environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
