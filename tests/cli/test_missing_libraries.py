"""A library that the package needs and that is not here: one sentence that names it and the way out,
from both commands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLS = {
    "planner.cli.main": ["--model", "7b", "--method", "lora", "--gpu", "4090", "--seq", "512"],
    "measure.cli.main": ["run", "--model", "7b", "--method", "lora", "--seq", "512", "--gpu", "cpu"],
}


@pytest.mark.parametrize("library", ["pydantic", "typer"])
@pytest.mark.parametrize("module", CALLS)
def test_a_library_that_is_missing_is_named(module: str, library: str) -> None:
    """As on a machine where the package's files were only copied: exit code 2, no traceback,
    nothing on standard output.
    """
    code = (
        f"import sys; sys.modules[{library!r}] = None; from {module} import main; "
        f"sys.exit(main({CALLS[module]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert (
        f"{library} is not installed; install the package with all that it needs: pip install " in done.stderr
    )
    assert done.stderr.endswith("in the project's folder\n")
    assert len(done.stderr.splitlines()) == 1
