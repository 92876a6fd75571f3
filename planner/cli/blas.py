"""How many threads numpy's linear algebra starts, for the commands that fit."""

from __future__ import annotations

import os


def one_thread_for_small_matrices() -> None:
    """Keep OpenBLAS to one thread unless the user says otherwise; works only before numpy is imported.

    A fit multiplies thousands of matrices of about 400 x 100, and more threads wait for each other.  All
    published rows take 41 s of processor time with two threads, 22 s with one.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
