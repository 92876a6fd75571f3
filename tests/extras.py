"""What a test needs beyond the core packages: where that is missing it is skipped,
for a reason that names the extra.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_PROJECT = tomllib.loads(
    (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
# Modules whose package has another name.
_PACKAGES = {"importlinter": "import-linter", "grimp": "import-linter", "pynvml": "nvidia-ml-py"}


def needs(*modules: str) -> pytest.MarkDecorator:
    """A mark that skips where one of ``modules`` is not installed; imports none of them."""
    missing = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=_reason(missing[0]) if missing else "")


def import_or_skip(module: str, minversion: str | None = None) -> ModuleType:
    """The imported ``module``; skips the test, or at the top of a file all its tests,
    where it is not installed.
    """
    # The report names the line that asked.
    __tracebackhide__ = True
    too_old = f"{module} is not installed in version {minversion} or newer" if minversion else ""
    found: ModuleType = pytest.importorskip(module, minversion=minversion, reason=too_old or _reason(module))
    return found


def printed_by(script: Path) -> Any:
    """What ``script`` prints as JSON in its last line, run by itself: it makes a group of processes."""
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _reason(module: str) -> str:
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name)
    for extra, requirements in _PROJECT["optional-dependencies"].items():
        if any(re.match(rf"{re.escape(package)}\b(?!-)", each) for each in requirements):
            return f"{package} is not installed: it is in the extra '{extra}'"
    return f"{package} is not installed: it is in no extra"
