"""A command in the test's own process: importing torch anew for each would take seconds."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence


def called(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()
