"""Kernels of packages that are not installed here: Transformers runs code of torch in their place, which
allocates otherwise, and only its log says so (4.57 models/mamba/modeling_mamba.py, 5.23
integrations/hub_kernels.py).
"""

from __future__ import annotations

import logging

from measure.dry_run.guesses import Guesses

_MARKS = ("is falling back to its reference", "fast path is not available")


def install(guesses: Guesses) -> None:
    """Listen to the log of Transformers."""
    logging.getLogger("transformers").addHandler(_Listener(guesses))


class _Listener(logging.Handler):
    def __init__(self, guesses: Guesses) -> None:
        super().__init__(logging.WARNING)
        self._guesses = guesses

    def emit(self, record: logging.LogRecord) -> None:
        """Its first sentence names what is missing."""
        says = record.getMessage()
        if any(mark in says for mark in _MARKS):
            self._guesses.assume(
                "kernels that are not installed here",
                "code of torch, which allocates otherwise",
                says.partition(". ")[0],
            )
