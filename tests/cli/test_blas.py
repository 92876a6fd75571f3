"""Threads of numpy's linear algebra, for the commands that fit."""

from __future__ import annotations

import os

import pytest

from planner.cli.blas import one_thread_for_small_matrices


@pytest.mark.parametrize(("said", "used"), [(None, "1"), ("4", "4")])
def test_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, said: str | None, used: str
) -> None:
    """The variable is set where it is not; a value that somebody gave stays."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", said or "")
    if said is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    one_thread_for_small_matrices()
    assert os.environ["OPENBLAS_NUM_THREADS"] == used
