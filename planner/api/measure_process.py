"""``measure`` as a process of its own: the document that it writes, or its sentence where it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from planner.errors import ExitCode, NotModelledError, PlannerError, UsageError, how_to_install

_MODULE = "measure"
_ANSWERS = (ExitCode.FITS, ExitCode.GPU_MEMORY_SHORT, ExitCode.UNCERTAIN)
_ERRORS: dict[int, type[PlannerError]] = {ExitCode.USAGE: UsageError, ExitCode.NOT_MODELLED: NotModelledError}
Document = TypeVar("Document")


def need_measure() -> None:
    """Raises: UsageError: the package is missing."""
    if find_spec(_MODULE) is None:
        raise UsageError(f"the package 'measure' is not installed; {how_to_install('measure')}")


def run_measure(
    kind: type[Document], words: Sequence[str], *, given: str | None = None, timeout_s: float | None = None
) -> Document:
    """The document of this kind that ``measure`` with these words writes; ``given`` is its standard input.

    Raises:
        UsageError: the measure extra is missing, or what ``measure`` says of its input.
        NotModelledError: ``measure`` cannot do it; says what to do.
        PlannerError: it failed, took longer than ``timeout_s``, or wrote something else.
    """
    need_measure()
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, *words],
            input=given,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PlannerError(f"measure {words[0]} took longer than {timeout_s:g} s") from None
    if done.returncode not in _ANSWERS:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1].removeprefix("measure: ") if lines else f"exit code {done.returncode}"
        raise _ERRORS.get(done.returncode, PlannerError)(reason)
    return _read(kind, done.stdout, words[0])


def _read(kind: type[Document], text: str, verb: str) -> Document:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise PlannerError(
            f"what measure {verb} wrote is not the document that plan reads: {place}: {first['msg']}"
        ) from None
