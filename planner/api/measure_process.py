"""``measure`` as a process of its own: what it writes, and its sentence where it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from planner.errors import ExitCode, NotModelledError, PlannerError, UsageError, how_to_install

_MODULE = "measure"
_ERRORS: dict[int, type[PlannerError]] = {ExitCode.USAGE: UsageError, ExitCode.NOT_MODELLED: NotModelledError}


def run_measure(words: Sequence[str], *, given: str | None = None, timeout_s: float | None = None) -> str:
    """What ``measure`` with these words writes; ``given`` is its standard input.

    Raises:
        UsageError: the measure extra is missing, or what ``measure`` says of its input.
        NotModelledError: ``measure`` cannot do it; says what to do.
        PlannerError: it failed, or took longer than ``timeout_s``.
    """
    if find_spec(_MODULE) is None:
        raise UsageError(f"the package 'measure' is not installed; {how_to_install('measure')}")
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
        raise PlannerError(f"measure {words[0]} took longer than {timeout_s:.0f} s") from None
    if done.returncode != ExitCode.FITS:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1].removeprefix("measure: ") if lines else f"exit code {done.returncode}"
        raise _ERRORS.get(done.returncode, PlannerError)(reason)
    return done.stdout
