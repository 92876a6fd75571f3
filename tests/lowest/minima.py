"""Prints the lowest versions that pyproject.toml allows as constraints for pip,
so that no second list of them is kept.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_LOWER_BOUND = re.compile(r"([\w.-]+)>=([\w.]+)")


def minima(project: Path = _PROJECT) -> Iterator[str]:
    """``name==version`` of every requirement of the package and its extras.

    Raises:
        ValueError: a requirement has another form than ``name>=version``,
        so it is not known what the lowest version is.
    """
    tables = tomllib.loads(project.read_text(encoding="utf-8"))
    own_extra = f"{tables['project']['name']}["
    extras = tables["project"]["optional-dependencies"].values()
    for requirement in (*tables["project"]["dependencies"], *(each for extra in extras for each in extra)):
        if requirement.startswith(own_extra):
            continue
        bound = _LOWER_BOUND.fullmatch(requirement)
        if bound is None:
            raise ValueError(f"{project}: '{requirement}' is not of the form name>=version")
        yield f"{bound[1]}=={bound[2]}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(minima()) + "\n")
