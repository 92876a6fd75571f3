"""Kernels that are not installed are told from the log of Transformers."""

import logging

from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries import reference_kernels


def test_code_in_place_of_kernels_is_listed() -> None:
    """In words of versions 4 and 5; other lines are none of its business."""
    guesses = Guesses()
    reference_kernels.install(guesses)
    heard, disabled = logging.getLogger("transformers").handlers[-1], logging.root.manager.disable
    # A trace in this process may have switched off warnings.
    logging.disable(logging.NOTSET)
    try:
        log = logging.getLogger("transformers.models.mamba")
        log.setLevel(logging.WARNING)
        log.warning(
            "`scan` is falling back to its reference PyTorch implementation because `m` is not installed."
        )
        log.warning("The fast path is not available because one of `(scan, conv)` is None. Slower.")
        log.warning("Something else. And more.")
    finally:
        log.setLevel(logging.NOTSET)
        logging.disable(disabled)
        logging.getLogger("transformers").removeHandler(heard)
    assert [each.origin for each in guesses.listed()] == [
        "`scan` is falling back to its reference PyTorch implementation because `m` is not installed.",
        "The fast path is not available because one of `(scan, conv)` is None",
    ]
