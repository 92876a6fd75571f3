"""Where the data files are.  The only module that knows."""

from __future__ import annotations

from pathlib import Path

from planner.errors import InputFileError

_PACKAGE_DIR = Path(__file__).resolve().parents[1]


def data_dir() -> Path:
    """Folder that holds ``gpus/``, ``models/``, ``stacks/`` and the rest.

    In an installed wheel it is ``planner/data``; in a checkout it is ``data`` beside the package.  The wheel
    is looked at first: beside an installed package a folder named ``data`` may belong to any other
    distribution.

    Raises:
        InputFileError: neither exists, so the installation is incomplete.
    """
    for candidate in (_PACKAGE_DIR / "data", _PACKAGE_DIR.parent / "data"):
        if candidate.is_dir():
            return candidate
    raise InputFileError(_PACKAGE_DIR / "data", "the data files are missing; reinstall the package")
