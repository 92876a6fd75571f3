"""Ctrl-C ends both programs, wherever it arrives."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_PAUSE_S = 0.01


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """Repeats an interrupt that arrived in a destructor: Python prints what one raises, and goes on
    (CPython, Doc/reference/datamodel.rst, ``object.__del__``).
    """
    before = sys.unraisablehook

    def repeat(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            _interrupt_soon()
        else:
            before(dropped)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt_soon() -> None:
    # From another thread and later: what is raised here and now would be dropped as well.
    import _thread
    import threading

    timer = threading.Timer(_PAUSE_S, _thread.interrupt_main)
    timer.daemon = True
    timer.start()
